// drain, undrain, scheduler and volume claim of the built berthctl, against a node on a real socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ClusterCommandsTest : public testing::Test {
 protected:
  Ended Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--socket", node_.socket()});
    return RunBerthctl(std::move(arguments));
  }
  Ended Claim(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"volume", "claim", "prod/db", "--consumer", "job-7"});
    return Ctl(std::move(more));
  }
  void AddMount() {
    v1::ConsumerMount& mount = *node_.claimed.mutable_mount();
    mount.set_volume_id("vol-9");
    mount.set_consumer("prod/job-7");
    mount.set_name("data");
    mount.set_source_path("/volumes/vol-9");
    mount.set_propagation("rprivate");
  }

  FakeNode node_;
};

TEST_F(ClusterCommandsTest, ADrainSaysWhatIsLeft) {
  node_.left_in_drain = {3};
  const Ended run = Ctl({"drain", "--reason", "a new disk"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "draining: 3 publications are left\n");
  EXPECT_EQ(node_.drain_request.reason(), "a new disk");
  EXPECT_FALSE(node_.drain_request.end());
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("3 publications are left: a new disk"));
  const Ended json = Ctl({"drain", "-o", "json"});
  EXPECT_EQ(node_.drain_request.reason(), "a new disk") << "who joins a drain keeps its reason";
  EXPECT_THAT(json.out, HasSubstr("\"publications_left\":3"));
}

