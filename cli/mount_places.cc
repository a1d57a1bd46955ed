#include "cli/mount_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/status.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

constexpr std::string_view kDefaultPlace = "/volumes/";

std::string QuotedPath(std::string_view path) {
  constexpr size_t kPathLimit = 200;
  return fmt::format("'{}'", Printable(path, kPathLimit));
}

// What a publication goes by when people speak of it.
const std::string& Label(const v1::ConsumerMount& mount) {
  return mount.name().empty() ? mount.volume_id() : mount.name();
}

absl::Status CheckPath(std::string_view path) {
  const auto wrong = [&](std::string_view why) {
    return UsageError(fmt::format("--at: {} {}", QuotedPath(path), why), "--at NAME=/absolute/path");
  };
  if (!path.starts_with('/')) return wrong("is not absolute");
  if (path.find_first_not_of('/') == std::string_view::npos) {
    return wrong("is the consumer's whole file system");
  }
  if (path.find('\0') != std::string_view::npos) return wrong("holds a NUL");
  for (std::string_view rest = path; !rest.empty();) {
    const size_t end = std::min(rest.find('/'), rest.size());
    if (rest.substr(0, end) == "..") return wrong("holds a '..'");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return absl::OkStatus();
}

// "/a//b/" is "/a/b".
std::string Simplified(std::string_view path) {
  std::string simple;
  for (const char c : path) {
    if (c != '/' || !simple.ends_with('/')) simple += c;
  }
  if (simple.size() > 1 && simple.ends_with('/')) simple.pop_back();
  return simple;
}

using Places = std::vector<std::optional<std::string>>;  // by mount

// Both names and volume ids may hold "=/", and so may paths: every reading of `option` is tried.
absl::Status Apply(const std::string& option, const v1::ListConsumerMountsResponse& mounts, Places& places) {
  struct Reading {
    int mount;
    std::string path;
  };
  std::vector<Reading> readings;
  for (size_t at = option.find("=/"); at != std::string::npos; at = option.find("=/", at + 1)) {
    const std::string key = option.substr(0, at);
    for (int i = 0; i < mounts.mounts_size(); ++i) {
      const v1::ConsumerMount& mount = mounts.mounts(i);
      if (mount.name() == key || mount.volume_id() == key) readings.push_back({i, option.substr(at + 1)});
    }
  }
  if (readings.empty() && option.starts_with('/')) {
    if (mounts.mounts_size() != 1) {
      return UsageError(
          fmt::format("--at {}: there are {} mounts; say which", QuotedPath(option), mounts.mounts_size()),
          "--at NAME=/path, with the name of the use or the volume's id");
    }
    readings.push_back({0, option});
  }
  if (readings.empty()) {
    const size_t equals = option.find('=');
    if (equals != std::string::npos && !option.substr(equals + 1).starts_with('/')) {
      return UsageError(fmt::format("--at {}: the path must be absolute", QuotedPath(option)),
                        "--at NAME=/path");
    }
    std::string known;
    for (const v1::ConsumerMount& mount : mounts.mounts())
      known += fmt::format(" {}", QuotedPath(Label(mount)));
    return UsageError(
        fmt::format("--at {}: this consumer has no such volume; it has{}", QuotedPath(option), known),
        "--at NAME=/path, with the name of the use or the volume's id");
  }
  if (readings.size() > 1) {
    return UsageError(fmt::format("--at {}: it fits {} of the mounts", QuotedPath(option), readings.size()),
                      "Use the name of the use: berthctl volume mounts CONSUMER shows it");
  }
  const Reading& reading = readings.front();
  BERTH_RETURN_IF_ERROR(CheckPath(reading.path));
  std::optional<std::string>& place = places[static_cast<size_t>(reading.mount)];
  if (place.has_value()) {
    return UsageError(
        fmt::format("--at: the place of {} is given twice", QuotedPath(Label(mounts.mounts(reading.mount)))));
  }
  place = Simplified(reading.path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> DefaultPlace(const v1::ConsumerMount& mount) {
  const std::string& label = Label(mount);
  if (label.empty() || label == "." || label == ".." || label.find('/') != std::string::npos ||
      label.find('\0') != std::string::npos) {
    return UsageError(fmt::format("{} makes no path: say where it is to be", QuotedPath(label)),
                      "--at NAME=/path, with the name of the use or the volume's id");
  }
  return std::string(kDefaultPlace) + label;
}

}  // namespace

absl::StatusOr<std::vector<PlacedMount>> PlaceMounts(const v1::ListConsumerMountsResponse& mounts,
                                                     const std::vector<std::string>& at) {
  Places places(static_cast<size_t>(mounts.mounts_size()));
  for (const std::string& option : at) BERTH_RETURN_IF_ERROR(Apply(option, mounts, places));
  std::vector<PlacedMount> placed;
  std::map<std::string, std::string> taken;  // path -> mount
  for (int i = 0; i < mounts.mounts_size(); ++i) {
    const v1::ConsumerMount& mount = mounts.mounts(i);
    std::optional<std::string>& place = places[static_cast<size_t>(i)];
    if (!place.has_value()) {
      BERTH_ASSIGN_OR_RETURN(place, DefaultPlace(mount));
    }
    const auto [other, free] = taken.emplace(*place, Label(mount));
    if (!free) {
      return UsageError(fmt::format("{} and {} would both be at {}", QuotedPath(other->second),
                                    QuotedPath(Label(mount)), QuotedPath(*place)),
                        "Say where one of them is to be: --at NAME=/path");
    }
    placed.push_back({.mount = mount, .destination = *place});
  }
  return placed;
}

}  // namespace berth::cli
