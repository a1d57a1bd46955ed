// What each method of berth.v1.Node does, as coroutines from request to answer: no gRPC, no sockets, no
// processes in here. node_service.h puts it onto gRPC; rights are checked there, before anything here runs.
//
// Owned by main; loop thread only. What it is given outlives it. Each method's meaning and errors are those
// in node.proto; a deadline ends the caller's wait.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "base/log.h"
#include "base/server_call.h"
#include "berth/v1/node.pb.h"
#include "berth/v1/scheduler.pb.h"
#include "controller/controller_access.h"
#include "controller/controller_calls.h"
#include "controller/controller_directory.h"
#include "controller/plugin_choice.h"
#include "declared/declared_directory.h"
#include "mounter/mounter.h"
#include "rpc/call_info.h"
#include "rpc/node_drainer.h"
#include "rpc/plugin_control.h"
#include "rpc/scheduler_directory.h"

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

// What NodeApi stands on.
struct NodeParts {
  PluginControl& control;
  ControllerAccess& access;
  ControllerCalls& controller_calls;
  Mounter& mounter;
  DeclaredDirectory& declared;
  NodeDrainer& drainer;
  SchedulerDirectory& scheduler;
  EventLog& events;
};

class NodeApi {
 public:
  // `log`: berthd's own, for followers; null: it cannot be followed.
  NodeApi(NodeInfo info, const NodeParts& parts, std::shared_ptr<LogFeed> log = nullptr);

  // What consumers' runtimes on this node can mount, each name once; for publishes from now on. Empty: not
  // known.
  void SetRuntimes(std::vector<RuntimeAbility> runtimes) { runtimes_ = std::move(runtimes); }
  [[nodiscard]] const std::vector<RuntimeAbility>& runtimes() const { return runtimes_; }

  void Tell(Event event) { events_.Append(std::move(event)); }
  // What is wrong with the sockets that it is served on, one line each.
  void SetSocketProblems(std::vector<std::string> problems) { socket_problems_ = std::move(problems); }

  template <class T>
  using Answer = Awaitable<absl::StatusOr<T>>;

  Answer<v1::GetStatusResponse> GetStatus(v1::GetStatusRequest request, CallInfo call);

  // The plugins and their levers: node_api_plugins.cc.
  Answer<v1::ListPluginsResponse> ListPlugins(v1::ListPluginsRequest request, CallInfo call);
  Answer<v1::Plugin> GetPlugin(v1::GetPluginRequest request, CallInfo call);
  Answer<v1::Plugin> StartPlugin(v1::StartPluginRequest request, CallInfo call);
  Answer<v1::Plugin> StopPlugin(v1::StopPluginRequest request, CallInfo call);
  Answer<v1::Plugin> RestartPlugin(v1::RestartPluginRequest request, CallInfo call);
  Answer<v1::Plugin> DrainPlugin(v1::DrainPluginRequest request, CallInfo call);
  Answer<v1::Plugin> SwapPlugin(v1::SwapPluginRequest request, CallInfo call);
  Answer<v1::ReloadResponse> Reload(v1::ReloadRequest request, CallInfo call);

  // The volumes that there are: node_api_list.cc.
  Answer<v1::ListVolumesResponse> ListVolumes(v1::ListVolumesRequest request, CallInfo call);
  Answer<v1::ListDeclaredVolumesResponse> ListDeclaredVolumes(v1::ListDeclaredVolumesRequest request,
                                                              CallInfo call);
  Answer<v1::Volume> GetVolume(v1::GetVolumeRequest request, CallInfo call);
  Answer<v1::ListConsumerMountsResponse> ListConsumerMounts(v1::ListConsumerMountsRequest request,
                                                            CallInfo call);
  Answer<v1::ExplainVolumeResponse> ExplainVolume(v1::ExplainVolumeRequest request, CallInfo call);

  // What is done with them: node_api_volumes.cc.
  Answer<v1::PublishVolumeResponse> PublishVolume(v1::PublishVolumeRequest request, CallInfo call);
  Answer<v1::UnpublishVolumeResponse> UnpublishVolume(v1::UnpublishVolumeRequest request, CallInfo call);
  Answer<v1::EndConsumerResponse> EndConsumer(v1::EndConsumerRequest request, CallInfo call);
  Answer<v1::ExamineResponse> Examine(v1::ExamineRequest request, CallInfo call);

  // The node as one of a cluster: node_api_cluster.cc.
  Answer<v1::DrainNodeResponse> DrainNode(v1::DrainNodeRequest request, CallInfo call);
  Awaitable<absl::Status> ClaimVolume(v1::ClaimVolumeRequest request, CallInfo call,
                                      StreamWriter<v1::ClaimVolumeResponse>& out);
  Answer<v1::ReleaseClaimResponse> ReleaseClaim(v1::ReleaseClaimRequest request, CallInfo call);

  // For the uplink to a scheduler. Whether the node has such a publication, in whatever state.
  [[nodiscard]] bool MayBePublished(const v1::PublishVolumeRequest& request) const;
  // The node's part of an expansion: done now, or noted and done when the volume is published here.
  Answer<v1::ExpandResult> ExpandHere(v1::ExpandOperation request, TimePoint deadline);
  // A plugin's file, placed by the scheduler, and its removal.
  Answer<v1::Plugin> PlacePlugin(v1::PlacePluginOperation request, TimePoint deadline);
  Awaitable<absl::Status> RemovePlacedPlugin(v1::RemovePluginOperation request, TimePoint deadline);
  // Of a scheduler's that the link has checked (operation_check.h).
  Answer<v1::ConfirmResult> ConfirmHere(v1::ConfirmOperation request, TimePoint deadline);

