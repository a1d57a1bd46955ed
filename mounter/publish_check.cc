#include "mounter/publish_check.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>

#include "base/status.h"

namespace berth {
namespace {

using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

constexpr size_t kVolumeIdLimit = 4096;
constexpr size_t kConsumerLimit = 1024;
constexpr size_t kMapLimit = 4096;  // the specification's, keys and values together
constexpr size_t kSecretsLimit = 1 << 20;
constexpr size_t kFsTypeLimit = 128;
constexpr size_t kMountFlagsLimit = 4096;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// Proto strings are text: anything else could not be sent to a plugin.
bool IsUtf8(std::string_view text) {
  return google::protobuf::internal::IsStructurallyValidUTF8(text.data(), static_cast<int>(text.size()));
}

absl::Status CheckText(std::string_view what, std::string_view text, size_t limit) {
  if (text.size() > limit) return Invalid(fmt::format("{}: {} bytes, at most {}", what, text.size(), limit));
  if (!IsUtf8(text))
    return Invalid(fmt::format("{}: not valid UTF-8, as CSI demands: {}", what, Printable(text, 64)));
  return absl::OkStatus();
}

// Values are never shown: a context may hold what should not be.
absl::Status CheckMap(std::string_view what, const std::map<std::string, std::string>& map, size_t limit) {
  size_t size = 0;
  for (const auto& [key, value] : map) {
    size += key.size() + value.size();
    if (!IsUtf8(key) || !IsUtf8(value))
      return Invalid(fmt::format("{}: holds text that is not valid UTF-8", what));
  }
  if (size > limit) return Invalid(fmt::format("{}: {} bytes in all, at most {}", what, size, limit));
  return absl::OkStatus();
}

absl::Status CheckNames(const std::string& plugin_id, const std::string& volume_id,
                        const std::string& consumer, const std::string& name) {
  if (plugin_id.empty()) return Invalid("plugin_id: empty; name the plugin");
  if (volume_id.empty()) return Invalid("volume_id: empty; give the storage's own id of the volume");
  if (consumer.empty()) return Invalid("consumer: empty; name who uses the volume");
  BERTH_RETURN_IF_ERROR(CheckText("plugin_id", plugin_id, kConsumerLimit));
  BERTH_RETURN_IF_ERROR(CheckText("volume_id", volume_id, kVolumeIdLimit));
  BERTH_RETURN_IF_ERROR(CheckText("consumer", consumer, kConsumerLimit));
  return CheckText("name", name, kConsumerLimit);
}

bool ReadsOnly(AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_READER_ONLY || mode == AccessMode::MULTI_NODE_READER_ONLY;
}

absl::Status CheckUse(const VolumeUse& use, bool readonly) {
  if (use.access_mode == AccessMode::UNKNOWN || !AccessMode::Mode_IsValid(use.access_mode)) {
    return Invalid("access mode: unknown");
  }
  if (ReadsOnly(use.access_mode) && !readonly) {
    return Invalid(fmt::format("access mode {} allows reading only: ask for readonly too",
                               AccessMode::Mode_Name(use.access_mode)));
  }
  if (use.access_type == AccessType::kBlock && !use.fs_type.empty()) {
    return Invalid("fs_type: a block volume has no file system; leave it out, or ask for mount access");
  }
  if (use.access_type == AccessType::kBlock && !use.mount_flags.empty()) {
    return Invalid("mount flags: a block volume is not mounted; leave them out, or ask for mount access");
  }
  BERTH_RETURN_IF_ERROR(CheckText("fs_type", use.fs_type, kFsTypeLimit));
  size_t size = 0;
  for (const std::string& flag : use.mount_flags) {
    size += flag.size();
    if (!IsUtf8(flag)) return Invalid("mount flags: not valid UTF-8");
  }
  if (size > kMountFlagsLimit) {
    return Invalid(fmt::format("mount flags: {} bytes in all, at most {}", size, kMountFlagsLimit));
  }
  return absl::OkStatus();
}

// What differs between two uses, for people. The flags themselves are not shown.
std::string Difference(const VolumeUse& held, const VolumeUse& wanted) {
  if (held.access_type != wanted.access_type) {
    return held.access_type == AccessType::kBlock ? "as a block device, not mounted"
                                                  : "mounted, not as a block device";
  }
  if (held.access_mode != wanted.access_mode) {
    return fmt::format("with access mode {}, not {}", AccessMode::Mode_Name(held.access_mode),
                       AccessMode::Mode_Name(wanted.access_mode));
  }
  if (held.fs_type != wanted.fs_type) {
    return fmt::format("with fs type \"{}\", not \"{}\"", Printable(held.fs_type, 64),
                       Printable(wanted.fs_type, 64));
  }
  return "with other mount flags";
}

std::string Holders(const VolumeRecord& record) {
  std::string holders;
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < record.publications.size() && i < kShown; ++i) {
    holders += fmt::format("{}{}", i == 0 ? "" : "; ", Describe(record.publications[i].key));
  }
  if (record.publications.size() > kShown) {
    holders += fmt::format("; and {} more", record.publications.size() - kShown);
  }
  return holders;
}

// What one volume has only once, compared with what is asked for. Empty: the same.
std::string VolumeDifference(const PublishRequest& request, const VolumeRecord& record) {
  if (record.use != request.use) return Difference(record.use, request.use);
  if (record.volume_context != request.volume_context) return "with another volume context";
  if (record.publish_context != request.publish_context) return "with another publish context";
  return "";
}

}  // namespace

