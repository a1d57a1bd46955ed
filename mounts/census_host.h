// Reads what the kernel says about processes and devices in /proc, /sys and /dev. Paths are relative to the
// root directory as it was when this object was made ("proc/1/stat"): the process may enter other mount
// namespaces since.
//
// A process may end while it is looked at: what has gone is empty. What could not be read for any other
// reason is missed, and the census incomplete (missed() says why): an answer that did not come is not
// "nothing".
//
// Owned by a pass of the census; one thread. No shared library.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/number_text.h"
#include "base/unique_fd.h"

namespace berth {

// CensusHost::Name's answer for a name of more than 4,096 bytes, which the kernel does not give.
inline constexpr std::string_view kNameTooLong = "(a name that is too long)";

// Calls `each` for each line that ends.
template <class Each>
void ForEachLine(std::string_view text, const Each& each) {
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    each(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

class CensusHost {
 public:
  CensusHost() : root_(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) {}

  [[nodiscard]] UniqueFd Open(const std::string& path, int flags = O_RDONLY);
  [[nodiscard]] bool Exists(const std::string& path);
  // Where a link leads. Empty, with errno, where it cannot be read.
  [[nodiscard]] std::string Link(const std::string& path);
  // The same for people, of a file or directory that a process has.
  [[nodiscard]] std::string Name(const std::string& path);
  // What is in a file, up to 256 MiB; what was read before an error, which `failed` names.
  [[nodiscard]] std::string Text(const std::string& path, std::string* failed = nullptr);
  // The first 4 KiB at most.
  [[nodiscard]] std::string Start(const std::string& path);
  // What the kernel has cached about the file behind a link; its mount's id is the unique one, if asked for.
  [[nodiscard]] std::optional<struct statx> Cached(const std::string& link, bool unique_id);
  // The id of the mount on which it lies.
  [[nodiscard]] std::optional<uint64_t> MountId(const std::string& link, bool unique_id);

  // The device number in a file of sysfs; 0: there is none.
  [[nodiscard]] dev_t DeviceIn(const std::string& path);
  // The numbers of a block device and of its partitions.
  [[nodiscard]] std::vector<dev_t> PartsOf(dev_t device);

  // Calls `each` for each number that is a name in the directory, until it returns false. False: it could not
  // be read.
  template <class Each>
  bool ForEachNumber(const std::string& path, const Each& each) {
    const UniqueFd fd = Open(path, O_RDONLY | O_DIRECTORY);
    if (!fd.valid()) return false;
    // One or two names at a time, as the kernel has them at that moment: a process that only forks and ends
    // would be gone by the time that a longer list gets to it, and its child's number be passed already.
    alignas(dirent64) std::array<char, 64> names{};
    while (true) {
      const long size = syscall(SYS_getdents64, fd.get(), names.data(), names.size());
      if (size < 0) NoteError(path);
      if (size <= 0) return size == 0;
      for (long at = 0; at < size;) {
        const auto* const entry = reinterpret_cast<const dirent64*>(names.data() + at);
        pid_t number = 0;
        if (ParseNumber(std::string_view(entry->d_name), &number) && !each(number)) return true;
        at += entry->d_reclen;
      }
    }
  }

  // After a call that failed: what was asked for is missed, but for an errno that says that it is not there.
  // The one place where that is decided.
  void NoteError(const std::string& what);
  void Miss(const std::string& why) {
    if (missed_.empty()) missed_ = why;
  }
  // Why something was not seen. Empty: nothing was wanting.
  [[nodiscard]] const std::string& missed() const { return missed_; }

 private:
  UniqueFd root_;
  std::string missed_;
};

}  // namespace berth
