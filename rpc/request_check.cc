#include "rpc/request_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace berth {
namespace {

using CsiMode = ::csi::v1::VolumeCapability::AccessMode;
using StringMap = google::protobuf::Map<std::string, std::string>;

static_assert(static_cast<int>(v1::SINGLE_NODE_WRITER) == static_cast<int>(CsiMode::SINGLE_NODE_WRITER) &&
              static_cast<int>(v1::MULTI_NODE_MULTI_WRITER) ==
                  static_cast<int>(CsiMode::MULTI_NODE_MULTI_WRITER) &&
              static_cast<int>(v1::SINGLE_NODE_MULTI_WRITER) ==
                  static_cast<int>(CsiMode::SINGLE_NODE_MULTI_WRITER));

// Collects what is wrong with one request.
class Mistakes {
 public:
  void Add(std::string_view field, std::string_view what) {
    found_.push_back(fmt::format("{}: {}", field, what));
  }

  void Length(std::string_view field, const std::string& value, size_t limit) {
    if (value.size() > limit) {
      Add(field, fmt::format("{} bytes long, at most {} are taken", value.size(), limit));
    }
  }
  void Required(std::string_view field, const std::string& value, size_t limit) {
    if (value.empty()) Add(field, "must not be empty");
    Length(field, value, limit);
  }
  // Names that people and terminals see.
  void PlainText(std::string_view field, const std::string& value) {
    const bool control = std::any_of(value.begin(), value.end(), [](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return byte < 0x20 || byte == 0x7F;
    });
    if (control) Add(field, "must not hold control characters");
  }
  void Map(std::string_view field, const StringMap& map) {
    size_t bytes = 0;
    for (const auto& [key, value] : map) {
      bytes += key.size() + value.size();
      if (key.empty()) Add(field, "a key must not be empty");
    }
    if (map.size() > RequestLimits::kMapEntries) {
      Add(field, fmt::format("{} entries, at most {} are taken", map.size(), RequestLimits::kMapEntries));
    }
    if (bytes > RequestLimits::kMapBytes) {
      Add(field, fmt::format("{} bytes in all, at most {} are taken", bytes, RequestLimits::kMapBytes));
    }
  }
  void Volume(const std::string& plugin_id, const std::string& volume_id) {
    Required("plugin_id", plugin_id, RequestLimits::kPluginName);
    Required("volume_id", volume_id, RequestLimits::kVolumeId);
  }
  void Capacity(int64_t required, int64_t limit) {
    if (required < 0) Add("required_bytes", "must not be negative");
    if (limit < 0) Add("limit_bytes", "must not be negative");
    if (limit > 0 && required > limit) Add("limit_bytes", "must not be less than required_bytes");
  }

