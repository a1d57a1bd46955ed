// A typed, asynchronous client of one incarnation of one CSI plugin.
//
// Made the moment the plugin's socket appears, and thrown away with the incarnation. A call never waits out
// a connect backoff of gRPC's: one that is made while the channel sits in such a backoff goes over a fresh
// channel, so each call is one attempt to connect, at once, and the caller alone decides how often. Loop
// thread only. Held by shared_ptr, as several parts of berthd use it and each may be the last.
//
// Every call takes its deadline and returns the plugin's answer or its status (base/status.h, FromGrpc).
// Cancelling the coroutine cancels the call. Answers are limited to 4 MiB (RESOURCE_EXHAUSTED beyond); one
// that is not the message it should be is INTERNAL. A call in flight needs nothing of its client.
// What a failed call means for the volume is csi/errors.h's to say.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/csi.pb.h"

namespace berth {

class CsiClient {
 public:
  // `socket_path` is the bare absolute path of a Unix socket. Never blocks; nothing is sent yet.
  [[nodiscard]] static std::shared_ptr<CsiClient> Connect(const std::string& socket_path);

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

  // One method per RPC of Identity, Controller and Node that berthd calls, in the order of the services.
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GetPluginInfoResponse>> GetPluginInfo(
      ::csi::v1::GetPluginInfoRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GetPluginCapabilitiesResponse>> GetPluginCapabilities(
      ::csi::v1::GetPluginCapabilitiesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ProbeResponse>> Probe(::csi::v1::ProbeRequest request,
                                                                          TimePoint deadline);

  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::CreateVolumeResponse>> CreateVolume(
      ::csi::v1::CreateVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::DeleteVolumeResponse>> DeleteVolume(
      ::csi::v1::DeleteVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerGetCapabilitiesResponse>>
  ControllerGetCapabilities(::csi::v1::ControllerGetCapabilitiesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerExpandVolumeResponse>> ControllerExpandVolume(
      ::csi::v1::ControllerExpandVolumeRequest request, TimePoint deadline);

  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeStageVolumeResponse>> NodeStageVolume(
      ::csi::v1::NodeStageVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeUnstageVolumeResponse>> NodeUnstageVolume(
      ::csi::v1::NodeUnstageVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodePublishVolumeResponse>> NodePublishVolume(
      ::csi::v1::NodePublishVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeUnpublishVolumeResponse>> NodeUnpublishVolume(
      ::csi::v1::NodeUnpublishVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> NodeGetVolumeStats(
      ::csi::v1::NodeGetVolumeStatsRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeExpandVolumeResponse>> NodeExpandVolume(
      ::csi::v1::NodeExpandVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetCapabilitiesResponse>> NodeGetCapabilities(
      ::csi::v1::NodeGetCapabilitiesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetInfoResponse>> NodeGetInfo(
      ::csi::v1::NodeGetInfoRequest request, TimePoint deadline);

 private:
  explicit CsiClient(std::string socket_path);

  [[nodiscard]] std::shared_ptr<grpc::Channel> FreshChannel();

  std::string socket_path_;
  std::shared_ptr<grpc::Channel> channel_;  // shared with the calls made over it
};

}  // namespace berth
