// The part of NodeApi that shows plugins and pulls their levers.
#include <algorithm>

#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/node_api.h"
#include "rpc/plugin_choice.h"
#include "rpc/request_check.h"

namespace berth {

v1::Plugin NodeApi::DescribePlugin(const PluginSnapshot& plugin) const {
  const std::vector<VolumeView> volumes = mounter_.List();
  const auto held = std::count_if(volumes.begin(), volumes.end(),
                                  [&](const VolumeView& volume) { return volume.plugin_id == plugin.id; });
  return ToProto(plugin, static_cast<int>(held));
}

absl::StatusOr<v1::Plugin> NodeApi::PluginAnswer(const std::string& id, const absl::Status& done) const {
  if (!done.ok()) return done;
  const auto& plugins = control_.plugins();
  const auto plugin = plugins.find(id);
  if (plugin == plugins.end()) return NoSuchPlugin(plugins, id);
  return DescribePlugin(plugin->second);
}

NodeApi::Answer<v1::ListPluginsResponse> NodeApi::ListPlugins(v1::ListPluginsRequest, CallInfo) {
  std::map<std::string, int> volumes;
  for (const VolumeView& volume : mounter_.List()) ++volumes[volume.plugin_id];
  v1::ListPluginsResponse answer;
  for (const auto& [id, plugin] : control_.plugins()) *answer.add_plugins() = ToProto(plugin, volumes[id]);
  co_return answer;
}

NodeApi::Answer<v1::Plugin> NodeApi::GetPlugin(v1::GetPluginRequest request, CallInfo) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  co_return PluginAnswer(request.id(), absl::OkStatus());
}

NodeApi::Answer<v1::Plugin> NodeApi::StartPlugin(v1::StartPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.StartPlugin(request.id(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

NodeApi::Answer<v1::Plugin> NodeApi::StopPlugin(v1::StopPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.StopPlugin(request.id(), request.force(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

NodeApi::Answer<v1::Plugin> NodeApi::RestartPlugin(v1::RestartPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.RestartPlugin(request.id(), request.force(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

NodeApi::Answer<v1::Plugin> NodeApi::DrainPlugin(v1::DrainPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.DrainPlugin(request.id(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

NodeApi::Answer<v1::Plugin> NodeApi::SwapPlugin(v1::SwapPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckSwap(request));
  SwapRequest swap{
      .command = request.command(),
      .arguments = {request.arguments().begin(), request.arguments().end()},
      .accept_changes = request.accept_changes(),
  };
  const absl::Status done = co_await control_.SwapPlugin(request.id(), std::move(swap), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

NodeApi::Answer<v1::ReloadResponse> NodeApi::Reload(v1::ReloadRequest, CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(const NodeReload report, co_await control_.Reload(call.deadline));
  co_return ToProto(report);
}

}  // namespace berth
