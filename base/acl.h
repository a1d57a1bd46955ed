// Who may use a directory besides its owner: a POSIX access ACL, acl(5).
//
// Plain functions on a local file system; any thread.
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <set>
#include <string>

namespace berth {

struct AclEntry {
  enum class Kind { kUser, kGroup };
  Kind kind = Kind::kUser;
  uint32_t id = 0;

  auto operator<=>(const AclEntry&) const = default;
};

enum class AclRights { kTraverse, kAll };  // --x, rwx

// From now on the directory `fd` has rwx for its owner and `rights` for each of `entries`, and nothing for
// its group, for others, or for users that an earlier ACL named. Its set-group-ID and sticky bits stay.
// `shown` is the directory's path, for messages. UNIMPLEMENTED: its file system has no ACLs (ErrnoOf
// EOPNOTSUPP); then only its owner has access. INVALID_ARGUMENT (EINVAL): an id has no meaning in this user
// namespace; then nothing was changed.
[[nodiscard]] absl::Status SetAccess(int fd, const std::set<AclEntry>& entries, AclRights rights,
                                     const std::string& shown);

}  // namespace berth
