// Where the processes of a plugin live: a group of their own, in which the kernel counts and limits them,
// ends them together, forks included, and says whether one was killed for want of memory.
//
//   systemd is PID 1     a transient scope berth-plugin-<id>.scope in berth-plugins.slice, so that a plugin
//                        belongs neither to berthd's unit nor to its life
//   else, where we may   a cgroup v2 directory <cgroup>/berth-plugins/<id>
//   else                 none, with the reason in words
//
// The placer is the Supervisor's and outlives its places; a place belongs to who launches the plugin. Loop
// thread. Nothing blocks: systemd is asked under deadlines, and a cgroup's files are the kernel's own memory.
//
// A launch: Prepare; launch with cgroup_fd(); at the gate Enter, and only then is the process identified (its
// cgroup is part of that). A process that is taken back: Find by the cgroup that it is in. After the end of
// the main process: HowItEnded at once, KillAll for what is left, Release.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

struct CgroupLimits {
  std::optional<uint64_t> memory_max;  // bytes
  std::optional<uint64_t> pids_max;    // processes and threads
  std::optional<double> cpus;          // 1.5: one and a half
  // Want of memory ends all processes together. False where some are to outlive the main process.
  bool killed_together = true;

  bool operator==(const CgroupLimits&) const = default;
};

// What the kernel counted in the place since it was entered or found.
struct CgroupExit {
  bool out_of_memory =
      false;  // a process was killed because memory ran out, the place's own or the machine's
  bool pids_limit_hit = false;  // a fork was refused
  std::string text;             // "out of memory (its limit is 512 MiB)"; empty: nothing to report
};

// What a group is found again by.
struct GroupName {
  std::string cgroup;  // the content of a member's /proc/<pid>/cgroup (ProcessIdentity::cgroup)
  uint64_t id = 0;     // PluginCgroup::group_id; 0: not known
};

class PluginCgroup {
 public:
  virtual ~PluginCgroup() = default;

  // For people: "scope berth-plugin-x.scope", "cgroup /sys/fs/cgroup/berth-plugins/x", "none: why".
  [[nodiscard]] virtual std::string describe() const = 0;
  // Limits that were asked for and cannot be enforced, for the plugin's reason. Empty: all hold.
  [[nodiscard]] virtual const std::string& unenforced() const = 0;
  // False: there is no group; Members and KillAll are UNIMPLEMENTED, and HowItEnded knows nothing.
  [[nodiscard]] virtual bool has_group() const = 0;
  // For ProcessSpec::cgroup_fd; -1: none. Valid while the place lives.
  [[nodiscard]] virtual int cgroup_fd() const { return -1; }

  // The kernel's number of the group, once it was entered or found: names are reused, numbers are not before
  // the next boot. 0: there is no group, or it is not known.
  [[nodiscard]] virtual uint64_t group_id() const { return 0; }

  // At the gate, with the child's pid. An error means that the child may not go on: it is not where it should
  // be. UNAVAILABLE: systemd does not answer.
  [[nodiscard]] virtual Awaitable<absl::Status> Enter(pid_t pid, TimePoint deadline) = 0;

  [[nodiscard]] virtual Awaitable<CgroupExit> HowItEnded() = 0;
  // In the place and in groups beneath it. Numbers alone: pin each by a descriptor before believing it.
  [[nodiscard]] virtual absl::StatusOr<std::vector<pid_t>> Members() const = 0;
  // OK: no process is left. DEADLINE_EXCEEDED: some do not end (the kernel keeps them).
  [[nodiscard]] virtual Awaitable<absl::Status> KillAll(TimePoint deadline) = 0;
  // Removes the directory where it is empty; what still holds processes stays.
  [[nodiscard]] virtual Awaitable<void> Release() = 0;
};

// For tests and odd machines; the defaults find everything out.
struct CgroupOptions {
  bool use_systemd = true;
  // The directory in which berth-plugins is made. Empty: berthd's own cgroup.
  std::string cgroup_parent;
};

class CgroupProvider {
 public:
  virtual ~CgroupProvider() = default;

  // Looks around; takes as long as systemd does to answer once, 5 s at most. Never null.
  [[nodiscard]] static Awaitable<std::unique_ptr<CgroupProvider>> Detect(asio::any_io_executor executor,
                                                                         CgroupOptions options);

  // For `status`: "systemd scopes", "cgroups beneath /sys/fs/cgroup/berth-plugins", "none: why". Limits that
  // this node cannot enforce are named.
  [[nodiscard]] virtual const std::string& describe() const = 0;

  // A place for one launch. Fails only where the kernel refuses what it usually allows.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Prepare(
      std::string plugin_id, CgroupLimits limits, TimePoint deadline) = 0;

  // The group of a running process. A process outside of our groups, as when an earlier berthd could not make
  // one, gets an object without a group. So does one that has ended (not `lives`), if the name was reused
  // since.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Find(GroupName group,
                                                                                      bool lives) = 0;
};

}  // namespace berth
