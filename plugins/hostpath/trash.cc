#include "plugins/hostpath/trash.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "base/open_at2.h"
#include "base/status.h"

namespace berth::hostpath {
namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

Directory OpenDirectory(int parent, const char* name) {
  UniqueFd fd = OpenAt2(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
                        RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV);
  if (!fd.valid()) return {nullptr, closedir};
  Directory directory(fdopendir(fd.get()), closedir);
  if (directory != nullptr) static_cast<void>(fd.Release());
  return directory;
}

bool IsOwnEntry(std::string_view name) { return name == "." || name == ".."; }

std::string FreshName() {
  uint64_t number[2] = {};
  static_cast<void>(getrandom(number, sizeof number, 0));
  return fmt::format("part-{:016x}{:016x}", number[0], number[1]);
}

// Removes `name` from the directory `parent`, or, where it is a directory with something in it, moves it to
// the top of the trash. Says whether it is gone from `parent`.
bool RemoveOrLift(int trash, int parent, const char* name) {
  if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return true;
  // EISDIR says that it is a directory (POSIX allows EPERM for that, too).
  if (errno != EISDIR && errno != EPERM) return false;
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
  if (errno != ENOTEMPTY && errno != EEXIST) return false;
  if (parent == trash) return false;
  return renameat2(parent, name, trash, FreshName().c_str(), RENAME_NOREPLACE) == 0;
}

// Empties one directory that lies in the trash. Says whether nothing is left in it, and sets `progress` if
// anything left it.
bool EmptyOne(int trash, const char* name, const std::atomic<bool>& stop, bool& progress) {
  const Directory directory = OpenDirectory(trash, name);
  if (directory == nullptr) return false;
  // Removing entries while reading may hide others: read again until a pass finds nothing more to do.
  bool stuck = false;
  bool again = true;
  while (again && !stop) {
    again = false;
    stuck = false;
    rewinddir(directory.get());
    while (const dirent* entry = readdir(directory.get())) {
      if (IsOwnEntry(entry->d_name)) continue;
      if (stop) return false;
      if (RemoveOrLift(trash, dirfd(directory.get()), entry->d_name)) {
        again = true;
        progress = true;
      } else {
        stuck = true;
      }
    }
  }
  return !stuck && !stop;
}

}  // namespace

absl::StatusOr<Trash> Trash::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return Trash(path, std::move(fd));
}

absl::Status Trash::Empty(const std::atomic<bool>& stop) {
  const std::lock_guard lock(emptying_);
  std::string stuck;
  bool again = true;
  while (again && !stop) {
    again = false;
    stuck.clear();
    std::vector<std::string> names;
    {
      const Directory top = OpenDirectory(fd_.get(), ".");
      if (top == nullptr) return ErrnoStatus(errno, fmt::format("open {}", path_));
      while (const dirent* entry = readdir(top.get())) {
        if (!IsOwnEntry(entry->d_name)) names.emplace_back(entry->d_name);
      }
    }
    for (const std::string& name : names) {
      if (stop) return absl::OkStatus();
      if (RemoveOrLift(fd_.get(), fd_.get(), name.c_str())) {
        again = true;
        continue;
      }
      // What was moved out of it is an entry of its own now, for the next pass.
      const bool empty = EmptyOne(fd_.get(), name.c_str(), stop, again);
      if (empty && RemoveOrLift(fd_.get(), fd_.get(), name.c_str())) {
        again = true;
      } else {
        stuck = name;
      }
    }
  }
  if (stuck.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}/{} cannot be removed: something is mounted in it, or it is protected", path_, stuck));
}

}  // namespace berth::hostpath
