// VolumePaths: the files that say whose a directory is, should the journal be lost.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>

#include <utility>

#include "base/status.h"
#include "mounter/journal.pb.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

constexpr size_t kIdentityLimit = 64 * 1024;
constexpr size_t kPublicationLimit = 100'000;

absl::StatusOr<std::string> ToText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return absl::InternalError(fmt::format("write an identity file: {}", status.ToString()));
  return text;
}

absl::Status FromText(const std::string& text, const std::string& path, google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (google::protobuf::util::JsonStringToMessage(text, message, options).ok()) return absl::OkStatus();
  return absl::DataLossError(fmt::format("{}: cannot be read", path));
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

PublicationRecord ReadPublication(const SafeRoot& root, const std::string& directory,
                                  const std::string& component) {
  PublicationRecord publication;
  publication.component = component;
  // Written by an older berthd, or not yet when the power went.
  publication.key.consumer = fmt::format("unknown/{}", component);
  const std::string path = IdentityFileIn(directory);
  const auto text = root.ReadFile(path, kIdentityLimit);
  journal::v1::Publication said;
  if (!text.ok() || !FromText(*text, path, &said).ok()) return publication;
  const PublicationKey key{.consumer = said.consumer(), .name = said.name()};
  if (VolumePaths::PublicationComponent(key) != component) return publication;
  publication.key = key;
  publication.readonly = said.readonly();
  publication.origin = OriginOf(said.origin());
  publication.ephemeral = said.ephemeral();
  return publication;
}

}  // namespace

absl::Status VolumePaths::WriteIdentity(const VolumeRecord& record) const {
  // No context, no mount flags: they may tell what only root should know for longer than the volume is here.
  journal::v1::Volume identity;
  identity.set_plugin_id(record.plugin_id);
  identity.set_volume_id(record.volume_id);
  identity.set_driver_name(record.driver_name);
  identity.set_node_id(record.node_id);
  identity.set_stages(record.stages);
  identity.set_sent_access_mode(record.sent_mode);
  identity.mutable_capability()->set_access_mode(record.use.access_mode);
  identity.mutable_capability()->set_block(record.use.access_type == AccessType::kBlock);
  identity.mutable_capability()->set_fs_type(record.use.fs_type);
  BERTH_ASSIGN_OR_RETURN(const std::string text, ToText(identity));
  return root_.WriteFile(IdentityFileIn(VolumeKey(record.plugin_id, record.volume_id)), text, 0600);
}

absl::Status VolumePaths::WritePublicationIdentity(const VolumeRecord& record,
                                                   const PublicationRecord& publication) const {
  journal::v1::Publication identity;
  identity.set_consumer(publication.key.consumer);
  identity.set_name(publication.key.name);
  identity.set_readonly(publication.readonly);
  identity.set_origin(static_cast<journal::v1::Origin>(publication.origin));
  identity.set_ephemeral(publication.ephemeral);
  BERTH_ASSIGN_OR_RETURN(const std::string text, ToText(identity));
  const std::string directory =
      fmt::format("{}/publish/{}", VolumeKey(record.plugin_id, record.volume_id), publication.component);
  return root_.WriteFile(IdentityFileIn(directory), text, 0600);
}

absl::Status VolumePaths::WriteIdentities(const VolumeRecord& record) const {
  BERTH_RETURN_IF_ERROR(WriteIdentity(record));
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kPublished) continue;
    BERTH_RETURN_IF_ERROR(WritePublicationIdentity(record, publication));
  }
  return absl::OkStatus();
}

absl::StatusOr<VolumeRecord> VolumePaths::ReadIdentity(const std::string& name) const {
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(name));
  if (!facts.exists)
    return absl::NotFoundError(fmt::format("{}: not there", root_.Absolute(Printable(name))));
  const std::string path = IdentityFileIn(name);
  const auto text = root_.ReadFile(path, kIdentityLimit);
  if (!text.ok()) {
    return absl::DataLossError(
        fmt::format("{}: no identity file: {}", root_.Absolute(Printable(name)), MessageOf(text.status())));
  }
  journal::v1::Volume identity;
  BERTH_RETURN_IF_ERROR(FromText(*text, root_.Absolute(path), &identity));
  if (VolumeKey(identity.plugin_id(), identity.volume_id()) != name) {
    return absl::DataLossError(fmt::format("{}: belongs to another directory", root_.Absolute(path)));
  }
  using AccessMode = ::csi::v1::VolumeCapability::AccessMode;
  VolumeRecord record;
  record.plugin_id = identity.plugin_id();
  record.volume_id = identity.volume_id();
  record.driver_name = identity.driver_name();
  record.node_id = identity.node_id();
  record.stages = identity.stages();
  if (AccessMode::Mode_IsValid(identity.capability().access_mode()) &&
      identity.capability().access_mode() != AccessMode::UNKNOWN) {
    record.use.access_mode = static_cast<AccessMode::Mode>(identity.capability().access_mode());
  }
  if (AccessMode::Mode_IsValid(identity.sent_access_mode()) &&
      identity.sent_access_mode() != AccessMode::UNKNOWN) {
    record.sent_mode = static_cast<AccessMode::Mode>(identity.sent_access_mode());
  }
  record.use.access_type = identity.capability().block() ? AccessType::kBlock : AccessType::kMount;
  record.use.fs_type = identity.capability().fs_type();
  const auto components = root_.List(name + "/publish", kPublicationLimit);
  if (!components.ok()) {
    // Made after the identity file's directory, removed before it.
    if (ErrnoOf(components.status()) == ENOENT) return record;
    return components.status();
  }
  for (const std::string& component : *components) {
    record.publications.push_back(
        ReadPublication(root_, fmt::format("{}/publish/{}", name, component), component));
  }
  return record;
}

std::string VolumePaths::DescribeDirectory(const std::string& name) const {
  const auto text = root_.ReadFile(IdentityFileIn(name), kIdentityLimit);
  if (!text.ok()) return "no identity file";
  journal::v1::Volume identity;
  if (!FromText(*text, name, &identity).ok()) return "an identity file that cannot be read";
  return fmt::format("volume {} of plugin {}", Printable(identity.volume_id(), 256),
                     Printable(identity.plugin_id(), 128));
}

}  // namespace berth
