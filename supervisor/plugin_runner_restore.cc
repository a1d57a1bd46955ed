// What an earlier berthd has left: processes that run, a swap that was under way.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_runner.h"

namespace berth {
Awaitable<absl::StatusOr<std::optional<RunRecord>>> PluginRunner::ReadRecord() {
  auto read = [file = record_] { return file->Read(); };
  absl::StatusOr<RunRecord> record = co_await RunBlocking(fmt::format("read the record of plugin {}", id_),
                                                          std::move(read), Clock::now() + kRunFilesWithin);
  if (absl::IsNotFound(record.status())) co_return std::optional<RunRecord>();
  if (record.ok() && record->process.boot_id == BootId()) co_return std::move(*record);
  if (record.ok()) {
    SPDLOG_INFO("plugin {}: its record is of another boot", id_);
  } else if (absl::IsInvalidArgument(record.status())) {
    report_.Emit("plugin.not_adopted",
                 fmt::format("its record is damaged, and dropped: {}", MessageOf(record.status())));
  } else {
    co_return record.status();
  }
  auto remove = [dir = PluginRuntimeDir(paths(), id_)] { return RemoveRunRecord(dir); };
  const absl::Status removed = co_await RunBlocking(fmt::format("remove the record of plugin {}", id_),
                                                    std::move(remove), Clock::now() + kRunFilesWithin);
  if (!removed.ok()) co_return removed;
  co_return std::optional<RunRecord>();
}

Awaitable<absl::StatusOr<bool>> PluginRunner::TakeBack() {
  // The name of a broken file may be no directory's name, let alone a plugin's.
  if (!ValidPluginId(id_)) co_return false;
  BERTH_CO_ASSIGN_OR_RETURN(std::optional<RunRecord> record, co_await ReadRecord());
  if (!record.has_value()) {
    record_read_ = true;
    co_return false;
  }
  generation_ = std::max(generation_, record->generation);
  const pid_t pid = record->process.pid;
  wish_restored_ = record->draining;
  const LogLimits log = config_.ok() ? config_->log : LogLimits();
  BERTH_CO_ASSIGN_OR_RETURN(
      PluginInstance::Recovered recovered,
      co_await PluginInstance::TakeBack(context_.instances, record_, *std::move(record), log));
  record_read_ = true;
  if (recovered.instance) {
    wish_restored_ = false;  // from the record, with kTakenBack
    BeginInstance(std::move(recovered.instance));
    lifecycle_.SetLimits(Limits());
    co_return true;
  }
  if (recovered.ended.has_value()) {
    snapshot_.last_exit = recovered.ended->how;
    snapshot_.last_exit_at = WallClock::now();
    snapshot_.last_output = recovered.ended->last_output;
    report_.Emit("plugin.exited", fmt::format("process {}: {}", pid, recovered.ended->Describe()));
  } else {
    report_.Emit("plugin.not_adopted", recovered.unknown + ", and left alone");
  }
  co_return false;
}

void PluginRunner::NoteFile() {
  note_.clear();
  snapshot_.file_error.clear();
  if (config_file_.empty()) {
    note_ = "its file is gone";
  } else if (!config_.ok()) {
    note_ =
        fmt::format("runs on as it was launched, but its file is wrong now: {}", MessageOf(config_.status()));
    snapshot_.file_error = std::string(config_.status().message());
  } else if (instance_->record().launch_fingerprint != LaunchFingerprint(*config_, paths())) {
    note_ = "its file has changed since it was launched: a restart applies it";
    snapshot_.file_error = note_;
  }
  report_.Emit("plugin.adopted", fmt::format("process {} was running and is taken back{}{}", instance_->pid(),
                                             note_.empty() ? "" : "; ", note_));
}

Awaitable<void> PluginRunner::RestoreSwap() {
  if (!ValidPluginId(id_)) co_return;
  auto read = [path = SwapStatePath(paths().state_dir, id_)] { return ReadSwapState(path); };
  absl::StatusOr<SwapState> state = co_await RunBlocking(fmt::format("read the swap of plugin {}", id_),
                                                         std::move(read), Clock::now() + kRunFilesWithin);
  if (!state.ok()) {
    snapshot_.swap =
        fmt::format("what it was swapped to cannot be read, its file counts: {}", MessageOf(state.status()));
    SPDLOG_ERROR("plugin {}: {}", id_, snapshot_.swap);
    co_return;
  }
  swaps_ = *std::move(state);
  if (!file_.ok()) co_return;
  SwapState now = swaps_;
  if (now.trying) {
    const PluginConfig next = WithOverride(*file_, now.next);
    const bool runs = instance_ && instance_->record().launch_fingerprint == LaunchFingerprint(next, paths());
    if (runs) now.serving = now.next;
    now.trying = false;
    now.next.reset();
    snapshot_.swap = runs ? "berthd was restarted in the middle of the swap: the new one runs, uncompared"
                          : "not done: berthd was restarted in the middle of the swap";
    report_.Emit(runs ? "plugin.swapped" : "plugin.swap_failed", snapshot_.swap);
  }
  if (now.serving.has_value() && !OverrideHolds(*now.serving, *file_, paths())) {
    snapshot_.swap =
        fmt::format("its file was changed, and counts again instead of {}", now.serving->command);
    now.serving.reset();
  }
  if (now.serving.has_value() && snapshot_.swap.empty()) {
    snapshot_.swap = fmt::format("runs {} instead of its file's command", now.serving->command);
  }
  config_ = WithOverride(*file_, now.serving);
  lifecycle_.SetLimits(Limits());
  if (now == swaps_) co_return;
  const absl::Status kept = co_await KeepSwaps(std::move(now));
  if (!kept.ok()) SPDLOG_ERROR("plugin {}: {}", id_, kept.ToString());
}

}  // namespace berth
