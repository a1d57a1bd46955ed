// A node that comes back after its scheduler was away, with a real berthd, a real plugin and real mounts.
// Once the lease has ended, or after a reboot, another node may have the scheduler's volumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/harness/reboot.h"
#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class SchedulerAbsenceTest : public SchedulerTest {
 protected:
  // A lease that has run out soon after the scheduler has gone.
  void StartWithShortLease() {
    StartScheduler({.lease = std::chrono::milliseconds(1500)});
    StartLinked();
  }
  // Asked for once: the node is not reminded of it when the scheduler is back.
  void AskOnce(uint64_t id, v1::Operation operation) {
    v1::SchedulerMessage message;
    operation.set_id(id);
    operation.set_lease_epoch(1);
    *message.mutable_operation() = std::move(operation);
    scheduler_->Send(kNode, message);
  }
  // What waits would have been begun by now: the plugin serves others, and the lease has run out.
  void AwaitNothing() {
    node_.WaitReady("fault");
    ExpectWorks("another-volume");
    WaitFor("the lease to run out", [this] {
      v1::GetStatusResponse status;
      EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
      return status.scheduler().lease() != v1::LEASE_VALID;
    });
  }
  // It waits, says so, and is not mounted.
  void ExpectHeld(const std::string& volume, const std::string& why) {
    const std::optional<v1::Volume> shown = VolumeOf(volume);
    ASSERT_TRUE(shown.has_value());
    ASSERT_EQ(shown->publications_size(), 1);
    EXPECT_THAT(shown->publications(0).blocked(), HasSubstr(why));
    EXPECT_TRUE(shown->publications(0).state() != v1::PUBLISHED || shown->publications(0).uncertain());
    EXPECT_EQ(MountsAt(shown->publications(0).target_path()), 0);
  }
  // The scheduler is back, and grants leases again. That alone moves nothing.
  void ExpectBlockedWhenItIsBack(const std::string& volume) {
    const int64_t calls = Calls("NodePublishVolume", volume);
    ComeBack();
    scheduler_->WaitNode(
        kNode, "a lease, and the volume to be reported as blocked", [&](const TestScheduler::Node& node) {
          const auto told = node.volumes.find({"fault", volume});
          return node.synced && node.state.lease() == v1::LEASE_VALID && told != node.volumes.end() &&
                 !told->second.publications(0).blocked().empty();
        });
    node_.WaitReady("fault");
    ExpectWorks("another-volume-" + std::to_string(++others_));
    EXPECT_EQ(MountsAt(VolumeOf(volume)->publications(0).target_path()), 0);
    EXPECT_EQ(Calls("NodePublishVolume", volume), calls);
  }
  v1::OperationResult Confirm(const std::vector<std::string>& volumes) {
    std::vector<std::array<std::string, 4>> publications;
    for (const std::string& volume : volumes) publications.push_back({"fault", volume, "jobs", "web"});
    return scheduler_->Run(kNode, TestScheduler::Confirming(publications));
  }
  // It is confirmed, and published then. The target.
  std::string ExpectPublishedOnceItIsConfirmed(const std::string& volume) {
    const v1::OperationResult confirmed = Confirm({volume});
    EXPECT_EQ(confirmed.outcome(), v1::OUTCOME_DONE) << confirmed.message();
    EXPECT_EQ(confirmed.confirm().not_confirmed_size(), 0);
    const v1::Volume volume_now = WaitVolume(volume, "published", [](const v1::Volume& shown) {
      const v1::Publication& use = shown.publications(0);
      return use.state() == v1::PUBLISHED && use.blocked().empty();
    });
    WaitVolumeTold(volume, v1::PUBLISHED);
    const v1::Publication& publication = volume_now.publications(0);
    EXPECT_EQ(MountsAt(publication.target_path()), 1);
    return publication.target_path();
  }
  // Without secrets, for which it would wait, too.
  [[nodiscard]] static v1::Operation PublishingOpenly(const std::string& volume) {
    v1::Operation publish = Publishing(volume, "web");
    publish.mutable_publish()->mutable_request()->clear_secrets();
    publish.mutable_publish()->mutable_request()->set_remount(true);
    return publish;
  }
  // A publish that berthd is killed in; the plugin does well from then on.
  void KillInPublish(const std::string& volume) {
    fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\""});
    AskOnce(500, PublishingOpenly(volume));
    fault_.WaitActed("NodePublishVolume");
    GoAway();
    node_.Kill();
    fault_.Play();
  }
  [[nodiscard]] v1::GetStatusResponse Status() {
    v1::GetStatusResponse status;
    EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status;
  }
  [[nodiscard]] std::string EpochFile() const { return node_.dir() + "/state/scheduler/lease_epoch"; }

  int others_ = 0;
  std::optional<Reboot> reboot_;
};

