// The methods of berth.v1.Node that ask plugins how full volumes are.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_lookup.h"

namespace berth {

class VolumeStatsApi {
 public:
  VolumeStatsApi(const NodeParts& parts, const VolumeLookup& lookup)
      : lookup_(lookup), control_(parts.control), mounter_(parts.mounter), events_(parts.events) {}

  ApiAnswer<v1::GetVolumeStatsResponse> GetVolumeStats(v1::GetVolumeStatsRequest request, CallInfo call);
  ApiAnswer<v1::GetConsumerStatsResponse> GetConsumerStats(v1::GetConsumerStatsRequest request,
                                                           CallInfo call);

 private:
  ApiAnswer<v1::GetVolumeStatsResponse> StatsOf(std::string plugin_id, std::string volume_id,
                                                TimePoint deadline);
  struct ConsumerStats;
  Awaitable<void> ReadStats(std::shared_ptr<ConsumerStats> work);

  const VolumeLookup& lookup_;
  PluginControl& control_;
  Mounter& mounter_;
  EventLog& events_;
  std::set<std::pair<std::string, std::string>> reported_dropped_;  // by plugin: what was wrong in its stats
};

}  // namespace berth
