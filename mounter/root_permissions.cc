#include "mounter/root_permissions.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>

#include "base/status.h"

namespace berth {

bool Wanted(const RootPermissions& permissions) { return !(permissions == RootPermissions()); }

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
