#include "supervisor/plugin_socket.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/served_socket.h"

namespace berth {
namespace {

std::string_view WhatIsThere(mode_t mode) {
  if (S_ISREG(mode)) return "a file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symlink";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

}  // namespace

absl::Status PrepareSocket(const std::string& socket_path) {
  const std::string directory = std::filesystem::path(socket_path).parent_path().string();
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0750));
  if (chmod(directory.c_str(), 0750) != 0) return ErrnoStatus(errno, fmt::format("chmod {}", directory));
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

Awaitable<absl::Status> WaitForSocket(std::string socket_path) {
  const auto served = co_await WaitForServer(std::move(socket_path), {});
  co_return served.status();
}

}  // namespace berth
