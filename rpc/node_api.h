// What each method of berth.v1.Node does, as coroutines from request to answer: no gRPC, no sockets, no
// processes in here. node_service.h puts it onto gRPC; rights are checked there, before anything here runs.
//
// Owned by main; loop thread only. What it is given outlives it. A part for each kind of method;
// node_methods.inc says which method is where.
#pragma once

#include <memory>
#include <utility>

#include "base/log.h"
#include "rpc/cluster_api.h"
#include "rpc/controller_api.h"
#include "rpc/node_parts.h"
#include "rpc/plugin_api.h"
#include "rpc/status_api.h"
#include "rpc/stream_api.h"
#include "rpc/volume_api.h"
#include "rpc/volume_list_api.h"
#include "rpc/volume_lookup.h"
#include "rpc/volume_stats_api.h"

namespace berth {

struct NodeApi {
  // `log`: berthd's own, for followers; null: it cannot be followed.
  NodeApi(NodeInfo info, const NodeParts& parts, std::shared_ptr<LogFeed> log = nullptr)
      : events(parts.events),
        lookup(parts),
        plugins(parts),
        list(parts, lookup),
        volumes(parts, lookup),
        stats(parts, lookup),
        controller(parts, lookup),
        cluster(parts, lookup),
        streams(parts, std::move(log)),
        status(std::move(info), parts, lookup, volumes) {}
  NodeApi(const NodeApi&) = delete;
  NodeApi& operator=(const NodeApi&) = delete;

  EventLog& events;
  VolumeLookup lookup;
  PluginApi plugins;
  VolumeListApi list;
  VolumeApi volumes;
  VolumeStatsApi stats;
  ControllerApi controller;
  ClusterApi cluster;
  StreamApi streams;
  StatusApi status;
};

}  // namespace berth
