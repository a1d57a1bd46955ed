#include "mounter/volume_record.h"

#include <gtest/gtest.h>

#include "base/testing/from_text.h"
#include "mounter/volume_record.pb.h"

namespace berth {
namespace {

using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

VolumeRecord FullRecord() {
  VolumeRecord record;
  record.plugin_id = "hp";
  record.volume_id = "volume/with\nodd name";
  record.driver_name = "hostpath.example.com";
  record.node_id = "node-7";
  record.boot_id = "boot";
  record.use = {.access_mode = AccessMode::SINGLE_NODE_MULTI_WRITER,
                .access_type = AccessType::kMount,
                .fs_type = "xfs",
                .mount_flags = {"noatime"}};
  record.sent_mode = AccessMode::SINGLE_NODE_WRITER;
  record.label = "jobs/db";
  record.volume_context = {{"a", "b"}};
  record.publish_context = std::map<std::string, std::string>{};
  record.stages = true;
  record.stage_state = StageState::kStaged;
  record.stage_uncertain = true;
  record.last_error = "none";
  record.staging_mount_id = 1ULL << 41;
  record.staging_mount_path = "a/\377b";
  record.staged_mounts = {.below = 1ULL << 43, .fingerprints = {5, ~0ULL}};
  record.staging_lost = true;
  record.pending_expansion_bytes = 1LL << 40;
  record.rebuilt = true;
  record.still_in_use = true;
  record.objects = {{.block_device = true, .device = 0x701, .disk = 0x701, .disk_sequence = 5},
                    {.device = 0x32,
                     .inode_device = 0x33,
                     .root = "/a\xff",
                     .fs_type = "nfs4",
                     .inode = 1ULL << 63,
                     .source = "server:/export",
                     .source_fingerprint = ~0ULL}};
  record.detached_mounts = {1ULL << 41, 7};
  record.earlier_mounts = {.below = 1ULL << 42, .fingerprints = {~0ULL, 3}};
  record.mounts_unknown = true;
  record.past_consumers = {"web", ""};
  record.other_names = {{.plugin_id = "q", .driver_name = "d", .volume_id = "v\n"}};
  PublicationRecord publication;
  publication.key = {.consumer = "web", .name = "data"};
  publication.component = "0123";
  publication.readonly = true;
  publication.had_secrets = true;
  publication.state = PublicationState::kPublished;
  publication.uncertain = true;
  publication.last_error = "gone";
  publication.published_at = WallTime(std::chrono::microseconds(1'234'567));
  publication.origin = Origin::kScheduler;
  publication.remount = true;
  publication.ephemeral = true;
  publication.life = ProcessLife(12, 34);
  publication.permissions = FromText<RootPermissions>(
      R"(owner: 0 group: 7 mode: 02770 recursive: true selinux_label: "system_u:object_r:x:s0")");
  publication.permissions_set = true;
  publication.secrets_reference.set_file("/etc/secret");
  publication.mount_flags = {{"noatime", "nodev"}};
  publication.consumer_labels = {{"pod.uid", "7d1f"}};
  publication.blocked = "the node was restarted";
  publication.remount_after_undo = true;
  publication.mount_id = 1ULL << 40;
  publication.before_reboot = true;
  publication.path = {.path = "/srv/db", .suid = true, .dev = true};
  publication.path_made = {.path = "/srv/other"};
  publication.path_mount_id = 1ULL << 42;
  publication.path_unguarded = "no flag";
  record.publications.push_back(publication);
  return record;
}

TEST(VolumeRecordTest, ComesBackAsItWasWritten) {
  const VolumeRecord record = FullRecord();
  const auto read = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->plugin_id, record.plugin_id);
  EXPECT_EQ(read->volume_id, record.volume_id);
  EXPECT_EQ(read->driver_name, record.driver_name);
  EXPECT_EQ(read->node_id, record.node_id);
  EXPECT_EQ(read->boot_id, record.boot_id);
  EXPECT_EQ(read->label, "jobs/db");
  EXPECT_EQ(read->publications.at(0).consumer_labels, record.publications.at(0).consumer_labels);
  EXPECT_EQ(read->use, record.use);
  EXPECT_EQ(read->sent_mode, record.sent_mode);
  EXPECT_EQ(read->volume_context, record.volume_context);
  EXPECT_EQ(read->publish_context, record.publish_context);
  EXPECT_TRUE(read->stages);
  EXPECT_EQ(read->stage_state, StageState::kStaged);
  EXPECT_TRUE(read->stage_uncertain);
  EXPECT_EQ(read->last_error, "none");
  EXPECT_EQ(read->staging_mount_id, 1ULL << 41);
  EXPECT_EQ(read->staging_mount_path, "a/\377b");
  EXPECT_TRUE(read->staging_lost);
  EXPECT_EQ(read->pending_expansion_bytes, 1LL << 40);
  EXPECT_TRUE(read->rebuilt);
  EXPECT_TRUE(read->still_in_use);
  EXPECT_EQ(read->objects, record.objects);
  EXPECT_EQ(read->other_names, record.other_names);
  EXPECT_EQ(read->detached_mounts, record.detached_mounts);
  EXPECT_EQ(read->earlier_mounts, record.earlier_mounts);
  EXPECT_EQ(read->staged_mounts, record.staged_mounts);
  EXPECT_TRUE(read->mounts_unknown);
  EXPECT_EQ(read->past_consumers, record.past_consumers);
  ASSERT_EQ(read->publications.size(), 1U);
  const PublicationRecord& publication = read->publications[0];
  EXPECT_EQ(publication.key, record.publications[0].key);
  EXPECT_EQ(publication.component, "0123");
  EXPECT_TRUE(publication.readonly);
  EXPECT_TRUE(publication.had_secrets);
  EXPECT_EQ(publication.state, PublicationState::kPublished);
  EXPECT_TRUE(publication.uncertain);
  EXPECT_EQ(publication.last_error, "gone");
  EXPECT_EQ(publication.published_at, record.publications[0].published_at);
  EXPECT_EQ(publication.origin, Origin::kScheduler);
  EXPECT_TRUE(publication.remount);
  EXPECT_TRUE(publication.ephemeral);
  EXPECT_EQ(publication.life, record.publications[0].life);
  EXPECT_EQ(publication.permissions, record.publications[0].permissions);
  EXPECT_TRUE(publication.permissions_set);
  EXPECT_EQ(publication.secrets_reference, record.publications[0].secrets_reference);
  EXPECT_EQ(publication.mount_flags, record.publications[0].mount_flags);
  EXPECT_EQ(publication.blocked, "the node was restarted");
  EXPECT_TRUE(publication.remount_after_undo);
  EXPECT_EQ(publication.mount_id, 1ULL << 40);
  EXPECT_TRUE(publication.before_reboot);
  EXPECT_EQ(publication.path, record.publications[0].path);
  EXPECT_EQ(publication.path_made, record.publications[0].path_made);
  EXPECT_EQ(publication.path_mount_id, 1ULL << 42);
  EXPECT_EQ(publication.path_unguarded, "no flag");
}

TEST(VolumeRecordTest, TheSameVolumeIsKnownByItsDriverOrAsTheKernelShowsIt) {
  VolumeRecord one;
  one.plugin_id = "p";
  one.driver_name = "d";
  one.volume_id = "v";
  VolumeRecord other = one;
  other.plugin_id = "q";
  EXPECT_TRUE(one.IsSame(other)) << "through another plugin of the driver";
  other.driver_name = "e";
  EXPECT_FALSE(one.IsSame(other)) << "ids are a storage's own";
  one.driver_name = other.driver_name = "";
  EXPECT_FALSE(one.IsSame(other)) << "the driver is not known";

  const KernelObject directory{
      .device = 0x801, .inode_device = 0x801, .disk = 0x801, .disk_sequence = 3, .inode = 12};
  KernelObject shown = directory;
  one.objects = {directory};
  other.objects = {shown};
  EXPECT_TRUE(one.IsSame(other));
  other.objects[0].inode = 13;
  EXPECT_FALSE(one.IsSame(other)) << "another directory";
  one.objects[0].inode = other.objects[0].inode = 0;
  EXPECT_FALSE(one.IsSame(other)) << "not known";
  other.objects = {{.block_device = true, .device = 0x801, .disk = 0x801, .disk_sequence = 3}};
  EXPECT_TRUE(one.IsSame(other)) << "its disk";
  other.objects[0].disk_sequence = 4;
  EXPECT_FALSE(one.IsSame(other)) << "another disk, with the same number";
}

TEST(VolumeRecordTest, TheNamesOfVolumesThatHaveLeftAreKeptToALimit) {
  VolumeRecord record;
  VolumeRecord left;
  for (size_t i = 0; i < 2 * kOtherNames; ++i) {
    left.volume_id = std::to_string(i / 2);  // each twice
    record.AddOtherName(left);
  }
  ASSERT_EQ(record.other_names.size(), kOtherNames);
  EXPECT_EQ(record.other_names.front().volume_id, "0");
  left.volume_id = "more";
  record.AddOtherName(left);
  EXPECT_EQ(record.other_names.size(), kOtherNames);
  EXPECT_EQ(record.other_names.front().volume_id, "1");
  EXPECT_EQ(record.other_names.back().volume_id, "more");
}

TEST(VolumeRecordTest, NoPublishContextDiffersFromAnEmptyOne) {
  VolumeRecord record = FullRecord();
  record.publish_context.reset();
  const auto read = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->publish_context, std::nullopt);
}