absl::Status CheckForm(const PublishRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckNames(request.plugin_id, request.volume_id, request.consumer, request.name));
  BERTH_RETURN_IF_ERROR(CheckUse(request.use, request.readonly));
  BERTH_RETURN_IF_ERROR(CheckMap("volume_context", request.volume_context, kMapLimit));
  if (request.publish_context) {
    BERTH_RETURN_IF_ERROR(CheckMap("publish_context", *request.publish_context, kMapLimit));
  }
  return CheckMap("secrets", request.secrets, kSecretsLimit);
}

absl::Status CheckForm(const UnpublishRequest& request) {
  return CheckNames(request.plugin_id, request.volume_id, request.consumer, request.name);
}

absl::Status CheckAttached(const PublishRequest& request, const PluginFacts& facts) {
  if (!facts.NeedsAttach() || request.publish_context) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "plugin {} needs the volume attached to this node first (ControllerPublishVolume): pass what that call "
      "answered: --publish-context K=V for each pair, or one empty --publish-context if it answered none",
      request.plugin_id));
}

absl::Status CheckCompatible(const PublishRequest& request, const VolumeRecord& record) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const std::string difference = VolumeDifference(request, record);
  if (const PublicationRecord* same = record.Find(key)) {
    if (!difference.empty()) {
      return absl::AlreadyExistsError(
          fmt::format("{} has this volume already, {}: unpublish it first", Describe(key), difference));
    }
    if (same->readonly != request.readonly) {
      return absl::AlreadyExistsError(fmt::format("{} has this volume already, {}: unpublish it first",
                                                  Describe(key), same->readonly ? "read-only" : "writable"));
    }
    return absl::OkStatus();
  }
  if (record.publications.empty()) return absl::OkStatus();
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("the volume is held {}, by {}: a volume has one capability on a node at a time",
                    difference, Holders(record)));
  }
  if (record.use.access_mode == AccessMode::SINGLE_NODE_SINGLE_WRITER) {
    return absl::FailedPreconditionError(
        fmt::format("the volume is held with access mode SINGLE_NODE_SINGLE_WRITER, by {}: it allows one "
                    "publication at a time",
                    Holders(record)));
  }
  return absl::OkStatus();
}

AccessMode::Mode ModeFor(AccessMode::Mode mode, const PluginFacts& facts) {
  const bool finer =
      mode == AccessMode::SINGLE_NODE_SINGLE_WRITER || mode == AccessMode::SINGLE_NODE_MULTI_WRITER;
  const bool known = facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER);
  return finer && !known ? AccessMode::SINGLE_NODE_WRITER : mode;
}

}  // namespace berth
