// For tests: a file with a file system in it, as a disk. The file goes with it, or with its last mount.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace berth {

class DiskImage {
 public:
  // `make`: the command that makes the file system, without the file's name. `size`: as truncate takes it.
  DiskImage(const std::string& file, const std::string& make, const std::string& size) : file_(file) {
    made_ = Run(fmt::format("truncate -s {} {} && {} {} >/dev/null 2>&1", size, file, make, file));
  }
  ~DiskImage() { unlink(file_.c_str()); }
  DiskImage(const DiskImage&) = delete;
  DiskImage& operator=(const DiskImage&) = delete;

  [[nodiscard]] bool made() const { return made_; }
  // Through a loop device, which goes with its last mount.
  [[nodiscard]] bool Mount(const std::string& path, const std::string& options = "") const {
    return Run(
        fmt::format("mount --no-mtab -o loop{} {} {}", options.empty() ? "" : "," + options, file_, path));
  }
  // Whether this system has such file systems: the program that makes them, and the kernel's part.
  [[nodiscard]] static bool Possible(const std::string& type) {
    return Run(fmt::format(
        "command -v mkfs.{0} >/dev/null && {{ grep -qw {0} /proc/filesystems || modprobe {0} 2>/dev/null; }}",
        type));
  }
  [[nodiscard]] static bool Run(const std::string& command) { return std::system(command.c_str()) == 0; }

 private:
  std::string file_;
  bool made_ = false;
};

}  // namespace berth
