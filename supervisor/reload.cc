#include "supervisor/reload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

PluginFile Without(const std::string& id) {
  return {.path = "", .id = id, .config = absl::NotFoundError("its file is gone")};
}

// Shared by the tasks and their waiters.
struct Progress {
  Progress(asio::any_io_executor executor, ReloadTarget given)
      : target(std::move(given)), done(std::move(executor)) {}
  ReloadTarget target;
  TimePoint deadline;
  std::shared_ptr<ReloadReport> report;
  size_t left = 0;
  Condition done;
};

void Insert(std::string text, std::vector<std::string>* sorted) {
  sorted->insert(std::ranges::upper_bound(*sorted, text), std::move(text));
}

void Note(const std::string& id, const absl::StatusOr<Reconfigured>& result, ReloadReport* report) {
  std::erase(report->pending, id);
  if (!result.ok()) return Insert(fmt::format("{}: {}", id, MessageOf(result.status())), &report->broken);
  switch (*result) {
    case Reconfigured::kUnchanged:
      Insert(id, &report->unchanged);
      break;
    case Reconfigured::kUpdated:
      Insert(id, &report->updated);
      break;
    case Reconfigured::kSwapped:
      Insert(id, &report->swapped);
      break;
    case Reconfigured::kStarted:
      Insert(id, &report->started);
      break;
    case Reconfigured::kStopped:
      Insert(id, &report->stopped);
      break;
  }
}

Awaitable<absl::StatusOr<Reconfigured>> Begin(PluginFile file, std::shared_ptr<Progress> progress) {
  const absl::Status status = file.config.status();
  const bool enabled = file.config.ok() && file.config->enabled;
  PluginOwner& owner = progress->target.begin(std::move(file));
  co_await owner.WaitBegun();
  if (!status.ok()) co_return status;
  co_return enabled ? Reconfigured::kStarted : Reconfigured::kUpdated;
}

Awaitable<absl::StatusOr<Reconfigured>> Replace(PluginOwner* old, PluginFile file,
                                                std::shared_ptr<Progress> progress) {
  BERTH_CO_ASSIGN_OR_RETURN([[maybe_unused]] const Reconfigured removed,
                            co_await old->Reconfigure(Without(file.id), progress->deadline));
  Registry& registry = progress->target.registry;
  while (!old->gone()) {
    const uint64_t seen = registry.version();
    if (!co_await registry.WaitChanged(seen, progress->deadline)) {
      co_return absl::DeadlineExceededError("it is being stopped still; reload again once it is");
    }
  }
  BERTH_CO_ASSIGN_OR_RETURN([[maybe_unused]] const Reconfigured begun,
                            co_await Begin(std::move(file), progress));
  co_return Reconfigured::kSwapped;
}

Awaitable<absl::StatusOr<Reconfigured>> Do(ReloadStep step, std::shared_ptr<Progress> progress) {
  PluginOwner* owner = progress->target.find(step.file.id);
  switch (step.what) {
    case ReloadStep::What::kBegin:
      co_return co_await Begin(std::move(step.file), progress);
    case ReloadStep::What::kReconfigure:
    case ReloadStep::What::kRemove:
      if (owner == nullptr) co_return Reconfigured::kStopped;
      co_return co_await owner->Reconfigure(std::move(step.file), progress->deadline);
    case ReloadStep::What::kReplace:
      if (owner == nullptr) co_return co_await Begin(std::move(step.file), progress);
      co_return co_await Replace(owner, std::move(step.file), progress);
  }
  co_return Reconfigured::kUnchanged;
}

Awaitable<void> DoAndNote(ReloadStep step, std::shared_ptr<Progress> progress) {
  const std::string id = step.file.id;
  if (step.file.config.ok()) {
    const absl::Status usable = co_await progress->target.check(*step.file.config);
    if (!usable.ok()) step.file.config = usable;
  }
  const absl::StatusOr<Reconfigured> result = co_await Do(std::move(step), progress);
  Note(id, result, progress->report.get());
  --progress->left;
  progress->done.NotifyAll();
}

}  // namespace

std::vector<ReloadStep> PlanReload(std::vector<PluginFile> files,
                                   const std::map<std::string, ReloadOwner>& owners) {
  std::map<std::string, PluginFile> assigned;
  for (PluginFile& file : files) {
    const std::string id = file.id;
    assigned.emplace(id, std::move(file));
  }
  std::vector<ReloadStep> steps;
  for (const auto& [id, owner] : owners) {
    if (assigned.contains(id) || owner.config_file.empty()) continue;
    steps.push_back({.what = ReloadStep::What::kRemove, .file = Without(id)});
  }
  for (auto& [id, file] : assigned) {
    ReloadStep::What what = ReloadStep::What::kReconfigure;
    const auto owner = owners.find(id);
    if (owner == owners.end()) {
      what = ReloadStep::What::kBegin;
    } else if (file.config.ok() && file.config->external() != owner->second.external) {
      what = ReloadStep::What::kReplace;
    }
    steps.push_back({.what = what, .file = std::move(file)});
  }
  return steps;
}

Awaitable<void> CarryOutReload(std::vector<ReloadStep> steps, ReloadTarget target, TaskScope& scope,
                               TimePoint deadline, std::shared_ptr<ReloadReport> report) {
  const auto progress = std::make_shared<Progress>(co_await asio::this_coro::executor, std::move(target));
  progress->deadline = deadline;
  progress->report = std::move(report);
  progress->left = steps.size();
  for (const ReloadStep& step : steps) Insert(step.file.id, &progress->report->pending);
  for (ReloadStep& step : steps) {
    const std::string id = step.file.id;
    scope.Spawn("reload of " + id, DoAndNote(std::move(step), progress));
  }
  auto done = [progress] { return progress->left == 0; };
  [[maybe_unused]] const bool is_done = co_await progress->done.WaitUntil(std::move(done), TimePoint::max());
}

std::string Describe(const ReloadReport& report) {
  std::vector<std::string> parts;
  const auto add = [&parts](std::string_view what, const std::vector<std::string>& ids) {
    if (!ids.empty()) parts.push_back(fmt::format("{}: {}", what, fmt::join(ids, ", ")));
  };
  add("started", report.started);
  add("stopped", report.stopped);
  add("swapped", report.swapped);
  add("updated", report.updated);
  add("unchanged", report.unchanged);
  add("broken", report.broken);
  add("not done yet", report.pending);
  return parts.empty() ? "there are no plugins" : fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace berth
