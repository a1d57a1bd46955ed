// Watches any number of systemd's units over one connection. Loop thread.
//
// A signal is only a hint: whatever it says, the unit's state is asked for, and the answer is reported. So
// nothing is lost between subscribing and asking, nor while the connection was gone: then all are asked
// again.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/systemd_bus.h"
#include "base/task_scope.h"

namespace berth {

struct UnitState {
  std::string load;    // "loaded", "not-found"
  std::string active;  // "active", "activating", "reloading", "deactivating", "inactive", "failed"
  bool job = false;    // something is to be done with it
  std::string path;    // its object

  // Nothing of it runs, and nothing is about to be started. One that is being restarted passes through
  // "inactive" with its job still there.
  [[nodiscard]] bool ended() const { return (active == "inactive" || active == "failed") && !job; }
};

// Whether `name` can be a unit's: "web.service", "user@0.slice".
[[nodiscard]] bool IsUnitName(std::string_view name);

class SystemdUnits {
 public:
  SystemdUnits(asio::any_io_executor executor, std::vector<SystemdBus::Address> addresses);
  SystemdUnits(const SystemdUnits&) = delete;
  SystemdUnits& operator=(const SystemdUnits&) = delete;

  // One question over a connection of its own. A unit that systemd does not know has the load state
  // "not-found". UNAVAILABLE, DEADLINE_EXCEEDED: systemd does not answer.
  [[nodiscard]] Awaitable<absl::StatusOr<UnitState>> Ask(std::string unit, TimePoint deadline) const;

  // Reports the unit's state soon, never from within this call, and whenever it may have changed. One watcher
  // of each unit: another one replaces the first.
  void Watch(const std::string& unit, std::function<void(const UnitState&)> told);
  void Forget(const std::string& unit);

  // Before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown();

 private:
  struct Watched;
  struct Link;

  [[nodiscard]] Awaitable<void> Follow();
  // Until the connection ends, or nothing is watched any more (OK).
  [[nodiscard]] Awaitable<absl::Status> FollowOnce();
  [[nodiscard]] Awaitable<absl::Status> Look(Link* link, std::string unit);

  std::vector<SystemdBus::Address> addresses_;
  std::map<std::string, std::shared_ptr<Watched>> watched_;
  std::set<std::string> to_ask_;
  bool following_ = false;
  Condition changed_;
  TaskScope tasks_;
};

}  // namespace berth
