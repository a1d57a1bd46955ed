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

TEST(VolumeConditionTest, AStuckOneSaysOnWhatSinceWhenAndTheLever) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_state(v1::UNPUBLISHING);
  volume.mutable_stuck()->set_on("umount /v/target");
  volume.mutable_stuck()->set_pid(4711);
  volume.mutable_stuck()->mutable_since()->set_seconds(kNow - 180);
  const Condition stuck = Only(volume);
  EXPECT_EQ(stuck.word, "stuck 3m");
  EXPECT_EQ(stuck.text, "umount /v/target does not come back, since 3m (helper process 4711)");
  EXPECT_THAT(
      stuck.next,
      AllOf(HasSubstr("other volumes do not wait"),
            HasSubstr("berthctl volume unpublish --plugin nfs --volume 'vol 1' --consumer job-1 --force")));
  EXPECT_THAT(Listed(volume), AllOf(HasSubstr("stuck 3m"), HasSubstr("umount /v/target does not come back")));
}

TEST(VolumeConditionTest, ADeadMountIsRepairedOnlyWhereThatWasAskedFor) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_dead("Transport endpoint is not connected");
  EXPECT_EQ(Only(volume).word, "dead");
  EXPECT_THAT(Only(volume).text, HasSubstr("the mount of job-1 does not answer: Transport"));
  EXPECT_THAT(Only(volume).next, HasSubstr("End job-1, then berthctl volume unpublish"));
  volume.mutable_publications(0)->set_remount(true);
  EXPECT_THAT(Only(volume).next, HasSubstr("job-1 must be restarted"));
  volume.mutable_publications(0)->set_remount(false);
  volume.mutable_publications(0)->set_ephemeral(true);
  EXPECT_THAT(Only(volume).next, AllOf(HasSubstr("not repaired"), HasSubstr("deletes it")));
}

TEST(VolumeConditionTest, HeldAndAwaitingSecretsSayBothWaysOut) {
  v1::Volume volume = Published();
  volume.mutable_publications(0)->set_held("the node was restarted");
  volume.mutable_publications(0)->set_name("data");
  const Condition held = Only(volume);
  EXPECT_EQ(held.word, "held");
  EXPECT_EQ(held.tone, Tone::kCareful);
  EXPECT_THAT(held.next, AllOf(HasSubstr("Repeat the publish"), HasSubstr("--consumer job-1 --name data")));
  volume.mutable_publications(0)->set_origin(v1::SCHEDULER);
  EXPECT_THAT(Only(volume).next, AllOf(HasSubstr("once its scheduler is heard"), HasSubstr("let it go")));

  v1::Volume waiting = Published();
  waiting.set_awaiting_secrets(true);
  EXPECT_EQ(Only(waiting).word, "needs secrets");
  EXPECT_THAT(Only(waiting).next, AllOf(HasSubstr("--secrets-file"), HasSubstr("let it go")));
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

TEST(VolumeConditionTest, TheWorstComesFirst) {
  v1::Volume volume = Published();
  volume.set_uncertain(true);
  volume.set_owed_expansion_bytes(int64_t{2} << 30);
  volume.set_last_error("it failed");
  volume.mutable_condition()->set_abnormal(true);
  volume.mutable_condition()->set_message("a disk is missing");
  volume.mutable_stuck()->set_on("NodeUnpublishVolume");
  volume.mutable_publications(0)->set_held("after a reboot");
  std::string words;
  for (const Condition& condition : ConditionsOf(volume, kNowTime)) words += condition.word + "|";
  EXPECT_EQ(words, "stuck|held|failing|uncertain|to be grown|abnormal|");
}

TEST(VolumeConditionTest, AFailureSaysWhenItIsTriedAgain) {
  v1::Volume volume = Published();
  volume.set_last_error("no space left");
  EXPECT_EQ(Only(volume).next, "Repeat what failed, or unpublish it.");
  volume.mutable_next_retry_at()->set_seconds(kNow + 60);
  EXPECT_EQ(Only(volume).next, "It is tried again in 60s.");
  volume.set_running("NodeStageVolume");
  EXPECT_THAT(Listed(volume), AllOf(HasSubstr("no space left"), Not(HasSubstr("NodeStageVolume"))));
}

}  // namespace
}  // namespace berth::cli
