#include "scheduler/scheduler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/blocking.h"
#include "base/file.h"
#include "base/lock_file.h"
#include "base/status.h"
#include "scheduler/records/term.h"
#include "scheduler/store/sqlite_store.h"

namespace berth::scheduler {
namespace {

constexpr Duration kLockWithin = std::chrono::seconds(10);
constexpr Duration kOpenWithin = std::chrono::minutes(5);

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

  auto records = co_await RunBlocking(
      "open the records in " + config_.state_dir,
      [directory = config_.state_dir] { return RecordFile::Open({.directory = directory, .vfs = ""}); },
      Clock::now() + kOpenWithin);
  if (!records.ok()) co_return Annotate(records.status(), "the records");
  store_ = std::make_unique<SqliteStore>(executor_, *std::move(records));
  TermRequest request{.cluster_id = config_.cluster_id,
                      .lease = config_.lease.duration,
                      .now = WallClock::now(),
                      .holder = fmt::format("process {}", getpid())};
  BERTH_CO_ASSIGN_OR_RETURN(const Term term, co_await BeginTerm(*store_, std::move(request)));
  node_records_ = std::make_unique<NodeRecords>(*store_, term);
  operation_ids_ = std::make_unique<OperationIds>(*store_, term);
  BERTH_CO_ASSIGN_OR_RETURN(const std::vector<NodeRecord> known, co_await node_records_->Load());
  LinkSettings settings{.cluster_id = config_.cluster_id, .epoch = term.epoch, .lease = config_.lease};
  links_ = std::make_unique<NodeLinks>(executor_, std::move(settings),
                                       LeaseClock(BootClock::now(), term.longest_before), *node_records_,
                                       *operation_ids_, known);
  link_service_ = std::make_unique<LinkService>(executor_, *links_);
  volumes_ = std::make_unique<Volumes>(*store_, term, *node_records_, *links_);
  BERTH_CO_RETURN_IF_ERROR(co_await volumes_->Load());
  cluster_service_ = std::make_unique<ClusterService>(executor_, *links_, *volumes_);
  BERTH_CO_ASSIGN_OR_RETURN(server_,
                            Server::Start(config_.listen, {link_service_.get(), cluster_service_.get()}));
  co_return absl::OkStatus();
}

Awaitable<void> Scheduler::Stop() {
  if (server_ != nullptr) co_await server_->Stop({&link_service_->calls(), &cluster_service_->calls()});
  if (volumes_ != nullptr) co_await volumes_->Stop();
}

}  // namespace berth::scheduler
