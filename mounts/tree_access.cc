#include "mounts/tree_access.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {

absl::Status TreeAccess::SetNamed(std::set<AclEntry> named) {
  named_ = std::move(named);
  return Apply();
}

absl::Status TreeAccess::SetPlugin(const std::string& socket, std::optional<uid_t> user) {
  const auto known = plugins_.find(socket);
  const std::optional<uid_t> before = known == plugins_.end() ? std::nullopt : std::optional(known->second);
  if (user == before) return absl::OkStatus();
  if (user.has_value()) {
    plugins_[socket] = *user;
  } else {
    plugins_.erase(known);
  }
  return Apply();
}

absl::Status TreeAccess::Apply() const {
  const UniqueFd top(open(tree_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!top.valid()) return ErrnoStatus(errno, fmt::format("open {}", tree_));
  std::set<AclEntry> entries = named_;
  for (const auto& [socket, user] : plugins_) entries.insert({.kind = AclEntry::Kind::kUser, .id = user});
  return SetAccess(top.get(), entries, AclRights::kTraverse, tree_);
}

}  // namespace berth
