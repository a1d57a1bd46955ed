// The built berthctl: volume unpublish with its levers, consumer ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class UnpublishCommandTest : public testing::Test {
 protected:
  UnpublishCommandTest() { node_.unpublished.set_was_published(true); }

  Ended Unpublish(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--socket", node_.socket(), "volume",     "unpublish", "--plugin",
                                          "nfs",      "v1",           "--consumer", "job-1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunBerthctl(std::move(arguments));
  }

  FakeNode node_;
};

TEST_F(UnpublishCommandTest, WithoutLeversNothingIsForcedAndNothingIsSaid) {
  const Ended run = Unpublish({});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, IsEmpty());
  EXPECT_FALSE(node_.unpublish_request.wait());
  EXPECT_FALSE(node_.unpublish_request.force());
  EXPECT_FALSE(node_.unpublish_request.lazy());
}

TEST_F(UnpublishCommandTest, LeversAreSentWithAWarningInWords) {
  node_.unpublished.set_still_in_use(true);
  node_.unpublished.set_used_by("still used by pid 812 (podman) in another mount namespace");
  const Ended run = Unpublish({"--force", "--lazy"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(node_.unpublish_request.force());
  EXPECT_TRUE(node_.unpublish_request.lazy());
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("what it has not written yet is lost"), HasSubstr("can still be written to"),
                    HasSubstr("is not free: still used by pid 812 (podman)")));
  EXPECT_THAT(Unpublish({"--force", "--yes"}).err, testing::Not(HasSubstr("is lost")));
}

TEST_F(UnpublishCommandTest, WhatTheLeversDidIsSaid) {
  EXPECT_THAT(Unpublish({"--force", "--yes"}).err, testing::Not(HasSubstr("was aborted")));
  node_.unpublished.set_aborted(true);
  node_.unpublished.set_detached(true);
  EXPECT_THAT(Unpublish({"--force", "--lazy", "--yes"}).err,
              AllOf(HasSubstr("its file system was aborted"), HasSubstr("a mount of it was detached")));
}

TEST_F(UnpublishCommandTest, UsesThatAreLeftAreNamed) {
  EXPECT_THAT(Unpublish({}).err, Not(HasSubstr("left on this node")));
  node_.unpublished.set_uses_left(2);
  EXPECT_THAT(Unpublish({}).err, HasSubstr("2 uses of v1 are left on this node: do not detach it"));
  node_.unpublished.set_uses_left(1);
  EXPECT_THAT(Unpublish({}).err, HasSubstr("1 use of v1 is left on this node"));
}

TEST_F(UnpublishCommandTest, AnUnpublishThatHangsEndsWithTheNextStep) {
  node_.volume.set_plugin_id("nfs");
  node_.volume.set_volume_id("v1");
  node_.volume.set_state(v1::UNPUBLISHING);
  node_.volume.mutable_stuck()->set_on("NodeUnpublishVolume");
  node_.volume.mutable_stuck()->set_plugin_hangs(true);
  node_.volume.set_advice("The plugin itself hangs, so restart it: berthctl plugin restart nfs");
  node_.volume_is_seen = true;
  node_.failure = {grpc::StatusCode::DEADLINE_EXCEEDED, "a mount of it was detached 12 s ago; it goes on"};
  const Ended run = Unpublish({"--lazy", "--yes"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("a mount of it was detached 12 s ago"),
                             HasSubstr("stuck: NodeUnpublishVolume does not return: the plugin itself hangs"),
                             HasSubstr("berthctl plugin restart nfs")));
}

TEST_F(UnpublishCommandTest, WaitIsJoinedUntilTheConsumerHasEnded) {
  node_.unpublish_takes_calls = 2;
  const Ended run = Unpublish({"--wait"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(node_.unpublish_request.wait());
  EXPECT_EQ(node_.calls.size(), 3U);
  EXPECT_EQ(run.out, "unpublished v1 of job-1\n");
}

TEST_F(UnpublishCommandTest, WithoutWaitADeadlineIsToldAtOnce) {
  node_.unpublish_takes_calls = 1;
  const Ended run = Unpublish({});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(UnpublishCommandTest, AtATerminalANoDoesNothing) {
  RunningBerthctl ctl({"--socket", node_.socket(), "volume", "unpublish", "--plugin", "nfs", "v1",
                       "--consumer", "job-1", "--lazy"},
                      RunningBerthctl::Stderr::kTerminalWithInput);
  ASSERT_TRUE(ctl.TerminalShows("Go on? [y/N]"));
  ctl.Type("n\n");
  EXPECT_TRUE(ctl.TerminalShows("nothing was done"));
  EXPECT_EQ(ctl.Wait(), 1);
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(UnpublishCommandTest, AtATerminalAYesGoesOn) {
  RunningBerthctl ctl({"--socket", node_.socket(), "volume", "unpublish", "--plugin", "nfs", "v1",
                       "--consumer", "job-1", "--force"},
                      RunningBerthctl::Stderr::kTerminalWithInput);
  ASSERT_TRUE(ctl.TerminalShows("Go on? [y/N]"));
  ctl.Type("y\n");
  EXPECT_EQ(ctl.ReadLine(), "unpublished v1 of job-1");
  EXPECT_EQ(ctl.Wait(), 0);
}

TEST_F(UnpublishCommandTest, ABusyVolumeLeadsToThoseWhoHoldIt) {
  node_.volume.set_plugin_id("nfs");
  node_.volume.set_volume_id("v1");
  node_.volume.set_state(v1::UNPUBLISHING);
  node_.volume_is_seen = true;
  node_.failure = {grpc::StatusCode::UNAVAILABLE, "unpublish v1: busy: process 7 (vi)"};
  const Ended run = Unpublish({});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err,
              HasSubstr("Who uses it, what runs and what comes next: berthctl volume explain --plugin nfs"));
}

TEST_F(UnpublishCommandTest, AConsumerThatHasEndedReleasesWhatItUsed) {
  node_.ended.set_released(2);
  const Ended run = RunBerthctl({"--socket", node_.socket(), "consumer", "ended", "job-1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "ended 2 uses by job-1\n");
  EXPECT_EQ(node_.end_request.consumer(), "job-1");
  node_.ended.set_released(0);
  EXPECT_EQ(RunBerthctl({"--socket", node_.socket(), "consumer", "ended", "job-2"}).out,
            "job-2 used nothing\n");
  ExpectJson(RunBerthctl({"--socket", node_.socket(), "consumer", "ended", "job-2", "-o", "json"}).out,
             node_.ended);
  EXPECT_THAT(node_.calls, ElementsAre("EndConsumer", "EndConsumer", "EndConsumer"));
  node_.failure = {grpc::StatusCode::UNAVAILABLE, "v1 is busy"};
  EXPECT_THAT(RunBerthctl({"--socket", node_.socket(), "consumer", "ended", "job-2"}).err,
              HasSubstr("berthctl volumes --consumer"));
}

}  // namespace
}  // namespace berth::cli
