// Rows that are durable before they are acted upon. The mounter keeps one for each volume, and the link to a
// scheduler has a journal of its own (rpc/uplink/link_store.h).
//
// Loop thread only. A writer thread talks to SQLite (journal_writer.h): an fsync may take seconds, and the
// loop does not wait for it. Whatever has queued up while one transaction is being committed becomes the next
// one, so that many volumes at work share their fsyncs.
//
// What fails, and how it goes on:
//   full disk       new work is refused (RESOURCE_EXHAUSTED); everything else uses reserved space, so volumes
//                   can still be released.
//   fsync, write    nothing is acknowledged until every row has been written again, to a file of its own.
//   damaged file    set aside at the start, never deleted; the rows come from the identity files and the
//                   kernel (journal_rebuild.h).
//   damaged row     put into a table of its own; rebuilt from its identity file.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "journal/journal_database.h"

namespace berth {

struct JournalOptions {
  std::string path;
  size_t queue_limit = 8192;  // writes that may wait; beyond: RESOURCE_EXHAUSTED
  JournalReserve reserve = {};
  std::string vfs = {};  // SQLite's name of another VFS, for tests of power cuts
  // What becomes of the rows of a file that was damaged, for people.
  std::string lost = "its rows are rebuilt from the identity files and the kernel's mounts";
};

class Journal {
 public:
  // Blocks; called at start. A damaged file is set aside and a new one begun. Errors: JournalDatabase::Open,
  // but for its DATA_LOSS.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Journal>> Open(const asio::any_io_executor& executor,
                                                                     JournalOptions options);
  // Commits what is queued, joins the writer thread and closes the file.
  ~Journal();

  // Before the first write, once the tree of volumes is there (journal_rebuild.h): Whether the file is new,
  // made by this berthd or by one that did not reach Restore.
  [[nodiscard]] bool is_new() const;
  // Where a damaged file was set aside to, at this start. Empty: there was none.
  [[nodiscard]] const std::string& set_aside() const;
  // The rows, by key. Once.
  [[nodiscard]] std::map<std::string, std::string> TakeLoaded();
  // The rows of the table meta, by key. Once.
  [[nodiscard]] std::map<std::string, std::string> TakeMeta();
  // Rows with other bytes than were written, by key. Once.
  [[nodiscard]] std::map<std::string, std::string> TakeDamaged();
  // Keeps `damaged` in a table of its own, with a reason for each, replaces them and all lost rows by `rows`,
  // and ends is_new, all in one transaction. Blocks.
  struct Damaged {
    std::string key;
    std::string record;
    std::string reason;
  };
  [[nodiscard]] absl::Status Restore(const std::map<std::string, std::string>& rows,
                                     const std::vector<Damaged>& damaged);
  // What people should know of it, a sentence each; kept for TakeNotes and problem().
  void Note(std::string sentence);
  [[nodiscard]] std::vector<std::string> TakeNotes();

  // Work that has to be done before the row is durable, such as the volume's directories: run on the writer
  // thread just before the transaction. If it fails, this one write fails with its error and is left out.
  using Prepare = std::function<absl::Status()>;

  // Returns once the row is on the disk. An error says that the caller must not act as if it were; it may
  // still turn up after a crash, so the caller writes what holds instead (PutSoon, DeleteSoon).
  // With a `prepare` it is new work, which a full disk refuses (RESOURCE_EXHAUSTED) while the reserve lasts
  // for everything else.
  // `others` are written in the same transaction.
  [[nodiscard]] Awaitable<absl::Status> Put(std::string key, std::string record, Prepare prepare = {},
                                            JournalRows others = {});
  [[nodiscard]] Awaitable<absl::Status> Delete(std::string key, JournalRows others = {});
  [[nodiscard]] Awaitable<absl::Status> Write(JournalRows rows, Prepare prepare = {});

  // The same without waiting, for what is only helpful to know after a crash. Errors are logged; it is
  // written again with whatever is written next.
  void PutSoon(std::string key, std::string record);
  void DeleteSoon(std::string key, JournalRows others = {});

  // `work` makes durable, on the writer thread, what has no waiter: a little at a time, so that a write need
  // not wait for long. It returns whether it had anything to do. Once, before WhenIdle.
  void SetIdleWork(std::function<bool()> work);
  // There is such work: it is done, until nothing is left, once nothing has been written for a moment, or has
  // been for seconds. What is left when the journal is destroyed is left undone, so that an end takes no
  // longer.
  void WhenIdle();

  // Waits until everything that was queued before is committed, or has failed, or `deadline`.
  [[nodiscard]] Awaitable<void> Flush(TimePoint deadline);

  // What an operator should know now: that the disk is full, that nothing is acknowledged, that it is new.
  // Empty: all is well. While there is a problem, the journal tries again every two seconds.
  [[nodiscard]] std::string problem() const;
  // Whether the row on the disk is `record`, as far as is known.
  [[nodiscard]] bool Holds(const std::string& key, const std::string& record) const;

  // How many writes wait for the batch in flight, and how many batches there have been.
  [[nodiscard]] size_t queued() const;
  [[nodiscard]] uint64_t transactions() const;
  [[nodiscard]] const std::string& path() const;

 private:
  struct Core;
  explicit Journal(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::shared_ptr<Core> core_;
};

}  // namespace berth
