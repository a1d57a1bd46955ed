#include "base/mountinfo.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// The kernel gives a page at a time.
constexpr size_t kChunk = size_t{8} * 1024;
constexpr size_t kLineLimit = size_t{64} * 1024;
constexpr size_t kMountInfoLimit = size_t{256} * 1024 * 1024;

}  // namespace

absl::Status ReadMountinfo(const std::string& path,
                           const std::function<bool(const MountinfoLine& line)>& each) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  std::array<char, kChunk> chunk;
  std::string buffer;
  size_t total = 0;
  while (true) {
    const ssize_t count = read(fd.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    buffer.append(chunk.data(), static_cast<size_t>(count));
    total += static_cast<size_t>(count);
    if (total > kMountInfoLimit) return absl::OutOfRangeError(fmt::format("{}: too long", path));
    std::string_view rest = buffer;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      const std::optional<MountinfoLine> line = ParseMountinfoLine(rest.substr(0, end));
      if (line.has_value() && !each(*line)) return absl::OkStatus();
      rest.remove_prefix(end + 1);
    }
    if (count == 0) return absl::OkStatus();
    if (rest.size() > kLineLimit) return absl::OutOfRangeError(fmt::format("{}: a line is too long", path));
    buffer.erase(0, buffer.size() - rest.size());
  }
}

}  // namespace berth
