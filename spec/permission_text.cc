#include "spec/permission_text.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "base/number_text.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kFirstBuffer = 4096;
constexpr size_t kLargestBuffer = size_t{1} << 20;
constexpr uint32_t kMostMode = 07777;

// getpwnam_r and getgrnam_r share everything but their types.
template <class Record, class Id>
absl::StatusOr<uint32_t> LookUp(const std::string& text, std::string_view kind, Id Record::* id,
                                int (*look)(const char*, Record*, char*, size_t, Record**)) {
  if (uint32_t number = 0; ParseNumber(text, &number)) {
    // The greatest number stands for "no change" in the kernel's calls.
    if (number != UINT32_MAX) return number;
    return absl::InvalidArgumentError(fmt::format("{} is no {}'s number", number, kind));
  }
  const bool number_like = !text.empty() && text.find_first_not_of("+-0123456789") == std::string::npos;
  if (text.empty() || number_like || text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is neither a {}'s name nor a number", Printable(text, 64), kind));
  }
  std::vector<char> buffer(kFirstBuffer);
  while (true) {
    Record record{};
    Record* found = nullptr;
    const int error = look(text.c_str(), &record, buffer.data(), buffer.size(), &found);
    if (found != nullptr) return record.*id;
    if (error == ERANGE && buffer.size() < kLargestBuffer) {
      buffer.resize(buffer.size() * 2);
      continue;
    }
    // The manual allows several errnos for a name that is not there; glibc's modules use these.
    if (error == 0 || error == ENOENT || error == ESRCH) {
      return absl::NotFoundError(fmt::format("there is no {} {} on this node", kind, Printable(text, 64)));
    }
    return ErrnoStatus(error, fmt::format("look up {} {}", kind, Printable(text, 64)));
  }
}

}  // namespace

absl::StatusOr<uint32_t> UserId(const std::string& text) {
  return LookUp(text, "user", &passwd::pw_uid, &getpwnam_r);
}

absl::StatusOr<uint32_t> GroupId(const std::string& text) {
  return LookUp(text, "group", &group::gr_gid, &getgrnam_r);
}

absl::StatusOr<uint32_t> ParseMode(std::string_view text) {
  uint32_t mode = 0;
  if (ParseNumber(text, &mode, 8) && mode <= kMostMode) return mode;
  return absl::InvalidArgumentError(
      fmt::format("'{}' is no mode: it must be {}", Printable(text, 64), kModeForm));
}

}  // namespace berth
