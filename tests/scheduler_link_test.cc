// A node and a scheduler, with a real berthd, real plugins and real mounts: what is driven from afar, and
// what becomes of it when the link, the scheduler or berthd fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/scheduler_fixture.h"

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SchedulerLinkTest : public SchedulerTest {};

TEST_F(SchedulerLinkTest, AVolumeIsMadePublishedReleasedAndDeletedFromAfar) {
  StartLinked();
  v1::Operation create;
  create.mutable_controller()->set_plugin_id("fault");
  auto& request = *create.mutable_controller()->mutable_create();
  request.set_name("from-afar");
  auto& capability = *request.add_volume_capabilities();
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  const v1::OperationResult created = scheduler_->Run(kNode, create);
  ASSERT_EQ(created.outcome(), v1::OUTCOME_DONE) << created.message();
  const std::string volume = created.controller().create().volume().volume_id();

  const std::string target = PublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 1);
  const TestScheduler::Node told = WaitVolumeTold(volume, v1::PUBLISHED);
  const v1::Publication& publication = told.volumes.at({"fault", volume}).publications(0);
  EXPECT_EQ(publication.consumer(), "jobs/web");
  EXPECT_EQ(publication.origin(), v1::SCHEDULER);
  EXPECT_EQ(told.plugins.at("fault").fingerprint().node_id(), kNode);

  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0);
  WaitVolumeGone(volume);
  v1::Operation deletion;
  deletion.mutable_controller()->set_plugin_id("fault");
  deletion.mutable_controller()->mutable_delete_()->set_volume_id(volume);
  const v1::OperationResult deleted = scheduler_->Run(kNode, deletion);
  EXPECT_EQ(deleted.outcome(), v1::OUTCOME_DONE) << deleted.message();
}

TEST_F(SchedulerLinkTest, Fault30ALinkThatIsCutAgainAndAgainLosesNothingAndDoesNothingTwice) {
  StartLinked();
  const std::string volume = CreateVolume("cut");
  const std::string other = CreateVolume("other");
  const std::string target = PublishFromAfar(volume);
  const size_t full = scheduler_->Find(kNode)->full;
  for (int i = 0; i < 3; ++i) {
    scheduler_->Cut();
    PublishFromAfar(other);
    UnpublishFromAfar(other);
  }
  scheduler_->WaitSynced(kNode);
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_EQ(Calls("NodePublishVolume", other), 3);
  EXPECT_EQ(Calls("NodeUnpublishVolume", other), 3);
  // It went on where the scheduler stood, each time.
  EXPECT_EQ(scheduler_->Find(kNode)->full, full);
  EXPECT_GE(scheduler_->Find(kNode)->streams, 4U);
}

TEST_F(SchedulerLinkTest, Fault30AHalfOpenLinkIsFoundByItsHeartbeats) {
  StartLinked();
  const size_t streams = scheduler_->Find(kNode)->streams;
  scheduler_->AnswerHeartbeats(false);
  scheduler_->WaitNode(kNode, "another stream",
                       [&](const TestScheduler::Node& node) { return node.streams > streams; });
  scheduler_->AnswerHeartbeats(true);
  scheduler_->WaitSynced(kNode);
}

TEST_F(SchedulerLinkTest, Fault30WithoutALeaseNothingIsBegunAndWhatIsHereMayLeave) {
  StartScheduler({.lease = std::chrono::milliseconds(1500)});
  StartLinked();
  const std::string volume = CreateVolume("leased");
  const std::string other = CreateVolume("other");
  const std::string target = PublishFromAfar(volume);
  scheduler_->GrantLeases(false);
  WaitLease(v1::LEASE_EXPIRED);
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(scheduler_->Run(kNode, Publishing(other, "web")).refusal(), v1::LEASE_NOT_VALID);
  UnpublishFromAfar(volume);
  EXPECT_EQ(MountsAt(target), 0);
  scheduler_->GrantLeases(true);
  WaitLease(v1::LEASE_VALID);
  PublishFromAfar(other);
  UnpublishFromAfar(other);
}

