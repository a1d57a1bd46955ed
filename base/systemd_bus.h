// What Berth asks of systemd, over D-Bus: transient scopes, and whether the machine is shutting down.
//
// Every call makes a connection of its own and lets it go: launches are rare, and so nothing has to be read
// between them, nor anything to be repaired when the bus was restarted. The connection is driven from the
// loop and never blocks it. Loop thread; the object outlives its calls.
//
// Codes: UNAVAILABLE where no bus answers; DEADLINE_EXCEEDED; ALREADY_EXISTS and NOT_FOUND of units;
// INVALID_ARGUMENT where systemd does not know a property; else what systemd says, as FAILED_PRECONDITION.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// Any text as a part of a unit's name, as systemd-escape(1) writes it: "a-b" is "a\x2db".
[[nodiscard]] std::string EscapeUnitName(std::string_view text);

struct ScopeRequest {
  std::string name;  // "x.scope"
  std::string slice;
  std::string description;
  pid_t pid = -1;  // the first process in it
  std::optional<uint64_t> memory_max;
  std::optional<uint64_t> tasks_max;
  std::optional<double> cpus;
  std::optional<std::string> oom_policy;  // older systemds answer INVALID_ARGUMENT
  std::string before;                     // a unit that starts after it and stops before it; empty: none
};

class SystemdBus {
 public:
  // Where systemd is met; the second is systemd itself, for root, on machines without a message bus.
  struct Address {
    std::string path;
    bool message_bus = true;
  };
  [[nodiscard]] static std::vector<Address> DefaultAddresses();
  SystemdBus() : addresses_(DefaultAddresses()) {}
  explicit SystemdBus(std::vector<Address> addresses) : addresses_(std::move(addresses)) {}

  // "252.39-1~deb12u1".
  [[nodiscard]] Awaitable<absl::StatusOr<std::string>> Version(TimePoint deadline) const;
  // Whether the machine is being shut down, rebooted, or stopped in another way.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> IsStopping(TimePoint deadline) const;
  // Returns once the scope is there with the process in it.
  [[nodiscard]] Awaitable<absl::Status> StartScope(ScopeRequest request, TimePoint deadline) const;
  // Returns once it has been stopped, as its own settings have it; for no longer than `deadline`, which ends
  // the wait and not the stopping. NOT_FOUND: it is not loaded.
  [[nodiscard]] Awaitable<absl::Status> StopUnit(std::string name, TimePoint deadline) const;
  // Reads all units and drop-ins again (systemctl daemon-reload), and returns once that is done.
  [[nodiscard]] Awaitable<absl::Status> ReloadUnits(TimePoint deadline) const;
  // SIGKILL for all of its processes. Does not wait for their end.
  [[nodiscard]] Awaitable<absl::Status> KillUnit(std::string name, TimePoint deadline) const;

 private:
  // A property of the manager's. Each address is asked by itself: while the machine stops, the message bus
  // may go before it has answered.
  [[nodiscard]] Awaitable<absl::StatusOr<std::string>> ManagerText(std::string property,
                                                                   TimePoint deadline) const;

  std::vector<Address> addresses_;
};

// The service that this process is part of: "berthd.service". Empty: it is part of none.
[[nodiscard]] std::string OwnServiceUnit();

// Whether systemd runs this machine and is shutting it down: berthd asks this when it has to stop, since
// declared volumes leave with the machine, and outlive a mere restart of berthd. False if it is not known,
// which is logged.
[[nodiscard]] Awaitable<bool> MachineIsStopping(TimePoint deadline);

}  // namespace berth
