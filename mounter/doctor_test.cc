#include "mounter/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A volume that is published, mounted and well.
VolumeEvidence Well() {
  VolumeEvidence volume;
  volume.key = "k";
  volume.record.plugin_id = "hp";
  volume.record.volume_id = "v1";
  PublicationRecord p;
  p.key = {.consumer = "web", .name = ""};
  p.state = PublicationState::kPublished;
  p.mount_id = 7;
  volume.record.publications.push_back(p);
  volume.in_journal = true;
  volume.targets[p.key] = {.error = "", .there = true, .mount_id = 7};
  volume.view.staging_path = "/tree/k/staging";
  volume.view.publications.push_back({.consumer = "web", .target_path = "/tree/k/publish/p/target"});
  return volume;
}

std::vector<std::string> Codes(const std::vector<Diagnosis>& found) {
  std::vector<std::string> codes;
  for (const Diagnosis& diagnosis : found) codes.push_back(diagnosis.finding.code);
  return codes;
}

TEST(DoctorTest, AWellVolumeHasNothing) { EXPECT_THAT(DiagnoseVolume(Well(), "/tree"), IsEmpty()); }

TEST(DoctorTest, AMissingMountIsRepairedUnlessThatWouldLoseSomething) {
  VolumeEvidence volume = Well();
  volume.targets.begin()->second = {};
  auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("mount.missing"));
  EXPECT_EQ(found[0].repair, RepairKind::kMountAgain);
  EXPECT_EQ(found[0].finding.consumer, "web");
  EXPECT_EQ(found[0].finding.severity, Finding::Severity::kError);

  volume.record.publications[0].ephemeral = true;
  found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("mount.missing"));
  EXPECT_EQ(found[0].repair, RepairKind::kNone) << "to unpublish it would delete it";
}

TEST(DoctorTest, WhatIsHeldWaitsForItsCallerAndIsNotRepaired) {
  VolumeEvidence volume = Well();
  volume.targets.begin()->second = {};
  volume.record.publications[0].blocked = "the node was restarted";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("publication.blocked"));
  EXPECT_EQ(found[0].repair, RepairKind::kNone);
}

TEST(DoctorTest, AForeignMountOnTopIsAPersonsMatter) {
  VolumeEvidence volume = Well();
  volume.targets.begin()->second.mount_id = 8;
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("mount.over"));
  EXPECT_EQ(found[0].repair, RepairKind::kNone);
}

TEST(DoctorTest, ADeadMountNamesItsErrorAndWhoHasToBeRestarted) {
  VolumeEvidence volume = Well();
  volume.record.publications[0].dead = "Transport endpoint is not connected";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("mount.dead"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("Transport endpoint"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("web"));
}

TEST(DoctorTest, AHungMountIsReportedAndNotRepaired) {
  VolumeEvidence volume = Well();
  volume.record.publications[0].hung = "no answer within 10 s";
  volume.view.publications[0].hung = "no answer within 10 s";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("mount.hung"));
  EXPECT_EQ(found[0].repair, RepairKind::kNone);
  EXPECT_THAT(found[0].finding.repair, IsEmpty());
  EXPECT_THAT(found[0].finding.text, HasSubstr("does not answer: no answer within 10 s"));
  EXPECT_THAT(found[0].finding.advice, HasSubstr("Wait, or bring its server back"));
}

TEST(DoctorTest, EveryFindingOfAVolumeHasTheSameAdvice) {
  VolumeEvidence volume = Well();
  volume.in_journal = false;
  volume.record.publications[0].blocked = "the node was restarted";
  volume.view.publications[0].blocked = Blocked{.text = "the node was restarted"};
  volume.view.stuck = StuckView{.on = "NodeUnpublishVolume", .plugin_hangs = true};
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("row.stale", "publication.blocked", "volume.stuck"));
  for (const Diagnosis& diagnosis : found) {
    EXPECT_THAT(diagnosis.finding.advice, HasSubstr("berthctl plugin restart")) << diagnosis.finding.code;
    EXPECT_EQ(diagnosis.finding.text.find("unpublish"), std::string::npos) << diagnosis.finding.text;
  }
}

TEST(DoctorTest, AStaleRowAndAWrongIdentityFileAreWrittenAnew) {
  VolumeEvidence volume = Well();
  volume.in_journal = false;
  volume.identity_problem = "cannot be read";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("row.stale", "identity.wrong"));
  EXPECT_EQ(found[0].repair, RepairKind::kWriteRow);
  EXPECT_EQ(found[1].repair, RepairKind::kWriteIdentity);
}

