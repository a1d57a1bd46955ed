#include "mounter/volume_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "mounter/journal.pb.h"

namespace berth {
namespace {

namespace pb = ::berth::journal::v1;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

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

template <class Map>
std::map<std::string, std::string> Copy(const Map& map) {
  return {map.begin(), map.end()};
}

}  // namespace

PublicationRecord* VolumeRecord::Find(const PublicationKey& key) {
  const auto it = std::ranges::find(publications, key, &PublicationRecord::key);
  return it == publications.end() ? nullptr : &*it;
}

const PublicationRecord* VolumeRecord::Find(const PublicationKey& key) const {
  const auto it = std::ranges::find(publications, key, &PublicationRecord::key);
  return it == publications.end() ? nullptr : &*it;
}

std::string EncodeRecord(const VolumeRecord& record) {
  pb::Volume out;
  out.set_plugin_id(record.plugin_id);
  out.set_volume_id(record.volume_id);
  out.set_driver_name(record.driver_name);
  out.set_node_id(record.node_id);
  out.set_boot_id(record.boot_id);
  pb::Capability& capability = *out.mutable_capability();
  capability.set_access_mode(record.use.access_mode);
  capability.set_block(record.use.access_type == AccessType::kBlock);
  capability.set_fs_type(record.use.fs_type);
  for (const std::string& flag : record.use.mount_flags) capability.add_mount_flags(flag);
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
  for (const PublicationRecord& publication : record.publications) {
    pb::Publication& p = *out.add_publications();
    p.set_consumer(publication.key.consumer);
    p.set_name(publication.key.name);
    p.set_component(publication.component);
    p.set_readonly(publication.readonly);
    p.set_had_secrets(publication.had_secrets);
    p.set_state(ToProto(publication.state));
    p.set_uncertain(publication.uncertain);
    p.set_last_error(Printable(publication.last_error));
    if (publication.published_at) p.set_published_at_us(Microseconds(*publication.published_at));
  }
  return out.SerializeAsString();
}

absl::StatusOr<VolumeRecord> DecodeRecord(std::string_view bytes) {
  pb::Volume in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("not a record of a volume");
  }
  VolumeRecord record;
  record.plugin_id = in.plugin_id();
  record.volume_id = in.volume_id();
  if (record.plugin_id.empty() || record.volume_id.empty()) {
    return absl::DataLossError("a record of a volume without plugin or id");
  }
  record.driver_name = in.driver_name();
  record.node_id = in.node_id();
  record.boot_id = in.boot_id();
  if (!AccessMode::Mode_IsValid(in.capability().access_mode()) ||
      !AccessMode::Mode_IsValid(in.sent_access_mode())) {
    return absl::DataLossError(fmt::format("an access mode that is none in the record of volume {}",
                                           Printable(record.volume_id, 128)));
  }
  record.use.access_mode = static_cast<AccessMode::Mode>(in.capability().access_mode());
  record.use.access_type = in.capability().block() ? AccessType::kBlock : AccessType::kMount;
  record.use.fs_type = in.capability().fs_type();
  record.use.mount_flags.assign(in.capability().mount_flags().begin(), in.capability().mount_flags().end());
  record.sent_mode = static_cast<AccessMode::Mode>(in.sent_access_mode());
  record.volume_context = Copy(in.volume_context());
  if (in.has_publish_context()) record.publish_context = Copy(in.publish_context().values());
  record.stages = in.stages();
  const auto stage_state = FromProto(in.stage_state());
  if (!stage_state) {
    return absl::DataLossError(fmt::format("a stage state that is none in the record of volume {}",
                                           Printable(record.volume_id, 128)));
  }
  record.stage_state = *stage_state;
  record.stage_uncertain = in.stage_uncertain();
  record.last_error = in.last_error();
  for (const pb::Publication& p : in.publications()) {
    const auto state = FromProto(p.state());
    if (!state) {
      return absl::DataLossError(fmt::format("a publication state that is none in the record of volume {}",
                                             Printable(record.volume_id, 128)));
    }
    PublicationRecord publication;
    publication.key = {.consumer = p.consumer(), .name = p.name()};
    publication.component = p.component();
    publication.readonly = p.readonly();
    publication.had_secrets = p.had_secrets();
    publication.state = *state;
    publication.uncertain = p.uncertain();
    publication.last_error = p.last_error();
    if (p.published_at_us() != 0) {
      publication.published_at = WallTime(std::chrono::microseconds(p.published_at_us()));
    }
    record.publications.push_back(std::move(publication));
  }
  return record;
}

std::string Describe(const PublicationKey& key) {
  if (key.name.empty()) return fmt::format("consumer {}", Printable(key.consumer, 128));
  return fmt::format("consumer {}, name {}", Printable(key.consumer, 128), Printable(key.name, 128));
}

}  // namespace berth
