// What the node knows, as berth.v1 says it, and what plugins answer, checked before it is believed. Volumes
// have a file of their own: convert_volume.h.
//
// Everything that a plugin or its output may have put into a text is made valid UTF-8 and, where it is for
// people, printable and bounded. Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_log.h"
#include "base/log.h"
#include "berth/v1/node.pb.h"
#include "csi/csi.pb.h"
#include "csi/health.h"
#include "rpc/plugin_control.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/registry.h"
#include "supervisor/supervisor.h"

namespace berth {

// An id: unchanged, unless it cannot be sent as a proto3 string.
[[nodiscard]] std::string ToUtf8(const std::string& value);

// The lines of a text of mistakes.
[[nodiscard]] std::vector<std::string> LinesOf(std::string_view text);

// `volumes`: how many are held through it here.
[[nodiscard]] v1::Plugin ToProto(const PluginSnapshot& plugin, int volumes);

[[nodiscard]] v1::ReloadResponse ToProto(const NodeReload& report);
[[nodiscard]] v1::ReadPluginLogResponse ToProto(const LogBatch& batch);
[[nodiscard]] v1::LogEntry ToProto(const LogEntry& entry);

[[nodiscard]] v1::Event ToProto(const Event& event);

[[nodiscard]] v1::VolumeCondition ToProto(const ConditionView& condition);

[[nodiscard]] google::protobuf::Timestamp ToProto(WallTime time);
[[nodiscard]] google::protobuf::Duration ToProto(Duration duration);

// What the plugin answered to `request`. INTERNAL names the plugin, the RPC, and what is wrong: no volume
// id, a size that was not asked for, a context beyond all measure, a source that was left out.
[[nodiscard]] absl::StatusOr<v1::CreateVolumeResponse> CheckedAnswer(
    std::string_view plugin_id, const ::csi::v1::CreateVolumeRequest& request,
    const ::csi::v1::CreateVolumeResponse& answer);
[[nodiscard]] absl::StatusOr<int64_t> CheckedAnswer(std::string_view plugin_id,
                                                    const ::csi::v1::ControllerExpandVolumeRequest& request,
                                                    const ::csi::v1::ControllerExpandVolumeResponse& answer);
// What is right in a plugin's stats. What is not is left out, and named in `dropped`, by its kind.
[[nodiscard]] v1::GetVolumeStatsResponse Readable(const ::csi::v1::NodeGetVolumeStatsResponse& answer,
                                                  std::set<std::string>* dropped);

}  // namespace berth
