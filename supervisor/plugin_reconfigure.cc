#include "supervisor/plugin_reconfigure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/status.h"
#include "supervisor/plugin_launch.h"

namespace berth {

Awaitable<absl::StatusOr<Reconfigured>> PluginReconfigure::Take(PluginFile file, TimePoint deadline) {
  if (file.path.empty()) co_return co_await FileGone(deadline);
  plugin_.config_file = file.path;
  plugin_.contested = absl::IsAlreadyExists(file.config.status()) ? file.config.status() : absl::OkStatus();
  if (!file.config.ok()) co_return FileBroken(file.config.status());
  PluginConfig config = *std::move(file.config);
  if (!config.enabled) co_return co_await Disable(std::move(config), deadline);
  if (!plugin_.instance) co_return co_await TakeStopped(std::move(config), deadline);
  co_return co_await TakeRunning(std::move(config), deadline);
}

absl::Status PluginReconfigure::FileBroken(const absl::Status& error) {
  const std::string text(error.message());
  if (std::exchange(plugin_.snapshot.file_error, text) != text)
    plugin_.report.Emit("plugin.file_broken", text);
  if (!plugin_.instance) {
    // Nothing runs that it could cost: it is a broken plugin like any other.
    plugin_.file = error;
    plugin_.config = error;
    plugin_.note = text;
  }
  plugin_.Publish();
  return error;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginReconfigure::TakeStopped(PluginConfig config,
                                                                       TimePoint deadline) {
  plugin_.snapshot.file_error.clear();
  const bool was_off = !plugin_.file.ok() || !plugin_.file->enabled ||
                       plugin_.lifecycle.state() == PluginState::kFailed ||
                       plugin_.lifecycle.state() == PluginState::kBackingOff;
  if (plugin_.file.ok() && *plugin_.file == config) co_return Reconfigured::kUnchanged;
  co_await plugin_.TakeConfig(std::move(config));
  plugin_.note.clear();
  plugin_.Publish();
  if (!was_off) co_return Reconfigured::kUpdated;  // a person has stopped it
  const absl::Status started = co_await requests_.Start(deadline);
  if (!started.ok()) co_return started;
  co_return Reconfigured::kStarted;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginReconfigure::TakeRunning(PluginConfig config,
                                                                       TimePoint deadline) {
  const bool same = plugin_.file.ok() && *plugin_.file == config;
  // What a swap put over the file holds for as long as the file stays the same.
  std::optional<SwapOverride> override = plugin_.swaps.serving;
  if (override.has_value() && !OverrideHolds(*override, config, plugin_.paths())) override.reset();
  const PluginConfig next = WithOverride(config, override);
  if (plugin_.instance->record().launch_fingerprint != LaunchFingerprint(next, plugin_.paths())) {
    const absl::Status swapped = co_await swap_.To(std::move(config), std::move(override),
                                                   SwapChanges::kAcceptWhileUnused, false, deadline);
    if (!swapped.ok()) {
      plugin_.snapshot.file_error =
          fmt::format("its file was changed, and is not applied: {}", MessageOf(swapped));
      plugin_.Publish();
      co_return swapped;
    }
    plugin_.snapshot.file_error.clear();
    plugin_.Publish();
    co_return Reconfigured::kSwapped;
  }
  plugin_.snapshot.file_error.clear();
  if (same) {
    plugin_.Publish();
    co_return Reconfigured::kUnchanged;
  }
  const bool probed_otherwise = !plugin_.config.ok() || plugin_.config->health != next.health;
  co_await plugin_.TakeConfig(std::move(config));
  plugin_.note.clear();
  if (probed_otherwise && plugin_.announced) {
    plugin_.context.observer.OnHealthConfig(plugin_.id, plugin_.snapshot.instance, plugin_.config->health);
  }
  plugin_.report.Emit("plugin.reconfigured",
                      fmt::format("{} is taken over; it needs no new process", plugin_.config_file));
  plugin_.Publish();
  // The stop timeout is written down for the next berthd.
  if (plugin_.instance) {
    plugin_.instance->Note([stop_timeout = plugin_.config->stop_timeout](RunRecord& record) {
      record.stop_timeout = stop_timeout;
    });
  }
  co_return Reconfigured::kUpdated;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginReconfigure::FileGone(TimePoint deadline) {
  plugin_.config_file.clear();
  const absl::Status gone = absl::NotFoundError("its file is gone");
  plugin_.file = gone;
  const std::vector<std::string> holders = plugin_.report.Holders();
  if (plugin_.instance && !holders.empty()) {
    plugin_.note =
        fmt::format("its file is gone; it runs until its volumes have left: {}", fmt::join(holders, ", "));
    plugin_.snapshot.file_error = "its file is gone";
    plugin_.Publish();
    co_return absl::FailedPreconditionError(fmt::format("plugin {}: {}", plugin_.id, plugin_.note));
  }
  // Not launched again, whatever becomes of it.
  plugin_.config = gone;
  const absl::Status stopped = co_await requests_.Stop(false, deadline);
  if (!stopped.ok()) co_return stopped;
  co_return Reconfigured::kStopped;
}

Awaitable<absl::StatusOr<Reconfigured>> PluginReconfigure::Disable(PluginConfig file, TimePoint deadline) {
  const bool was = plugin_.file.ok() && *plugin_.file == file;
  const std::vector<std::string> holders = plugin_.report.Holders();
  if (plugin_.instance && !holders.empty()) {
    plugin_.snapshot.file_error = fmt::format(
        "its file says enabled = false, but volumes are in use through it by {}", fmt::join(holders, ", "));
    plugin_.Publish();
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {}: {}", plugin_.id, plugin_.snapshot.file_error));
  }
  const bool stops = plugin_.instance != nullptr || plugin_.lifecycle.state() == PluginState::kBackingOff;
  if (stops) BERTH_CO_RETURN_IF_ERROR(co_await requests_.Stop(false, deadline));
  co_await plugin_.TakeConfig(std::move(file));
  plugin_.snapshot.file_error.clear();
  plugin_.note = "disabled in its file (enabled = false)";
  plugin_.Publish();
  if (stops) co_return Reconfigured::kStopped;
  co_return was ? Reconfigured::kUnchanged : Reconfigured::kUpdated;
}

}  // namespace berth
