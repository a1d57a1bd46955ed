// The kinds of places behind plugin_cgroup.h. Not for others.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/systemd_bus.h"
#include "supervisor/cgroups/cgroup_dir.h"
#include "supervisor/cgroups/plugin_cgroup.h"

namespace berth::cgroup_internal {

inline constexpr std::string_view kSlice = "berth-plugins.slice";
inline constexpr std::string_view kScopePrefix = "berth-plugin-";
inline constexpr std::string_view kScopeSuffix = ".scope";
inline constexpr std::string_view kDirectory = "berth-plugins";
// Places of one plugin that are there at once: what outlived its main process keeps its own.
inline constexpr int kCgroupsOfOne = 100;

// What this node can hold plugins to.
struct Enforceable {
  bool memory = false;
  bool pids = false;
  bool cpu = false;

  [[nodiscard]] bool all() const { return memory && pids && cpu; }
};
[[nodiscard]] Enforceable EnforceableBy(const std::vector<std::string>& controllers);
// "the limits of memory and cpu are not enforced: <why>"; empty where all that is asked for is.
[[nodiscard]] std::string Unenforced(const CgroupLimits& limits, Enforceable enforceable,
                                     std::string_view why);
// "memory and cpu", of those that cannot be limited at all; empty where all can.
[[nodiscard]] std::string MissingControllers(Enforceable enforceable);

// The `number`th name of a plugin's scope; 1 is the first.
[[nodiscard]] std::string ScopeName(std::string_view plugin_id, int number);
[[nodiscard]] std::string DirectoryName(std::string_view plugin_id, int number);

// What the counters of a group say; `limits` for the text.
struct GroupCounters {
  uint64_t oom_kill = 0;  // processes killed for want of memory, whosever
  uint64_t oom = 0;       // how often its own limit was met without a way out
  uint64_t pids_max = 0;  // forks refused
};
[[nodiscard]] GroupCounters ReadCounters(const CgroupDir& group);
[[nodiscard]] CgroupExit Judge(const GroupCounters& counters, const CgroupLimits& limits);
// The limits that are set in the group, as far as they are numbers.
[[nodiscard]] CgroupLimits ReadLimits(const CgroupDir& group);

// No group, or a foreign one: `why` says which.
[[nodiscard]] std::unique_ptr<PluginCgroup> NoCgroup(std::string why, std::string unenforced);

// A directory of our own making.
[[nodiscard]] std::unique_ptr<PluginCgroup> DirectoryCgroup(CgroupDir group, CgroupLimits limits,
                                                            std::string unenforced);

// What the scopes of one berthd share. systemd removes a scope's group, and with it its counters, as soon as
// its last process has ended, at times before they can be read. The slice above it counts the same kills and
// stays: what it has counted and no scope accounts for was in the scope that has gone.
class ScopeCgroupImpl;
struct Scopes {
  SystemdBus bus;
  std::optional<CgroupMount> mount;
  Enforceable enforceable;
  bool oom_policy = true;  // systemd knows OOMPolicy= of scopes
  std::string before;      // our own unit
  std::set<ScopeCgroupImpl*> cgroups;
  std::optional<uint64_t> accounted;  // of the slice's kills; nullopt: not looked at yet
};
[[nodiscard]] std::unique_ptr<PluginCgroup> NewScopeCgroup(std::shared_ptr<Scopes> scopes,
                                                           asio::any_io_executor executor,
                                                           std::string plugin_id, CgroupLimits limits);
// Of a scope that is there.
[[nodiscard]] std::unique_ptr<PluginCgroup> FoundScopeCgroup(std::shared_ptr<Scopes> scopes,
                                                             asio::any_io_executor executor, CgroupDir group);

}  // namespace berth::cgroup_internal