TEST(VolumeRecordTest, RefusesWhatIsNoRecord) {
  EXPECT_EQ(DecodeRecord("\xff\xff\xff").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeRecord("").status().code(), absl::StatusCode::kDataLoss);
}

TEST(VolumeRecordTest, RefusesStatesThatItDoesNotKnow) {
  journal::v1::Volume volume;
  ASSERT_TRUE(volume.ParseFromString(EncodeRecord(FullRecord())));
  volume.mutable_publications(0)->set_state(static_cast<journal::v1::PublicationState>(77));
  EXPECT_EQ(DecodeRecord(volume.SerializeAsString()).status().code(), absl::StatusCode::kDataLoss);
  volume.mutable_publications(0)->set_state(journal::v1::PUBLISHED);
  volume.set_stage_state(static_cast<journal::v1::StageState>(77));
  EXPECT_EQ(DecodeRecord(volume.SerializeAsString()).status().code(), absl::StatusCode::kDataLoss);
  volume.set_stage_state(journal::v1::STAGED);
  volume.set_sent_access_mode(77);
  EXPECT_EQ(DecodeRecord(volume.SerializeAsString()).status().code(), absl::StatusCode::kDataLoss);
}

// A record that does not fit together is read the way that leaves nothing behind.
TEST(VolumeRecordTest, OfTwoPublicationsWithOneKeyTheFirstIsRead) {
  VolumeRecord record = FullRecord();
  record.publications.push_back(record.publications[0]);
  record.publications[1].component = "4567";
  record.publications.push_back(record.publications[0]);
  record.publications[2].key.name = "other";
  const auto read = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->publications.size(), 2U);
  EXPECT_EQ(read->publications[0].component, "0123");
  EXPECT_EQ(read->publications[1].key.name, "other");
}

