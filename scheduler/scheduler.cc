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

  // Above that of every scheduler before, also of one whose record is lost: it has begun later.
  const auto since_1970 =
      std::chrono::duration_cast<std::chrono::milliseconds>(WallClock::now().time_since_epoch());
  LinkSettings settings{.cluster_id = config_.cluster_id,
                        .epoch = static_cast<uint64_t>(since_1970.count()),
                        .lease = config_.lease};
  links_ = std::make_unique<NodeLinks>(executor_, std::move(settings),
                                       LeaseClock(BootClock::now(), config_.lease.duration));
  link_service_ = std::make_unique<LinkService>(executor_, *links_);
  cluster_service_ = std::make_unique<ClusterService>(executor_, *links_);
  BERTH_CO_ASSIGN_OR_RETURN(server_,
                            Server::Start(config_.listen, {link_service_.get(), cluster_service_.get()}));
  co_return absl::OkStatus();
}

Awaitable<void> Scheduler::Stop() {
  if (server_ != nullptr) co_await server_->Stop({&link_service_->calls(), &cluster_service_->calls()});
}

}  // namespace berth::scheduler
