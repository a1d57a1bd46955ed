// Watches what consumers consist of: processes, cgroups and systemd units, so that their volumes leave when
// they have ended. Nothing is polled: it uses a pidfd, the kernel's events on cgroup.events, systemd's
// signals.
//
// One per Mounter; loop thread. A process is known by its number and its start time, of this boot: the caller
// must know whether a life was recorded in another boot, and then it has ended. A cgroup and a unit are known
// by their names: a cgroup has ended when no process is in it or below it, or it is gone; a unit when it is
// inactive or failed and is not just being started again, or systemd does not know it any more.
//
// What cannot be watched just now (no descriptors left, systemd does not answer) counts as alive, and is
// tried again with a growing pause.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/systemd_bus.h"
#include "base/task_scope.h"
#include "berth/v1/values.h"

namespace berth {

class ConsumerWatch {
 public:
  explicit ConsumerWatch(asio::any_io_executor executor);
  // For tests: where systemd is met, whatever runs as PID 1.
  ConsumerWatch(asio::any_io_executor executor, std::vector<SystemdBus::Address> systemd);
  ~ConsumerWatch();
  ConsumerWatch(const ConsumerWatch&) = delete;
  ConsumerWatch& operator=(const ConsumerWatch&) = delete;

  // That which is to be watched, complete (a process with its start time; kUnknown as it is). It is there
  // now: else NOT_FOUND; FAILED_PRECONDITION: it has ended already, is not what was meant, or there is no
  // systemd here; INVALID_ARGUMENT: it cannot be one; UNAVAILABLE, DEADLINE_EXCEEDED: it could not be asked.
  [[nodiscard]] Awaitable<absl::StatusOr<ConsumerLife>> Identify(ConsumerLife asked, TimePoint deadline);

  // Calls `on_end` once, from the loop and never from within this call, when `life` has ended, at once if it
  // has ended already: "process 123 has ended". An `id` that is watched already is watched from the start.
  // kUnknown is not watched.
  void Watch(std::string id, ConsumerLife life, std::function<void(std::string why)> on_end);
  // `on_end` is not called any more. OK where nothing is watched.
  void Forget(const std::string& id);

  // False: it has not ended by `deadline`. Of kUnknown: true.
  [[nodiscard]] Awaitable<bool> WaitEnded(ConsumerLife life, TimePoint deadline);

  // Forgets everything and ends all that runs here. Before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// "process 123", "cgroup /sys/fs/cgroup/x", "unit web.service"; "" of kUnknown. For messages.
[[nodiscard]] std::string DescribeLife(const ConsumerLife& life);

}  // namespace berth
