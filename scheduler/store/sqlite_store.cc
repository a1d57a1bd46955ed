#include "scheduler/store/sqlite_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "base/status.h"
#include "scheduler/store/record_map.h"

namespace berth::scheduler {

// Of one thread at a time: the loop's, then the writer's, then the loop's again.
struct SqliteStore::Job {
  std::optional<Transaction> transaction;  // unset: a read
  std::vector<KeyRange> ranges;
  absl::StatusOr<uint64_t> committed = absl::UnknownError("not written yet");
  Snapshot snapshot;
  bool is_done = false;  // the loop's
};

SqliteStore::SqliteStore(asio::any_io_executor executor, RecordFile::Opened opened, uint64_t least_free_bytes)
    : executor_(std::move(executor)),
      least_free_bytes_(least_free_bytes),
      ring_(executor_, opened.revision),
      answered_(executor_),
      file_(std::move(opened.file)),
      records_(std::move(opened.records)),
      revision_(opened.revision),
      writer_([this] { WriteQueued(); }) {}

SqliteStore::~SqliteStore() {
  *self_ = nullptr;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  queued_.notify_one();
  writer_.join();
}

Awaitable<bool> SqliteStore::Run(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) co_return false;
    queue_.push_back(job);
  }
  queued_.notify_one();
  co_await answered_.WaitUntil([job] { return job->is_done; }, TimePoint::max());
  co_return true;
}

Awaitable<absl::StatusOr<Snapshot>> SqliteStore::Read(std::vector<KeyRange> ranges) {
  const auto job = std::make_shared<Job>();
  job->ranges = std::move(ranges);
  if (!co_await Run(job)) co_return absl::ResourceExhaustedError("too many transactions wait for the disk");
  co_return std::move(job->snapshot);
}

Awaitable<absl::StatusOr<uint64_t>> SqliteStore::Commit(Transaction transaction) {
  BERTH_CO_RETURN_IF_ERROR(CheckTransaction(transaction));
  const auto job = std::make_shared<Job>();
  job->transaction = std::move(transaction);
  if (!co_await Run(job)) co_return absl::ResourceExhaustedError("too many transactions wait for the disk");
  co_return job->committed;
}

Awaitable<absl::StatusOr<std::vector<Change>>> SqliteStore::Changes(uint64_t revision, TimePoint deadline) {
  co_return co_await ring_.After(revision, deadline);
}

void SqliteStore::Answer(const Jobs& jobs) {
  for (const auto& job : jobs) {
    if (job->transaction.has_value() && job->committed.ok()) ring_.Add(*job->committed, *job->transaction);
    job->is_done = true;
  }
  answered_.NotifyAll();
}

// --- The writer's thread -----------------------------------------------------------------------------------

void SqliteStore::WriteQueued() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Jobs jobs(queue_.begin(), queue_.end());
    queue_.clear();
    lock.unlock();
    Commit(jobs);
    for (const auto& job : jobs) {
      if (!job->transaction.has_value()) job->snapshot = ReadRecords(records_, revision_, job->ranges);
    }
    asio::post(executor_, [self = self_, jobs = std::move(jobs)] {
      if (*self != nullptr) (*self)->Answer(jobs);
    });
    lock.lock();
  }
}

// Those that hold, one after another, in one transaction of the file: all of them or none.
void SqliteStore::Commit(Jobs& jobs) {
  const bool is_low = file_->FreeBytes() < least_free_bytes_;
  const uint64_t before = revision_;
  RecordUndo undo;
  for (const auto& job : jobs) {
    if (!job->transaction.has_value()) continue;
    if (is_low && job->transaction->is_new_work) {
      job->committed = absl::ResourceExhaustedError(fmt::format(
          "the disk is full: less than {} MiB are free next to the records, and what is left is for "
          "releasing volumes",
          least_free_bytes_ >> 20U));
      continue;
    }
    job->committed = ApplyToRecords(records_, revision_, *job->transaction, &undo);
  }
  if (revision_ == before) return;
  std::map<std::string_view, const RecordValue*> changed;
  for (const auto& [key, was] : undo) {
    const auto now = records_.find(key);
    changed[key] = now == records_.end() ? nullptr : &now->second;
  }
  std::vector<RecordChange> changes;
  for (const auto& [key, value] : changed) changes.emplace_back(key, value);
  const absl::Status durable = MakeDurable(changes, revision_);
  if (durable.ok()) return;
  // The newest first.
  for (auto it = undo.rbegin(); it != undo.rend(); ++it) {
    if (it->second.has_value()) {
      records_.insert_or_assign(it->first, *std::move(it->second));
    } else {
      records_.erase(it->first);
    }
  }
  revision_ = before;
  for (const auto& job : jobs) {
    if (job->transaction.has_value() && job->committed.ok()) job->committed = durable;
  }
}

absl::Status SqliteStore::MakeDurable(const std::vector<RecordChange>& changes, uint64_t revision) {
  if (sound_) {
    const absl::Status written = file_->Write(changes, revision);
    if (written.ok() || absl::IsResourceExhausted(written)) return written;
    SPDLOG_ERROR("{}: all records are written to a new file", MessageOf(written));
    sound_ = false;
  }
  const absl::Status rewritten = file_->Rewrite(records_, revision);
  sound_ = rewritten.ok();
  if (!sound_) SPDLOG_ERROR("{}: nothing is acknowledged until that succeeds", MessageOf(rewritten));
  return sound_ ? absl::OkStatus() : absl::UnavailableError(rewritten.message());
}

}  // namespace berth::scheduler
