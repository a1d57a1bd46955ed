// The methods of berth.v1.Node that publish volumes and release them, and what the scheduler's link asks of
// volumes here.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto; a deadline
// ends the caller's wait.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "berth/v1/node.pb.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_lookup.h"

namespace berth {

class VolumeApi {
 public:
  VolumeApi(const NodeParts& parts, const VolumeLookup& lookup)
      : lookup_(lookup),
        control_(parts.control),
        access_(parts.access),
        mounter_(parts.mounter),
        declared_(parts.declared),
        drainer_(parts.drainer) {}

  // What consumers' runtimes on this node can mount, each name once; for publishes from now on. Empty: not
  // known.
  void SetRuntimes(std::vector<RuntimeAbility> runtimes) { runtimes_ = std::move(runtimes); }
  [[nodiscard]] const std::vector<RuntimeAbility>& runtimes() const { return runtimes_; }

  ApiAnswer<v1::PublishVolumeResponse> PublishVolume(v1::PublishVolumeRequest request, CallInfo call);
  ApiAnswer<v1::UnpublishVolumeResponse> UnpublishVolume(v1::UnpublishVolumeRequest request, CallInfo call);
  ApiAnswer<v1::EndConsumerResponse> EndConsumer(v1::EndConsumerRequest request, CallInfo call);

  // Of the scheduler's link. Whether the node has such a publication, in whatever state.
  [[nodiscard]] bool MayBePublished(const v1::PublishVolumeRequest& request) const;
  // The node's part of an expansion: done now, or noted and done when the volume is published here.
  ApiAnswer<v1::ExpandResult> ExpandHere(v1::ExpandOperation request, TimePoint deadline);
  // Of a scheduler's that the link has checked (operation_check.h).
  ApiAnswer<v1::ConfirmResult> ConfirmHere(v1::ConfirmOperation request, TimePoint deadline);

 private:
  // For how many uses that files of volumes.d declare the volume is attached, that are not published here.
  [[nodiscard]] uint32_t AttachedForFiles(const std::string& plugin_id, const std::string& volume_id) const;

  const VolumeLookup& lookup_;
  PluginControl& control_;
  ControllerAccess& access_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
  NodeDrainer& drainer_;
  std::vector<RuntimeAbility> runtimes_;
};

}  // namespace berth
