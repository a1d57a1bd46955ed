#include "supervisor/plugin_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int flags, struct stat* info) {
  // O_NONBLOCK: a pipe that somebody put there must not hold up the loop.
  UniqueFd fd(open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (fstat(fd.get(), info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISREG(info->st_mode)) return absl::FailedPreconditionError(fmt::format("open {}: not a file", path));
  // The plugin inherits the open file's flags.
  if (fcntl(fd.get(), F_SETFL, flags & O_APPEND) != 0)
    return ErrnoStatus(errno, fmt::format("open {}", path));
  return fd;
}

}  // namespace

std::string PluginOutputPath(const std::string& state_dir, std::string_view id) {
  return fmt::format("{}/logs/{}.log", state_dir, id);
}

absl::StatusOr<PluginOutput> OpenPluginOutput(const std::string& path, uint64_t rotate_above) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path().string(), 0700));
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT;
  struct stat info{};
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, kFlags, &info));
  if (static_cast<uint64_t>(info.st_size) > rotate_above) {
    const std::string old = path + ".1";
    if (rename(path.c_str(), old.c_str()) != 0) {
      return ErrnoStatus(errno, fmt::format("rename {} to {}", path, old));
    }
    BERTH_ASSIGN_OR_RETURN(fd, OpenRegular(path, kFlags, &info));
  }
  return PluginOutput{std::move(fd), static_cast<uint64_t>(info.st_size)};
}

std::vector<std::string> LastOutput(const std::string& path, uint64_t offset) {
  struct stat info{};
  const absl::StatusOr<UniqueFd> fd = OpenRegular(path, O_RDONLY, &info);
  if (!fd.ok()) return {};
  const auto size = static_cast<uint64_t>(info.st_size);
  if (offset >= size) return {};
  const uint64_t begin = std::max(offset, size - std::min<uint64_t>(size, kLastBytes));
  std::array<char, kLastBytes> buffer{};
  const ssize_t count = pread(fd->get(), buffer.data(), std::min<uint64_t>(size - begin, buffer.size()),
                              static_cast<off_t>(begin));
  if (count <= 0) return {};
  std::string_view text(buffer.data(), static_cast<size_t>(count));
  // A line whose beginning lies before what was read would mislead, unless it is all there is.
  if (begin > offset) {
    if (const size_t end = text.find('\n'); end != std::string_view::npos && end + 1 < text.size()) {
      text.remove_prefix(end + 1);
    }
  }
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<std::string> lines;
  while (true) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(Printable(line, kLastLineLength));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  if (lines.size() > kLastLines) {
    lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(kLastLines));
  }
  return lines;
}

}  // namespace berth
