// Where the link keeps what must outlive berthd: results, ended consumers, forced releases. A row is a key
// and a few bytes. Loop thread; outlives its users.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/number_text.h"
#include "base/task_scope.h"

namespace berth {

// The keys (link_store.h); one that ends with a slash has a number behind it.
inline constexpr std::string_view kResultRow = "result/";
inline constexpr std::string_view kAcknowledgedRow = "acknowledged/";
inline constexpr std::string_view kEndedRow = "ended/";
inline constexpr std::string_view kForcedReleaseRow = "forced_release/";
inline constexpr std::string_view kSettledRow = "settled";
inline constexpr std::string_view kEndedNumberRow = "ended_next";
// The highest number that any forced release ever got: no number is used twice, also when all rows are gone.
inline constexpr std::string_view kForcedReleaseNumberRow = "forced_release_last";
// The highest epoch that was written into its file: should that file be missing, it is known that there was
// one.
inline constexpr std::string_view kLeaseEpochRow = "lease_epoch";
// The highest Hello.connection_number.
inline constexpr std::string_view kConnectionRow = "connection";
inline constexpr std::string_view kInstanceRow = "instance";
inline constexpr std::string_view kClusterRow = "cluster";

inline std::string Row(std::string_view kind, uint64_t number) { return fmt::format("{}{}", kind, number); }

// The number in `text`, after `prefix`; nullopt if it has no number.
inline std::optional<uint64_t> NumberIn(std::string_view text, std::string_view prefix = "") {
  if (!text.starts_with(prefix)) return std::nullopt;
  uint64_t number = 0;
  if (!ParseNumber(text.substr(prefix.size()), &number)) return std::nullopt;
  return number;
}

class LinkRows {
 public:
  virtual ~LinkRows() = default;
  // Returns once the row is durable, in place of the last one of that key. An error says that it may not be:
  // RESOURCE_EXHAUSTED where the disk is full.
  [[nodiscard]] virtual Awaitable<absl::Status> Put(std::string key, std::string value) = 0;
  // Without waiting: what is lost by it is reported or done once more.
  virtual void PutSoon(std::string key, std::string value) = 0;
  // It may turn up again after a crash.
  virtual void DeleteSoon(std::string key) = 0;
};

}  // namespace berth
