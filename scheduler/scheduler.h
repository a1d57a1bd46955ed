// The parts of berth-scheduler, made and ended in the right order.
//
// Owned by main; loop thread only.
#pragma once

#include <absl/status/status.h>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "scheduler/config.h"

namespace berth::scheduler {

class Scheduler {
 public:
  Scheduler(asio::any_io_executor executor, Config config);
  // After Stop.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Makes the state directory (0700), and locks it. FAILED_PRECONDITION: another scheduler has it; the
  // message names the process.
  [[nodiscard]] Awaitable<absl::Status> Start();
  // Also after a Start that failed.
  [[nodiscard]] Awaitable<void> Stop();

 private:
  asio::any_io_executor executor_;
  Config config_;
  UniqueFd lock_;
};

}  // namespace berth::scheduler
