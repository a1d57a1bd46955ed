// The methods of berth.v1.Node about plugins: what they are, and what is done to them.
//
// Owned by NodeApi; loop thread only. Each method's meaning and errors are those in node.proto; a deadline
// ends the caller's wait.
#pragma once

#include "berth/v1/node.pb.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/call_info.h"
#include "rpc/node_parts.h"

namespace berth {

class PluginApi {
 public:
  explicit PluginApi(const NodeParts& parts)
      : control_(parts.control), mounter_(parts.mounter), declared_(parts.declared) {}

  ApiAnswer<v1::ListPluginsResponse> ListPlugins(v1::ListPluginsRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> GetPlugin(v1::GetPluginRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> StartPlugin(v1::StartPluginRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> StopPlugin(v1::StopPluginRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> RestartPlugin(v1::RestartPluginRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> DrainPlugin(v1::DrainPluginRequest request, CallInfo call);
  ApiAnswer<v1::Plugin> SwapPlugin(v1::SwapPluginRequest request, CallInfo call);
  ApiAnswer<v1::ReloadResponse> Reload(v1::ReloadRequest request, CallInfo call);

  // Of the scheduler's link: a plugin's file, placed by the scheduler, and its removal.
  ApiAnswer<v1::Plugin> PlacePlugin(v1::PlacePluginOperation request, TimePoint deadline);
  Awaitable<absl::Status> RemovePlacedPlugin(v1::RemovePluginOperation request, TimePoint deadline);

 private:
  [[nodiscard]] v1::Plugin DescribePlugin(const PluginSnapshot& plugin) const;
  [[nodiscard]] absl::StatusOr<v1::Plugin> PluginAnswer(const std::string& id,
                                                        const absl::Status& done) const;
  // Wait until each plugin, and each volume, that a reload has changed is ready or published, has failed, or
  // is not done by `until`; and say which, in `answer`. A plugin that is not ready by the end of its start
  // timeout has failed, also if it is launched again.
  [[nodiscard]] Awaitable<void> WaitPlugins(const ReloadReport& report, TimePoint began, TimePoint until,
                                            v1::ReloadResponse* answer);
  [[nodiscard]] Awaitable<void> WaitDeclared(const DeclaredReload& report, TimePoint until,
                                             v1::ReloadResponse* answer);

  PluginControl& control_;
  Mounter& mounter_;
  DeclaredDirectory& declared_;
};

}  // namespace berth
