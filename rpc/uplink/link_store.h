// The rows of the link on disk: <state_dir>/link.db, which is a journal of its own (journal/journal.h, with
// its writer thread, and what it does about a full disk, a failed fsync and a damaged file).
//
//   result/ID          StoredResult: an operation's result, until it is acknowledged
//   acknowledged/ID    its result was taken, and its id is not to be run again
//   settled            every id below this
//   ended/NUMBER       v1.EndedConsumer, until it is acknowledged
//   forced_release/NUMBER    v1.ForcedRelease, until it is acknowledged
//   lease_epoch        the highest epoch that was written into its own file (lease_store.h), in case that
//                      one is lost
//   instance           this node's, made with the file
//   connection         the highest Hello.connection_number
//   cluster            the cluster that the node belongs to
//
// A lost file costs repeats, never a volume: results are made again when they are asked for.
//
// Owned by the uplink's owner; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>

#include "journal/journal.h"
#include "rpc/uplink/link_rows.h"

namespace berth {

class LinkStore final : public LinkRows {
 public:
  // Blocks; at start. Errors: Journal::Open's.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LinkStore>> Open(const asio::any_io_executor& executor,
                                                                       const std::string& state_dir);

  // All rows, by key. Once.
  [[nodiscard]] std::map<std::string, std::string> TakeRows() { return std::move(rows_); }
  // What an operator should know: that the disk is full, that the file was set aside. Empty: all is well.
  [[nodiscard]] std::string problem() const { return journal_->problem(); }

  [[nodiscard]] Awaitable<absl::Status> Put(std::string key, std::string value) override;
  void PutSoon(std::string key, std::string value) override;
  void DeleteSoon(std::string key) override;
  // Waits until what was written without waiting is durable, or `deadline`.
  [[nodiscard]] Awaitable<void> Flush(TimePoint deadline) { return journal_->Flush(deadline); }

 private:
  explicit LinkStore(std::unique_ptr<Journal> journal) : journal_(std::move(journal)) {}

  std::unique_ptr<Journal> journal_;
  std::map<std::string, std::string> rows_;
};

}  // namespace berth
