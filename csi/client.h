// A typed, asynchronous client of one instance of one CSI plugin.
//
// Made the moment the plugin's socket appears, and thrown away with the instance. A call never waits out
// a connect backoff of gRPC's: one that is made while the channel sits in such a backoff goes over a fresh
// channel, so each call is one attempt to connect, at once, and the caller alone decides how often. Loop
// thread only. Held by shared_ptr, as several parts of berthd use it and each may be the last.
//
// Every call takes its deadline and returns the plugin's answer or its status (base/status.h, FromGrpc).
// Cancelling the coroutine cancels the call. Answers are limited to 4 MiB (RESOURCE_EXHAUSTED beyond); one
// that is not the message it should be is INTERNAL. A call in flight needs nothing of its client.
// What a failed call means for the volume is csi/errors.h's to say. What a request holds in confidence (its
// secrets, its mount flags) is blotted out of the call's lines in the log and of its error.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/calls_in_flight.h"
#include "csi/csi.pb.h"
#include "csi/recent_secrets.h"

namespace berth {

struct CsiClientOptions {
  // Where the secrets of requests are remembered, and under which plugin's id. Null: nowhere, and nothing is
  // blotted out. Outlives the client.
  RecentSecrets* secrets = nullptr;
  std::string plugin_id;
  // Called on the loop after the last call that changes something has ended; not once the client is gone and
  // all its calls are.
  std::function<void()> on_idle;
  // Called on the loop when a stage, publish or attach was RESOURCE_EXHAUSTED: the plugin's limit of volumes
  // may have changed. Under the same conditions.
  std::function<void()> on_exhausted = {};
};

class CsiClient {
 public:
  // `socket_path` is the bare absolute path of a Unix socket. Never blocks; nothing is sent yet.
  [[nodiscard]] static std::shared_ptr<CsiClient> Connect(const std::string& socket_path,
                                                          CsiClientOptions options = {});

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

  // `text`, which the plugin has said in an answer, without what it was given in confidence.
  [[nodiscard]] std::string Redacted(std::string text) const;

  // The calls in flight that change something (csi/errors.h, ChangesSomething): their latest deadline, none
  // where there are none; and their names.
  [[nodiscard]] std::optional<TimePoint> busy_until() const { return calls_->busy_until(); }
  [[nodiscard]] std::vector<std::string> in_flight() const { return calls_->names(); }

  // One method per RPC of Identity, Controller, GroupController and Node that berthd calls, in the order of
  // the services.
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
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerPublishVolumeResponse>> ControllerPublishVolume(
      ::csi::v1::ControllerPublishVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerUnpublishVolumeResponse>>
  ControllerUnpublishVolume(::csi::v1::ControllerUnpublishVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ValidateVolumeCapabilitiesResponse>>
  ValidateVolumeCapabilities(::csi::v1::ValidateVolumeCapabilitiesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ListVolumesResponse>> ListVolumes(
      ::csi::v1::ListVolumesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GetCapacityResponse>> GetCapacity(
      ::csi::v1::GetCapacityRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerGetCapabilitiesResponse>>
  ControllerGetCapabilities(::csi::v1::ControllerGetCapabilitiesRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::CreateSnapshotResponse>> CreateSnapshot(
      ::csi::v1::CreateSnapshotRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::DeleteSnapshotResponse>> DeleteSnapshot(
      ::csi::v1::DeleteSnapshotRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ListSnapshotsResponse>> ListSnapshots(
      ::csi::v1::ListSnapshotsRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GetSnapshotResponse>> GetSnapshot(
      ::csi::v1::GetSnapshotRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerExpandVolumeResponse>> ControllerExpandVolume(
      ::csi::v1::ControllerExpandVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerGetVolumeResponse>> ControllerGetVolume(
      ::csi::v1::ControllerGetVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::ControllerModifyVolumeResponse>> ControllerModifyVolume(
      ::csi::v1::ControllerModifyVolumeRequest request, TimePoint deadline);

  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GroupControllerGetCapabilitiesResponse>>
  GroupControllerGetCapabilities(::csi::v1::GroupControllerGetCapabilitiesRequest request,
                                 TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::CreateVolumeGroupSnapshotResponse>>
  CreateVolumeGroupSnapshot(::csi::v1::CreateVolumeGroupSnapshotRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::DeleteVolumeGroupSnapshotResponse>>
  DeleteVolumeGroupSnapshot(::csi::v1::DeleteVolumeGroupSnapshotRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::GetVolumeGroupSnapshotResponse>> GetVolumeGroupSnapshot(
      ::csi::v1::GetVolumeGroupSnapshotRequest request, TimePoint deadline);

  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeStageVolumeResponse>> NodeStageVolume(
      ::csi::v1::NodeStageVolumeRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeUnstageVolumeResponse>> NodeUnstageVolume(
      ::csi::v1::NodeUnstageVolumeRequest request, TimePoint deadline);
  // `confidential`: values of the request that are secrets although they stand in no field for secrets, such
  // as a token in its volume_context.
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodePublishVolumeResponse>> NodePublishVolume(
      ::csi::v1::NodePublishVolumeRequest request, TimePoint deadline,
      const std::vector<std::string>& confidential = {});
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
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeHealthResponse>> NodeGetVolumeHealth(
      ::csi::v1::NodeGetVolumeHealthRequest request, TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetStorageHealthResponse>> NodeGetStorageHealth(
      ::csi::v1::NodeGetStorageHealthRequest request, TimePoint deadline);

 private:
  CsiClient(std::string socket_path, CsiClientOptions options);

  [[nodiscard]] std::shared_ptr<grpc::Channel> FreshChannel();
  template <class Response, class Request>
  [[nodiscard]] Awaitable<absl::StatusOr<Response>> Read(const char* name, Request request,
                                                         TimePoint deadline);
  template <class Response, class Request>
  [[nodiscard]] Awaitable<absl::StatusOr<Response>> Change(const char* name, Request request,
                                                           TimePoint deadline,
                                                           const std::vector<std::string>& confidential = {});
  // Before the request is sent.
  [[nodiscard]] RecentSecrets::InFlight Carry(const google::protobuf::Message& request,
                                              const std::vector<std::string>& confidential) const;

  std::string socket_path_;
  CsiClientOptions options_;
  std::shared_ptr<CallsInFlight> calls_;    // shared with the calls
  std::shared_ptr<grpc::Channel> channel_;  // shared with the calls made over it
};

}  // namespace berth