TEST_F(SchedulerLinkTest, Fault30ANodeThatLosesItsLeaseLetsGoWhereItsOperatorSaysSo) {
  StartScheduler({.lease = std::chrono::milliseconds(1500)});
  StartLinked("on_lease_expiry = \"release\"\n");
  const std::string volume = CreateVolume("given-up");
  const pid_t consumer = fork();
  if (consumer == 0) {
    while (true) pause();
  }
  v1::Operation publish = Publishing(volume, "web");
  publish.mutable_publish()->mutable_request()->mutable_life()->set_pid(consumer);
  const v1::OperationResult published = scheduler_->Run(kNode, publish);
  ASSERT_EQ(published.outcome(), v1::OUTCOME_DONE) << published.message();
  // It happens while the scheduler is away, too.
  scheduler_->Refuse(grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  scheduler_->Cut();
  int status = 0;
  EXPECT_EQ(waitpid(consumer, &status, 0), consumer);
  EXPECT_TRUE(WIFSIGNALED(status));
  WaitReleased(volume);
  EXPECT_EQ(MountsAt(published.publish().target_path()), 0);
  scheduler_->Refuse(std::nullopt);
  const TestScheduler::Node node =
      scheduler_->WaitNode(kNode, "the node's report", [](const TestScheduler::Node& known) {
        return !known.forced_release.empty() &&
               known.forced_release.begin()->second.progress() == v1::ForcedRelease::RELEASED;
      });
  const v1::ForcedRelease& forced_release = node.forced_release.begin()->second;
  EXPECT_EQ(forced_release.volume_id(), volume);
  EXPECT_EQ(forced_release.lease_epoch(), 1U);
  EXPECT_FALSE(forced_release.still_in_use());
  EXPECT_EQ(node.state.on_lease_expiry(), v1::RELEASE);
}

TEST_F(SchedulerLinkTest, Fault31AnOperationThatComesThreeTimesIsDoneOnce) {
  StartLinked();
  const std::string volume = CreateVolume("thrice");
  v1::SchedulerMessage message;
  *message.mutable_operation() = Publishing(volume, "web");
  message.mutable_operation()->set_id(500);
  message.mutable_operation()->set_lease_epoch(1);
  scheduler_->AcknowledgeResults(false);
  for (int i = 0; i < 3; ++i) scheduler_->Send(kNode, message);
  scheduler_->WaitResult(kNode, 500);
  scheduler_->Send(kNode, message);
  scheduler_->WaitNode(kNode, "the same answer again",
                       [](const TestScheduler::Node& node) { return node.results_seen.at(500) >= 2; });
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  v1::SchedulerMessage acknowledge;
  acknowledge.mutable_acknowledge()->add_operation_ids(500);
  scheduler_->Send(kNode, acknowledge);
  UnpublishFromAfar(volume);
  // A message that was on its way for too long does nothing.
  message.mutable_operation()->set_id(500);
  const size_t seen = scheduler_->Find(kNode)->results_seen[500];
  scheduler_->Send(kNode, message);
  scheduler_->WaitNode(kNode, "a refusal",
                       [&](const TestScheduler::Node& node) { return node.results_seen.at(500) > seen; });
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_FALSE(VolumeOf(volume).has_value());
}

TEST_F(SchedulerLinkTest, Fault31AnOldEpochIsRefusedForEverAlsoAfterARestart) {
  StartScheduler({.epoch = 7});
  StartLinked();
  const std::string volume = CreateVolume("epoch");
  v1::Operation old = Publishing(volume, "web");
  old.set_lease_epoch(6);
  EXPECT_EQ(scheduler_->Run(kNode, old).refusal(), v1::LEASE_EPOCH);
  node_.Kill();
  scheduler_->SetEpoch(6);
  node_.Start();
  scheduler_->WaitNode(kNode, "a new run to be heard",
                       [](const TestScheduler::Node& node) { return node.hello.lease_epoch() == 7; });
  v1::GetStatusResponse status;
  WaitFor("the node to leave it", [this, &status] {
    EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status.scheduler().last_error().find("epoch 6, and 7 is obeyed") != std::string::npos;
  });
  EXPECT_EQ(Calls("NodePublishVolume", volume), 0);
  scheduler_->SetEpoch(8);
  scheduler_->WaitNode(kNode, "a lease of the next one", [](const TestScheduler::Node& node) {
    return node.connected && node.state.lease() == v1::LEASE_VALID;
  });
}

TEST_F(SchedulerLinkTest, Fault31ASecondNodeOfTheSameNameIsRefusedAndSaysWhy) {
  StartLinked();
  second_ = std::make_unique<Node>(kNode);
  second_->WriteBerthdToml("[scheduler]\naddresses = [\"" + scheduler_->address() + "\"]\n");
  second_->Start();
  WaitFor("the second node to say why it is refused", [&] {
    v1::GetStatusResponse status;
    EXPECT_TRUE(second_->stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status.scheduler().last_error().find("another node with this name") != std::string::npos;
  });
  EXPECT_TRUE(scheduler_->Find(kNode)->connected);
  second_->Stop();
}

TEST_F(SchedulerLinkTest, Fault16ABerthdThatIsKilledInTheMiddleOfAnOperationDoesItOnce) {
  StartLinked();
  const std::string volume = CreateVolume("killed");
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"hang\"\nwhen = \"after\""});
  const uint64_t id = scheduler_->Ask(kNode, Publishing(volume, "web"));
  fault_.WaitActed("NodePublishVolume");
  node_.Kill();
  fault_.Play();
  node_.Start();
  const v1::OperationResult result = scheduler_->WaitResult(kNode, id);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  EXPECT_EQ(MountsAt(result.publish().target_path()), 1);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerLinkTest, ABerthdThatIsStoppedInTheMiddleOfAnOperationEndsInOrderAndTheNextDoesIt) {
  StartLinked();
  const std::string volume = CreateVolume("stopped");
  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\""});
  const uint64_t id = scheduler_->Ask(kNode, Publishing(volume, "web"));
  fault_.WaitActed("NodePublishVolume");
  node_.Stop();
  EXPECT_FALSE(scheduler_->Find(kNode)->results.contains(id)) << "nothing is known of it";
  const auto goodbye = scheduler_->Find(kNode)->goodbye;
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_EQ(goodbye->reason(), v1::Goodbye::STOPPING);
  EXPECT_EQ(goodbye->publications_mounted(), 1) << "the bystander's";
  fault_.Play();
  node_.Start();
  const v1::OperationResult result = scheduler_->WaitResult(kNode, id);
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  EXPECT_EQ(MountsAt(result.publish().target_path()), 1);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerLinkTest, AResultThatNobodyTookIsToldByTheNextBerthd) {
  StartLinked();
  const std::string volume = CreateVolume("kept");
  scheduler_->AcknowledgeResults(false);
  const uint64_t id = scheduler_->Ask(kNode, Publishing(volume, "web"));
  scheduler_->WaitResult(kNode, id);
  node_.Kill();
  node_.Start();
  scheduler_->WaitNode(kNode, "the result again",
                       [id](const TestScheduler::Node& node) { return node.results_seen.at(id) >= 2; });
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  scheduler_->AcknowledgeResults(true);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerLinkTest, AConsumerThatEndsIsToldUntilItIsAcknowledged) {
  StartLinked();
  const std::string volume = CreateVolume("ended");
  const pid_t consumer = fork();
  if (consumer == 0) {
    while (true) pause();
  }
  v1::Operation publish = Publishing(volume, "web");
  publish.mutable_publish()->mutable_request()->mutable_life()->set_pid(consumer);
  ASSERT_EQ(scheduler_->Run(kNode, publish).outcome(), v1::OUTCOME_DONE);
  kill(consumer, SIGKILL);
  waitpid(consumer, nullptr, 0);
  WaitReleased(volume);
  const auto told = scheduler_->WaitNode(kNode, "the consumer's end", [](const TestScheduler::Node& node) {
    return !node.ended_consumers.empty();
  });
  const v1::EndedConsumer& ended = told.ended_consumers.begin()->second;
  EXPECT_EQ(ended.namespace_(), "jobs");
  EXPECT_EQ(ended.consumer(), "web");
  EXPECT_THAT(ended.cause(), HasSubstr(std::to_string(consumer)));
}