  [[nodiscard]] absl::Status ToStatus() const {
    if (found_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{}", fmt::join(found_, "; ")));
  }

 private:
  std::vector<std::string> found_;
};

VolumeUse CheckCapability(const std::string& field, const v1::Capability& capability, Mistakes& mistakes) {
  VolumeUse use;
  if (!v1::AccessMode_IsValid(capability.access_mode())) {
    mistakes.Add(field + ".access_mode", fmt::format("{} is no access mode", int{capability.access_mode()}));
  } else if (capability.access_mode() != v1::ACCESS_MODE_UNKNOWN) {
    use.access_mode = static_cast<CsiMode::Mode>(capability.access_mode());
  }
  if (!v1::AccessType_IsValid(capability.access_type())) {
    mistakes.Add(field + ".access_type", fmt::format("{} is no access type", int{capability.access_type()}));
  }
  if (capability.access_type() == v1::BLOCK) {
    use.access_type = AccessType::kBlock;
    if (!capability.fs_type().empty()) mistakes.Add(field + ".fs_type", "not with BLOCK");
    if (capability.mount_flags_size() > 0) mistakes.Add(field + ".mount_flags", "not with BLOCK");
  }
  mistakes.Length(field + ".fs_type", capability.fs_type(), RequestLimits::kFsType);
  mistakes.PlainText(field + ".fs_type", capability.fs_type());
  use.fs_type = capability.fs_type();

  size_t bytes = 0;
  for (const std::string& flag : capability.mount_flags()) {
    bytes += flag.size();
    if (flag.empty()) mistakes.Add(field + ".mount_flags", "a flag must not be empty");
    use.mount_flags.push_back(flag);
  }
  if (bytes > RequestLimits::kMountFlags) {
    mistakes.Add(field + ".mount_flags",
                 fmt::format("{} bytes in all, at most {} are taken", bytes, RequestLimits::kMountFlags));
  }
  return use;
}

std::map<std::string, std::string> ToStdMap(const StringMap& map) { return {map.begin(), map.end()}; }

}  // namespace

::csi::v1::VolumeCapability ToCsi(const VolumeUse& use) {
  ::csi::v1::VolumeCapability capability;
  capability.mutable_access_mode()->set_mode(use.access_mode);
  if (use.access_type == AccessType::kBlock) {
    capability.mutable_block();
    return capability;
  }
  capability.mutable_mount()->set_fs_type(use.fs_type);
  for (const std::string& flag : use.mount_flags) capability.mutable_mount()->add_mount_flags(flag);
  return capability;
}

absl::StatusOr<PublishRequest> CheckPublish(const v1::PublishVolumeRequest& request) {
  Mistakes mistakes;
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Required("consumer", request.consumer(), RequestLimits::kConsumer);
  mistakes.PlainText("consumer", request.consumer());
  mistakes.Length("name", request.name(), RequestLimits::kConsumer);
  mistakes.PlainText("name", request.name());
  mistakes.Map("volume_context", request.volume_context());
  mistakes.Map("publish_context.values", request.publish_context().values());
  mistakes.Map("secrets", request.secrets());
  PublishRequest checked{
      .plugin_id = request.plugin_id(),
      .volume_id = request.volume_id(),
      .consumer = request.consumer(),
      .name = request.name(),
      .use = CheckCapability("capability", request.capability(), mistakes),
      .readonly = request.readonly(),
      .volume_context = ToStdMap(request.volume_context()),
      .publish_context = std::nullopt,
      .secrets = ToStdMap(request.secrets()),
  };
  if (request.has_publish_context()) checked.publish_context = ToStdMap(request.publish_context().values());
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  return checked;
}

absl::StatusOr<UnpublishRequest> CheckUnpublish(const v1::UnpublishVolumeRequest& request) {
  Mistakes mistakes;
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Required("consumer", request.consumer(), RequestLimits::kConsumer);
  mistakes.Length("name", request.name(), RequestLimits::kConsumer);
  if (request.all_names() && !request.name().empty()) mistakes.Add("name", "not with all_names");
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  return UnpublishRequest{
      .plugin_id = request.plugin_id(),
      .volume_id = request.volume_id(),
      .consumer = request.consumer(),
      .name = request.name(),
      .all_names = request.all_names(),
  };
}

absl::StatusOr<::csi::v1::CreateVolumeRequest> CheckCreate(const v1::CreateVolumeRequest& request) {
  Mistakes mistakes;
  mistakes.Required("plugin_id", request.plugin_id(), RequestLimits::kPluginName);
  mistakes.Required("name", request.name(), RequestLimits::kVolumeName);
  mistakes.PlainText("name", request.name());
  mistakes.Capacity(request.required_bytes(), request.limit_bytes());
  mistakes.Map("parameters", request.parameters());
  mistakes.Map("secrets", request.secrets());
  mistakes.Length("source_snapshot_id", request.source_snapshot_id(), RequestLimits::kVolumeId);
  mistakes.Length("source_volume_id", request.source_volume_id(), RequestLimits::kVolumeId);
  if (!request.source_snapshot_id().empty() && !request.source_volume_id().empty()) {
    mistakes.Add("source_volume_id", "not with source_snapshot_id");
  }
  if (request.capabilities_size() == 0) mistakes.Add("capabilities", "at least one is needed");
  if (request.capabilities_size() > RequestLimits::kCapabilities) {
    mistakes.Add("capabilities", fmt::format("{}, at most {} are taken", request.capabilities_size(),
                                             RequestLimits::kCapabilities));
  }

  ::csi::v1::CreateVolumeRequest checked;
  checked.set_name(request.name());
  if (request.required_bytes() != 0 || request.limit_bytes() != 0) {
    checked.mutable_capacity_range()->set_required_bytes(request.required_bytes());
    checked.mutable_capacity_range()->set_limit_bytes(request.limit_bytes());
  }
  const int capabilities = std::min(request.capabilities_size(), RequestLimits::kCapabilities);
  for (int i = 0; i < capabilities; ++i) {
    *checked.add_volume_capabilities() =
        ToCsi(CheckCapability(fmt::format("capabilities[{}]", i), request.capabilities(i), mistakes));
  }
  *checked.mutable_parameters() = request.parameters();
  *checked.mutable_secrets() = request.secrets();
  if (!request.source_snapshot_id().empty()) {
    checked.mutable_volume_content_source()->mutable_snapshot()->set_snapshot_id(
        request.source_snapshot_id());
  } else if (!request.source_volume_id().empty()) {
    checked.mutable_volume_content_source()->mutable_volume()->set_volume_id(request.source_volume_id());
  }
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  return checked;
}

absl::StatusOr<::csi::v1::DeleteVolumeRequest> CheckDelete(const v1::DeleteVolumeRequest& request) {
  Mistakes mistakes;
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Map("secrets", request.secrets());
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  ::csi::v1::DeleteVolumeRequest checked;
  checked.set_volume_id(request.volume_id());
  *checked.mutable_secrets() = request.secrets();
  return checked;
}

absl::StatusOr<::csi::v1::ControllerExpandVolumeRequest> CheckExpand(const v1::ExpandVolumeRequest& request) {
  Mistakes mistakes;
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Capacity(request.required_bytes(), request.limit_bytes());
  if (request.required_bytes() == 0 && request.limit_bytes() == 0) {
    mistakes.Add("required_bytes", "the new size must be given, here or in limit_bytes");
  }
  mistakes.Map("secrets", request.secrets());
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  ::csi::v1::ControllerExpandVolumeRequest checked;
  checked.set_volume_id(request.volume_id());
  checked.mutable_capacity_range()->set_required_bytes(request.required_bytes());
  checked.mutable_capacity_range()->set_limit_bytes(request.limit_bytes());
  *checked.mutable_secrets() = request.secrets();
  return checked;
}

absl::Status CheckVolumeName(const std::string& plugin_id, const std::string& volume_id) {
  Mistakes mistakes;
  mistakes.Volume(plugin_id, volume_id);
  return mistakes.ToStatus();
}

absl::Status CheckPluginName(const std::string& id) {
  Mistakes mistakes;
  mistakes.Required("id", id, RequestLimits::kPluginName);
  return mistakes.ToStatus();
}

absl::Status CheckSwap(const v1::SwapPluginRequest& request) {
  Mistakes mistakes;
  mistakes.Required("id", request.id(), RequestLimits::kPluginName);
  const std::string& command = request.command();
  mistakes.Length("command", command, RequestLimits::kCommand);
  if (!command.empty() && !command.starts_with('/')) mistakes.Add("command", "must be an absolute path");
  mistakes.PlainText("command", command);
  size_t bytes = 0;
  for (const std::string& argument : request.arguments()) {
    bytes += argument.size();
    if (argument.find('\0') != std::string::npos) mistakes.Add("arguments", "must not hold a zero byte");
  }
  if (command.empty() && request.arguments_size() > 0) mistakes.Add("arguments", "only with command");
  if (static_cast<size_t>(request.arguments_size()) > RequestLimits::kArguments) {
    mistakes.Add("arguments", fmt::format("{} of them, at most {} are taken", request.arguments_size(),
                                          RequestLimits::kArguments));
  }
  if (bytes > RequestLimits::kArgumentBytes) {
    mistakes.Add("arguments",
                 fmt::format("{} bytes in all, at most {} are taken", bytes, RequestLimits::kArgumentBytes));
  }
  return mistakes.ToStatus();
}

absl::Status CheckReadLog(const v1::ReadPluginLogRequest& request) {
  Mistakes mistakes;
  mistakes.Required("id", request.id(), RequestLimits::kPluginName);
  const int beginnings = int{request.has_last_lines()} + int{request.has_since()} + int{request.has_after()};
  if (beginnings > 1) mistakes.Add("last_lines, since, after", "at most one of them");
  // As google.protobuf.Timestamp is defined: the years 1 to 9999. Our clock counts nanoseconds in 64 bits
  // and reaches from 1678 to 2262.
  constexpr int64_t kLatest = 9'223'372'036;
  const auto& since = request.since();
  if (since.seconds() < 0 || since.seconds() >= kLatest || since.nanos() < 0 || since.nanos() > 999'999'999) {
    mistakes.Add("since", "must lie between the years 1970 and 2262");
  }
  return mistakes.ToStatus();
}

absl::Status CheckWatch(const v1::WatchEventsRequest& request) {
  Mistakes mistakes;
  mistakes.Length("plugin_id", request.plugin_id(), RequestLimits::kPluginName);
  mistakes.Length("volume_id", request.volume_id(), RequestLimits::kVolumeId);
  return mistakes.ToStatus();
}

}  // namespace berth