TEST_F(ClusterCommandsTest, AnUndrainPutsTheNodeBackIntoUse) {
  const Ended run = Ctl({"undrain"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "in use\n");
  EXPECT_TRUE(node_.drain_request.end());
}

TEST_F(ClusterCommandsTest, ADrainIsWaitedForUntilTheLastOneHasLeft) {
  node_.left_in_drain = {2, 1, 0};
  const Ended run = Ctl({"drain", "--wait"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "drained: nothing is published here but what files declare\n");
  EXPECT_TRUE(node_.drain_request.wait());
  EXPECT_THAT(node_.left_in_drain, testing::ElementsAre(0)) << "it looked until none was left";
}

TEST_F(ClusterCommandsTest, ADrainThatTakesTooLongSaysWhoIsLeft) {
  node_.left_in_drain = {1};
  v1::Volume& declared = *node_.volumes.add_volumes();
  declared.set_volume_id("boot");
  declared.add_publications()->set_origin(v1::DECLARED);
  v1::Volume& volume = *node_.volumes.add_volumes();
  volume.set_volume_id("vol-1");
  volume.add_publications()->set_consumer("job-7");
  const Ended run = Ctl({"drain", "--wait", "--timeout", "2s"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("1 publication is left: vol-1 for job-7"), HasSubstr("berthctl undrain")));
}

TEST_F(ClusterCommandsTest, WhoIsLeftIsFoundBehindPagesOfDeclaredVolumes) {
  node_.left_in_drain = {1};
  v1::ListVolumesResponse declared;
  declared.add_volumes()->add_publications()->set_origin(v1::DECLARED);
  declared.set_next_page_token("1");
  v1::ListVolumesResponse asked;
  v1::Volume& volume = *asked.add_volumes();
  volume.set_volume_id("vol-1");
  volume.add_publications()->set_consumer("job-7");
  node_.volume_pages = {declared, asked};
  const Ended run = Ctl({"drain", "--wait", "--timeout", "2s"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("1 publication is left: vol-1 for job-7\n"));
}

TEST_F(ClusterCommandsTest, ADrainThatSomebodyEndsIsNotAskedForAgain) {
  node_.left_in_drain = {1};
  node_.drain_is_ended = true;
  const Ended run = Ctl({"drain", "--wait"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("the drain was ended meanwhile"),
                             HasSubstr("the node takes volumes again"), Not(HasSubstr("try again"))));
}

TEST_F(ClusterCommandsTest, TheLinkIsShownByStatusAndAlone) {
  EXPECT_THAT(Ctl({"scheduler"}).err, HasSubstr("this node has no scheduler"));
  node_.status.mutable_scheduler()->set_state(v1::LinkStatus::SYNCED);
  node_.status.mutable_scheduler()->set_address("scheduler:7000");
  node_.status.mutable_scheduler()->set_lease(v1::LEASE_EXPIRED);
  EXPECT_THAT(Ctl({"status"}).out, AllOf(HasSubstr("connected to scheduler:7000"), HasSubstr("expired")));
  const Ended alone = Ctl({"scheduler"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("connected to scheduler:7000"));
  EXPECT_THAT(Ctl({"scheduler", "-o", "json"}).out, HasSubstr("\"lease\":\"LEASE_EXPIRED\""));
}

TEST_F(ClusterCommandsTest, AClaimSendsWhatWasAskedAndPrintsThePathAlone) {
  AddMount();
  const Ended run =
      Claim({"--name", "data", "--read-only", "--pid", "42", "--access", "single-node-single-writer", "--fs",
             "ext4", "--runtime", "vm", "--replace", "old-1", "--replace", "old-2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "/volumes/vol-9\n");
  const v1::ClaimVolumeRequest& sent = node_.claim_request;
  EXPECT_EQ(sent.namespace_(), "prod");
  EXPECT_EQ(sent.volume(), "db");
  EXPECT_EQ(sent.consumer(), "job-7");
  EXPECT_EQ(sent.name(), "data");
  EXPECT_TRUE(sent.readonly());
  EXPECT_FALSE(sent.wait());
  EXPECT_EQ(sent.life().pid(), 42);
  EXPECT_EQ(sent.capability().access_mode(), v1::SINGLE_NODE_SINGLE_WRITER);
  EXPECT_EQ(sent.capability().fs_type(), "ext4");
  EXPECT_EQ(sent.runtime(), "vm");
  EXPECT_THAT(sent.replaces(), testing::ElementsAre("old-1", "old-2"));
  EXPECT_THAT(Claim({"-o", "json"}).out, HasSubstr("\"source_path\":\"/volumes/vol-9\""));
}

TEST_F(ClusterCommandsTest, AClaimSpeaksTheWordsOfARuntime) {
  AddMount();
  EXPECT_THAT(Claim({"--format", "podman"}).out,
              AllOf(HasSubstr("/volumes/vol-9"), HasSubstr("/volumes/data")));
  EXPECT_THAT(Claim({"--format", "podman", "--at", "/srv"}).out, HasSubstr("/srv"));
  EXPECT_EQ(Claim({"--at", "/srv"}).exit_code, 2);
  EXPECT_EQ(Claim({"--format", "lorry"}).exit_code, 2);
}

TEST_F(ClusterCommandsTest, AClaimWaitsForTheSchedulerOnlyWhenTold) {
  AddMount();
  node_.scheduler_is_away = true;
  const Ended refused = Claim();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the scheduler is not connected"),
                                 HasSubstr("berthctl scheduler; to wait for it: --wait")));
  const Ended waited = Claim({"--wait"});
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_EQ(waited.out, "/volumes/vol-9\n");
  EXPECT_EQ(waited.err, "") << "berthd was there all the time";
  EXPECT_TRUE(node_.claim_request.wait());
}

TEST_F(ClusterCommandsTest, WhatAClaimWaitsForIsShownBesideTheAnswer) {
  AddMount();
  node_.claim_progress = "2 claims are before this one";
  const Ended run = Claim();
  EXPECT_EQ(run.out, "/volumes/vol-9\n");
  EXPECT_THAT(run.err, HasSubstr("2 claims are before this one"));
}

TEST_F(ClusterCommandsTest, AClaimIsReleasedInTheSchedulersTerms) {
  const Ended run = Ctl({"volume", "release", "prod/db", "--consumer", "job-7", "--name", "data", "--wait"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(node_.release_request.namespace_(), "prod");
  EXPECT_EQ(node_.release_request.volume(), "db");
  EXPECT_EQ(node_.release_request.consumer(), "job-7");
  EXPECT_EQ(node_.release_request.name(), "data");
  EXPECT_TRUE(node_.release_request.wait());
  EXPECT_EQ(Ctl({"volume", "release", "db", "--consumer", "job-7"}).exit_code, 2);
}

TEST_F(ClusterCommandsTest, WhatTheSchedulerAnswersEndsAClaimThatWaits) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::NOT_FOUND, grpc::StatusCode::PERMISSION_DENIED}) {
    node_.calls.clear();
    node_.claim_failures = {{code, "the scheduler: not this one"}};
    const Ended run = Claim({"--wait"});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.err, AllOf(HasSubstr("the scheduler: not this one"), HasSubstr("scheduler's answer"),
                               Not(HasSubstr("berthd")), Not(HasSubstr("berthctl volumes"))));
    EXPECT_THAT(node_.calls, testing::ElementsAre("ClaimVolume"));
  }
}

TEST_F(ClusterCommandsTest, AClaimThatWaitsWaitsForBerthdToo) {
  AddMount();
  node_.claim_failures = {{grpc::StatusCode::UNAVAILABLE, "berthd is stopping"}};
  const Ended stopped = Claim({"--wait"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("berthd has gone; waiting"));
  node_.Stop();
  EXPECT_EQ(Claim().exit_code, 3);
  EXPECT_EQ(Claim({"--wait", "--timeout", "50ms"}).exit_code, 3);
  RunningBerthctl early(
      {"--socket", node_.socket(), "volume", "claim", "prod/db", "--consumer", "job-7", "--wait"},
      RunningBerthctl::Stderr::kTerminal);
  EXPECT_TRUE(early.TerminalShows("cannot reach berthd"));
  EXPECT_TRUE(early.TerminalShows("waiting for it"));
  node_.Serve();
  EXPECT_EQ(early.ReadLine(), "/volumes/vol-9");
  EXPECT_EQ(early.Wait(), 0);
}

TEST_F(ClusterCommandsTest, AClaimWhoseTimeIsOverSaysThatItIsWithdrawn) {
  node_.claim_failures = {{grpc::StatusCode::DEADLINE_EXCEEDED, "the scheduler has not answered in time"}};
  EXPECT_THAT(Claim().err,
              AllOf(HasSubstr("not answered in time"), HasSubstr("was withdrawn"), Not(HasSubstr("joins"))));
}

TEST_F(ClusterCommandsTest, AClaimThatTheNodeCannotPassOnPointsToTheLink) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    node_.claim_failures = {{code, "it cannot be passed on"}};
    EXPECT_THAT(Claim().err, AllOf(HasSubstr("it cannot be passed on"), HasSubstr("berthctl scheduler")));
  }
}

TEST_F(ClusterCommandsTest, AClaimNamesAVolumeInItsNamespace) {
  for (const char* volume : {"db", "/db", "prod/"}) {
    const Ended run = Ctl({"volume", "claim", volume, "--consumer", "job-7"});
    EXPECT_EQ(run.exit_code, 2) << volume;
    EXPECT_THAT(run.err, HasSubstr("NAMESPACE/VOLUME")) << volume;
  }
  EXPECT_THAT(node_.calls, IsEmpty());
}

}  // namespace
}  // namespace berth::cli
