#include "mounter/volume_record.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/root_permissions.h"
#include "mounter/volume_record.pb.h"

namespace berth {
namespace {

namespace pb = ::berth::journal::v1;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

// Raised when an older or newer berthd would misread a record. Other versions are refused.
constexpr uint32_t kRecordVersion = 2;

constexpr size_t kDetachedMounts = 64;

int64_t Microseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

pb::StageState ToProto(StageState state) {
  switch (state) {
    case StageState::kAbsent:
      return pb::ABSENT;
    case StageState::kStaging:
      return pb::STAGING;
    case StageState::kStaged:
      return pb::STAGED;
    case StageState::kUnstaging:
      return pb::UNSTAGING;
  }
  return pb::ABSENT;
}

pb::PublicationState ToProto(PublicationState state) {
  switch (state) {
    case PublicationState::kPublishing:
      return pb::PUBLISHING;
    case PublicationState::kPublished:
      return pb::PUBLISHED;
    case PublicationState::kUnpublishing:
      return pb::UNPUBLISHING;
  }
  return pb::PUBLICATION_STATE_UNKNOWN;
}

std::optional<StageState> FromProto(pb::StageState state) {
  switch (static_cast<int>(state)) {
    case pb::ABSENT:
      return StageState::kAbsent;
    case pb::STAGING:
      return StageState::kStaging;
    case pb::STAGED:
      return StageState::kStaged;
    case pb::UNSTAGING:
      return StageState::kUnstaging;
  }
  return std::nullopt;
}

std::optional<PublicationState> FromProto(pb::PublicationState state) {
  switch (static_cast<int>(state)) {
    case pb::PUBLISHING:
      return PublicationState::kPublishing;
    case pb::PUBLISHED:
      return PublicationState::kPublished;
    case pb::UNPUBLISHING:
      return PublicationState::kUnpublishing;
  }
  return std::nullopt;
}

void EncodePath(const PublishedPath& path, pb::PublishedPath* p) {
  p->set_path(path.path);
  p->set_suid(path.suid);
  p->set_dev(path.dev);
}

PublishedPath DecodePath(const pb::PublishedPath& p) {
  return {.path = p.path(), .suid = p.suid(), .dev = p.dev()};
}

template <class Map>
std::map<std::string, std::string> Copy(const Map& map) {
  return {map.begin(), map.end()};
}

// What was asked for beyond the mount itself.
void EncodeAsked(const PublicationRecord& publication, pb::Publication* p) {
  p->set_origin(static_cast<pb::Origin>(publication.origin));
  p->set_remount(publication.remount);
  p->set_ephemeral(publication.ephemeral);
  if (IsSet(publication.life)) *p->mutable_life() = publication.life;
  if (Wanted(publication.permissions)) *p->mutable_permissions() = publication.permissions;
  p->set_permissions_set(publication.permissions_set);
  p->set_blocked(Printable(publication.blocked));
  p->set_remount_after_undo(publication.remount_after_undo);
  p->set_mount_id(publication.mount_id);
  p->set_before_reboot(publication.before_reboot);
  if (publication.confirmed_at) p->set_confirmed_at_ns(publication.confirmed_at->time_since_epoch().count());
  if (!publication.path.path.empty()) EncodePath(publication.path, p->mutable_path());
  if (!publication.path_made.path.empty()) EncodePath(publication.path_made, p->mutable_path_made());
  p->set_path_mount_id(publication.path_mount_id);
  p->set_path_unguarded(Printable(publication.path_unguarded));
  if (IsSet(publication.secrets_reference)) *p->mutable_secrets_reference() = publication.secrets_reference;
  for (const auto& [key, value] : publication.consumer_labels) (*p->mutable_consumer_labels())[key] = value;
  if (publication.mount_flags) {
    const std::vector<std::string>& flags = *publication.mount_flags;
    *p->mutable_mount_flags()->mutable_values() = {flags.begin(), flags.end()};
  }
}

absl::Status DecodeAsked(const pb::Publication& p, PublicationRecord* publication) {
  if (!pb::Origin_IsValid(p.origin())) return absl::DataLossError("an unknown origin");
  publication->origin = static_cast<Origin>(p.origin());
  publication->remount = p.remount();
  publication->ephemeral = p.ephemeral();
  publication->life = p.life();
  publication->permissions = p.permissions();
  publication->permissions_set = p.permissions_set();
  publication->blocked = p.blocked();
  publication->remount_after_undo = p.remount_after_undo();
  publication->mount_id = p.mount_id();
  publication->before_reboot = p.before_reboot();
  if (p.confirmed_at_ns() > 0) publication->confirmed_at = BootTime(Duration(p.confirmed_at_ns()));
  publication->path = DecodePath(p.path());
  publication->path_made = DecodePath(p.path_made());
  publication->path_mount_id = p.path_mount_id();
  publication->path_unguarded = p.path_unguarded();
  publication->secrets_reference = p.secrets_reference();
  publication->consumer_labels = Copy(p.consumer_labels());
  if (p.has_mount_flags()) {
    publication->mount_flags.emplace(p.mount_flags().values().begin(), p.mount_flags().values().end());
  }
  return absl::OkStatus();
}

// A record that does not fit together is read the way that leaves nothing behind.
void Complete(VolumeRecord* record) {
  if (record->stage_state != StageState::kAbsent) record->stages = true;
  std::vector<PublicationRecord> publications;
  for (PublicationRecord& publication : record->publications) {
    if (std::ranges::find(publications, publication.key, &PublicationRecord::key) != publications.end())
      continue;
    // Something was published on it: it was staged, or at least began to be.
    if (record->stages && !publication.ephemeral && record->stage_state == StageState::kAbsent &&
        publication.state == PublicationState::kPublished) {
      record->stage_state = StageState::kStaged;
    }
    publications.push_back(std::move(publication));
  }
  record->publications = std::move(publications);
}

}  // namespace

bool ReadsOnly(::csi::v1::VolumeCapability::AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_READER_ONLY || mode == AccessMode::MULTI_NODE_READER_ONLY;
}

std::vector<uint64_t> VolumeRecord::Mounts() const {
  std::vector<uint64_t> mounts = detached_mounts;
  if (staging_mount_id != 0) mounts.push_back(staging_mount_id);
  for (const PublicationRecord& publication : publications) {
    if (publication.mount_id != 0) mounts.push_back(publication.mount_id);
    if (publication.path_mount_id != 0) mounts.push_back(publication.path_mount_id);
  }
  return mounts;
}

void VolumeRecord::Inherit(const VolumeRecord& last) {
  label = last.label;
  objects = last.objects;
  detached_mounts = last.detached_mounts;
  earlier_mounts = last.earlier_mounts;
  mounts_unknown = last.mounts_unknown;
  past_consumers = last.past_consumers;
  still_in_use = last.still_in_use;
  other_names = last.other_names;
}

bool VolumeRecord::IsSame(const VolumeRecord& other) const {
  if (!driver_name.empty() && driver_name == other.driver_name && volume_id == other.volume_id) return true;
  return std::ranges::any_of(objects, [&other](const KernelObject& object) {
    return std::ranges::any_of(
        other.objects, [&object](const KernelObject& theirs) { return IsSameObject(object, theirs); });
  });
}

void VolumeRecord::AddOtherName(const VolumeRecord& left) {
  OtherName name{.plugin_id = left.plugin_id, .driver_name = left.driver_name, .volume_id = left.volume_id};
  std::erase(other_names, name);
  other_names.push_back(std::move(name));
  if (other_names.size() > kOtherNames) other_names.erase(other_names.begin());
}

void VolumeRecord::AddDetachedMount(uint64_t mount_id) {
  still_in_use = true;
  if (mount_id == 0 || std::ranges::find(detached_mounts, mount_id) != detached_mounts.end()) return;
  detached_mounts.push_back(mount_id);
  if (detached_mounts.size() > kDetachedMounts) detached_mounts.erase(detached_mounts.begin());
}

void VolumeRecord::SetInUse(std::vector<KernelObject> kept) {
  still_in_use = true;
  objects = std::move(kept);
  if (objects.empty()) mounts_unknown = true;
}

void VolumeRecord::SetWithoutPlugin(WithoutPlugin said) {
  without_plugin = std::move(said);
  still_in_use = false;
  objects.clear();
  detached_mounts.clear();
}

void VolumeRecord::FillRebuilt(const PublicationRecord& said, VolumeUse new_use,
                               std::map<std::string, std::string> new_volume_context,
                               std::optional<std::map<std::string, std::string>> new_publish_context) {
  if (!rebuilt) return;
  if (PublicationRecord* known = Find(said.key)) {
    known->permissions = said.permissions;
    known->had_secrets = said.had_secrets;
  }
  rebuilt = false;
  use = std::move(new_use);
  volume_context = std::move(new_volume_context);
  publish_context = std::move(new_publish_context);
}

PublicationRecord* VolumeRecord::Find(const PublicationKey& key) {
  const auto it = std::ranges::find(publications, key, &PublicationRecord::key);
  return it == publications.end() ? nullptr : &*it;
}

const PublicationRecord* VolumeRecord::Find(const PublicationKey& key) const {
  const auto it = std::ranges::find(publications, key, &PublicationRecord::key);
  return it == publications.end() ? nullptr : &*it;
}

namespace {

void EncodeUse(const VolumeUse& use, pb::Capability* out) {
  out->set_access_mode(use.access_mode);
  out->set_block(use.access_type == AccessType::kBlock);
  out->set_fs_type(use.fs_type);
  for (const std::string& flag : use.mount_flags) out->add_mount_flags(flag);
  out->set_volume_mount_group(use.volume_mount_group);
}

VolumeUse DecodeUse(const pb::Capability& in) {
  VolumeUse use;
  use.access_mode = static_cast<AccessMode::Mode>(in.access_mode());
  use.access_type = in.block() ? AccessType::kBlock : AccessType::kMount;
  use.fs_type = in.fs_type();
  use.mount_flags.assign(in.mount_flags().begin(), in.mount_flags().end());
  use.volume_mount_group = in.volume_mount_group();
  return use;
}

void EncodeObject(const KernelObject& object, pb::KernelObject* out) {
  out->set_block_device(object.block_device);
  out->set_device_major(major(object.device));
  out->set_device_minor(minor(object.device));
  out->set_disk_major(major(object.disk));
  out->set_disk_minor(minor(object.disk));
  out->set_disk_sequence(object.disk_sequence);
  out->set_root(object.root);
  out->set_fs_type(object.fs_type);
  out->set_source(object.source);
  out->set_inode_device_major(major(object.inode_device));
  out->set_inode_device_minor(minor(object.inode_device));
  out->set_inode(object.inode);
  out->set_source_fingerprint(object.source_fingerprint);
}

KernelObject DecodeObject(const pb::KernelObject& in) {
  return {.block_device = in.block_device(),
          .device = makedev(in.device_major(), in.device_minor()),
          .inode_device = makedev(in.inode_device_major(), in.inode_device_minor()),
          .disk = makedev(in.disk_major(), in.disk_minor()),
          .disk_sequence = in.disk_sequence(),
          .root = in.root(),
          .fs_type = in.fs_type(),
          .inode = in.inode(),
          .source = in.source(),
          .source_fingerprint = in.source_fingerprint()};
}

void EncodePublication(const PublicationRecord& publication, pb::Publication* out) {
  out->set_consumer(publication.key.consumer);
  out->set_name(publication.key.name);
  out->set_component(publication.component);
  out->set_readonly(publication.readonly);
  out->set_had_secrets(publication.had_secrets);
  out->set_state(ToProto(publication.state));
  out->set_uncertain(publication.uncertain);
  out->set_last_error(Printable(publication.last_error));
  if (publication.published_at) out->set_published_at_us(Microseconds(*publication.published_at));
  EncodeAsked(publication, out);
}

absl::StatusOr<PublicationRecord> DecodePublication(const pb::Publication& in) {
  const auto state = FromProto(in.state());
  if (!state) return absl::DataLossError("an unknown publication state");
  PublicationRecord publication;
  publication.key = {.consumer = in.consumer(), .name = in.name()};
  publication.component = in.component();
  publication.readonly = in.readonly();
  publication.had_secrets = in.had_secrets();
  publication.state = *state;
  publication.uncertain = in.uncertain();
  publication.last_error = in.last_error();
  if (in.published_at_us() != 0) {
    publication.published_at = WallTime(std::chrono::microseconds(in.published_at_us()));
  }
  BERTH_RETURN_IF_ERROR(DecodeAsked(in, &publication));
  return publication;
}

// The same record is the same bytes, whatever the order of its maps: rows are compared.
std::string SameBytes(const pb::Volume& volume) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    volume.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// Whether the bytes are a record, of this version, with values that this version knows.
absl::StatusOr<pb::Volume> ParseRecord(std::string_view bytes) {
  pb::Volume in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("not a record of a volume");
  }
  if (in.plugin_id().empty() || in.volume_id().empty()) {
    return absl::DataLossError("a record of a volume without plugin or id");
  }
  const std::string volume = Printable(in.volume_id(), 128);
  if (in.version() != kRecordVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "the record of volume {} was written by another version of berthd (its records have version {}, "
        "those of this one {}): install that version again; nothing was changed",
        volume, in.version(), kRecordVersion));
  }
  if (!AccessMode::Mode_IsValid(in.capability().access_mode()) ||
      !AccessMode::Mode_IsValid(in.sent_access_mode())) {
    return absl::DataLossError(fmt::format("an unknown access mode in the record of volume {}", volume));
  }
  if (!FromProto(in.stage_state())) {
    return absl::DataLossError(fmt::format("an unknown stage state in the record of volume {}", volume));
  }
  return in;
}

}  // namespace

