// The methods of berth.v1.Node that call a plugin's Controller service: create, delete and expand a volume,
// list the storage's volumes.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto; a deadline
// ends the caller's wait.
#pragma once

#include <optional>
#include <string>

#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_lookup.h"

namespace berth {

class ControllerApi {
 public:
  ControllerApi(const NodeParts& parts, const VolumeLookup& lookup)
      : lookup_(lookup),
        control_(parts.control),
        access_(parts.access),
        controller_calls_(parts.controller_calls),
        mounter_(parts.mounter) {}

  ApiAnswer<v1::CreateVolumeResponse> CreateVolume(v1::CreateVolumeRequest request, CallInfo call);
  ApiAnswer<v1::DeleteVolumeResponse> DeleteVolume(v1::DeleteVolumeRequest request, CallInfo call);
  ApiAnswer<v1::ExpandVolumeResponse> ExpandVolume(v1::ExpandVolumeRequest request, CallInfo call);
  ApiAnswer<v1::ListStorageVolumesResponse> ListStorageVolumes(v1::ListStorageVolumesRequest request,
                                                               CallInfo call);

 private:
  // Where the plugin has no controller that expands: only the node does, and only what is in use here.
  ApiAnswer<v1::ExpandVolumeResponse> ExpandByNodeAlone(v1::ExpandVolumeRequest request,
                                                        ::csi::v1::ControllerExpandVolumeRequest expand,
                                                        TimePoint deadline);
  // The storage has grown to `capacity`: the node's part is noted, so that it is done sooner or later,
  // whatever becomes of this call. False: not on every plugin that may publish it; the caller repeats the
  // request once it is published.
  ApiAnswer<bool> NoteExpansion(std::string plugin_id, std::optional<VolumeView> held, std::string volume_id,
                                int64_t capacity);
  ApiAnswer<v1::ExpandVolumeResponse> ExpandOnNode(VolumeView held,
                                                   ::csi::v1::ControllerExpandVolumeRequest request,
                                                   v1::ExpandVolumeResponse so_far, TimePoint deadline);

  const VolumeLookup& lookup_;
  PluginControl& control_;
  ControllerAccess& access_;
  ControllerCalls& controller_calls_;
  Mounter& mounter_;
};

}  // namespace berth
