#include "mounter/mountinfo.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>

#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr size_t kChunk = size_t{64} * 1024;
constexpr size_t kLineLimit = size_t{64} * 1024;
constexpr size_t kFileLimit = size_t{256} * 1024 * 1024;

// Takes the first field off `line`.
std::string_view TakeField(std::string_view* line) {
  const size_t end = line->find(' ');
  const std::string_view field = line->substr(0, end);
  line->remove_prefix(end == std::string_view::npos ? line->size() : end + 1);
  return field;
}

template <class Number>
bool Parse(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

// False: `tag` begins so, and is not in the known form.
bool TakeTag(std::string_view tag, std::string_view lead, uint64_t* number) {
  return !tag.starts_with(lead) || Parse(tag.substr(lead.size()), number);
}

// "ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAG…] - TYPE SOURCE OPTIONS"
std::optional<MountinfoLine> ParseLine(std::string_view line) {
  MountinfoLine mount;
  const std::string_view id = TakeField(&line);
  const std::string_view parent = TakeField(&line);
  const std::string_view device = TakeField(&line);
  mount.root = TakeField(&line);
  mount.target = TakeField(&line);
  TakeField(&line);
  for (std::string_view tag; !line.empty() && (tag = TakeField(&line)) != "-";) {
    if (!TakeTag(tag, "shared:", &mount.peer_group) || !TakeTag(tag, "master:", &mount.follows))
      return std::nullopt;
  }
  mount.fs_type = TakeField(&line);
  mount.source = TakeField(&line);
  const size_t colon = device.find(':');
  if (colon == std::string_view::npos || !mount.target.starts_with('/') || mount.fs_type.empty() ||
      !Parse(id, &mount.id) || !Parse(parent, &mount.parent) ||
      !Parse(device.substr(0, colon), &mount.device_major) ||
      !Parse(device.substr(colon + 1), &mount.device_minor)) {
    return std::nullopt;
  }
  return mount;
}

}  // namespace

absl::Status ReadMountinfo(const std::string& path,
                           const std::function<bool(const MountinfoLine& line)>& each) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  std::string buffer;
  size_t total = 0;
  while (true) {
    const size_t kept = buffer.size();
    buffer.resize(kept + kChunk);
    const ssize_t count = read(fd.get(), buffer.data() + kept, kChunk);
    if (count < 0) {
      buffer.resize(kept);
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, fmt::format("read {}", path));
    }
    buffer.resize(kept + static_cast<size_t>(count));
    total += static_cast<size_t>(count);
    if (total > kFileLimit) return absl::OutOfRangeError(fmt::format("{}: too long", path));
    std::string_view rest = buffer;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      const std::optional<MountinfoLine> line = ParseLine(rest.substr(0, end));
      if (line.has_value() && !each(*line)) return absl::OkStatus();
      rest.remove_prefix(end + 1);
    }
    if (count == 0) return absl::OkStatus();
    if (rest.size() > kLineLimit) return absl::OutOfRangeError(fmt::format("{}: a line is too long", path));
    buffer.erase(0, buffer.size() - rest.size());
  }
}

std::string DecodeMountinfo(std::string_view field) {
  std::string out;
  out.reserve(field.size());
  for (size_t i = 0; i < field.size(); ++i) {
    const auto digit = [&field, i](size_t n) {
      const char c = i + n < field.size() ? field[i + n] : '9';
      return c >= '0' && c <= '7' ? c - '0' : -1;
    };
    if (field[i] == '\\' && digit(1) >= 0 && digit(2) >= 0 && digit(3) >= 0) {
      out += static_cast<char>(static_cast<unsigned char>(digit(1) * 64 + digit(2) * 8 + digit(3)));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

}  // namespace berth
