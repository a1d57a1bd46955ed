// Taking back the process that an earlier berthd has left.
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
  absl::StatusOr<RunRecord> record =
      co_await RunBlocking(fmt::format("read the record of plugin {}", plugin_.id), std::move(read),
                           Clock::now() + kRunFilesWithin);
  if (absl::IsNotFound(record.status())) co_return std::optional<RunRecord>();
  if (record.ok() && record->process.boot_id == BootId()) co_return std::move(*record);
  if (record.ok()) {
    SPDLOG_INFO("plugin {}: its record is of another boot", plugin_.id);
  } else if (absl::IsInvalidArgument(record.status())) {
    plugin_.report.Emit("plugin.not_adopted",
                        fmt::format("its record is damaged, and dropped: {}", MessageOf(record.status())));
  } else {
    co_return record.status();
  }
  auto remove = [dir = PluginRuntimeDir(plugin_.paths(), plugin_.id)] { return RemoveRunRecord(dir); };
  const absl::Status removed = co_await RunBlocking(fmt::format("remove the record of plugin {}", plugin_.id),
                                                    std::move(remove), Clock::now() + kRunFilesWithin);
  if (!removed.ok()) co_return removed;
  co_return std::optional<RunRecord>();
}

Awaitable<absl::StatusOr<bool>> PluginRunner::TakeBack() {
  // The name of a broken file may be no directory's name, let alone a plugin's.
  if (!ValidPluginId(plugin_.id)) co_return false;
  BERTH_CO_ASSIGN_OR_RETURN(std::optional<RunRecord> record, co_await ReadRecord());
  if (!record.has_value()) {
    record_read_ = true;
    co_return false;
  }
  generation_ = std::max(generation_, record->generation);
  const pid_t pid = record->process.pid;
  wish_restored_ = record->draining;
  const LogLimits log = plugin_.config.ok() ? plugin_.config->log : LogLimits();
  BERTH_CO_ASSIGN_OR_RETURN(
      PluginInstance::Recovered recovered,
      co_await PluginInstance::TakeBack(plugin_.context.instances, record_, *std::move(record), log));
  record_read_ = true;
  if (recovered.instance) {
    wish_restored_ = false;  // from the record, with kTakenBack
    BeginInstance(std::move(recovered.instance));
    plugin_.lifecycle.SetLimits(plugin_.Limits());
    co_return true;
  }
  if (recovered.ended.has_value()) {
    plugin_.snapshot.last_exit = recovered.ended->how;
    plugin_.snapshot.last_exit_at = WallClock::now();
    plugin_.snapshot.last_output = recovered.ended->last_output;
    plugin_.report.Emit("plugin.exited", fmt::format("process {}: {}", pid, recovered.ended->Describe()));
  } else {
    plugin_.report.Emit("plugin.not_adopted", recovered.unknown + ", and left alone");
  }
  co_return false;
}

void PluginRunner::NoteFile() {
  plugin_.note.clear();
  plugin_.snapshot.file_error.clear();
  if (plugin_.config_file.empty()) {
    plugin_.note = "its file is gone";
  } else if (!plugin_.config.ok()) {
    plugin_.note = fmt::format("runs on as it was launched, but its file is wrong now: {}",
                               MessageOf(plugin_.config.status()));
    plugin_.snapshot.file_error = std::string(plugin_.config.status().message());
  } else if (plugin_.instance->record().launch_fingerprint !=
             LaunchFingerprint(*plugin_.config, plugin_.paths())) {
    plugin_.note = "its file has changed since it was launched: a restart applies it";
    plugin_.snapshot.file_error = plugin_.note;
  }
  plugin_.report.Emit("plugin.adopted",
                      fmt::format("process {} was running and is taken back{}{}", plugin_.instance->pid(),
                                  plugin_.note.empty() ? "" : "; ", plugin_.note));
}

}  // namespace berth
