#include "request/request_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "request/request_parts.h"

namespace berth {

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

::csi::v1::ControllerExpandVolumeRequest CheckExpand(const v1::ExpandVolumeRequest& request,
                                                     Mistakes& mistakes) {
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Capacity(request.required_bytes(), request.limit_bytes());
  if (request.required_bytes() == 0 && request.limit_bytes() == 0) {
    mistakes.Add("required_bytes", "the new size must be given, here or in limit_bytes");
  }
  mistakes.Map("secrets", request.secrets());
  ::csi::v1::ControllerExpandVolumeRequest checked;
  checked.set_volume_id(request.volume_id());
  checked.mutable_capacity_range()->set_required_bytes(request.required_bytes());
  checked.mutable_capacity_range()->set_limit_bytes(request.limit_bytes());
  *checked.mutable_secrets() = request.secrets();
  return checked;
}

absl::StatusOr<::csi::v1::ControllerExpandVolumeRequest> CheckExpand(const v1::ExpandVolumeRequest& request) {
  return CheckWhole(request, [](const auto& whole, Mistakes& found) { return CheckExpand(whole, found); });
}

absl::Status CheckVolumeName(const std::string& plugin_id, const std::string& volume_id) {
  Mistakes mistakes;
  mistakes.Volume(plugin_id, volume_id);
  return mistakes.ToStatus();
}

absl::Status CheckConsumer(const std::string& consumer) {
  Mistakes mistakes;
  mistakes.Required("consumer", consumer, RequestLimits::kConsumer);
  return mistakes.ToStatus();
}

absl::Status CheckAnswerSize(size_t bytes, std::string_view what, const std::string& consumer) {
  constexpr size_t kMost = size_t{3} << 20;
  if (bytes <= kMost) return absl::OkStatus();
  const std::string whose = consumer.empty() ? "this node" : "consumer " + Printable(consumer, 256);
  return absl::ResourceExhaustedError(
      fmt::format("the {} of {} are too many for one answer: ListVolumes has pages", what, whose));
}

absl::Status CheckList(const v1::ListVolumesRequest& request) {
  Mistakes mistakes;
  mistakes.Length("plugin_id", request.plugin_id(), RequestLimits::kPluginName);
  mistakes.Length("consumer", request.consumer(), RequestLimits::kConsumer);
  if (request.page_size() < 0) mistakes.Add("page_size", "must not be negative");
  return mistakes.ToStatus();
}

absl::Status CheckStorageList(const v1::ListStorageVolumesRequest& request) {
  Mistakes mistakes;
  mistakes.Required("plugin_id", request.plugin_id(), RequestLimits::kPluginName);
  mistakes.Length("page_token", request.page_token(), RequestLimits::kVolumeId);
  return mistakes.ToStatus();
}

absl::Status CheckDeclaredList(const v1::ListDeclaredVolumesRequest& request) {
  Mistakes mistakes;
  if (request.names_size() > RequestLimits::kDeclaredNames) {
    mistakes.Add("names", fmt::format("at most {}", RequestLimits::kDeclaredNames));
    return mistakes.ToStatus();
  }
  for (const std::string& name : request.names()) mistakes.Required("names", name, RequestLimits::kVolumeId);
  return mistakes.ToStatus();
}

absl::Status CheckPluginName(const std::string& id) {
  Mistakes mistakes;
  mistakes.Required("id", id, RequestLimits::kPluginName);
  return mistakes.ToStatus();
}

void CheckSwap(const v1::SwapPluginRequest& request, Mistakes& mistakes) {
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
}

absl::Status CheckSwap(const v1::SwapPluginRequest& request) {
  Mistakes mistakes;
  CheckSwap(request, mistakes);
  return mistakes.ToStatus();
}

static void CheckSince(const google::protobuf::Timestamp& since, Mistakes& mistakes) {
  // As google.protobuf.Timestamp is defined: the years 1 to 9999. Our clock counts nanoseconds in 64 bits
  // and reaches from 1678 to 2262.
  constexpr int64_t kLatest = 9'223'372'036;
  if (since.seconds() < 0 || since.seconds() >= kLatest || since.nanos() < 0 || since.nanos() > 999'999'999) {
    mistakes.Add("since", "must lie between the years 1970 and 2262");
  }
}

absl::Status CheckReadLog(const v1::ReadPluginLogRequest& request) {
  Mistakes mistakes;
  mistakes.Required("id", request.id(), RequestLimits::kPluginName);
  const int beginnings = int{request.has_last_lines()} + int{request.has_since()} + int{request.has_after()};
  if (beginnings > 1) mistakes.Add("last_lines, since, after", "at most one of them");
  CheckSince(request.since(), mistakes);
  return mistakes.ToStatus();
}

absl::Status CheckWatch(const v1::WatchEventsRequest& request) {
  Mistakes mistakes;
  mistakes.Length("plugin_id", request.plugin_id(), RequestLimits::kPluginName);
  mistakes.Length("volume_id", request.volume_id(), RequestLimits::kVolumeId);
  if (request.has_since() && request.after_sequence() != 0) {
    mistakes.Add("since, after_sequence", "at most one of them");
  }
  CheckSince(request.since(), mistakes);
  return mistakes.ToStatus();
}

absl::Status CheckDrain(const v1::DrainNodeRequest& request) {
  Mistakes mistakes;
  mistakes.Length("reason", request.reason(), RequestLimits::kReason);
  mistakes.PlainText("reason", request.reason());
  if (request.end() && !request.reason().empty()) mistakes.Add("reason", "not with end");
  return mistakes.ToStatus();
}

}  // namespace berth
