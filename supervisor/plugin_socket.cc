#include "supervisor/plugin_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/acl.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

std::string_view WhatIsThere(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symlink";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

// Whatever an earlier launch made of it, with another user in the plugin's file or by an older berthd.
absl::Status SetRights(const std::string& directory, std::optional<uid_t> user) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, fmt::format("open {}", directory));
  }
  if (info.st_uid != geteuid() && fchown(fd.get(), geteuid(), getegid()) != 0) {
    return ErrnoStatus(errno, fmt::format("chown {}", directory));
  }
  if (fchmod(fd.get(), user.has_value() ? 01700 : 0700) != 0) {
    return ErrnoStatus(errno, fmt::format("chmod {}", directory));
  }
  std::set<AclEntry> entries;
  if (user.has_value()) entries.insert({.kind = AclEntry::Kind::kUser, .id = *user});
  const absl::Status set = SetAccess(fd.get(), entries, AclRights::kAll, directory);
  if (ErrnoOf(set) != EOPNOTSUPP) return set;
  // Without ACLs the whole directory is the plugin's.
  if (fchown(fd.get(), *user, static_cast<gid_t>(-1)) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("chown {}", directory));
}

}  // namespace

absl::Status PrepareSocket(const std::string& socket_path, std::optional<uid_t> user) {
  const std::string directory = std::filesystem::path(socket_path).parent_path().string();
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0700));
  BERTH_RETURN_IF_ERROR(SetRights(directory, user));
  struct stat info{};
  if (lstat(socket_path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, fmt::format("stat {}", socket_path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        fmt::format("{} is {}, where the plugin's socket is to be; it is left alone: move it away",
                    socket_path, WhatIsThere(info.st_mode)));
  }
  if (unlink(socket_path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, fmt::format("remove the stale socket {}", socket_path));
  }
  return absl::OkStatus();
}

}  // namespace berth
