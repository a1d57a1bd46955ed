// Waits by the clock that counts while the machine sleeps (BootClock): one that was to end in the middle of a
// sleep ends as soon as the machine is awake. Loop thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// A timer of the kernel's own (timerfd). Outlives its waiter.
class BootTimer {
 public:
  explicit BootTimer(asio::any_io_executor executor);

  // From now on it ends at `when`, also for one that waits already. BootTime::max(): never, as at first.
  void ExpireAt(BootTime when);

  // Returns once the clock has come to the time last set; at once if it is past. One waiter at a time. Throws
  // operation_aborted when cancelled.
  [[nodiscard]] Awaitable<void> Wait();

 private:
  asio::any_io_executor executor_;
  // Closed where the kernel had no descriptor for us: then the clock is looked at every second.
  asio::posix::stream_descriptor timer_;
  BootTime when_ = BootTime::max();
};

// Waits until `when`. Throws operation_aborted when cancelled.
[[nodiscard]] Awaitable<void> SleepUntil(BootTime when);

}  // namespace berth
