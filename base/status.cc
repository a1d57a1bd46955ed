#include "base/status.h"

#include <absl/strings/cord.h>
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string>

namespace berth {
namespace {

constexpr std::string_view kErrnoPayload = "berth/errno";

// The length of the valid UTF-8 sequence that `text` begins with, or 0; `shown`: 0 too where it is a control.
size_t Utf8Length(std::string_view text, bool shown) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t length = 0;
  uint32_t point = 0;
  if (lead < 0x80) return 1;
  if ((lead & 0xE0) == 0xC0) {
    length = 2;
    point = lead & 0x1F;
  } else if ((lead & 0xF0) == 0xE0) {
    length = 3;
    point = lead & 0x0F;
  } else if ((lead & 0xF8) == 0xF0) {
    length = 4;
    point = lead & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return 0;
    point = (point << 6) | (next & 0x3F);
  }
  constexpr uint32_t kShortest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  const bool control = shown && point < 0xA0;  // C1 controls move a terminal's cursor just as C0 ones do.
  if (point < kShortest[length] || point > 0x10FFFF || surrogate || control) return 0;
  return length;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text, /*shown=*/false);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

absl::Status ErrnoStatus(int errnum, std::string_view what) {
  char buffer[128];
  const char* reason = strerror_r(errnum, buffer, sizeof buffer);
  // No right of the caller's changes that a file system is read-only.
  const absl::StatusCode code =
      errnum == EROFS ? absl::StatusCode::kFailedPrecondition : absl::ErrnoToStatusCode(errnum);
  absl::Status status(code, fmt::format("{}: {}", what, reason));
  status.SetPayload({kErrnoPayload.data(), kErrnoPayload.size()},
                    absl::Cord(absl::string_view(std::to_string(errnum))));
  return status;
}

std::optional<int> ErrnoOf(const absl::Status& status) {
  const auto payload = status.GetPayload({kErrnoPayload.data(), kErrnoPayload.size()});
  if (!payload) return std::nullopt;
  const std::string text(*payload);
  int value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

absl::Status FromErrorCode(const boost::system::error_code& error, std::string_view what) {
  if (!error) return absl::OkStatus();
  if (error.category() == boost::system::system_category() ||
      error.category() == boost::system::generic_category()) {
    return ErrnoStatus(error.value(), what);
  }
  return absl::UnknownError(fmt::format("{}: {}", what, error.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
          Printable(status.error_message())};
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  const absl::string_view message = status.message();
  absl::Status annotated(status.code(),
                         fmt::format("{}: {}", context, std::string_view(message.data(), message.size())));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { annotated.SetPayload(url, value); });
  return annotated;
}

std::string_view CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kUnknown:
      return "UNKNOWN";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return "UNKNOWN";
}

std::string Printable(std::string_view text, size_t limit) {
  std::string out;
  const bool cut = text.size() > limit;
  std::string_view rest = text.substr(0, limit);
  while (!rest.empty()) {
    const auto byte = static_cast<unsigned char>(rest[0]);
    const size_t length = Utf8Length(rest, /*shown=*/true);
    const bool plain = length == 1 ? (byte >= 0x20 && byte < 0x7F) : length > 1;
    if (plain) {
      out += rest.substr(0, length);
      rest.remove_prefix(length);
      continue;
    }
    // By hand: what a plugin writes by the gigabyte comes through here.
    constexpr std::string_view kDigits = "0123456789abcdef";
    out += "\\x";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 0xF];
    rest.remove_prefix(1);
  }
  if (cut) out += "…";
  return out;
}

}  // namespace berth
