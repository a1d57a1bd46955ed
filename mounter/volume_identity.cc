#include "mounter/volume_identity.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "mounter/volume_paths.h"
#include "mounter/volume_record.pb.h"

namespace berth {
namespace {

bool FromText(const std::string& text, google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(text, message, options).ok();
}

// Numbers from outside: a file may say anything.
Origin OriginOf(journal::v1::Origin origin) {
  switch (static_cast<int>(origin)) {
    case journal::v1::DECLARED:
      return Origin::kDeclared;
    case journal::v1::SCHEDULER:
      return Origin::kScheduler;
    default:
      return Origin::kCaller;
  }
}

PublicationRecord FromProto(const journal::v1::Publication& said) {
  PublicationRecord publication;
  publication.key = {.consumer = said.consumer(), .name = said.name()};
  publication.component = said.component();
  publication.readonly = said.readonly();
  publication.origin = OriginOf(said.origin());
  publication.ephemeral = said.ephemeral();
  return publication;
}

// The component becomes part of a path.
bool IsSound(const PublicationRecord& publication) {
  return publication.component == VolumePaths::PublicationComponent(publication.key);
}

}  // namespace

absl::StatusOr<std::string> IdentityText(const VolumeRecord& record) {
  journal::v1::Volume identity;
  identity.set_plugin_id(record.plugin_id);
  identity.set_volume_id(record.volume_id);
  identity.set_driver_name(record.driver_name);
  identity.set_node_id(record.node_id);
  identity.set_boot_id(record.boot_id);
  identity.set_stages(record.stages);
  identity.set_sent_access_mode(record.sent_mode);
  identity.mutable_capability()->set_access_mode(record.use.access_mode);
  identity.mutable_capability()->set_block(record.use.access_type == AccessType::kBlock);
  identity.mutable_capability()->set_fs_type(record.use.fs_type);
  // Present, though empty: the volume is attached.
  if (record.publish_context) identity.mutable_publish_context();
  identity.set_still_in_use(record.still_in_use);
  for (const std::string& consumer : record.past_consumers) identity.add_past_consumers(consumer);
  for (const PublicationRecord& publication : record.publications) {
    journal::v1::Publication& p = *identity.add_publications();
    p.set_consumer(publication.key.consumer);
    p.set_name(publication.key.name);
    p.set_component(publication.component);
    p.set_readonly(publication.readonly);
    p.set_origin(static_cast<journal::v1::Origin>(publication.origin));
    p.set_ephemeral(publication.ephemeral);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(identity, &text, options);
  if (!status.ok()) return absl::InternalError(fmt::format("write an identity file: {}", status.ToString()));
  return text;
}

absl::StatusOr<VolumeRecord> ParseIdentity(const std::string& text, const std::string& path) {
  using AccessMode = ::csi::v1::VolumeCapability::AccessMode;
  journal::v1::Volume identity;
  if (!FromText(text, &identity) || identity.plugin_id().empty() || identity.volume_id().empty()) {
    return absl::DataLossError(fmt::format("{}: cannot be read", path));
  }
  VolumeRecord record;
  record.plugin_id = identity.plugin_id();
  record.volume_id = identity.volume_id();
  record.driver_name = identity.driver_name();
  record.node_id = identity.node_id();
  record.boot_id = identity.boot_id();
  record.stages = identity.stages();
  const int access_mode = identity.capability().access_mode();
  if (AccessMode::Mode_IsValid(access_mode) && access_mode != AccessMode::UNKNOWN) {
    record.use.access_mode = static_cast<AccessMode::Mode>(access_mode);
  }
  if (AccessMode::Mode_IsValid(identity.sent_access_mode()) &&
      identity.sent_access_mode() != AccessMode::UNKNOWN) {
    record.sent_mode = static_cast<AccessMode::Mode>(identity.sent_access_mode());
  }
  record.use.access_type = identity.capability().block() ? AccessType::kBlock : AccessType::kMount;
  record.use.fs_type = identity.capability().fs_type();
  if (identity.has_publish_context()) record.publish_context.emplace();
  record.still_in_use = identity.still_in_use();
  record.past_consumers.assign(identity.past_consumers().begin(), identity.past_consumers().end());
  for (const journal::v1::Publication& said : identity.publications()) {
    PublicationRecord publication = FromProto(said);
    if (IsSound(publication)) record.publications.push_back(std::move(publication));
  }
  return record;
}

}  // namespace berth