// The logs of one kind that have come under a number, as text.
std::vector<std::string> LinesOf(const TestScheduler::Node& node, uint64_t number) {
  std::vector<std::string> lines;
  for (const v1::LogLines& message : node.logs) {
    if (message.number() != number) continue;
    for (const v1::PluginLogLine& line : message.plugin().lines()) lines.push_back(line.text());
    for (const v1::LogEntry& entry : message.node().entries()) {
      lines.push_back(entry.level() + " " + entry.text());
    }
  }
  return lines;
}

TEST_F(SchedulerLinkTest, APluginsLogIsFollowedFromAfarWithACredit) {
  StartLinked();
  v1::SchedulerMessage follow;
  v1::LogRequest& request = *follow.mutable_log_request();
  request.set_number(1);
  request.mutable_plugin()->set_id("fault");
  request.mutable_plugin()->set_follow(true);
  request.mutable_plugin()->set_last_lines(0);
  request.set_credit(100);
  scheduler_->Send(kNode, follow);
  request.set_number(2);
  request.set_credit(0);  // nothing may come yet
  scheduler_->Send(kNode, follow);
  v1::SchedulerMessage unknown;
  unknown.mutable_log_request()->set_number(3);
  unknown.mutable_log_request()->mutable_plugin()->set_id("unknown");
  scheduler_->Send(kNode, unknown);
  scheduler_->WaitNode(kNode, "where the log stands, and the end of the unknown one",
                       [](const TestScheduler::Node& node) {
                         const auto has = [&](uint64_t number) {
                           return std::ranges::count(node.logs, number, &v1::LogLines::number) == 1;
                         };
                         return has(1) && has(3);
                       });
  EXPECT_THAT(LinesOf(*scheduler_->Find(kNode), 1), IsEmpty()) << "nothing of before was asked for";

  fault_.Play({"rpc = \"NodePublishVolume\"\naction = \"output\"\ntext = \"said while it was followed\\n\""});
  const std::string volume = CreateVolume("logged");
  PublishFromAfar(volume);
  UnpublishFromAfar(volume);
  const auto heard = [](uint64_t number) {
    return [number](const TestScheduler::Node& node) {
      return std::ranges::count(LinesOf(node, number), "said while it was followed") == 1;
    };
  };
  scheduler_->WaitNode(kNode, "what the plugin says now", heard(1));
  EXPECT_THAT(LinesOf(*scheduler_->Find(kNode), 2), IsEmpty());
  v1::SchedulerMessage credit;
  credit.mutable_log_credit()->set_number(2);
  credit.mutable_log_credit()->set_messages(100);
  scheduler_->Send(kNode, credit);
  scheduler_->WaitNode(kNode, "the same, later", heard(2));

  // Both are followed still when the link breaks, and berthd takes no harm.
  const pid_t berthd = BerthdPid();
  const size_t streams = scheduler_->Find(kNode)->streams;
  scheduler_->Cut();
  scheduler_->WaitNode(kNode, "another stream", [streams](const TestScheduler::Node& node) {
    return node.streams > streams && node.synced;
  });
  EXPECT_EQ(BerthdPid(), berthd);
}

