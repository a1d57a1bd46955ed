#include "scheduler/store/store.h"

#include <fmt/format.h>

#include <set>

#include "base/status.h"

namespace berth::scheduler {
namespace {

absl::Status Breaks(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("the transaction {}", what));
}

}  // namespace

KeyRange KeyRange::Key(std::string key) {
  std::string end = key + '\0';
  return {.first = std::move(key), .end = std::move(end)};
}

KeyRange KeyRange::Prefix(std::string prefix) {
  std::string end = prefix;
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  // All keys: none is longer than this.
  if (end.empty()) return {.first = std::move(prefix), .end = std::string(kKeyLimit + 1, '\xff')};
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return {.first = std::move(prefix), .end = std::move(end)};
}

absl::Status CheckTransaction(const Transaction& transaction) {
  const size_t changes = transaction.puts.size() + transaction.deletes.size();
  if (transaction.compares.size() > kCompareLimit)
    return Breaks(fmt::format("has {} compares, more than {}", transaction.compares.size(), kCompareLimit));
  if (changes > kChangeLimit)
    return Breaks(fmt::format("has {} changes, more than {}", changes, kChangeLimit));
  size_t bytes = 0;
  std::set<std::string_view> changed;
  absl::Status status;
  const auto count = [&](std::string_view key, std::string_view value) {
    bytes += key.size() + value.size();
    if (key.empty() || key.size() > kKeyLimit)
      status = Breaks(fmt::format("has a key of {} bytes; 1 to {} are allowed", key.size(), kKeyLimit));
  };
  const auto change = [&](std::string_view key, std::string_view value) {
    count(key, value);
    if (!changed.insert(key).second)
      status = Breaks(fmt::format("changes the key {} twice", Printable(key, 256)));
  };
  for (const Compare& compare : transaction.compares) {
    count(compare.key, compare.end);
    if (!compare.end.empty() && compare.modified != 0)
      status = Breaks(fmt::format("compares a range with a revision: {}", Printable(compare.key, 256)));
  }
  for (const auto& [key, value] : transaction.puts) change(key, value);
  for (const std::string& key : transaction.deletes) change(key, {});
  BERTH_RETURN_IF_ERROR(status);
  if (bytes > kTransactionBytes)
    return Breaks(fmt::format("has {} bytes, more than {}", bytes, kTransactionBytes));
  return absl::OkStatus();
}

absl::Status CompareFailed(const Compare& compare) {
  return absl::AbortedError(fmt::format("{} was changed meanwhile", Printable(compare.key, 256)));
}

}  // namespace berth::scheduler
