#include "mounter/plugin_caller.h"

#include <fmt/format.h>

#include <string_view>

#include "base/status.h"

namespace berth {
namespace {

std::string Waits(CsiRpc rpc) { return fmt::format("{} waits", RpcName(rpc)); }

}  // namespace

StepProgress WaitingFor(CsiRpc rpc, StepProgress progress) {
  progress.waiting = [waiting = std::move(progress.waiting), rpc](const std::string& why) {
    waiting(fmt::format("{}: {}", Waits(rpc), why));
  };
  return progress;
}

Awaitable<absl::StatusOr<PluginDirectory::Entry>> PluginCaller::FindPlugin(std::string plugin_id,
                                                                           StepProgress progress,
                                                                           TimePoint deadline) {
  while (true) {
    auto entry = context_.plugins.Find(plugin_id);
    const bool wait = entry.status().code() == absl::StatusCode::kUnavailable;
    if (!wait || Clock::now() >= deadline || context_.stopping) co_return entry;
    progress.waiting(std::string(MessageOf(entry.status())));
    co_await context_.plugins.WaitUsable(plugin_id, deadline);
  }
}

Awaitable<absl::StatusOr<PluginCaller::Admission>> PluginCaller::Admit(CsiRpc rpc, std::string plugin_id,
                                                                       StepProgress progress,
                                                                       TimePoint deadline) {
  const StepProgress named = WaitingFor(rpc, std::move(progress));
  auto entry = co_await FindPlugin(plugin_id, named, deadline);
  if (!entry.ok()) co_return Annotate(entry.status(), Waits(rpc));
  const std::string busy =
      fmt::format("plugin {}: busy with {} calls", plugin_id, context_.options.calls_per_plugin);
  if (context_.gates.Full(plugin_id)) named.waiting(busy);
  auto pass = co_await context_.gates.Enter(plugin_id, deadline);
  if (!pass) co_return absl::UnavailableError(fmt::format("{}: {}", Waits(rpc), busy));
  // It may have gone, or come back as another process, during the wait at the gate.
  entry = context_.plugins.Find(plugin_id);
  if (!entry.ok()) co_return Annotate(entry.status(), Waits(rpc));
  if (context_.stopping) {
    co_return absl::UnavailableError(fmt::format("{}: berthd is stopping", Waits(rpc)));
  }
  co_return Admission{.client = std::move(entry->client),
                      .tree = context_.paths->tree(),
                      .volumes_path = std::move(entry->volumes_path),
                      .pod_info = entry->pod_info,
                      .pass = *std::move(pass)};
}

RpcTrace PluginCaller::Sending(const StepProgress& progress, CsiRpc rpc) const {
  progress.sending(RpcName(rpc));
  context_.Boundary(fmt::format("rpc {}: sending", RpcName(rpc)));
  return {.rpc = std::string(RpcName(rpc)), .started_at = WallClock::now(), .error = ""};
}

void PluginCaller::Answered(const StepProgress& progress, CsiRpc rpc, RpcTrace trace, Duration took,
                            const absl::Status& status) const {
  context_.Boundary(fmt::format("rpc {}: answered", RpcName(rpc)));
  if (!progress.answered) return;
  trace.took = took;
  trace.code = status.code();
  trace.error = std::string(MessageOf(status));
  progress.answered(trace);
}

void PluginCaller::ReportLie(const VolumeRecord& record, const std::string& consumer,
                             const std::string& message) const {
  context_.events.Append({.type = "plugin.lied",
                          .plugin_id = record.plugin_id,
                          .volume_id = record.volume_id,
                          .consumer = consumer,
                          .message = message});
}

}  // namespace berth
