#include "mounter/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

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
  volume.record.publications[0].held = "the node was restarted";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("publication.held"));
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

TEST(DoctorTest, AStaleRowAndAWrongIdentityFileAreWrittenAnew) {
  VolumeEvidence volume = Well();
  volume.in_journal = false;
  volume.identity_problem = "cannot be read";
  const auto found = DiagnoseVolume(volume, "/tree");
  ASSERT_THAT(Codes(found), ElementsAre("row.stale", "identity.wrong"));
  EXPECT_EQ(found[0].repair, RepairKind::kWriteRow);
  EXPECT_EQ(found[1].repair, RepairKind::kWriteIdentity);
}

TEST(DoctorTest, StrangersAreToldAndOnlyAnEmptyDirectoryIsTakenAway) {
  Evidence evidence;
  evidence.tree = "/tree";
  evidence.volumes.push_back(Well());
  evidence.strangers.push_back({.name = "empty", .says = "no identity file", .has_identity = false});
  evidence.strangers.push_back({.name = "named", .says = "volume x of plugin y", .has_identity = true});
  evidence.strangers.push_back({.name = "used", .says = "no identity file", .has_identity = false});
  evidence.mounts.push_back({.target = "/tree"});
  evidence.mounts.push_back({.target = "/tree/k/staging"});
  evidence.mounts.push_back({.target = "/tree/k/staging/inner"});
  evidence.mounts.push_back({.target = "/tree/k/publish/p/target"});
  evidence.mounts.push_back({.target = "/tree/used/x", .source = "/dev/sdz"});
  const auto found = Diagnose(evidence);
  ASSERT_THAT(Codes(found), ElementsAre("mount.stranger", "directory.stranger", "directory.stranger",
                                        "directory.stranger"));
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

TEST(DoctorTest, SaysWhatComesNext) {
  const WallTime now = WallClock::now();
  VolumeView view;
  EXPECT_EQ(WhatComesNext(view, now), "nothing is to be done");
  view.publications.push_back({.uncertain = true});
  EXPECT_THAT(WhatComesNext(view, now), HasSubstr("publish again what was lost"));
  view.publications.front() = {.held = "the node was restarted"};
  EXPECT_THAT(WhatComesNext(view, now), HasSubstr("somebody's word"));
  view.next_retry_at = now + std::chrono::seconds(12);
  EXPECT_EQ(WhatComesNext(view, now), "it is tried again in 12 s");
  view.running = "NodeStageVolume";
  view.running_since = now - std::chrono::seconds(5);
  EXPECT_EQ(WhatComesNext(view, now), "NodeStageVolume runs, since 5 s");
}

}  // namespace
}  // namespace berth
