#include "journal/journal.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "base/status.h"
#include "journal/journal_writer.h"

namespace berth {
namespace {

// How long nothing is written before idle work is done, and how often it is put off.
constexpr Duration kRest = std::chrono::milliseconds(100);
constexpr int kMostPutOff = 20;
// The pause before a journal with a problem tries to write again.
constexpr Duration kRetry = std::chrono::seconds(2);

JournalChange PutRow(std::string key, std::string record) {
  return {.table = JournalChange::Table::kVolumes, .key = std::move(key), .value = std::move(record)};
}
JournalChange DeleteRow(std::string key) {
  return {.table = JournalChange::Table::kVolumes, .key = std::move(key), .value = {}};
}

JournalRows With(JournalChange change, JournalRows others) {
  others.insert(others.begin(), std::move(change));
  return others;
}

}  // namespace

// Shared by the Journal, its waiters and the batch in flight, so that none of them can outlive it.
struct Journal::Core : std::enable_shared_from_this<Core> {
  Core(const asio::any_io_executor& loop, JournalOptions opts)
      : executor(loop), options(std::move(opts)), rest(loop), retry(loop), done(loop) {}

  asio::any_io_executor executor;
  JournalOptions options;
  std::unique_ptr<JournalWriter> file;  // the writer thread's once the first batch has left
  bool is_new = false;
  std::string set_aside;
  std::map<std::string, std::string> loaded;
  std::map<std::string, std::string> meta;
  std::map<std::string, std::string> damaged;

  // What is on the disk, as far as is known: a hash of each row.
  std::map<std::string, size_t> on_disk;
  std::string trouble;                // of the last batch
  std::vector<std::string> notes;     // not taken yet
  std::vector<std::string> standing;  // all of them

  JournalBatch queue;
  std::function<bool()> idle_work;
  bool has_idle_work = false;
  bool resting = false;
  int put_off = 0;
  TimePoint last_write = {};
  asio::steady_timer rest;
  asio::steady_timer retry;
  bool retrying = false;
  bool in_flight = false;  // something runs on the writer thread
  uint64_t transactions = 0;
  Condition done;
  asio::thread_pool writer{1};

  absl::StatusOr<std::shared_ptr<JournalWrite>> Enqueue(JournalRows changes, Prepare prepare, bool awaited) {
    if (queue.size() >= options.queue_limit) {
      return absl::ResourceExhaustedError(
          fmt::format("journal {}: {} writes wait for the disk already", options.path, queue.size()));
    }
    auto write = std::make_shared<JournalWrite>();
    write->changes = std::move(changes);
    write->prepare = std::move(prepare);
    write->awaited = awaited;
    queue.push_back(write);
    SendNext();
    return write;
  }

  void EnqueueSoon(JournalRows changes) {
    const auto write = Enqueue(std::move(changes), {}, false);
    if (!write.ok()) SPDLOG_WARN("{}", MessageOf(write.status()));
  }

  void SendNext() {
    if (in_flight || queue.empty()) return;
    ++transactions;
    Send(std::exchange(queue, {}));
  }

  void Send(JournalBatch batch) {
    in_flight = true;
    last_write = Clock::now();
    asio::post(writer, [self = shared_from_this(), loop = executor, batch = std::move(batch)]() mutable {
      self->file->Commit(batch);
      std::string problem = self->file->problem();
      loop.execute([core = std::move(self), finished = std::move(batch), problem = std::move(problem)] {
        core->trouble = problem;
        core->Finish(finished);
      });
    });
  }

  void Finish(const JournalBatch& batch) {
    in_flight = false;
    bool logged = false;
    for (const auto& write : batch) {
      write->done = true;
      if (write->result.ok()) {
        for (const JournalChange& change : write->changes) Remember(change);
      }
      if (write->result.ok() || write->awaited || logged) continue;
      SPDLOG_ERROR("{}", MessageOf(write->result));
      logged = true;
    }
    done.NotifyAll();
    if (put_off >= kMostPutOff) SendIdleWork();
    SendNext();
    RetryLater();
  }

  // Without a write, too: the disk may have space again, or syncs may succeed again.
  void RetryLater() {
    if (trouble.empty() || std::exchange(retrying, true)) return;
    retry.expires_after(kRetry);
    retry.async_wait([self = shared_from_this()](const boost::system::error_code& cancelled) {
      self->retrying = false;
      if (cancelled) return;
      if (self->in_flight) return self->RetryLater();
      self->Send(std::exchange(self->queue, {}));
    });
  }

  void Rest() {
    if (resting || !has_idle_work) return;
    resting = true;
    rest.expires_after(kRest);
    rest.async_wait([self = shared_from_this()](const boost::system::error_code& cancelled) {
      self->resting = false;
      if (cancelled) return;
      if (self->in_flight || Clock::now() - self->last_write < kRest) {
        ++self->put_off;
        self->Rest();
      } else {
        self->SendIdleWork();
      }
    });
  }

  // A little at a time: a write may come.
  void SendIdleWork() {
    if (in_flight || !has_idle_work) return;
    put_off = 0;
    has_idle_work = false;
    in_flight = true;
    asio::post(writer, [self = shared_from_this(), loop = executor]() mutable {
      const bool more = self->idle_work();
      loop.execute([core = std::move(self), more] {
        core->in_flight = false;
        core->has_idle_work |= more && core->idle_work != nullptr;  // null: the journal has ended
        core->done.NotifyAll();
        core->SendNext();
        core->SendIdleWork();
        core->Rest();
      });
    });
  }

