// CSI's Node service: volumes onto this machine, and off it again.
//
//   stage     image      the image on a loop device, formatted if it is empty, mounted at the staging path
//             directory  a copy of the mount at the staging path
//             block      the image on a loop device; nothing at the staging path
//   publish   mounted    a copy of the staging path's mount at the target, read-only where asked
//             block      the device's node mounted on a file at the target; read-only: a device of its own
//             ephemeral  made, and mounted at the target; unpublish deletes it (node_ephemeral.cc)
//
// Each RPC writes down its intent, acts, and writes down that it is done; each repeat looks at the kernel
// before it believes what is written. Blocks, on gRPC's threads; operations on one volume exclude each other
// (ABORTED), others run side by side.
#pragma once

#include <functional>
#include <optional>

#include "csi/csi.grpc.pb.h"
#include "plugins/hostpath/context.h"
#include "plugins/hostpath/loop_device.h"
#include "plugins/hostpath/mounts.h"

namespace berth::hostpath {

class NodeService final : public ::csi::v1::Node::Service {
 public:
  explicit NodeService(Context& context) : context_(context) {}

  grpc::Status NodeStageVolume(grpc::ServerContext* server, const ::csi::v1::NodeStageVolumeRequest* request,
                               ::csi::v1::NodeStageVolumeResponse* response) override;
  grpc::Status NodeUnstageVolume(grpc::ServerContext* server,
                                 const ::csi::v1::NodeUnstageVolumeRequest* request,
                                 ::csi::v1::NodeUnstageVolumeResponse* response) override;
  grpc::Status NodePublishVolume(grpc::ServerContext* server,
                                 const ::csi::v1::NodePublishVolumeRequest* request,
                                 ::csi::v1::NodePublishVolumeResponse* response) override;
  grpc::Status NodeUnpublishVolume(grpc::ServerContext* server,
                                   const ::csi::v1::NodeUnpublishVolumeRequest* request,
                                   ::csi::v1::NodeUnpublishVolumeResponse* response) override;
  grpc::Status NodeGetVolumeStats(grpc::ServerContext* server,
                                  const ::csi::v1::NodeGetVolumeStatsRequest* request,
                                  ::csi::v1::NodeGetVolumeStatsResponse* response) override;
  grpc::Status NodeExpandVolume(grpc::ServerContext* server,
                                const ::csi::v1::NodeExpandVolumeRequest* request,
                                ::csi::v1::NodeExpandVolumeResponse* response) override;
  grpc::Status NodeGetCapabilities(grpc::ServerContext* server,
                                   const ::csi::v1::NodeGetCapabilitiesRequest* request,
                                   ::csi::v1::NodeGetCapabilitiesResponse* response) override;
  grpc::Status NodeGetInfo(grpc::ServerContext* server, const ::csi::v1::NodeGetInfoRequest* request,
                           ::csi::v1::NodeGetInfoResponse* response) override;
  grpc::Status NodeGetVolumeHealth(grpc::ServerContext* server,
                                   const ::csi::v1::NodeGetVolumeHealthRequest* request,
                                   ::csi::v1::NodeGetVolumeHealthResponse* response) override;
  grpc::Status NodeGetStorageHealth(grpc::ServerContext* server,
                                    const ::csi::v1::NodeGetStorageHealthRequest* request,
                                    ::csi::v1::NodeGetStorageHealthResponse* response) override;