TEST(DoctorTest, WhatFailedAndIsNotDoneYetIsAFinding) {
  VolumeEvidence volume = Well();
  PublicationRecord& p = volume.record.publications[0];
  p.last_error = "an old error";
  EXPECT_THAT(DiagnoseVolume(volume, "/tree"), IsEmpty()) << "it is published nevertheless";

  p.state = PublicationState::kUnpublishing;
  p.last_error = "the plugin refuses";
  volume.at = WallClock::now();
  volume.view.next_retry_at = volume.at + std::chrono::seconds(12);
  auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.failing"));
  EXPECT_EQ(found[0].finding.severity, Finding::Severity::kWarning);
  EXPECT_EQ(found[0].finding.consumer, "web");
  EXPECT_EQ(found[0].finding.text,
            "consumer web: not unpublished yet: the plugin refuses; it is tried again in 12 s");
  EXPECT_EQ(found[0].repair, RepairKind::kNone);

  p.last_error.clear();
  EXPECT_THAT(DiagnoseVolume(volume, "/tree"), IsEmpty()) << "merely under way";
  volume.view.uncertain = true;
  found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.uncertain"));
  EXPECT_EQ(found[0].finding.severity, Finding::Severity::kInfo);
}

TEST(DoctorTest, AVolumeThatIsNotStagedOrReleasedIsFailingAndSaysSoOnce) {
  VolumeEvidence volume = Well();
  volume.record.last_error = "no such device";
  EXPECT_THAT(DiagnoseVolume(volume, "/tree"), IsEmpty()) << "of a step that is settled";
  volume.record.stage_state = StageState::kStaging;
  auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.failing"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("not staged yet: no such device; it is not tried again"));

  volume.record.publications[0].state = PublicationState::kPublishing;
  volume.record.publications[0].last_error = "no such device";
  found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.failing"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("consumer web: not published yet"));

  volume.record.publications.clear();
  volume.record.stage_state = StageState::kStaged;
  found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.failing"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("not released yet"));
}

TEST(DoctorTest, WhatHasAWordOfItsOwnIsNotCalledFailingToo) {
  VolumeEvidence volume = Well();
  PublicationRecord& p = volume.record.publications[0];
  p.state = PublicationState::kPublishing;
  p.last_error = "it failed";
  volume.view.stuck = StuckView{.on = "umount /x", .pid = 7};
  EXPECT_THAT(Codes(DiagnoseVolume(volume, "/tree")), ElementsAre("volume.stuck"));
  volume.view.stuck.reset();
  volume.view.awaiting_secrets = true;
  EXPECT_THAT(Codes(DiagnoseVolume(volume, "/tree")), ElementsAre("volume.awaiting_secrets"));
  volume.view.awaiting_secrets = false;
  p.blocked = "the node was restarted";
  EXPECT_THAT(Codes(DiagnoseVolume(volume, "/tree")), ElementsAre("publication.blocked"));
}

TEST(DoctorTest, AnExpansionIsAFindingUntilItIsDone) {
  VolumeEvidence volume = Well();
  volume.record.pending_expansion_bytes = int64_t{2} << 30;
  volume.view.running = "NodeExpandVolume";
  auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.expansion_pending"));
  EXPECT_EQ(found[0].finding.severity, Finding::Severity::kInfo) << "it is being done";
  volume.view.running.clear();
  volume.record.last_error = "no EXPAND_VOLUME on the node";
  found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("volume.expansion_pending"));
  EXPECT_EQ(found[0].finding.severity, Finding::Severity::kWarning);
  EXPECT_THAT(found[0].finding.text, HasSubstr("not done: no EXPAND_VOLUME on the node"));
}

TEST(DoctorTest, IdentityFilesThatSayLessOrElseThanTheJournalAreWrong) {
  const VolumeRecord record = Well().record;
  EXPECT_EQ(LostWithJournal(record, record), "");
  VolumeRecord said = record;
  said.use.fs_type = "xfs";
  EXPECT_THAT(LostWithJournal(said, record), HasSubstr("it says something else"));
  said = record;
  said.publications[0].readonly = true;
  EXPECT_THAT(LostWithJournal(said, record), HasSubstr("of consumer web it says something else"));
  said.publications[0].key.consumer = "other";
  EXPECT_THAT(LostWithJournal(said, record), HasSubstr("does not name consumer web"));
  said = record;
  said.publish_context.emplace();
  EXPECT_THAT(LostWithJournal(said, record), HasSubstr("it says something else"));
  VolumeRecord living = record;
  living.still_in_use = true;
  EXPECT_THAT(LostWithJournal(record, living), HasSubstr("may still be in use"));
  EXPECT_EQ(LostWithJournal(living, record), "") << "of the use before";
  said = record;
  said.publications[0].key.consumer = "other";
  VolumeRecord leaving = record;
  leaving.publications[0].state = PublicationState::kUnpublishing;
  EXPECT_EQ(LostWithJournal(said, leaving), "") << "it may not be named any more";
}

