// What a failed CSI call means for what comes next: the one function that decides it.
//
// Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include <string_view>

namespace berth {

// The RPCs, since their failures differ in meaning. One entry per RPC that berthd calls.
enum class CsiRpc {
  kGetPluginInfo,
  kGetPluginCapabilities,
  kProbe,
  kCreateVolume,
  kDeleteVolume,
  kControllerPublishVolume,
  kControllerUnpublishVolume,
  kValidateVolumeCapabilities,
  kListVolumes,
  kGetCapacity,
  kControllerGetCapabilities,
  kCreateSnapshot,
  kDeleteSnapshot,
  kListSnapshots,
  kGetSnapshot,
  kControllerExpandVolume,
  kControllerGetVolume,
  kControllerModifyVolume,
  kGroupControllerGetCapabilities,
  kCreateVolumeGroupSnapshot,
  kDeleteVolumeGroupSnapshot,
  kGetVolumeGroupSnapshot,
  kNodeStageVolume,
  kNodeUnstageVolume,
  kNodePublishVolume,
  kNodeUnpublishVolume,
  kNodeGetVolumeStats,
  kNodeExpandVolume,
  kNodeGetCapabilities,
  kNodeGetInfo,
};

// "NodeStageVolume".
[[nodiscard]] std::string_view RpcName(CsiRpc rpc);

// Whether it brings something about or undoes it; else it only asks.
[[nodiscard]] bool ChangesSomething(CsiRpc rpc);

enum class CallOutcome {
  // It is done.
  kDone,
  // Repeating the same call forward will not help; the caller gets the error. This does NOT say that nothing
  // happened: once a stage or publish was sent, only a successful reverse call makes it undone.
  kFinal,
  // It did not begin, or a twin of it still runs: the same call may be repeated after a backoff.
  kRetry,
  // It may have happened. Repeat it, or reverse it, before anything else is done with the volume.
  kUncertain,
  // The plugin does not know the volume (NOT_FOUND on the way out): undone, once the kernel agrees.
  kAbsent,
};

// Decides over every RPC and every code, with no default. `code` OK is kDone.
[[nodiscard]] CallOutcome Classify(CsiRpc rpc, absl::StatusCode code);

}  // namespace berth
