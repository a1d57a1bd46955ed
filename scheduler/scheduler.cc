#include "scheduler/scheduler.h"

#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/lock_file.h"
#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr Duration kLockWithin = std::chrono::seconds(10);

absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0700));
  return TakeLockFile(directory + "/lock");
}

}  // namespace

Scheduler::Scheduler(asio::any_io_executor executor, Config config)
    : executor_(std::move(executor)), config_(std::move(config)) {}

Scheduler::~Scheduler() = default;

Awaitable<absl::Status> Scheduler::Start() {
  auto lock = co_await RunBlocking(
      "lock " + config_.state_dir, [directory = config_.state_dir] { return LockDirectory(directory); },
      Clock::now() + kLockWithin);
  if (!lock.ok()) co_return lock.status();
  lock_ = *std::move(lock);
  co_return absl::OkStatus();
}

Awaitable<void> Scheduler::Stop() { co_return; }

}  // namespace berth::scheduler
