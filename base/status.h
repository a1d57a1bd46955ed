// Failures as values: absl::Status, with gRPC's own codes. This is the one place where errno values, Boost
// error codes and gRPC statuses become statuses and back. Any thread.
//
// A message says what was attempted on what, then why: "mount /run/x: Device or resource busy".
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/support/status.h>

#include <boost/system/error_code.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace berth {

// "what: strerror(errnum)", with the errno kept as a payload for ErrnoOf. Codes are Abseil's mapping (EBUSY
// is FAILED_PRECONDITION, ENOSPC is RESOURCE_EXHAUSTED); callers that give an errno another meaning use
// ErrnoOf. `errnum` must not be 0.
[[nodiscard]] absl::Status ErrnoStatus(int errnum, std::string_view what);

// The errno that `status` was made from, if it was made from one.
[[nodiscard]] std::optional<int> ErrnoOf(const absl::Status& status);

[[nodiscard]] absl::Status FromErrorCode(const boost::system::error_code& error, std::string_view what);

// A code outside gRPC's seventeen (a hostile peer may send any number) becomes UNKNOWN. The message is cut
// at 4 KiB and control characters in it are replaced: it comes from outside.
[[nodiscard]] absl::Status FromGrpc(const grpc::Status& status);
[[nodiscard]] grpc::Status ToGrpc(const absl::Status& status);

// The same status, its message led by "context: ".
[[nodiscard]] absl::Status Annotate(const absl::Status& status, std::string_view context);

// CSI's and gRPC's spelling of a code: "FAILED_PRECONDITION".
[[nodiscard]] std::string_view CodeName(absl::StatusCode code);

// The message of `status` as fmt can show it (absl::string_view is a type of its own in Debian's build).
// Lives as long as `status` does.
[[nodiscard]] inline std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Whether all of it is valid UTF-8, as a protobuf string must be. Any code point counts, also those that
// Printable escapes.
[[nodiscard]] bool IsUtf8(std::string_view text);

// `text` made safe to show: cut to `limit` bytes, bytes that are not printable ASCII or valid UTF-8 as \xNN.
[[nodiscard]] std::string Printable(std::string_view text, size_t limit = 4096);

}  // namespace berth

#define BERTH_CONCAT_INNER_(a, b) a##b
#define BERTH_CONCAT_(a, b) BERTH_CONCAT_INNER_(a, b)

// Early return on an error, in functions and (CO_) in coroutines.
#define BERTH_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                  \
    if (absl::Status berth_status_ = (expr); !berth_status_.ok()) return berth_status_; \
  } while (false)
#define BERTH_CO_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                     \
    if (absl::Status berth_status_ = (expr); !berth_status_.ok()) co_return berth_status_; \
  } while (false)
// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` may be a declaration, `ret` is a keyword.
#define BERTH_ASSIGN_OR_RETURN(lhs, expr) \
  BERTH_ASSIGN_OR_IMPL_(BERTH_CONCAT_(berth_value_, __LINE__), lhs, expr, return)
#define BERTH_CO_ASSIGN_OR_RETURN(lhs, expr) \
  BERTH_ASSIGN_OR_IMPL_(BERTH_CONCAT_(berth_value_, __LINE__), lhs, expr, co_return)
#define BERTH_ASSIGN_OR_IMPL_(value, lhs, expr, ret) \
  auto value = (expr);                               \
  if (!value.ok()) ret value.status();               \
  lhs = *std::move(value)
// NOLINTEND(bugprone-macro-parentheses)
