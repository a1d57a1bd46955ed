// Calls of a plugin's Node service: waits for the plugin and for its gate (plugin_call_limit.h), and reports
// each RPC before it leaves and when it has ended.
//
// Owned by who makes the calls; loop thread only. Every wait ends at its deadline.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "csi/errors.h"
#include "mounter/mounter_context.h"
#include "mounter/plugin_call_limit.h"
#include "mounter/step_report.h"
#include "mounter/volume_record.h"
#include "mounter/volume_rpcs.h"

namespace berth {

class PluginCaller {
 public:
  explicit PluginCaller(MounterContext& context) : context_(context) {}

  // The plugin's client and the right to call it, as long as this lives.
  struct Admission {
    std::shared_ptr<CsiClient> client;
    std::string tree;
    std::string volumes_path;
    bool pod_info = false;
    PluginCallLimit::Pass pass;

    // `request` with the paths that the plugin sees.
    template <class Request>
    [[nodiscard]] Request Seen(Request request) const {
      return SeenByPlugin(std::move(request), tree, volumes_path);
    }
  };

  // The plugin, once it is usable. Errors: PluginDirectory::Find's; UNAVAILABLE at `deadline`.
  [[nodiscard]] Awaitable<absl::StatusOr<PluginDirectory::Entry>> FindPlugin(std::string plugin_id,
                                                                             StepProgress progress,
                                                                             TimePoint deadline);

  // FindPlugin, and its gate. UNAVAILABLE: it is busy with other calls, or berthd is stopping.
  [[nodiscard]] Awaitable<absl::StatusOr<Admission>> Admit(CsiRpc rpc, std::string plugin_id,
                                                           StepProgress progress, TimePoint deadline);

  // One RPC, which begins here. `Result`: an absl::Status, or a StatusOr of the response.
  template <class Result>
  [[nodiscard]] Awaitable<Result> Ask(CsiRpc rpc, StepProgress progress, Awaitable<Result> call) {
    const RpcTrace begun = Sending(progress, rpc);
    const TimePoint start = Clock::now();
    Result answer = co_await std::move(call);
    Answered(progress, rpc, begun, Clock::now() - start, StatusOf(answer));
    co_return answer;
  }

  // Emits plugin.lied.
  void ReportLie(const VolumeRecord& record, const std::string& consumer, const std::string& message) const;

 private:
  static const absl::Status& StatusOf(const absl::Status& status) { return status; }
  template <class T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }
  [[nodiscard]] RpcTrace Sending(const StepProgress& progress, CsiRpc rpc) const;
  void Answered(const StepProgress& progress, CsiRpc rpc, RpcTrace trace, Duration took,
                const absl::Status& status) const;

  MounterContext& context_;
};

// "NodePublishVolume waits: ..." for what `progress` is waiting for.
[[nodiscard]] StepProgress WaitingFor(CsiRpc rpc, StepProgress progress);

}  // namespace berth
