// A store on this machine's disk, for one scheduler. All records are in memory, too.
//
//   Commit, Read ──► queue ──► the writer's thread: compares ─► one SQLite transaction for all that has
//   queued up ─► the loop: their answers, and the changes for those who follow
//
// Compares and reads are made by the records in memory, which are what the file has. If a write fails,
// nothing of its transaction is acknowledged or kept in memory, and nothing more is until all records have
// been written to a new file (record_file.h). With less than 64 MiB free only what is no new work is taken.
// The last changes are remembered in memory: after a restart followers read everything.
//
// Loop thread. The writer's thread ends with it, once it has written what has queued up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/store/change_ring.h"
#include "scheduler/store/record_file.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

inline constexpr uint64_t kBytesForRelease = uint64_t{64} << 20;
inline constexpr size_t kMostQueued = 65'536;

class SqliteStore final : public Store {
 public:
  // With less free space than `least_free_bytes` no new work is taken.
  SqliteStore(asio::any_io_executor executor, RecordFile::Opened opened,
              uint64_t least_free_bytes = kBytesForRelease);
  ~SqliteStore() override;

  [[nodiscard]] Awaitable<absl::StatusOr<Snapshot>> Read(std::vector<KeyRange> ranges) override;
  // RESOURCE_EXHAUSTED also: too many transactions wait.
  [[nodiscard]] Awaitable<absl::StatusOr<uint64_t>> Commit(Transaction transaction) override;
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Change>>> Changes(uint64_t revision,
                                                                       TimePoint deadline) override;

 private:
  struct Job;
  using Jobs = std::vector<std::shared_ptr<Job>>;

  [[nodiscard]] Awaitable<bool> Run(std::shared_ptr<Job> job);
  void Answer(const Jobs& jobs);

  // On the writer's thread.
  void WriteQueued();
  void Commit(Jobs& jobs);
  [[nodiscard]] absl::Status MakeDurable(const std::vector<RecordChange>& changes, uint64_t revision);

  asio::any_io_executor executor_;
  uint64_t least_free_bytes_;
  ChangeRing ring_;
  Condition answered_;
  // The answers of a thread that is still there find the store, or null.
  std::shared_ptr<SqliteStore*> self_ = std::make_shared<SqliteStore*>(this);

  std::mutex mutex_;
  std::condition_variable queued_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool ends_ = false;

  // The writer's own.
  std::unique_ptr<RecordFile> file_;
  RecordMap records_;
  uint64_t revision_ = 0;
  bool sound_ = true;  // the file is what `records_` is
  std::thread writer_;
};

}  // namespace berth::scheduler
