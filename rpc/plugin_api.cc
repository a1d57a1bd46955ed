#include "rpc/plugin_api.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "base/status.h"
#include "controller/plugin_choice.h"
#include "request/request_check.h"
#include "rpc/convert.h"
#include "rpc/node_findings.h"

namespace berth {
namespace {

// A reload without a waiter answers after so long: what is not done by then goes on.
constexpr Duration kReloadedSoon = std::chrono::seconds(5);
constexpr Duration kReasonStays = std::chrono::seconds(5);

}  // namespace

v1::Plugin PluginApi::DescribePlugin(const PluginSnapshot& plugin) const {
  return ToProto(plugin, mounter_.Count().volumes[plugin.id]);
}

absl::StatusOr<v1::Plugin> PluginApi::PluginAnswer(const std::string& id, const absl::Status& done) const {
  if (!done.ok()) return done;
  const auto& plugins = control_.plugins();
  const auto plugin = plugins.find(id);
  if (plugin == plugins.end()) return NoSuchPlugin(plugins, id);
  return DescribePlugin(plugin->second);
}

ApiAnswer<v1::ListPluginsResponse> PluginApi::ListPlugins(v1::ListPluginsRequest, CallInfo) {
  std::map<std::string, int> volumes = mounter_.Count().volumes;
  v1::ListPluginsResponse answer;
  for (const auto& [id, plugin] : control_.plugins()) *answer.add_plugins() = ToProto(plugin, volumes[id]);
  co_return answer;
}

ApiAnswer<v1::Plugin> PluginApi::GetPlugin(v1::GetPluginRequest request, CallInfo) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  co_return PluginAnswer(request.id(), absl::OkStatus());
}

ApiAnswer<v1::Plugin> PluginApi::StartPlugin(v1::StartPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.StartPlugin(request.id(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

ApiAnswer<v1::Plugin> PluginApi::StopPlugin(v1::StopPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.StopPlugin(request.id(), request.force(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

ApiAnswer<v1::Plugin> PluginApi::RestartPlugin(v1::RestartPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.RestartPlugin(request.id(), request.force(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

ApiAnswer<v1::Plugin> PluginApi::DrainPlugin(v1::DrainPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckPluginName(request.id()));
  const absl::Status done = co_await control_.DrainPlugin(request.id(), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

ApiAnswer<v1::Plugin> PluginApi::SwapPlugin(v1::SwapPluginRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckSwap(request));
  SwapRequest swap{
      .command = request.command(),
      .arguments = {request.arguments().begin(), request.arguments().end()},
      .accept_changes = request.accept_changes(),
  };
  const absl::Status done = co_await control_.SwapPlugin(request.id(), std::move(swap), call.deadline);
  co_return PluginAnswer(request.id(), done);
}

ApiAnswer<v1::Plugin> PluginApi::PlacePlugin(v1::PlacePluginOperation request, TimePoint deadline) {
  const absl::Status done =
      co_await control_.PlacePlugin(request.id(), std::move(*request.mutable_file()), deadline);
  co_return PluginAnswer(request.id(), done);
}

Awaitable<absl::Status> PluginApi::RemovePlacedPlugin(v1::RemovePluginOperation request, TimePoint deadline) {
  return control_.RemovePlacedPlugin(request.id(), deadline);
}

ApiAnswer<v1::ReloadResponse> PluginApi::Reload(v1::ReloadRequest request, CallInfo call) {
  const TimePoint began = Clock::now();
  const TimePoint until = std::min(call.deadline, request.wait() ? TimePoint::max() : began + kReloadedSoon);
  BERTH_CO_ASSIGN_OR_RETURN(const NodeReload report, co_await control_.Reload(until));
  v1::ReloadResponse answer = ToProto(report);
  if (request.wait()) {
    co_await WaitPlugins(report.plugins, began, until, &answer);
    co_await WaitDeclared(report.volumes, until, &answer);
  }
  co_return answer;
}

Awaitable<void> PluginApi::WaitPlugins(const ReloadReport& report, TimePoint began, TimePoint until,
                                       v1::ReloadResponse* answer) {
  std::vector<std::string> changed = report.started;
  changed.insert(changed.end(), report.swapped.begin(), report.swapped.end());
  for (const std::string& id : changed) {
    while (true) {
      const auto found = control_.plugins().find(id);
      if (found == control_.plugins().end()) {
        answer->add_failed(fmt::format("{}: it is not there any more", PrintableName(id)));
        break;
      }
      const PluginSnapshot& plugin = found->second;
      if (plugin.state == PluginState::kReady && plugin.registered && !plugin.paused) {
        answer->add_ready(PrintableName(id));
        break;
      }
      const bool ended = plugin.state == PluginState::kFailed || plugin.state == PluginState::kStopped;
      const TimePoint budget = began + plugin.start_timeout;
      const TimePoint now = Clock::now();
      if (ended || (now >= budget && !plugin.paused)) {
        answer->add_failed(fmt::format("{}: it is {}{}", PrintableName(id), PluginStateName(plugin.state),
                                       plugin.reason.empty() ? "" : ": " + Printable(plugin.reason, 1024)));
        break;
      }
      if (now >= until) {
        answer->add_pending(PrintableName(id));
        break;
      }
      co_await control_.WaitChange(now < budget ? std::min(budget, until) : until);
    }
  }
}

Awaitable<void> PluginApi::WaitDeclared(const DeclaredReload& report, TimePoint until,
                                        v1::ReloadResponse* answer) {
  std::vector<std::string> changed = report.declared;
  changed.insert(changed.end(), report.changed.begin(), report.changed.end());
  // What its plugin or its mount says at first may be out of date: a reason counts once it stays.
  const TimePoint stays = Clock::now() + kReasonStays;
  for (const std::string& name : changed) {
    while (true) {
      const uint64_t seen = declared_.version();
      const std::vector<DeclaredView> files = declared_.List();
      const auto view = std::ranges::find_if(
          files, [&](const DeclaredView& file) { return file.file.ends_with("/" + name); });
      if (view == files.end()) break;  // gone again
      if (view->published) {
        answer->add_ready(PrintableName(name));
        break;
      }
      const TimePoint now = Clock::now();
      const bool starting = WaitsForStart(control_.plugins(), view->request.plugin_id(), now);
      const std::string& why = view->error_in_file.empty() ? view->last_error : view->error_in_file;
      if (!why.empty() && now >= stays && !starting) {
        answer->add_failed(fmt::format("{}: {}", PrintableName(name), Printable(why, 1024)));
        break;
      }
      if (now >= until) {
        answer->add_pending(PrintableName(name));
        break;
      }
      // A plugin's time to start may be over without a change of the volume's.
      const TimePoint again = std::min(until, std::max(stays, now + kReasonStays));
      co_await declared_.WaitChange(seen, again);
    }
  }
}

}  // namespace berth
