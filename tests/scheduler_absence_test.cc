// A node that comes back while its scheduler is away, with a real berthd, a real plugin and real mounts: what
// was under way for the scheduler waits for its word, since another node may have the volume by now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/harness/reboot.h"
#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

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
    ExpectWorks("somebody-elses");
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
    EXPECT_THAT(shown->publications(0).held(), HasSubstr(why));
    EXPECT_TRUE(shown->publications(0).state() != v1::PUBLISHED || shown->publications(0).uncertain());
    EXPECT_EQ(MountsAt(shown->publications(0).target_path()), 0);
    EXPECT_THAT(Events("node.awaiting_scheduler"), SizeIs(1));
  }
  // The scheduler is back, and asks for nothing: that it is heard is not enough, its lease is. The target.
  std::string ExpectPublishedOnceItIsBack(const std::string& volume) {
    scheduler_->GrantLeases(false);
    const uint64_t heard = scheduler_->Find(kNode)->heartbeats;
    ComeBack();
    scheduler_->WaitNode(kNode, "the volume to be told as held", [&](const TestScheduler::Node& node) {
      const auto told = node.volumes.find({"fault", volume});
      return node.synced && node.heartbeats > heard + 2 && told != node.volumes.end() &&
             !told->second.publications(0).held().empty();
    });
    EXPECT_EQ(MountsAt(VolumeOf(volume)->publications(0).target_path()), 0);
    scheduler_->GrantLeases(true);
    const v1::Volume volume_now = WaitVolume(volume, "published", [](const v1::Volume& shown) {
      const v1::Publication& use = shown.publications(0);
      return use.state() == v1::PUBLISHED && use.held().empty();
    });
    WaitVolumeTold(volume, v1::PUBLISHED);
    const v1::Publication& publication = volume_now.publications(0);
    EXPECT_EQ(MountsAt(publication.target_path()), 1);
    EXPECT_THAT(Events("node.awaiting_scheduler"), SizeIs(1));
    return publication.target_path();
  }

  std::optional<Reboot> reboot_;
};

TEST_F(SchedulerAbsenceTest, Fault30APublishThatBerthdWasKilledInWaitsForTheScheduler) {
  StartWithShortLease();
  const std::string volume = CreateVolume("interrupted");
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\""});
  v1::Operation publish = Publishing(volume, "web");
  // With a secret it would wait for that as well.
  publish.mutable_publish()->mutable_request()->clear_secrets();
  AskOnce(500, publish);
  fault_.WaitActed("NodePublishVolume");
  GoAway();
  node_.Kill();
  fault_.Play();
  const int64_t calls = Calls("NodePublishVolume", volume);
  node_.Start();
  AwaitNothing();
  ExpectHeld(volume, "berthd was restarted");
  EXPECT_EQ(Calls("NodePublishVolume", volume), calls);
  ExpectPublishedOnceItIsBack(volume);
  EXPECT_EQ(Calls("NodePublishVolume", volume), calls + 1);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerAbsenceTest, Fault30AfterARebootAVolumeIsMountedAgainOnceTheSchedulerIsHeard) {
  StartWithShortLease();
  const std::string volume = CreateVolume("remounted");
  v1::Operation publish = Publishing(volume, "web");
  publish.mutable_publish()->mutable_request()->clear_secrets();
  publish.mutable_publish()->mutable_request()->set_remount(true);
  const v1::OperationResult published = scheduler_->Run(kNode, publish);
  ASSERT_EQ(published.outcome(), v1::OUTCOME_DONE) << published.message();
  GoAway();
  reboot_.emplace(node_);
  node_.Start();
  AwaitNothing();
  ExpectHeld(volume, "the node was restarted");
  EXPECT_EQ(Calls("NodeStageVolume", volume), 1) << "another node may have it by now";
  EXPECT_EQ(ExpectPublishedOnceItIsBack(volume), published.publish().target_path());
  EXPECT_EQ(Calls("NodeStageVolume", volume), 2);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 2);
  UnpublishFromAfar(volume);
  RepublishBystander();
}

}  // namespace
}  // namespace berth