  // How full they are: node_api_stats.cc.
  Answer<v1::GetVolumeStatsResponse> GetVolumeStats(v1::GetVolumeStatsRequest request, CallInfo call);
  Answer<v1::GetConsumerStatsResponse> GetConsumerStats(v1::GetConsumerStatsRequest request, CallInfo call);

  // Through a plugin's controller: node_api_controller.cc.
  Answer<v1::CreateVolumeResponse> CreateVolume(v1::CreateVolumeRequest request, CallInfo call);
  Answer<v1::DeleteVolumeResponse> DeleteVolume(v1::DeleteVolumeRequest request, CallInfo call);
  Answer<v1::ExpandVolumeResponse> ExpandVolume(v1::ExpandVolumeRequest request, CallInfo call);
  Answer<v1::ListStorageVolumesResponse> ListStorageVolumes(v1::ListStorageVolumesRequest request,
                                                            CallInfo call);

  // Streams: node_api_streams.cc. A reader that is too slow misses some messages and learns how many; it
  // delays no other reader, and one batch is kept for it.
  Awaitable<absl::Status> WatchEvents(v1::WatchEventsRequest request, CallInfo call,
                                      StreamWriter<v1::WatchEventsResponse>& out);
  Awaitable<absl::Status> ReadPluginLog(v1::ReadPluginLogRequest request, CallInfo call,
                                        StreamWriter<v1::ReadPluginLogResponse>& out);
  Awaitable<absl::Status> WatchLog(v1::WatchLogRequest request, CallInfo call,
                                   StreamWriter<v1::WatchLogResponse>& out);

  // The plugin that a request about a volume means. If this node has the volume, its record decides, also
  // while the plugin does not run. Otherwise as for a volume that is not here: NOT_FOUND, or INVALID_ARGUMENT
  // if several plugins have this driver.
  [[nodiscard]] absl::StatusOr<std::string> PluginOf(const std::string& name,
                                                     const std::string& volume_id) const;

 private:
  using DeclaredByVolume = std::map<std::pair<std::string, std::string>, std::vector<DeclaredView>>;

  // Puts the ids of a volume into a request that names it by its label. Changes nothing if a volume with that
  // id is here, or declared, and if no volume has the label. INVALID_ARGUMENT: several have it.
  template <class Request>
  [[nodiscard]] absl::Status ResolveLabel(Request& request) const {
    const auto volume = VolumeOf(request.plugin_id(), request.volume_id());
    if (!volume.ok()) return volume.status();
    request.set_plugin_id(volume->plugin_id);
    request.set_volume_id(volume->volume_id);
    return absl::OkStatus();
  }
  [[nodiscard]] absl::StatusOr<VolumeRef> VolumeOf(const std::string& plugin, const std::string& name) const;
  [[nodiscard]] v1::Plugin DescribePlugin(const PluginSnapshot& plugin) const;
  [[nodiscard]] absl::StatusOr<v1::Plugin> PluginAnswer(const std::string& id,
                                                        const absl::Status& done) const;
  // The plugin with the id or the driver `name`, also one without a file while volumes are in use through it.
  [[nodiscard]] absl::StatusOr<std::string> NodePlugin(const std::string& name) const;
  // Wait until each plugin, and each volume, that a reload has changed is ready or published, has failed, or
  // is not done by `until`; and say which, in `answer`. A plugin that is not ready by the end of its start
  // timeout has failed, also if it is launched again.
  [[nodiscard]] Awaitable<void> WaitPlugins(const ReloadReport& report, TimePoint began, TimePoint until,
                                            v1::ReloadResponse* answer);
  [[nodiscard]] Awaitable<void> WaitDeclared(const DeclaredReload& report, TimePoint until,
                                             v1::ReloadResponse* answer);
  // Of everything but the volumes that are here (node_findings.h).
  [[nodiscard]] std::vector<Finding> NodeFindings() const;
  [[nodiscard]] std::string ComputedClass() const;
  // For how many uses that files of volumes.d declare the volume is attached, that are not published here.
  [[nodiscard]] uint32_t AttachedForFiles(const std::string& plugin_id, const std::string& volume_id) const;
  // What files declare, by the id of the plugin under which it is, or would be, held, and volume id.
  [[nodiscard]] DeclaredByVolume Declared() const;
  Answer<v1::GetVolumeStatsResponse> StatsOf(std::string plugin_id, std::string volume_id,
                                             TimePoint deadline);
  struct ConsumerStats;
  Awaitable<void> ReadStats(std::shared_ptr<ConsumerStats> work);
  Answer<v1::ExpandVolumeResponse> ExpandOnNode(VolumeView held,
                                                ::csi::v1::ControllerExpandVolumeRequest request,
                                                v1::ExpandVolumeResponse so_far, TimePoint deadline);

  NodeInfo info_;
  PluginControl& control_;
  ControllerAccess& access_;
  ControllerCalls& controller_calls_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
  NodeDrainer& drainer_;
  SchedulerDirectory& scheduler_;
  EventLog& events_;
  std::vector<std::string> socket_problems_;
  std::set<std::pair<std::string, std::string>> reported_dropped_;  // by plugin: what was wrong in its stats
  std::shared_ptr<LogFeed> log_;
  std::vector<RuntimeAbility> runtimes_;
};

}  // namespace berth
