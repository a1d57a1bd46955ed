// The methods of berth.v1.Node about the node as one of a cluster: out of use and back, and volumes that a
// local program asks the central scheduler for.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto; a deadline
// ends the caller's wait.
#pragma once

#include "base/server_call.h"
#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_lookup.h"

namespace berth {

class ClusterApi {
 public:
  ClusterApi(const NodeParts& parts, const VolumeLookup& lookup)
      : lookup_(lookup), mounter_(parts.mounter), drainer_(parts.drainer), scheduler_(parts.scheduler) {}

  ApiAnswer<v1::DrainNodeResponse> DrainNode(v1::DrainNodeRequest request, CallInfo call);
  Awaitable<absl::Status> ClaimVolume(v1::ClaimVolumeRequest request, CallInfo call,
                                      StreamWriter<v1::ClaimVolumeResponse>& out);
  ApiAnswer<v1::ReleaseClaimResponse> ReleaseClaim(v1::ReleaseClaimRequest request, CallInfo call);

 private:
  const VolumeLookup& lookup_;
  Mounter& mounter_;
  NodeDrainer& drainer_;
  SchedulerDirectory& scheduler_;
};

}  // namespace berth