TEST(VolumeRecordTest, WhatIsPublishedOnAStagingIsReadAsStaged) {
  VolumeRecord record = FullRecord();
  record.stage_state = StageState::kAbsent;
  record.publications[0].ephemeral = false;
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->stage_state, StageState::kStaged) << "so it is unstaged";
  record.publications[0].state = PublicationState::kUnpublishing;
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->stage_state, StageState::kAbsent);
  record.publications[0].state = PublicationState::kPublished;
  record.publications[0].ephemeral = true;
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->stage_state, StageState::kAbsent) << "it is never staged";
  record.publications[0].ephemeral = false;
  record.stages = false;
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->stage_state, StageState::kAbsent) << "nor is any through it";
}

TEST(VolumeRecordTest, WhatIsStagedIsOfAPluginThatStages) {
  for (const StageState state : {StageState::kStaging, StageState::kStaged, StageState::kUnstaging}) {
    VolumeRecord record = FullRecord();
    record.stages = false;
    record.stage_state = state;
    EXPECT_TRUE(DecodeRecord(EncodeRecord(record))->stages);
  }
}

TEST(VolumeRecordTest, NothingNegativeIsOwed) {
  VolumeRecord record = FullRecord();
  record.pending_expansion_bytes = -1;
  EXPECT_EQ(DecodeRecord(EncodeRecord(record))->pending_expansion_bytes, 0);
}

}  // namespace
}  // namespace berth