 private:
  absl::Status Stage(const ::csi::v1::NodeStageVolumeRequest& request);
  absl::Status StageImage(const VolumeRecord& volume, const Staging& staging, MountFlags flags);
  // The loop device to mount, held open until it is: one of `present`, or a new one.
  absl::Status OpenImage(const VolumeRecord& volume, const std::vector<LoopDevice>& present, LoopDevice* loop,
                         UniqueFd* hold);
  absl::Status StageBlock(const VolumeRecord& volume, const Staging& staging);
  absl::Status UndoStage(const VolumeRecord& volume, const Staging& staging);
  // Whether the volume is staged as `wanted` already. A staging that is not whole is undone.
  // FAILED_PRECONDITION: it is staged elsewhere. ALREADY_EXISTS: with another capability.
  absl::StatusOr<bool> CompareStaging(const VolumeRecord& volume, const Staging& wanted);
  absl::Status CheckStagingPath(const Staging& staging);
  absl::Status Unstage(const ::csi::v1::NodeUnstageVolumeRequest& request);
  // Every publish begins with this: the request itself is valid, and no other operation works there.
  struct PublishBeginning {
    MountFlags flags;
    std::string target;
    OperationLocks::Hold volume;
    OperationLocks::Hold at_target;
  };
  absl::StatusOr<PublishBeginning> BeginPublish(const ::csi::v1::NodePublishVolumeRequest& request);
  absl::Status Publish(const ::csi::v1::NodePublishVolumeRequest& request);
  // Whether `publication` is there already, as the kernel sees it. FAILED_PRECONDITION: another volume is
  // `present` at its target; ALREADY_EXISTS: it is, in another way.
  absl::StatusOr<bool> IsPublishedAlready(const VolumeRecord& volume,
                                          const std::optional<Publication>& present,
                                          const Publication& publication);
  // Writes `publication` down, makes it, and writes down that it is complete; what is left of it at its
  // target is undone first, and after `make` failed.
  absl::Status CarryOut(const VolumeRecord& volume, const std::optional<Publication>& present,
                        Publication publication, const std::function<absl::Status()>& make);
  absl::Status MakePublication(const VolumeRecord& volume, const Staging& staging,
                               const Publication& publication, const MountFlags& flags,
                               const std::string& group);
  absl::Status PublishEphemeral(const ::csi::v1::NodePublishVolumeRequest& request);
  // The volume that the request describes, made where it is not there.
  absl::StatusOr<VolumeRecord> MakeEphemeral(const ::csi::v1::NodePublishVolumeRequest& request);
  absl::Status MakeEphemeralPublication(const VolumeRecord& volume, const Publication& publication,
                                        const MountFlags& flags, const std::string& group);
  // Once nothing of it is published.
  absl::Status DeleteEphemeral(const VolumeRecord& volume);
  absl::Status UndoPublish(const VolumeRecord& volume, const Publication& publication);
  absl::Status Unpublish(const ::csi::v1::NodeUnpublishVolumeRequest& request);
  absl::Status Stats(const ::csi::v1::NodeGetVolumeStatsRequest& request,
                     ::csi::v1::NodeGetVolumeStatsResponse* response);
  absl::Status Expand(const ::csi::v1::NodeExpandVolumeRequest& request,
                      ::csi::v1::NodeExpandVolumeResponse* response);

  // With --attach: the attachment to this node, which must stand and be shown in `publish_context`.
  absl::StatusOr<std::optional<Attachment>> CheckAttached(std::string_view volume_id,
                                                          const StringMap& publish_context);
  absl::StatusOr<bool> IsIntact(const VolumeRecord& volume, const Staging& staging);
  absl::StatusOr<bool> IsIntact(const VolumeRecord& volume, const Publication& publication);
  absl::Status PrepareFormat(const VolumeRecord& volume);
  absl::Status FinishGrowth(const VolumeRecord& volume, const std::string& device,
                            const std::string& mount_point);
  // The loop device of a block volume that is read-only, or not, attached if it is not there.
  absl::StatusOr<LoopDevice> BlockDevice(const VolumeRecord& volume, bool read_only);
  // Where the volume is used on this node: the staging, or a publication, at `path`.
  struct Place {
    bool block = false;
    bool read_only = false;
  };
  absl::StatusOr<Place> FindPlace(const VolumeRecord& volume, std::string_view path);
  // What is wrong with the volume, which is at `path` as `place` says. At most one thing.
  struct Trouble {
    ::csi::v1::VolumeHealthErrorType type{};
    std::string reason;  // for programs; empty: nothing is wrong
    std::string message;
  };
  absl::StatusOr<Trouble> Examine(const VolumeRecord& volume, const Place& place, const std::string& path);
  absl::Status Health(const ::csi::v1::NodeGetVolumeHealthRequest& request, ::csi::v1::VolumeHealth* health);

  Context& context_;
};

}  // namespace berth::hostpath
