// CSI's Controller service: volumes and snapshots come to be, are listed, grow and go.
//
// A creation writes the record first (lifecycle creating), then makes the files, then says ready; a deletion
// says deleting, renames the files into the trash, forgets the record and empties the trash. So a crash
// anywhere leaves something that the next start discards, and never a file without a record.
//
// Blocks, on gRPC's threads. Operations on one volume, one snapshot, or one name exclude each other
// (ABORTED); a volume that is copied may be copied again at the same time, but not otherwise used.
#pragma once

#include "csi/csi.grpc.pb.h"
#include "plugins/hostpath/context.h"
#include "plugins/hostpath/filesystem.h"

namespace berth::hostpath {

class ControllerService final : public ::csi::v1::Controller::Service {
 public:
  explicit ControllerService(Context& context) : context_(context) {}

  grpc::Status CreateVolume(grpc::ServerContext* server, const ::csi::v1::CreateVolumeRequest* request,
                            ::csi::v1::CreateVolumeResponse* response) override;
  grpc::Status DeleteVolume(grpc::ServerContext* server, const ::csi::v1::DeleteVolumeRequest* request,
                            ::csi::v1::DeleteVolumeResponse* response) override;
  // UNIMPLEMENTED without --attach, as is its reverse.
  grpc::Status ControllerPublishVolume(grpc::ServerContext* server,
                                       const ::csi::v1::ControllerPublishVolumeRequest* request,
                                       ::csi::v1::ControllerPublishVolumeResponse* response) override;
  grpc::Status ControllerUnpublishVolume(grpc::ServerContext* server,
                                         const ::csi::v1::ControllerUnpublishVolumeRequest* request,
                                         ::csi::v1::ControllerUnpublishVolumeResponse* response) override;
  grpc::Status ValidateVolumeCapabilities(grpc::ServerContext* server,
                                          const ::csi::v1::ValidateVolumeCapabilitiesRequest* request,
                                          ::csi::v1::ValidateVolumeCapabilitiesResponse* response) override;
  grpc::Status ListVolumes(grpc::ServerContext* server, const ::csi::v1::ListVolumesRequest* request,
                           ::csi::v1::ListVolumesResponse* response) override;
  grpc::Status ControllerGetVolume(grpc::ServerContext* server,
                                   const ::csi::v1::ControllerGetVolumeRequest* request,
                                   ::csi::v1::ControllerGetVolumeResponse* response) override;
  grpc::Status GetCapacity(grpc::ServerContext* server, const ::csi::v1::GetCapacityRequest* request,
                           ::csi::v1::GetCapacityResponse* response) override;
  grpc::Status ControllerGetCapabilities(grpc::ServerContext* server,
                                         const ::csi::v1::ControllerGetCapabilitiesRequest* request,
                                         ::csi::v1::ControllerGetCapabilitiesResponse* response) override;
  grpc::Status CreateSnapshot(grpc::ServerContext* server, const ::csi::v1::CreateSnapshotRequest* request,
                              ::csi::v1::CreateSnapshotResponse* response) override;
  grpc::Status DeleteSnapshot(grpc::ServerContext* server, const ::csi::v1::DeleteSnapshotRequest* request,
                              ::csi::v1::DeleteSnapshotResponse* response) override;
  grpc::Status ListSnapshots(grpc::ServerContext* server, const ::csi::v1::ListSnapshotsRequest* request,
                             ::csi::v1::ListSnapshotsResponse* response) override;
  // Served, but not advertised: see ControllerGetCapabilities.
  grpc::Status GetSnapshot(grpc::ServerContext* server, const ::csi::v1::GetSnapshotRequest* request,
                           ::csi::v1::GetSnapshotResponse* response) override;
  grpc::Status ControllerExpandVolume(grpc::ServerContext* server,
                                      const ::csi::v1::ControllerExpandVolumeRequest* request,
                                      ::csi::v1::ControllerExpandVolumeResponse* response) override;

 private:
  // What a new volume is copied from, with the holds that keep it from being deleted meanwhile.
  struct CopyFrom {
    Area area = Area::kVolumes;
    std::string id;
    Source source;
    FormatState format = FormatState::kNone;
    bool grow_pending = false;
    std::optional<OperationLocks::Hold> hold;
  };

  absl::Status Create(const ::csi::v1::CreateVolumeRequest& request,
                      ::csi::v1::CreateVolumeResponse* response);
  absl::StatusOr<CopyFrom> FindSource(const ::csi::v1::VolumeContentSource& source);
  absl::Status CheckRepeat(const ::csi::v1::CreateVolumeRequest& request, const Parameters& parameters,
                           const VolumeRecord& present) const;
  absl::Status Delete(const ::csi::v1::DeleteVolumeRequest& request);
  absl::Status CheckUnused(const VolumeRecord& volume);
  absl::Status Attach(const ::csi::v1::ControllerPublishVolumeRequest& request,
                      ::csi::v1::ControllerPublishVolumeResponse* response);
  absl::Status Detach(const ::csi::v1::ControllerUnpublishVolumeRequest& request);
  absl::Status ValidateCapabilities(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
                                    ::csi::v1::ValidateVolumeCapabilitiesResponse* response);
  absl::Status List(const ::csi::v1::ListVolumesRequest& request, ::csi::v1::ListVolumesResponse* response);
  absl::Status Capacity(const ::csi::v1::GetCapacityRequest& request,
                        ::csi::v1::GetCapacityResponse* response);
  absl::Status Snap(const ::csi::v1::CreateSnapshotRequest& request,
                    ::csi::v1::CreateSnapshotResponse* response);
  absl::Status DropSnapshot(const ::csi::v1::DeleteSnapshotRequest& request);
  absl::Status List(const ::csi::v1::ListSnapshotsRequest& request,
                    ::csi::v1::ListSnapshotsResponse* response);
  absl::Status Expand(const ::csi::v1::ControllerExpandVolumeRequest& request,
                      ::csi::v1::ControllerExpandVolumeResponse* response);

  // Makes the content of a volume still while it is copied: freezes its file system for as long as *frozen
  // lives, or flushes its device.
  absl::Status Quiesce(const VolumeRecord& volume, std::optional<FrozenFileSystem>* frozen);
  absl::Status Copy(const CopyFrom& from, const VolumeRecord& volume);
  // Records the volume, then fills it: empty where there is no source. What fails leaves nothing.
  absl::Status Make(const VolumeRecord& volume, const std::optional<CopyFrom>& from);
  absl::StatusOr<int64_t> AvailableBytes() const;
  void Describe(const VolumeRecord& volume, ::csi::v1::Volume* out) const;
  template <class Status>
  absl::Status DescribeStatus(const VolumeRecord& volume, Status* out) const;

  Context& context_;
};

// Paging tokens. A token says behind which sequence number the next page begins, so that it stays right
// whatever is created or deleted in between. Pure.
[[nodiscard]] std::string MakePageToken(int64_t sequence);
// ABORTED for a token that was never given out: of another form, or beyond `last`.
[[nodiscard]] absl::StatusOr<int64_t> ParsePageToken(std::string_view token, int64_t last);

}  // namespace berth::hostpath
