// Writes the journal to the disk, and handles failures of the disk.
//
//   sound ──full──► new work is refused, the rest uses the reserve, until there is room again
//     │
//     └──a write or sync failed, or the file is damaged──► unsound: nothing is acknowledged before every
//        existing row has been written to a file of its own, synced, and put in the place of the old one
//
// After a failed fsync the kernel may have dropped what was to be written while it still shows it, so the
// rows are written from memory, never read back. Blocks; used by one thread at a time, as JournalDatabase.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "journal/journal_database.h"

namespace berth {

// One queued write. While its batch is with the writer thread, no other thread looks at it.
struct JournalWrite {
  std::vector<JournalChange> changes;     // all or none
  std::function<absl::Status()> prepare;  // set: it is new work
  bool awaited = false;
  bool done = false;
  absl::Status result;
};
using JournalBatch = std::vector<std::shared_ptr<JournalWrite>>;

class JournalWriter {
 public:
  // Locks the journal, finishes what a crash cut short, and sets a damaged file aside. Errors:
  // JournalDatabase::Open, but for its DATA_LOSS; FAILED_PRECONDITION changes nothing.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JournalWriter>> Open(JournalDatabase::Options options);

  // What is on the disk: every row that was acknowledged.
  [[nodiscard]] const JournalContents& contents() const { return contents_; }
  // Rows that were not read as they were written; they are in `contents` no more.
  [[nodiscard]] std::map<std::string, std::string> TakeUnreadable();
  // Where a damaged file went at the start; empty: there was none.
  [[nodiscard]] const std::string& set_aside() const { return set_aside_; }

  // One transaction, and each write's result.
  void Commit(const JournalBatch& batch);
  // All or none.
  [[nodiscard]] absl::Status Apply(const std::vector<JournalChange>& changes);

  // What people should know of it now; empty: all is well.
  [[nodiscard]] std::string problem() const;

 private:
  explicit JournalWriter(JournalDatabase::Options options) : options_(std::move(options)) {}
  [[nodiscard]] absl::Status OpenDatabase();
  [[nodiscard]] absl::Status Rewrite(const std::vector<JournalChange>& changes);
  [[nodiscard]] absl::Status RefusesNewWork();

  JournalDatabase::Options options_;
  UniqueFd lock_;  // LockJournal, until the database is closed
  std::unique_ptr<JournalDatabase> database_;
  JournalContents contents_;
  std::string set_aside_;
  bool full_ = false;
  absl::Status unsound_;  // why the file is not to be trusted; OK: it is
};

}  // namespace berth