std::string EncodeRecord(const VolumeRecord& record) {
  pb::Volume out;
  out.set_version(kRecordVersion);
  out.set_plugin_id(record.plugin_id);
  out.set_volume_id(record.volume_id);
  out.set_driver_name(record.driver_name);
  out.set_node_id(record.node_id);
  out.set_boot_id(record.boot_id);
  out.set_label(record.label);
  EncodeUse(record.use, out.mutable_capability());
  out.set_pending_expansion_bytes(record.pending_expansion_bytes);
  out.set_rebuilt(record.rebuilt);
  out.set_still_in_use(record.still_in_use);
  out.set_sent_access_mode(record.sent_mode);
  for (const auto& [key, value] : record.volume_context) (*out.mutable_volume_context())[key] = value;
  if (record.publish_context) {
    auto& values = *out.mutable_publish_context()->mutable_values();
    for (const auto& [key, value] : *record.publish_context) values[key] = value;
  }
  out.set_stages(record.stages);
  out.set_stage_state(ToProto(record.stage_state));
  out.set_stage_uncertain(record.stage_uncertain);
  out.set_last_error(Printable(record.last_error));
  out.set_staging_mount_id(record.staging_mount_id);
  out.set_staging_mount_path(record.staging_mount_path);
  out.set_staging_lost(record.staging_lost);
  if (record.without_plugin) {
    out.mutable_without_plugin()->set_requested_by(Printable(record.without_plugin->requested_by));
    out.mutable_without_plugin()->set_at_us(Microseconds(record.without_plugin->at));
  }
  for (const KernelObject& object : record.objects) EncodeObject(object, out.add_objects());
  for (const uint64_t id : record.detached_mounts) out.add_detached_mounts(id);
  out.set_mounts_before(record.earlier_mounts.below);
  for (const uint64_t mount : record.earlier_mounts.fingerprints) out.add_earlier_mounts(mount);
  out.set_mounts_before_staged(record.staged_mounts.below);
  for (const uint64_t mount : record.staged_mounts.fingerprints) out.add_mounts_when_staged(mount);
  out.set_mounts_unknown(record.mounts_unknown);
  for (const std::string& consumer : record.past_consumers) out.add_past_consumers(consumer);
  for (const OtherName& name : record.other_names) {
    pb::OtherName& written = *out.add_other_names();
    written.set_plugin_id(name.plugin_id);
    written.set_driver_name(name.driver_name);
    written.set_volume_id(name.volume_id);
  }
  for (const PublicationRecord& p : record.publications) EncodePublication(p, out.add_publications());
  return SameBytes(out);
}

