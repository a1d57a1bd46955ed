// Who may go through the tree of volumes: root, those that berthd.toml names (volumes.traverse), and the
// plugins that run as another user. The top directory of the tree alone decides, by mode 0700 and an ACL:
//
//   <state_dir>/volumes     user::rwx, user:UID:--x, group:GID:--x, nothing for others
//
// So no other local user reaches a set-user-ID program or a device node on a volume through the tree. A
// volume's own `path` lies elsewhere, and so does what a consumer's runtime binds.
//
// Owned by main; loop thread only. Changes one directory of a tmpfs, and takes microseconds.
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/acl.h"

namespace berth {

class TreeAccess {
 public:
  // The tree at `tree` is mounted. Nothing is changed before the first call.
  explicit TreeAccess(std::string tree) : tree_(std::move(tree)) {}

  // Errors are SetAccess's: after one the tree is never open to more users than before, and may be closed to
  // some that should pass.

  // Those that berthd.toml names, instead of those before.
  [[nodiscard]] absl::Status SetNamed(std::set<AclEntry> named);
  // The user of a plugin's process, known by its socket; unset: it has ended, or runs as root.
  [[nodiscard]] absl::Status SetPlugin(const std::string& socket, std::optional<uid_t> user);
  // After the tree was mounted again.
  [[nodiscard]] absl::Status Apply() const;

 private:
  std::string tree_;
  std::set<AclEntry> named_;
  std::map<std::string, uid_t> plugins_;  // by socket
};

}  // namespace berth
