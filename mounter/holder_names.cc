#include "mounter/holder_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr size_t kShown = 5;
constexpr size_t kCgroupFileLimit = 64 << 10;
constexpr std::string_view kCgroups = "/sys/fs/cgroup";

// Whether `path` is `directory` or lies beneath it.
bool Within(std::string_view path, std::string_view directory) {
  while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

// The paths of a process in the cgroup hierarchies, as /proc/pid/cgroup has them: "0::/system.slice/x".
std::vector<std::string> CgroupsOf(int64_t pid) {
  std::vector<std::string> paths;
  const auto text = ReadFile(fmt::format("/proc/{}/cgroup", pid), kCgroupFileLimit);
  if (!text.ok()) return paths;
  for (std::string_view rest = *text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t second = line.find(':', line.find(':') + 1);
    if (second != std::string_view::npos) paths.emplace_back(line.substr(second + 1));
  }
  return paths;
}

bool IsOf(const ConsumerLife& life, int64_t pid, const std::vector<std::string>& cgroups) {
  switch (life.kind_case()) {
    case ConsumerLife::KIND_NOT_SET:
      return false;
    case ConsumerLife::kPid:
      return life.pid() == pid;
    case ConsumerLife::kCgroup:
      // The unified hierarchy is at /sys/fs/cgroup, or below it if older hierarchies exist too.
      return std::ranges::any_of(cgroups, [&life](const std::string& path) {
        return Within(fmt::format("{}{}", kCgroups, path), life.cgroup()) ||
               Within(fmt::format("{}/unified{}", kCgroups, path), life.cgroup());
      });
    case ConsumerLife::kUnit:
      return std::ranges::any_of(cgroups, [&life](const std::string& path) {
        return fmt::format("{}/", path).find(fmt::format("/{}/", life.unit())) != std::string::npos;
      });
  }
  return false;
}

}  // namespace

void NameConsumers(const VolumeRecord& record, std::vector<MountHolder>* holders) {
  for (MountHolder& holder : *holders) {
    const std::vector<std::string> cgroups = CgroupsOf(holder.pid);
    const auto whose = std::ranges::find_if(record.publications, [&](const PublicationRecord& publication) {
      return IsOf(publication.Consumer(), holder.pid, cgroups);
    });
    if (whose != record.publications.end()) holder.consumer = whose->key.consumer;
  }
}

std::string DescribeHolders(const std::vector<MountHolder>& holders) {
  std::string text;
  for (size_t i = 0; i < holders.size() && i < kShown; ++i) {
    const MountHolder& holder = holders[i];
    text += i == 0 ? "" : "; ";
    const std::string how = Printable(holder.how, 256);
    // A mount that no process stands for.
    if (holder.pid == 0) {
      text += how;
      continue;
    }
    text += fmt::format(
        "pid {} ({}{}){}{}{}", holder.pid, Printable(holder.command, 64),
        holder.uid.has_value() ? fmt::format(", uid {}", *holder.uid) : "",
        holder.consumer.empty() ? "" : fmt::format(" of consumer {}", Printable(holder.consumer, 128)),
        how.starts_with("in ") ? " " : ": ", how);
  }
  if (holders.size() > kShown) text += fmt::format("; and {} more", holders.size() - kShown);
  return text;
}

}  // namespace berth