  void Remember(const JournalChange& change) {
    if (change.table != JournalChange::Table::kVolumes) return;
    if (change.value.empty()) {
      on_disk.erase(change.key);
    } else {
      on_disk[change.key] = std::hash<std::string>{}(change.value);
    }
  }

  static Awaitable<absl::Status> Await(std::shared_ptr<Core> core,
                                       absl::StatusOr<std::shared_ptr<JournalWrite>> write) {
    if (!write.ok()) co_return write.status();
    const std::shared_ptr<JournalWrite> waited = *std::move(write);
    co_await core->done.WaitUntil([waited] { return waited->done; }, TimePoint::max());
    co_return waited->result;
  }
};

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const asio::any_io_executor& executor,
                                                       JournalOptions options) {
  auto core = std::make_shared<Core>(executor, std::move(options));
  BERTH_ASSIGN_OR_RETURN(core->file, JournalWriter::Open({.path = core->options.path,
                                                          .vfs = core->options.vfs,
                                                          .reserve = core->options.reserve}));
  const JournalContents& contents = core->file->contents();
  core->is_new = contents.meta.contains(kBegunAnew);
  core->set_aside = core->file->set_aside();
  core->loaded = contents.volumes;
  core->meta = contents.meta;
  core->damaged = core->file->TakeUnreadable();
  for (const auto& [key, record] : core->loaded) core->Remember(PutRow(key, record));
  std::unique_ptr<Journal> journal(new Journal(std::move(core)));
  if (!journal->set_aside().empty()) {
    journal->Note(fmt::format("the journal was damaged and has been set aside as {}; {}",
                              journal->set_aside(), journal->core_->options.lost));
  }
  return journal;
}

Journal::~Journal() {
  // What is queued goes with the batch after the one in flight; the writer takes them in order.
  if (!core_->queue.empty()) {
    asio::post(core_->writer,
               [core = core_.get(), batch = std::exchange(core_->queue, {})] { core->file->Commit(batch); });
  }
  core_->rest.cancel();
  core_->retry.cancel();
  core_->has_idle_work = false;
  core_->writer.join();
  core_->idle_work = nullptr;
  core_->file.reset();
}

bool Journal::is_new() const { return core_->is_new; }

const std::string& Journal::set_aside() const { return core_->set_aside; }

std::map<std::string, std::string> Journal::TakeLoaded() { return std::exchange(core_->loaded, {}); }

std::map<std::string, std::string> Journal::TakeMeta() { return std::exchange(core_->meta, {}); }

std::map<std::string, std::string> Journal::TakeDamaged() { return std::exchange(core_->damaged, {}); }

absl::Status Journal::Restore(const std::map<std::string, std::string>& rows,
                              const std::vector<Damaged>& damaged) {
  JournalRows changes;
  for (const Damaged& row : damaged) {
    changes.push_back(
        {.table = JournalChange::Table::kDamaged, .key = row.key, .value = row.record, .reason = row.reason});
    changes.push_back(DeleteRow(row.key));
  }
  for (const auto& [key, record] : rows) changes.push_back(PutRow(key, record));
  changes.push_back({.table = JournalChange::Table::kMeta, .key = kBegunAnew, .value = {}});
  BERTH_RETURN_IF_ERROR(core_->file->Apply(changes));
  for (const JournalChange& change : changes) core_->Remember(change);
  core_->is_new = false;
  return absl::OkStatus();
}

void Journal::Note(std::string sentence) {
  core_->notes.push_back(sentence);
  core_->standing.push_back(std::move(sentence));
}

std::vector<std::string> Journal::TakeNotes() { return std::exchange(core_->notes, {}); }

Awaitable<absl::Status> Journal::Put(std::string key, std::string record, Prepare prepare,
                                     JournalRows others) {
  return Write(With(PutRow(std::move(key), std::move(record)), std::move(others)), std::move(prepare));
}

Awaitable<absl::Status> Journal::Delete(std::string key, JournalRows others) {
  return Write(With(DeleteRow(std::move(key)), std::move(others)));
}

Awaitable<absl::Status> Journal::Write(JournalRows rows, Prepare prepare) {
  return Core::Await(core_, core_->Enqueue(std::move(rows), std::move(prepare), true));
}

void Journal::PutSoon(std::string key, std::string record) {
  core_->EnqueueSoon({PutRow(std::move(key), std::move(record))});
}

void Journal::DeleteSoon(std::string key, JournalRows others) {
  core_->EnqueueSoon(With(DeleteRow(std::move(key)), std::move(others)));
}

void Journal::SetIdleWork(std::function<bool()> work) { core_->idle_work = std::move(work); }

void Journal::WhenIdle() {
  core_->has_idle_work = true;
  core_->Rest();
}

Awaitable<void> Journal::Flush(TimePoint deadline) {
  const std::shared_ptr<Core> core = core_;
  co_await core->done.WaitUntil([core] { return !core->in_flight && core->queue.empty(); }, deadline);
}

std::string Journal::problem() const {
  std::string problem = core_->trouble;
  for (const std::string& sentence : core_->standing) {
    problem += fmt::format("{}{}", problem.empty() ? "" : "; ", sentence);
  }
  return problem;
}

bool Journal::Holds(const std::string& key, const std::string& record) const {
  const auto it = core_->on_disk.find(key);
  return it != core_->on_disk.end() && it->second == std::hash<std::string>{}(record);
}

size_t Journal::queued() const { return core_->queue.size(); }

uint64_t Journal::transactions() const { return core_->transactions; }

const std::string& Journal::path() const { return core_->options.path; }

}  // namespace berth
