#include "mounter/journal.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>

#include "base/status.h"

namespace berth {

// One queued write. While its batch is with the writer thread, the loop does not look at it.
struct Journal::Write {
  JournalChange change;
  Prepare prepare;
  bool awaited = false;
  bool done = false;
  absl::Status result;
};

// Shared by the Journal, its waiters and the batch in flight, so that none of them can outlive it.
struct Journal::Core : std::enable_shared_from_this<Core> {
  Core(const asio::any_io_executor& loop, JournalOptions opts)
      : executor(loop), options(std::move(opts)), done(loop) {}

  using Batch = std::vector<std::shared_ptr<Write>>;

  asio::any_io_executor executor;
  JournalOptions options;
  std::unique_ptr<JournalDatabase> database;  // the writer thread's once the first batch has left
  std::map<std::string, std::string> loaded;
  uint64_t next_event_number = 1;

  std::vector<std::shared_ptr<Write>> queue;
  bool in_flight = false;
  uint64_t transactions = 0;
  Condition done;
  asio::thread_pool writer{1};

  absl::StatusOr<std::shared_ptr<Write>> Enqueue(JournalChange change, Prepare prepare, bool awaited) {
    if (queue.size() >= options.queue_limit) {
      return absl::ResourceExhaustedError(
          fmt::format("journal {}: {} writes wait for the disk already", options.path, queue.size()));
    }
    auto write = std::make_shared<Write>();
    write->change = std::move(change);
    write->prepare = std::move(prepare);
    write->awaited = awaited;
    queue.push_back(write);
    SendNext();
    return write;
  }

  void SendNext() {
    if (in_flight || queue.empty()) return;
    in_flight = true;
    ++transactions;
    Batch batch = std::exchange(queue, {});
    asio::post(writer, [self = shared_from_this(), loop = executor, batch = std::move(batch)]() mutable {
      Commit(*self->database, batch);
      loop.execute([core = std::move(self), finished = std::move(batch)] { core->Finish(finished); });
    });
  }

  // On the writer thread.
  static void Commit(JournalDatabase& database, const Batch& batch) {
    std::vector<JournalChange> changes;
    for (const auto& write : batch) {
      if (write->prepare) write->result = write->prepare();
      if (write->result.ok()) changes.push_back(write->change);
    }
    if (changes.empty()) return;
    const absl::Status status = database.Apply(changes);
    for (const auto& write : batch) {
      if (write->result.ok()) write->result = status;
    }
  }

  void Finish(const Batch& batch) {
    in_flight = false;
    bool logged = false;
    for (const auto& write : batch) {
      write->done = true;
      if (write->result.ok() || write->awaited || logged) continue;
      SPDLOG_ERROR("{}", write->result.ToString());
      logged = true;
    }
    done.NotifyAll();
    SendNext();
  }

  static Awaitable<absl::Status> Await(std::shared_ptr<Core> core,
                                       absl::StatusOr<std::shared_ptr<Write>> write) {
    if (!write.ok()) co_return write.status();
    const std::shared_ptr<Write> waited = *std::move(write);
    co_await core->done.WaitUntil([waited] { return waited->done; }, TimePoint::max());
    co_return waited->result;
  }
};

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const asio::any_io_executor& executor,
                                                       JournalOptions options) {
  auto core = std::make_shared<Core>(executor, std::move(options));
  BERTH_ASSIGN_OR_RETURN(core->database, JournalDatabase::Open(core->options.path));
  BERTH_ASSIGN_OR_RETURN(core->loaded, core->database->LoadVolumes());
  BERTH_ASSIGN_OR_RETURN(core->next_event_number, core->database->LoadNextEventNumber());
  return std::unique_ptr<Journal>(new Journal(std::move(core)));
}

Journal::~Journal() {
  // What is queued goes with the batch after the one in flight; the writer takes them in order.
  if (!core_->queue.empty()) {
    asio::post(core_->writer, [core = core_.get(), batch = std::exchange(core_->queue, {})] {
      Core::Commit(*core->database, batch);
    });
  }
  core_->writer.join();
  core_->database.reset();
}

std::map<std::string, std::string> Journal::TakeLoaded() { return std::exchange(core_->loaded, {}); }

Awaitable<absl::Status> Journal::Put(std::string key, std::string record, Prepare prepare) {
  JournalChange change{
      .table = JournalChange::Table::kVolumes, .key = std::move(key), .value = std::move(record)};
  return Core::Await(core_, core_->Enqueue(std::move(change), std::move(prepare), true));
}

Awaitable<absl::Status> Journal::Delete(std::string key) {
  JournalChange change{.table = JournalChange::Table::kVolumes, .key = std::move(key), .value = {}};
  return Core::Await(core_, core_->Enqueue(std::move(change), {}, true));
}

void Journal::PutSoon(std::string key, std::string record) {
  JournalChange change{
      .table = JournalChange::Table::kVolumes, .key = std::move(key), .value = std::move(record)};
  const auto write = core_->Enqueue(std::move(change), {}, false);
  if (!write.ok()) SPDLOG_WARN("{}", write.status().ToString());
}

void Journal::DeleteSoon(std::string key) {
  JournalChange change{.table = JournalChange::Table::kVolumes, .key = std::move(key), .value = {}};
  const auto write = core_->Enqueue(std::move(change), {}, false);
  if (!write.ok()) SPDLOG_WARN("{}", write.status().ToString());
}

Awaitable<absl::StatusOr<uint64_t>> Journal::ReserveEventNumbers(uint64_t count) {
  const std::shared_ptr<Core> core = core_;
  const uint64_t first = core->next_event_number;
  core->next_event_number += count;
  JournalChange change{.table = JournalChange::Table::kMeta,
                       .key = "next_event_number",
                       .value = std::to_string(core->next_event_number)};
  auto write = core->Enqueue(std::move(change), {}, true);
  const absl::Status status = co_await Core::Await(core, std::move(write));
  if (!status.ok()) co_return status;
  co_return first;
}

Awaitable<void> Journal::Flush(TimePoint deadline) {
  const std::shared_ptr<Core> core = core_;
  co_await core->done.WaitUntil([core] { return !core->in_flight && core->queue.empty(); }, deadline);
}

size_t Journal::queued() const { return core_->queue.size(); }

uint64_t Journal::transactions() const { return core_->transactions; }

}  // namespace berth
