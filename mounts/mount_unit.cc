#include "mounts/mount_unit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/status.h"
#include "base/systemd_bus.h"

namespace berth {
namespace {

constexpr const char* kUnits = "/run/systemd/system";
constexpr const char* kDropIn = "50-berth.conf";
constexpr const char* kContent =
    "# Written by berthd: a declared volume is mounted here (volumes.d). At shutdown berthd unmounts it.\n"
    "[Unit]\n"
    "Before=berthd.service\n";

std::string DirectoryOf(const std::string& units, const std::string& path) {
  return fmt::format("{}/{}.mount.d", units, EscapeUnitName(path.substr(1)));
}

}  // namespace

std::string RuntimeUnitDirectory() {
  std::error_code error;
  const auto host = std::filesystem::read_symlink("/proc/1/ns/mnt", error);
  const auto own = std::filesystem::read_symlink("/proc/self/ns/mnt", error);
  const bool seen = !error && host == own;
  return seen && access(kUnits, F_OK) == 0 ? kUnits : "";
}

absl::Status WriteMountDropIn(const std::string& units, const std::string& path) {
  if (units.empty()) return absl::OkStatus();
  const std::string directory = DirectoryOf(units, path);
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0755));
  return WriteFileAtomic(fmt::format("{}/{}", directory, kDropIn), kContent, 0644);
}

absl::Status RemoveMountDropIn(const std::string& units, const std::string& path) {
  if (units.empty()) return absl::OkStatus();
  const std::string directory = DirectoryOf(units, path);
  BERTH_RETURN_IF_ERROR(RemoveFile(fmt::format("{}/{}", directory, kDropIn)));
  // An operator's own drop-ins stay.
  if (rmdir(directory.c_str()) == 0 || errno == ENOENT || errno == ENOTEMPTY) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("remove {}", directory));
}

}  // namespace berth
