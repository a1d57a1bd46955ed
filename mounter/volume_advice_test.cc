#include "mounter/volume_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

VolumeView AdvisedVolume() {
  VolumeView volume;
  volume.plugin_id = "nfs";
  volume.volume_id = "vol 1";
  volume.publications.push_back({.consumer = "job-1", .state = PublicationState::kPublished});
  return volume;
}

TEST(VolumeAdviceTest, AVolumeThatIsWellNeedsNothing) { EXPECT_THAT(AdviceFor(AdvisedVolume()), IsEmpty()); }

TEST(VolumeAdviceTest, OfWhatHangsTheServerComesFirstAndTheLeversInTheirOrder) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].hung = "no answer";
  const std::string advice = AdviceFor(volume);
  EXPECT_THAT(advice, StartsWith("Wait, or bring its server back"));
  const std::vector<std::string> order = {
      "Only if it never comes back", "end job-1",
      "berthctl volume unpublish --plugin nfs --volume 'vol 1' --consumer job-1 --force",
      "berthctl volume unpublish --plugin nfs --volume 'vol 1' --consumer job-1 --lazy",
      "berthctl plugin restart nfs"};
  size_t at = 0;
  for (const std::string& part : order) {
    const size_t found = advice.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in " << advice;
    at = found;
  }
}

TEST(VolumeAdviceTest, Fault57WithoutItsPluginTheWayOutIsForceOnceItNeverComesBack) {
  VolumeView volume = AdvisedVolume();
  volume.plugin_missing = true;
  EXPECT_THAT(AdviceFor(volume), AllOf(StartsWith("Put the file of plugin nfs back into plugins.d"),
                                       HasSubstr("--consumer job-1 --force")));
  volume.without_plugin = WithoutPlugin{.requested_by = "uid 0"};
  EXPECT_THAT(AdviceFor(volume),
              AllOf(StartsWith("Put the file of plugin nfs back into plugins.d"), Not(HasSubstr("--force"))));
  volume.plugin_missing = false;
  volume.without_plugin.reset();
  volume.plugin_refuses = true;
  volume.publications.clear();
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("berthctl plugin logs nfs"),
                                       HasSubstr("--volume 'vol 1' --consumer none --force")));
}

TEST(VolumeAdviceTest, ThoseWhoStandInTheWayAreToBeEnded) {
  VolumeView volume = AdvisedVolume();
  volume.publications.clear();
  volume.still_in_use = true;
  EXPECT_THAT(AdviceFor(volume), StartsWith("End those who use it: it is released by itself then."));
  volume.still_in_use = false;
  volume.last_error = "busy";
  volume.holders = {{.pid = 812, .uid = 0, .how = "open file /x"},
                    {.pid = 812, .uid = 0, .how = "working directory /x"},
                    {.how = "what is mounted inside it: /x/sub (tmpfs)"}};
  EXPECT_THAT(AdviceFor(volume),
              StartsWith("End those who use it (kill 812), and unmount what is mounted inside it: it is"));
  EXPECT_THAT(AdviceFor(volume), Not(HasSubstr("sysctl")));
  volume.holders = {{.pid = 9, .uid = 1000, .how = "in another mount namespace, mounted at /x"}};
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("(kill 9)"), HasSubstr("user.max_user_namespaces=0"),
                                       HasSubstr("(here: 1000)")));
}

TEST(VolumeAdviceTest, WhatWasDoneAlreadyIsNotAdvisedAgain) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].state = PublicationState::kUnpublishing;
  volume.stuck = StuckView{.on = "NodeUnpublishVolume"};
  EXPECT_THAT(AdviceFor(volume),
              AllOf(HasSubstr("--force"), HasSubstr("--lazy"), Not(HasSubstr("end job-1"))));
  volume.aborted_at = WallClock::now();
  EXPECT_THAT(AdviceFor(volume), AllOf(Not(HasSubstr("--force")), HasSubstr("--lazy")));
  volume.detached_at = WallClock::now();
  EXPECT_THAT(AdviceFor(volume), AllOf(Not(HasSubstr("--lazy")), HasSubstr("berthctl plugin restart nfs")));
}

TEST(VolumeAdviceTest, APluginThatHangsItselfIsToBeRestartedWhateverElseIsWrong) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].hung = "no answer";
  volume.stuck = StuckView{.on = "NodeUnpublishVolume", .plugin_hangs = true};
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("berthctl plugin restart nfs"), Not(HasSubstr("Wait, or"))));
}

TEST(VolumeAdviceTest, ADeadMountIsRepairedOnlyWhereThatWasAskedFor) {
  VolumeView volume = AdvisedVolume();
  PublicationView& use = volume.publications[0];
  use.dead = "Transport endpoint is not connected";
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("End job-1, then berthctl volume unpublish"),
                                       HasSubstr("publish it again"), Not(HasSubstr("--force"))));
  use.remount = true;
  EXPECT_THAT(AdviceFor(volume), HasSubstr("Restart job-1"));
  use.ephemeral = true;
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("not repaired"), HasSubstr("deletes it")));
}

// Seen as three instructions: to wait, to repeat what failed, and to publish again.
TEST(VolumeAdviceTest, ABlockedUseBesideAWorkingOneHasOneInstruction) {
  VolumeView volume = AdvisedVolume();
  volume.publications.push_back({.consumer = "db",
                                 .name = "data",
                                 .uncertain = true,
                                 .last_error = "the node was restarted",
                                 .blocked = Blocked{.text = "the node was restarted"}});
  volume.last_error = "the node was restarted";
  volume.uncertain = true;
  EXPECT_EQ(AdviceFor(volume),
            "Publish it again for db if it is still needed; else: berthctl volume unpublish --plugin nfs "
            "--volume 'vol 1' --consumer db --name data. The other uses of the volume are not affected.");
  volume.publications[1].origin = Origin::kScheduler;
  EXPECT_THAT(AdviceFor(volume),
              AllOf(StartsWith("Nothing on this node: db goes on once its scheduler confirms"),
                    Not(HasSubstr("Publish it again"))));
}

TEST(VolumeAdviceTest, MissingSecretsComeBeforeWhatIsBlocked) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].blocked = Blocked{.text = "the node was restarted"};
  volume.publications.push_back({.consumer = "db", .awaiting_secrets = true});
  volume.awaiting_secrets = true;
  EXPECT_THAT(AdviceFor(volume), AllOf(HasSubstr("--secrets-file"), HasSubstr("--consumer db")));
}

TEST(VolumeAdviceTest, WhatIsTriedAgainByItselfNeedsNothing) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].state = PublicationState::kUnpublishing;
  volume.last_error = "busy";
  EXPECT_THAT(AdviceFor(volume), StartsWith("Repeat what failed, or unpublish it"));
  volume.next_retry_at = WallClock::now();
  EXPECT_THAT(AdviceFor(volume), IsEmpty());
}

TEST(VolumeAdviceTest, AReleasedVolumeThatIsStillUsedIsNotFree) {
  VolumeView volume = AdvisedVolume();
  volume.publications.clear();
  volume.still_in_use = true;
  volume.next_retry_at = WallClock::now();
  EXPECT_THAT(AdviceFor(volume), HasSubstr("do not attach it to another node"));
}

TEST(VolumeAdviceTest, ALostMountIsPublishedAgain) {
  VolumeView volume = AdvisedVolume();
  volume.publications[0].uncertain = true;
  EXPECT_THAT(AdviceFor(volume), StartsWith("Publish it again for job-1"));
}

}  // namespace
}  // namespace berth
