// The plugins and their clients, for calls of the Controller service. (Calls of the Node service are the
// Mounter's: mounter/plugin_directory.h.)
//
// Main implements it over the registry and the clients, so that controllers can be tested without a process.
// Loop thread only. It outlives its users.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "supervisor/registry.h"

namespace berth {

class ControllerDirectory {
 public:
  virtual ~ControllerDirectory() = default;

  // The plugins as they are now, by id; the reference is good until the next co_await.
  [[nodiscard]] virtual const std::map<std::string, PluginSnapshot>& plugins() const = 0;

  // The client of the plugin's present instance; null if its socket is not there. plugin_choice.h decides
  // which plugin to ask.
  [[nodiscard]] virtual std::shared_ptr<CsiClient> ClientOf(const std::string& plugin_id) = 0;

  // Waits until what is known of some plugin has changed, or `deadline`. A caller that may not call now, but
  // soon (PluginSnapshot::paused), waits here and looks again, so that no call fails while a plugin is
  // restarted or swapped.
  [[nodiscard]] virtual Awaitable<void> WaitChange(TimePoint deadline) = 0;
};

}  // namespace berth
