// The one place that removes what users have written: DeleteVolume and DeleteSnapshot ask for exactly that.
//
// A thing to be deleted is first renamed, at once and as a whole, into the trash directory of the state
// directory; only what lies there is ever taken apart. How, so that nothing else can be hit:
//
//   - No recursion and no walk down a path. The trash's entries are directories that lie flat next to each
//     other. One is opened (openat2: beneath the trash, no symlinks, no mount crossed), its files are
//     unlinked, its empty directories removed, and a directory in it that is not empty is moved out of it,
//     to become one more entry of the trash. So depth does not matter, and any crash leaves a smaller trash.
//   - unlinkat and renameat follow no link, and the kernel refuses both (EBUSY) for whatever is mounted on.
//
// Recursive deletion is otherwise banned in this code base. Blocks; one thread at a time.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <mutex>
#include <string>

#include "base/unique_fd.h"

namespace berth::hostpath {

class Trash {
 public:
  // `path` is a directory of ours that holds nothing but trash.
  [[nodiscard]] static absl::StatusOr<Trash> Open(const std::string& path);
  Trash(Trash&& other) noexcept : path_(std::move(other.path_)), fd_(std::move(other.fd_)) {}
  Trash& operator=(Trash&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Takes everything apart that lies in the trash, until `stop`. What cannot be removed (a mount in it, an
  // immutable file) stays, and is named in the error; the rest goes.
  [[nodiscard]] absl::Status Empty(const std::atomic<bool>& stop);

 private:
  Trash(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
  std::mutex emptying_;
};

}  // namespace berth::hostpath