absl::StatusOr<VolumeRecord> DecodeRecord(std::string_view bytes) {
  BERTH_ASSIGN_OR_RETURN(const pb::Volume in, ParseRecord(bytes));
  VolumeRecord record;
  record.plugin_id = in.plugin_id();
  record.volume_id = in.volume_id();
  record.driver_name = in.driver_name();
  record.node_id = in.node_id();
  record.boot_id = in.boot_id();
  record.label = in.label();
  record.use = DecodeUse(in.capability());
  record.pending_expansion_bytes = std::max<int64_t>(in.pending_expansion_bytes(), 0);
  record.rebuilt = in.rebuilt();
  record.still_in_use = in.still_in_use();
  record.sent_mode = static_cast<AccessMode::Mode>(in.sent_access_mode());
  record.volume_context = Copy(in.volume_context());
  if (in.has_publish_context()) record.publish_context = Copy(in.publish_context().values());
  record.stages = in.stages();
  record.stage_state =
      FromProto(in.stage_state()).value_or(StageState::kAbsent);  // ParseRecord has checked it
  record.stage_uncertain = in.stage_uncertain();
  record.last_error = in.last_error();
  record.staging_mount_id = in.staging_mount_id();
  record.staging_mount_path = in.staging_mount_path();
  record.staging_lost = in.staging_lost();
  if (in.has_without_plugin()) {
    record.without_plugin = {.requested_by = in.without_plugin().requested_by(),
                             .at = WallTime(std::chrono::microseconds(in.without_plugin().at_us()))};
  }
  for (const pb::KernelObject& object : in.objects()) record.objects.push_back(DecodeObject(object));
  record.detached_mounts.assign(in.detached_mounts().begin(), in.detached_mounts().end());
  record.earlier_mounts.below = in.mounts_before();
  record.earlier_mounts.fingerprints.assign(in.earlier_mounts().begin(), in.earlier_mounts().end());
  record.staged_mounts.below = in.mounts_before_staged();
  record.staged_mounts.fingerprints.assign(in.mounts_when_staged().begin(), in.mounts_when_staged().end());
  record.mounts_unknown = in.mounts_unknown();
  record.past_consumers.assign(in.past_consumers().begin(), in.past_consumers().end());
  for (const pb::OtherName& name : in.other_names()) {
    record.other_names.push_back(
        {.plugin_id = name.plugin_id(), .driver_name = name.driver_name(), .volume_id = name.volume_id()});
  }
  for (const pb::Publication& p : in.publications()) {
    auto publication = DecodePublication(p);
    if (!publication.ok()) {
      return Annotate(publication.status(),
                      fmt::format("the record of volume {}", Printable(record.volume_id, 128)));
    }
    record.publications.push_back(*std::move(publication));
  }
  Complete(&record);
  return record;
}

}  // namespace berth
