#include "mounter/step_report.h"

#include <fmt/format.h>

#include <string>

#include "base/status.h"

namespace berth {

std::optional<StepReport> NotWanted(const StepProgress& progress) {
  if (!progress.still_wanted || progress.still_wanted()) return std::nullopt;
  return StepReport{.outcome = CallOutcome::kRetry, .error = absl::AbortedError("not wanted any more")};
}

StepReport ReportAnswer(CsiRpc rpc, const std::string& plugin_id, const absl::Status& status, WallTime began,
                        TimePoint deadline) {
  StepReport report{.outcome = Classify(rpc, status.code()),
                    .error = Annotate(status, fmt::format("plugin {}: {}", plugin_id, RpcName(rpc)))};
  if (absl::IsDeadlineExceeded(status) && Clock::now() >= deadline) {
    report.stuck = StuckView{.on = std::string(RpcName(rpc)), .pid = 0, .since = began};
  }
  return report;
}

StepReport NotSent(const absl::Status& status) {
  const bool later =
      status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded;
  return {.outcome = later ? CallOutcome::kRetry : CallOutcome::kFinal, .error = status};
}

StepReport FromHelper(const MountHelper& helper, const absl::Status& failed, const std::string& path) {
  StepReport report{.outcome = CallOutcome::kUncertain,
                    .error = failed,
                    .needs_person = absl::IsFailedPrecondition(failed)};
  if (!absl::IsDeadlineExceeded(failed)) return report;
  for (const StuckHelper& stuck : helper.stuck()) {
    if (stuck.what.ends_with(path)) {
      report.stuck = StuckView{.on = stuck.what, .pid = stuck.pid, .since = stuck.since};
    }
  }
  return report;
}

}  // namespace berth
