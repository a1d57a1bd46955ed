#include "mounter/root_permissions.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "base/status.h"

namespace berth {
namespace {

constexpr uint32_t kNobodyChanges = ~uint32_t{0};  // chown's word for "leave it as it is"
constexpr uint32_t kModeBits = 07777;
constexpr size_t kLabelLimit = 4096;

// "user:role:type" or "user:role:type:level", without anything that could not be in one.
bool IsLabel(const std::string& label) {
  const bool plain = std::ranges::all_of(label, [](char c) { return c > ' ' && c <= '~'; });
  return plain && std::ranges::count(label, ':') >= 2;
}

}  // namespace

bool Wanted(const RootPermissions& permissions) { return permissions != RootPermissions{}; }

std::vector<std::string> MistakesIn(const RootPermissions& permissions) {
  std::vector<std::string> mistakes;
  if (permissions.owner == kNobodyChanges) mistakes.emplace_back("owner: 4294967295 is nobody's number");
  if (permissions.group == kNobodyChanges) mistakes.emplace_back("group: 4294967295 is no group's number");
  if (permissions.mode && (*permissions.mode & ~kModeBits) != 0) {
    mistakes.push_back(fmt::format("mode: {:#o} has bits beyond 07777", *permissions.mode));
  }
  if (permissions.recursive && !permissions.owner && !permissions.group) {
    mistakes.emplace_back("recursive: it is owner and group that are set recursively; name one of them");
  }
  if (permissions.selinux_label.size() > kLabelLimit) {
    mistakes.push_back(
        fmt::format("selinux_label: {} bytes, at most {}", permissions.selinux_label.size(), kLabelLimit));
  } else if (!permissions.selinux_label.empty() && !IsLabel(permissions.selinux_label)) {
    mistakes.push_back(fmt::format("selinux_label: \"{}\" is not of the form user:role:type:level",
                                   Printable(permissions.selinux_label, 128)));
  }
  return mistakes;
}

bool SelinuxIsOn() {
  struct statfs info{};
  if (statfs("/sys/fs/selinux", &info) != 0) return false;
  return static_cast<uint32_t>(info.f_type) == uint32_t{SELINUX_MAGIC};
}

PermissionsFailure WhyNotSet(const absl::Status& failed) {
  switch (ErrnoOf(failed).value_or(0)) {
    case EROFS:
    case EPERM:
    case EACCES:
    case EOPNOTSUPP:
    case ENOSYS:
    case EINVAL:
      return {
          .outcome = CallOutcome::kFinal,
          .error = absl::FailedPreconditionError(fmt::format(
              "its file system does not take the permissions that were asked for: {}", MessageOf(failed)))};
    default:
      return {.outcome = CallOutcome::kUncertain, .error = Annotate(failed, "set its permissions")};
  }
}

}  // namespace berth
