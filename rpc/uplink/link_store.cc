#include "rpc/uplink/link_store.h"

#include <utility>
#include <vector>

#include "base/status.h"

namespace berth {

absl::StatusOr<std::unique_ptr<LinkStore>> LinkStore::Open(const asio::any_io_executor& executor,
                                                           const std::string& state_dir) {
  JournalOptions options{.path = state_dir + "/link.db",
                         .lost = "results that the scheduler had not taken are found out again when it asks"};
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Open(executor, std::move(options)));
  std::vector<Journal::Damaged> damaged;
  for (auto& [key, bytes] : journal->TakeDamaged()) {
    damaged.push_back({.key = key, .record = bytes, .reason = "its bytes are not those that were written"});
  }
  std::map<std::string, std::string> rows = journal->TakeLoaded();
  for (const Journal::Damaged& row : damaged) rows.erase(row.key);
  if (journal->is_new() || !damaged.empty()) BERTH_RETURN_IF_ERROR(journal->Restore({}, damaged));
  std::unique_ptr<LinkStore> store(new LinkStore(std::move(journal)));
  store->rows_ = std::move(rows);
  return store;
}

Awaitable<absl::Status> LinkStore::Put(std::string key, std::string value) {
  return journal_->Put(std::move(key), std::move(value));
}

void LinkStore::PutSoon(std::string key, std::string value) {
  journal_->PutSoon(std::move(key), std::move(value));
}

void LinkStore::DeleteSoon(std::string key) { journal_->DeleteSoon(std::move(key)); }

}  // namespace berth
