// What owns one plugin: a PluginRunner, which runs its process, or an ExternalPlugin, which watches a socket
// that another process serves. The Supervisor's map holds either.
//
// Loop thread only. Requests are the Supervisor's (supervisor.h has their meaning and answers).
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/registry.h"
#include "supervisor/supervisor.h"

namespace berth {

// The result for a plugin after its file was read again.
enum class Reconfigured { kUnchanged, kUpdated, kSwapped, kStarted, kStopped };

class PluginOwner {
 public:
  virtual ~PluginOwner() = default;

  // Takes the plugin back or begins it, and then does what comes, until cancelled; returns by itself only
  // when a plugin without a file has ended.
  [[nodiscard]] virtual Awaitable<void> Run() = 0;
  // Waits until its restored state was checked: taken back, found ended, or begun.
  [[nodiscard]] virtual Awaitable<void> WaitBegun() = 0;
  // Once Run has ended: releases what it holds; the plugin runs on.
  [[nodiscard]] virtual Awaitable<void> LetGo() = 0;

  [[nodiscard]] virtual Awaitable<absl::Status> Start(TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> Stop(bool force, TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> Restart(bool force, TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> Drain(TimePoint deadline) = 0;
  [[nodiscard]] virtual Awaitable<absl::Status> Swap(SwapRequest request, TimePoint deadline) = 0;
  // Its file as it is now: `file.path` empty if it is gone. Not from command to socket or back: that is
  // another owner. Errors: the file is broken, or what it asks for cannot be done (volumes are in use, the
  // swap failed); the plugin then runs on as it is, and its snapshot says so.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file,
                                                                            TimePoint deadline) = 0;

  virtual void OnHealth(uint64_t instance, const PluginHealth& health) = 0;
  virtual void OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
                       const std::string& computed_class) = 0;
  virtual void OnIdle(uint64_t instance) = 0;
  virtual void OnHoldersChanged() = 0;

  // True once a plugin without a file has ended: it is no longer in the registry.
  [[nodiscard]] virtual bool gone() const = 0;
};

}  // namespace berth
