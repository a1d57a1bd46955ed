// The mounter's memory: what was decided about each volume, durable before it is acted upon.
//
// Owned by the Mounter; loop thread only. A writer thread of its own talks to SQLite (journal_database.h):
// an fsync may take seconds, and the loop does not wait for it. Whatever has queued up while one
// transaction is being committed becomes the next one, so that many volumes at work share their fsyncs.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/task_scope.h"
#include "mounter/journal_database.h"

namespace berth {

struct JournalOptions {
  std::string path;
  size_t queue_limit = 8192;  // writes that may wait; beyond: RESOURCE_EXHAUSTED
};

class Journal {
 public:
  // Blocks; called at start. Errors: JournalDatabase::Open.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Journal>> Open(const asio::any_io_executor& executor,
                                                                     JournalOptions options);
  // Commits what is queued, joins the writer thread and lets go of the file.
  ~Journal();

  // The rows as they were when the journal was opened, by key. Once.
  [[nodiscard]] std::map<std::string, std::string> TakeLoaded();

  // Work that has to be durable before the row is, such as the volume's directories: run on the writer
  // thread just before the transaction. If it fails, this one write fails with its error and is left out.
  using Prepare = std::function<absl::Status()>;

  // Returns once the row is on the disk. An error says that the caller must not act as if it were; it may
  // still turn up after a crash, so the caller writes what holds instead (PutSoon, DeleteSoon).
  [[nodiscard]] Awaitable<absl::Status> Put(std::string key, std::string record, Prepare prepare = {});
  [[nodiscard]] Awaitable<absl::Status> Delete(std::string key);

  // The same without waiting, for what is only helpful to know after a crash. Errors are logged.
  void PutSoon(std::string key, std::string record);
  void DeleteSoon(std::string key);

  // Durably reserves `count` numbers above all that were reserved before, and returns the first.
  [[nodiscard]] Awaitable<absl::StatusOr<uint64_t>> ReserveEventNumbers(uint64_t count);

  // Waits until everything that was queued before is committed, or has failed, or `deadline`.
  [[nodiscard]] Awaitable<void> Flush(TimePoint deadline);

  // How many writes wait for the batch in flight, and how many batches there have been.
  [[nodiscard]] size_t queued() const;
  [[nodiscard]] uint64_t transactions() const;

 private:
  struct Write;
  struct Core;
  explicit Journal(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::shared_ptr<Core> core_;
};

}  // namespace berth
