#include "cli/volume_condition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kNow = 1'700'000'000;
const system_clock::time_point kNowTime = system_clock::from_time_t(kNow);

v1::Volume Published() {
  v1::Volume volume;
  volume.set_plugin_id("nfs");
  volume.set_volume_id("vol 1");
  volume.set_state(v1::PUBLISHED);
  v1::Publication* use = volume.add_publications();
  use->set_consumer("job-1");
  use->set_state(v1::PUBLISHED);
  return volume;
}

Condition Only(const v1::Volume& volume) {
  const std::vector<Condition> conditions = ConditionsOf(volume, kNowTime);
  EXPECT_EQ(conditions.size(), 1U);
  return conditions.empty() ? Condition() : conditions.front();
}

std::string Listed(const v1::Volume& volume) {
  v1::ListVolumesResponse answer;
  *answer.add_volumes() = volume;
  return VolumeTable(answer, kNowTime).Render(false);
}

TEST(VolumeConditionTest, AVolumeThatIsWellHasNone) {
  EXPECT_TRUE(ConditionsOf(Published(), kNowTime).empty());
  EXPECT_THAT(Listed(Published()), AllOf(HasSubstr("PUBLISHED  ok")));
}

TEST(VolumeConditionTest, AStuckOneSaysOnWhatSinceWhenAndWhetherThePluginHangs) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_state(v1::UNPUBLISHING);
  volume.mutable_stuck()->set_on("umount /v/target");
  volume.mutable_stuck()->set_pid(4711);
  volume.mutable_stuck()->mutable_since()->set_seconds(kNow - 180);
  const Condition stuck = Only(volume);
  EXPECT_EQ(stuck.word, "stuck 3m");
  EXPECT_EQ(stuck.text, "umount /v/target does not return, since 3m (helper process 4711)");
  EXPECT_THAT(Listed(volume), AllOf(HasSubstr("stuck 3m"), HasSubstr("umount /v/target does not return")));
  volume.mutable_stuck()->set_on("NodeUnpublishVolume");
  volume.mutable_stuck()->clear_pid();
  volume.mutable_stuck()->set_plugin_hangs(true);
  EXPECT_EQ(Only(volume).text, "NodeUnpublishVolume does not return, since 3m: the plugin itself hangs");
}

TEST(VolumeConditionTest, WhatHangsIsNotCalledDead) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_hung("no answer within 10 s");
  EXPECT_EQ(Only(volume).word, "hung");
  EXPECT_EQ(Only(volume).text, "the file system of job-1 does not answer: no answer within 10 s");
  EXPECT_THAT(UseTable(volume, kNowTime).Render(false), HasSubstr("hung: no answer within 10 s"));
  volume.mutable_publications(0)->clear_hung();
  volume.mutable_publications(0)->set_dead("Transport endpoint is not connected");
  EXPECT_EQ(Only(volume).word, "dead");
  EXPECT_THAT(Only(volume).text, HasSubstr("the file system of job-1 has ended: Transport"));
}

TEST(VolumeConditionTest, WhatForceAndLazyHaveDoneIsShown) {
  v1::Volume volume = Published();
  volume.mutable_stuck()->set_on("NodeUnpublishVolume");
  volume.mutable_aborted_at()->set_seconds(kNow - 20);
  volume.mutable_detached_at()->set_seconds(kNow - 10);
  EXPECT_THAT(VolumeDetails(volume, kNowTime).Render(false),
              AllOf(HasSubstr("its file system was aborted 20s ago"),
                    HasSubstr("a mount of it was detached 10s ago: it stays in use")));
}

TEST(VolumeConditionTest, OneInstructionIsShownHoweverMuchIsWrong) {
  v1::Volume volume = Published();
  volume.set_last_error("it failed");
  volume.mutable_publications(0)->set_blocked("the node was restarted");
  volume.mutable_publications(0)->set_uncertain(true);
  volume.set_advice("Publish it again for job-1");
  const std::string shown = VolumeDetails(volume, kNowTime).Render(false);
  EXPECT_THAT(shown, HasSubstr("do          Publish it again for job-1"));
  EXPECT_EQ(shown.find("  do"), std::string::npos) << shown;
}

TEST(VolumeConditionTest, OfWhatIsBlockedItIsNotSaidThatItIsRepeated) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_blocked("the node was restarted");
  volume.mutable_publications(0)->set_uncertain(true);
  EXPECT_EQ(Only(volume).word, "blocked");
  EXPECT_EQ(Only(volume).tone, Tone::kCareful);
}

TEST(VolumeConditionTest, ADeclaredOneThatIsNotHereYetNamesItsFile) {
  v1::Volume volume;
  volume.set_plugin_id("nfs");
  volume.set_volume_id("v");
  volume.set_state(v1::ABSENT);
  volume.set_declared_in("data.toml");
  volume.set_last_error("plugin nfs is not ready");
  volume.mutable_next_retry_at()->set_seconds(kNow + 5);
  EXPECT_EQ(Only(volume).word, "not here yet");
  EXPECT_EQ(Only(volume).text, "declared in data.toml: plugin nfs is not ready");
  EXPECT_THAT(Listed(volume), AllOf(HasSubstr("not here yet"), HasSubstr("(again in 5s)")));
}

TEST(VolumeConditionTest, Fault57WithoutItsPluginItSaysSoFirstAndHowOftenItFailed) {
  v1::Volume volume = Published();
  volume.set_plugin_missing(true);
  EXPECT_EQ(Only(volume).word, "no plugin");
  EXPECT_EQ(Only(volume).tone, Tone::kBad);
  volume.set_failures(12);
  volume.mutable_next_retry_at()->set_seconds(kNow + 4);
  EXPECT_THAT(Listed(volume), HasSubstr("(failed 12 times, again in 4s)"));
  volume.mutable_without_plugin()->set_requested_by("uid 0");
  volume.mutable_without_plugin()->mutable_at()->set_seconds(kNow - 60);
  EXPECT_EQ(Only(volume).word, "no plugin");
  EXPECT_EQ(Only(volume).tone, Tone::kCareful);
  EXPECT_THAT(Only(volume).text, HasSubstr("as uid 0 asked"));
}

TEST(VolumeConditionTest, TheWorstComesFirst) {
  v1::Volume volume = Published();
  volume.set_uncertain(true);
  volume.set_pending_expansion_bytes(int64_t{2} << 30);
  volume.set_last_error("it failed");
  volume.mutable_condition()->set_abnormal(true);
  volume.mutable_condition()->set_message("a disk is missing");
  volume.mutable_stuck()->set_on("NodeUnpublishVolume");
  volume.mutable_publications(0)->set_blocked("after a reboot");
  std::string words;
  for (const Condition& condition : ConditionsOf(volume, kNowTime)) words += condition.word + "|";
  EXPECT_EQ(words, "stuck|blocked|failing|uncertain|to be grown|abnormal|");
}

TEST(VolumeConditionTest, AFailureIsShownRatherThanTheStepThatRuns) {
  v1::Volume volume = Published();
  volume.set_last_error("no space left");
  volume.mutable_next_retry_at()->set_seconds(kNow + 60);
  volume.set_running("NodeStageVolume");
  EXPECT_EQ(Only(volume).word, "failing");
  EXPECT_THAT(Listed(volume), AllOf(HasSubstr("no space left"), Not(HasSubstr("NodeStageVolume"))));
}

}  // namespace
}  // namespace berth::cli