TEST_F(SchedulerLinkTest, BerthdsOwnLogIsFollowedFromAfarAtTheLevelThatWasAskedFor) {
  StartLinked();
  const auto follow = [&](uint64_t number, const std::string& level) {
    v1::SchedulerMessage message;
    message.mutable_log_request()->set_number(number);
    message.mutable_log_request()->mutable_node()->set_level(level);
    message.mutable_log_request()->set_credit(100'000);
    scheduler_->Send(kNode, message);
  };
  follow(1, "debug");
  follow(2, "info");
  const std::string volume = CreateVolume("logged");
  PublishFromAfar(volume);
  const auto told = [&](uint64_t number, const std::string& part) {
    return [number, part](const TestScheduler::Node& node) {
      return std::ranges::any_of(LinesOf(node, number), [&](const std::string& line) {
        return line.find(part) != std::string::npos;
      });
    };
  };
  scheduler_->WaitNode(kNode, "calls of the plugin", told(1, "NodePublishVolume"));
  UnpublishFromAfar(volume);
  for (const uint64_t number : {1, 2})
    scheduler_->WaitNode(kNode, "news", told(number, "volume.unpublished"));
  const TestScheduler::Node node = *scheduler_->Find(kNode);
  const auto is_debug = [](const std::string& line) { return line.starts_with("debug "); };
  EXPECT_TRUE(std::ranges::any_of(LinesOf(node, 1), is_debug));
  EXPECT_FALSE(std::ranges::any_of(LinesOf(node, 2), is_debug));
  for (const uint64_t number : {1, 2}) {
    for (const std::string& line : LinesOf(node, number)) EXPECT_THAT(line, Not(HasSubstr(kSecret)));
  }
}

TEST_F(SchedulerLinkTest, Fault60TheSchedulersNameOfAVolumeIsShownAndIsNoId) {
  StartLinked();
  const std::string volume = CreateVolume("labelled");
  v1::Operation publish = Publishing(volume, "web");
  publish.mutable_publish()->mutable_request()->set_label("db");
  const v1::OperationResult published = scheduler_->Run(kNode, publish);
  ASSERT_EQ(published.outcome(), v1::OUTCOME_DONE) << published.message();
  const TestScheduler::Node told = WaitVolumeTold(volume, v1::PUBLISHED);
  EXPECT_EQ(told.volumes.at({"fault", volume}).label(), "jobs/db");

  node_.Kill();
  node_.Start();
  // As a caller would whose own volume has that id, and is not here.
  v1::UnpublishVolumeRequest unpublish;
  unpublish.set_plugin_id("fault");
  unpublish.set_volume_id("jobs/db");
  unpublish.set_consumer("jobs/web");
  v1::UnpublishVolumeResponse nothing;
  const grpc::Status answered = node_.stub().UnpublishVolume(Node::Context().get(), unpublish, &nothing);
  ASSERT_TRUE(answered.ok()) << answered.error_message();
  EXPECT_FALSE(nothing.was_published());
  v1::ListVolumesRequest list;
  list.set_label("jobs/db");
  v1::ListVolumesResponse listed;
  ASSERT_TRUE(node_.stub().ListVolumes(Node::Context().get(), list, &listed).ok());
  ASSERT_EQ(listed.volumes_size(), 1);
  EXPECT_EQ(listed.volumes(0).volume_id(), volume);
  EXPECT_EQ(listed.volumes(0).state(), v1::PUBLISHED);
  UnpublishFromAfar(volume);
}

TEST_F(SchedulerLinkTest, ANodeIsDrainedByItsOperatorAndTheSchedulerKnows) {
  StartLinked();
  v1::DrainNodeRequest drain;
  drain.set_reason("new disks");
  v1::DrainNodeResponse drained;
  ASSERT_TRUE(node_.stub().DrainNode(Node::Context().get(), drain, &drained).ok());
  scheduler_->WaitNode(kNode, "the drain", [](const TestScheduler::Node& node) {
    return node.state.status().drain().reason() == "new disks";
  });
  const std::string volume = CreateVolume("drained");
  const v1::OperationResult refused = scheduler_->Run(kNode, Publishing(volume, "web"));
  EXPECT_EQ(refused.code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_THAT(refused.message(), HasSubstr("new disks"));
}

}  // namespace
}  // namespace berth