TEST_F(SchedulerAbsenceTest, Fault38WhileTheLeaseHoldsAKilledBerthdGoesOnWithoutTheScheduler) {
  StartScheduler({.lease = std::chrono::minutes(10)});
  StartLinked();
  const std::string volume = CreateVolume("kept");
  KillInPublish(volume);
  node_.Start();
  const v1::Volume shown = WaitVolume(volume, "published", [](const v1::Volume& now) {
    return now.state() == v1::PUBLISHED && !now.uncertain();
  });
  EXPECT_EQ(MountsAt(shown.publications(0).target_path()), 1);
  EXPECT_EQ(Status().scheduler().lease(), v1::LEASE_VALID);
  ComeBack();
  WaitVolumeTold(volume, v1::PUBLISHED);
  EXPECT_EQ(VolumeOf(volume)->publications(0).blocked(), "");
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerAbsenceTest, Fault38APublishThatBerthdWasKilledInIsBlockedOnceTheLeaseHasEnded) {
  StartWithShortLease();
  const std::string volume = CreateVolume("interrupted");
  KillInPublish(volume);
  const auto ended = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  WaitFor("the lease to end", [&] { return std::chrono::steady_clock::now() >= ended; });
  const int64_t calls = Calls("NodePublishVolume", volume);
  node_.Start();
  AwaitNothing();
  ExpectHeld(volume, "no valid lease");
  EXPECT_EQ(Calls("NodePublishVolume", volume), calls);
  ExpectBlockedWhenItIsBack(volume);
  ExpectPublishedOnceItIsConfirmed(volume);
  EXPECT_EQ(Calls("NodePublishVolume", volume), calls + 1);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerAbsenceTest, Fault38AfterARebootOnlyWhatTheSchedulerStillWantsIsMountedAgain) {
  StartScheduler({.lease = std::chrono::milliseconds(1500), .announces_epoch = true});
  StartLinked();
  const std::vector<std::string> volumes = {CreateVolume("confirmed"), CreateVolume("elsewhere"),
                                            CreateVolume("again"), CreateVolume("released")};
  std::string target;
  for (const std::string& volume : volumes) {
    const v1::OperationResult published = scheduler_->Run(kNode, PublishingOpenly(volume));
    ASSERT_EQ(published.outcome(), v1::OUTCOME_DONE) << published.message();
    if (volume == volumes[0]) target = published.publish().target_path();
  }
  GoAway();
  reboot_.emplace(node_);
  node_.Start();
  AwaitNothing();
  for (const std::string& volume : volumes) {
    ExpectHeld(volume, "the node was restarted");
    EXPECT_EQ(Calls("NodeStageVolume", volume), 1) << "another node may have it by now";
  }
  // Reverse steps are accepted from the first message on.
  scheduler_->GrantLeases(false);
  ComeBack();
  UnpublishFromAfar(volumes[3]);
  WaitReleased(volumes[3]);
  EXPECT_EQ(Confirm({volumes[0]}).refusal(), v1::LEASE_NOT_VALID);
  scheduler_->GrantLeases(true);
  ExpectBlockedWhenItIsBack(volumes[0]);

  // Lists that are wrong change nothing.
  EXPECT_EQ(Confirm({}).outcome(), v1::OUTCOME_REFUSED);
  EXPECT_EQ(Confirm(std::vector<std::string>(4097, volumes[0])).code(), 3) << "INVALID_ARGUMENT";
  v1::Operation old = TestScheduler::Confirming({{"fault", volumes[0], "jobs", "web"}});
  old.set_lease_epoch(7);
  EXPECT_EQ(scheduler_->Run(kNode, old).refusal(), v1::LEASE_EPOCH);
  v1::OperationResult unknown = Confirm({"nobodys", volumes[3]});
  EXPECT_EQ(unknown.outcome(), v1::OUTCOME_DONE) << unknown.message();
  EXPECT_EQ(unknown.confirm().not_confirmed_size(), 2);
  ExpectHeld(volumes[0], "the node was restarted");

  EXPECT_EQ(ExpectPublishedOnceItIsConfirmed(volumes[0]), target);
  EXPECT_EQ(Calls("NodeStageVolume", volumes[0]), 2);
  const v1::OperationResult again = scheduler_->Run(kNode, PublishingOpenly(volumes[2]));
  EXPECT_EQ(again.outcome(), v1::OUTCOME_DONE) << again.message();
  EXPECT_EQ(VolumeOf(volumes[2])->publications(0).blocked(), "");
  // What was left out stays blocked, also over a restart of berthd under this lease.
  node_.Kill();
  node_.Start();
  ExpectBlockedWhenItIsBack(volumes[1]);
  ExpectHeld(volumes[1], "the node was restarted");
  EXPECT_EQ(Calls("NodeStageVolume", volumes[1]), 1);
  for (const std::string& volume : {volumes[0], volumes[1], volumes[2]}) UnpublishFromAfar(volume);
  RepublishBystander();
}

