// The methods of berth.v1.Node about the node as a whole: what it is, and what is wrong with it.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "berth/v1/node.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"
#include "rpc/volume_api.h"
#include "rpc/volume_lookup.h"

namespace berth {

// What GetStatus says of berthd itself.
struct NodeInfo {
  std::string node_id;
  std::string version;
  WallTime started_at;
  std::string config_dir;
  std::string state_dir;
  std::string runtime_dir;
  std::vector<Finding> notes = {};  // what was asked for at the start, and is worth knowing
};

class StatusApi {
 public:
  // `volumes` knows the runtimes.
  StatusApi(NodeInfo info, const NodeParts& parts, const VolumeLookup& lookup, const VolumeApi& volumes)
      : info_(std::move(info)),
        lookup_(lookup),
        volumes_(volumes),
        control_(parts.control),
        mounter_(parts.mounter),
        declared_(parts.declared),
        drainer_(parts.drainer),
        scheduler_(parts.scheduler),
        events_(parts.events) {}

  ApiAnswer<v1::GetStatusResponse> GetStatus(v1::GetStatusRequest request, CallInfo call);
  ApiAnswer<v1::ExamineResponse> Examine(v1::ExamineRequest request, CallInfo call);

  // What is wrong with the sockets that it is served on, one line each.
  void SetSocketProblems(std::vector<std::string> problems) { socket_problems_ = std::move(problems); }

 private:
  // Of everything but the volumes that are here (node_findings.h).
  [[nodiscard]] std::vector<Finding> NodeFindings(const std::vector<VolumeView>& volumes) const;
  [[nodiscard]] std::string ComputedClass() const;

  NodeInfo info_;
  const VolumeLookup& lookup_;
  const VolumeApi& volumes_;
  PluginControl& control_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
  NodeDrainer& drainer_;
  SchedulerDirectory& scheduler_;
  EventLog& events_;
  std::vector<std::string> socket_problems_;
};

}  // namespace berth
