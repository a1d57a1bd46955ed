// The methods of berth.v1.Node that show volumes: those that this node holds, and those that files declare.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto.
#pragma once

#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_lookup.h"

namespace berth {

class VolumeListApi {
 public:
  VolumeListApi(const NodeParts& parts, const VolumeLookup& lookup)
      : lookup_(lookup), mounter_(parts.mounter), declared_(parts.declared) {}

  ApiAnswer<v1::ListVolumesResponse> ListVolumes(v1::ListVolumesRequest request, CallInfo call);
  ApiAnswer<v1::ListDeclaredVolumesResponse> ListDeclaredVolumes(v1::ListDeclaredVolumesRequest request,
                                                                 CallInfo call);
  ApiAnswer<v1::Volume> GetVolume(v1::GetVolumeRequest request, CallInfo call);
  ApiAnswer<v1::ListConsumerMountsResponse> ListConsumerMounts(v1::ListConsumerMountsRequest request,
                                                               CallInfo call);
  ApiAnswer<v1::ExplainVolumeResponse> ExplainVolume(v1::ExplainVolumeRequest request, CallInfo call);

 private:
  const VolumeLookup& lookup_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
};

}  // namespace berth
