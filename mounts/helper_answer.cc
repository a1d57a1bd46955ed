#include "mounts/helper_answer.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <ranges>
#include <sstream>
#include <utility>

#include "base/printable.h"
#include "base/shell_quoted.h"
#include "base/status.h"
#include "mounts/target_not_empty.h"

namespace berth {
namespace {

// The number that `text` begins with.
std::optional<int> NumberAt(std::string_view text) {
  int value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

// The number after `name` in `line`.
std::optional<uint32_t> NumberAfter(std::string_view line, std::string_view name, int base) {
  const size_t at = line.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view digits = line.substr(at + name.size());
  uint32_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

// Errors of a file system that has lost its server.
bool MeansDead(int error) {
  switch (error) {
    case ENOTCONN:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EIO:
    case ENETUNREACH:
    case ENODEV:
    case ENOLINK:
    case ENXIO:
    case EREMOTEIO:
    case ESHUTDOWN:
    case ESTALE:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

absl::Status Verdict(int error, const std::string& path) {
  // A process without the right to look has been answered.
  if (error == EACCES || error == EPERM) return absl::OkStatus();
  const std::string what = fmt::format("probe {}", path);
  absl::Status status = ErrnoStatus(error, what);
  if (!MeansDead(error)) return status;
  absl::Status dead = absl::UnavailableError(status.message());
  status.ForEachPayload(
      [&dead](absl::string_view url, const absl::Cord& value) { dead.SetPayload(url, value); });
  return dead;
}

}  // namespace

int ErrnoIn(std::string_view output) {
  constexpr std::string_view kLead = "errno ";
  if (!output.starts_with(kLead)) return 0;
  return NumberAt(output.substr(kLead.size())).value_or(0);
}

absl::StatusOr<FileContent> ParseRead(std::string_view output, const std::string& what) {
  if (const int error = ErrnoIn(output); error != 0) return ErrnoStatus(error, what);
  const size_t end = output.find('\n');
  const std::optional<uint32_t> mode = NumberAfter(output.substr(0, end), "mode ", 8);
  const std::optional<uint32_t> owner = NumberAfter(output.substr(0, end), " owner ", 10);
  if (end == std::string_view::npos || !mode || !owner) {
    return absl::InternalError(what + ": the helper did not say what it found");
  }
  return FileContent{.mode = *mode, .owner = *owner, .text = std::string(output.substr(end + 1))};
}

absl::Status SomethingElseMounted(const std::string& path) {
  const std::string shown = Printable(path);
  return absl::FailedPreconditionError(
      fmt::format("{}: something else is mounted there, and is left alone: unmount it (umount {}), or name "
                  "another path in "
                  "the volume's file",
                  shown, ShellQuoted(path)));
}

absl::StatusOr<PathMount> ParseMountPath(std::string_view output, const std::string& path) {
  const std::string shown = Printable(path);
  const size_t end = output.find('\n');
  const std::string_view line = output.substr(0, end);
  const auto refused = [&shown](std::string_view why) {
    return absl::FailedPreconditionError(fmt::format("{}: {}", shown, why));
  };
  if (line == "foreign") return SomethingElseMounted(path);
  if (line == "symlink") return refused("it leads through a symbolic link: name the path without one");
  if (line == "noparent") return refused("the directory above it does not exist: make it");
  if (line == "notdirectory") return refused("it is not a directory, or leads through something that is not");
  constexpr std::string_view kOccupied = "occupied ";
  if (line.starts_with(kOccupied) && end != std::string_view::npos) {
    std::vector<std::string> names;
    std::string_view rest = output.substr(end + 1);
    for (size_t nul = rest.find('\0'); nul != std::string_view::npos; nul = rest.find('\0')) {
      names.emplace_back(rest.substr(0, nul));
      rest.remove_prefix(nul + 1);
    }
    return TargetNotEmpty(path, path + ".moved", names, NumberAfter(line, kOccupied, 10).value_or(0));
  }
  std::istringstream words{std::string(line)};
  std::string word;
  PathMount mounted;
  int guard = 0;
  if (!(words >> word >> mounted.mount_id >> mounted.fresh >> guard) || word != "mounted") {
    return absl::InternalError(
        fmt::format("{}: the helper did not say whether it is mounted: {}", shown, Printable(line, 128)));
  }
  if (guard > 0) mounted.unguarded = std::string(MessageOf(ErrnoStatus(guard, "set the immutable flag")));
  return mounted;
}

std::vector<ProbeAnswer> ParseProbe(std::string_view output, const std::vector<std::string>& paths) {
  std::vector<ProbeAnswer> answers(paths.size());
  for (const auto part : std::views::split(output, '\n')) {
    const std::string_view line(part.begin(), part.end());
    const size_t blank = line.find(' ');
    const std::optional<int> number = NumberAt(line);
    if (blank == std::string_view::npos || !number || *number < 0) continue;
    const auto index = static_cast<size_t>(*number);
    if (index >= paths.size()) continue;
    const std::string_view word = line.substr(blank + 1);
    const size_t second = word.find(' ');
    const int value = second == std::string_view::npos ? 0 : NumberAt(word.substr(second + 1)).value_or(0);
    if (word == "ok") {
      answers[index].verdict = absl::OkStatus();
    } else if (word.starts_with("pid ")) {
      answers[index].child = value;
    } else if (word.starts_with("errno ") && value > 0) {
      answers[index].verdict = Verdict(value, paths[index]);
    } else if (word.starts_with("nochild ") && value > 0) {
      answers[index].verdict = absl::ResourceExhaustedError(
          ErrnoStatus(value, fmt::format("probe {}: fork", paths[index])).message());
    }
  }
  return answers;
}

}  // namespace berth