// What the file says in place of the epoch.
TEST_F(SchedulerAbsenceTest, Fault42AnEpochThatCannotBeReadObeysNobodyAndSaysWhatToDo) {
  StartScheduler({.epoch = 7, .announces_epoch = true});
  StartLinked();
  const std::string volume = CreateVolume("fenced");
  const std::string other = CreateVolume("other");
  const std::string target = PublishFromAfar(volume);
  const auto restart_with = [&](const std::function<void()>& change) {
    node_.Stop();
    change();
    node_.Start();
    node_.WaitReady("fault");
    scheduler_->WaitNode(kNode, "the node to be back", [](const TestScheduler::Node& node) {
      return node.connected && node.synced && node.hello.lease_epoch() == 0;
    });
  };
  const auto expect_nobody = [&](const std::string& what) {
    SCOPED_TRACE(what);
    const v1::OperationResult refused = scheduler_->Run(kNode, Publishing(other, "web"));
    EXPECT_EQ(refused.refusal(), v1::LEASE_NOT_VALID);
    EXPECT_THAT(refused.message(), HasSubstr(what));
    const v1::GetStatusResponse status = Status();
    EXPECT_NE(status.scheduler().lease(), v1::LEASE_VALID);
    EXPECT_THAT(status.problems(), testing::Contains(testing::AllOf(HasSubstr(EpochFile()), HasSubstr(what),
                                                                    HasSubstr("restart berthd"))));
    v1::ExamineResponse examined;
    EXPECT_TRUE(node_.stub().Examine(Node::Context().get(), {}, &examined).ok());
    EXPECT_THAT(examined.DebugString(), HasSubstr("it is not known which scheduler this node obeys"));
    EXPECT_EQ(MountsAt(target), 1) << "what is mounted stays";
    ExpectWorks("local-" + std::to_string(++others_));
    EXPECT_EQ(Calls("NodePublishVolume", other), 0);
  };
  restart_with([&] { std::ofstream(EpochFile()) << "damaged"; });
  expect_nobody("is damaged");
  restart_with([&] { std::ofstream(EpochFile()) << ""; });
  expect_nobody("is empty");
  restart_with([&] { std::ofstream(EpochFile()) << std::string(1'000'000, '7'); });
  expect_nobody("longer than 256 bytes");
  restart_with([&] {
    ASSERT_EQ(unlink(EpochFile().c_str()), 0);
    ASSERT_EQ(mkdir(EpochFile().c_str(), 0700), 0);
  });
  expect_nobody("Is a directory");
  restart_with([&] { ASSERT_EQ(rmdir(EpochFile().c_str()), 0); });
  expect_nobody("is missing, and this node has obeyed a scheduler");
  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0) << "reverse steps are accepted";
  // The operator writes the epoch.
  node_.Stop();
  std::ofstream(EpochFile()) << "7\n";
  node_.Start();
  node_.WaitReady("fault");
  scheduler_->WaitNode(kNode, "a lease", [](const TestScheduler::Node& node) {
    return node.connected && node.hello.lease_epoch() == 7 && node.state.lease() == v1::LEASE_VALID;
  });
  PublishFromAfar(other);
  UnpublishFromAfar(other);
}

}  // namespace
}  // namespace berth