TEST(DoctorTest, OrphansAreReportedAndOnlyAnEmptyDirectoryIsTakenAway) {
  Evidence evidence;
  evidence.tree = "/tree";
  evidence.volumes.push_back(Well());
  evidence.orphans.push_back({.name = "empty", .says = "no identity file", .has_identity = false});
  evidence.orphans.push_back({.name = "named", .says = "volume x of plugin y", .has_identity = true});
  evidence.orphans.push_back({.name = "used", .says = "no identity file", .has_identity = false});
  evidence.mounts.push_back({.target = "/tree"});
  evidence.mounts.push_back({.target = "/tree/k/staging"});
  evidence.mounts.push_back({.target = "/tree/k/staging/inner"});
  evidence.mounts.push_back({.target = "/tree/k/publish/p/target"});
  evidence.mounts.push_back({.target = "/tree/used/x", .source = "/dev/sdz"});
  const auto found = Diagnose(evidence);
  ASSERT_THAT(Codes(found),
              ElementsAre("mount.orphan", "directory.orphan", "directory.orphan", "directory.orphan"));
  EXPECT_EQ(found[0].finding.path, "/tree/used/x");
  EXPECT_EQ(found[0].repair, RepairKind::kNone);
  EXPECT_EQ(found[1].repair, RepairKind::kRemoveDirectory);
  EXPECT_EQ(found[2].repair, RepairKind::kNone);
  EXPECT_THAT(found[2].finding.text, HasSubstr("volume x of plugin y"));
  EXPECT_EQ(found[3].repair, RepairKind::kNone) << "something is mounted in it";
}

TEST(DoctorTest, ErrorsComeFirst) {
  Evidence evidence;
  evidence.tree = "/tree";
  evidence.problems.push_back("the disk is full");
  VolumeEvidence volume = Well();
  volume.targets.begin()->second = {};
  evidence.volumes.push_back(volume);
  EXPECT_THAT(Codes(Diagnose(evidence)), ElementsAre("mount.missing", "node.problem"));
}

TEST(DoctorTest, ADirectoryIsMissedOnlyWhereSomethingIsMountedInIt) {
  VolumeEvidence volume = Well();
  volume.directory_there = false;
  EXPECT_THAT(Codes(DiagnoseVolume(volume, "/tree")), Contains("directory.missing"));
  volume.record.publications[0].blocked = "the node was restarted";
  EXPECT_THAT(Codes(DiagnoseVolume(volume, "/tree")), ElementsAre("publication.blocked"));
}

TEST(DoctorTest, WhatIsWrongWithTheTreeItselfIsTold) {
  Evidence evidence;
  evidence.tree = "/var/lib/berth/volumes";
  evidence.volumes.push_back(Well());
  evidence.unprotected = "no flag";
  evidence.leftovers.push_back({.name = "x", .entries = {"x/a", "x/b"}, .more = 3});
  const auto found = Diagnose(evidence);
  ASSERT_THAT(Codes(found), ElementsAre("tree.leftover", "tree.unprotected"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("x/a, x/b and 3 more"));
  EXPECT_THAT(found[0].finding.text, HasSubstr("mount --bind /var/lib/berth /mnt; mv /mnt/volumes/x "));
  EXPECT_EQ(found[0].repair, RepairKind::kNone);
  EXPECT_EQ(found[1].finding.severity, Finding::Severity::kInfo) << "nothing that a person can do";
}

TEST(DoctorTest, SaysWhatComesNext) {
  const WallTime now = WallClock::now();
  VolumeView view;
  EXPECT_EQ(WhatComesNext(view, now), "nothing is to be done");
  view.publications.push_back({.blocked = Blocked{.text = "the node was restarted"}});
  EXPECT_EQ(WhatComesNext(view, now), "nothing, until that is done");
  view.next_retry_at = now + std::chrono::seconds(12);
  EXPECT_EQ(WhatComesNext(view, now), "it is tried again in 12 s");
  view.running = "NodeStageVolume";
  view.running_since = now - std::chrono::seconds(5);
  EXPECT_EQ(WhatComesNext(view, now), "NodeStageVolume runs, since 5 s");
}

}  // namespace
}  // namespace berth
