// Launching and watching child processes: Boost.Process v2 with a launcher of our own beneath it (clone3
// with a pidfd, nothing of ours inherited), and processes of an earlier run of berthd that were taken back.
//
// Loop thread only. No destructor here kills anybody: a plugin outlives berthd.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "base/unique_fd.h"

namespace berth {

// How a process ended.
struct ExitStatus {
  // False for a process that was not our child, was reaped at once, if the kernel (before 6.15) cannot say
  // afterwards.
  bool known = false;
  int code = 0;    // meaningful if signal == 0
  int signal = 0;  // the signal that ended it, or 0
  bool core_dumped = false;

  // "exit code 3", "signal 9 (Killed)", "ended, cause unknown".
  [[nodiscard]] std::string Describe() const;
};

struct ProcessUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // the supplementary ones, exactly
};

struct ResourceLimit {
  int resource = 0;  // RLIMIT_…
  uint64_t soft = 0;
  uint64_t hard = 0;

  bool operator==(const ResourceLimit&) const = default;
};

struct ProcessSpec {
  std::string executable;                // absolute path
  std::vector<std::string> arguments;    // without argv[0], which is `executable`
  std::vector<std::string> environment;  // "NAME=value"; nothing is inherited
  std::string working_directory = "/";
  int stdin_fd = -1;  // -1: /dev/null. Borrowed; the child gets a duplicate.
  int stdout_fd = -1;
  int stderr_fd = -1;
  mode_t umask = 0022;
  bool new_session = true;

  int cgroup_fd = -1;  // a directory of a cgroup v2, borrowed: the child is born in it. -1: in berthd's.
  std::vector<ResourceLimit> resource_limits;
  std::optional<int> oom_score_adjust;  // unset: 0 where that is allowed, whatever berthd's is
  std::optional<ProcessUser> user;      // unset: berthd's own
  // Capabilities are sets of bits. Of a user other than root's the program has the ambient ones alone.
  std::optional<uint64_t> capability_bounding_set;
  uint64_t ambient_capabilities = 0;
  bool no_new_privileges = false;

  // Awaited in berthd with the child's pid while the child waits at a gate, before it executes anything (it
  // is still a copy of berthd: of the above only session and cgroup are set): here its pid can be made
  // durable. If this fails, is cancelled, or berthd dies in it, the child ends without having run the
  // program, so that no unknown process can run. Has its own deadline. May be empty.
  std::function<Awaitable<absl::Status>(pid_t)> before_exec;
};

// A process that we launched or took back. Signals go through the pidfd, so never to another process with the
// same number. Outlives its waiter: after the cancellation of a Wait that coroutine must end before this is
// destroyed.
class Process {
 public:
  // Returns once the program has been executed, and never blocks the loop: the executable and the working
  // directory may lie on a file system that does not answer. Awaited on `executor`. Errors:
  // DEADLINE_EXCEEDED, naming the executable; NOT_FOUND / PERMISSION_DENIED (the message names what);
  // RESOURCE_EXHAUSTED (no memory, process or descriptor for a child); `before_exec`'s; else by errno. An
  // error or a cancellation leaves nothing behind: the child is killed and reaped, though a child that hangs
  // in the kernel only when it can end.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::unique_ptr<Process>>> Launch(
      asio::any_io_executor executor, ProcessSpec spec, TimePoint deadline);

  // Whether Launch would execute the program of `spec`, as its user, without doing so: the errors are those
  // of Launch, but for what only the kernel knows of a program's content (its format, its interpreter).
  // `before_exec` is not for this. Like Launch it leaves nothing behind and never blocks the loop.
  [[nodiscard]] static Awaitable<absl::Status> Try(ProcessSpec spec, TimePoint deadline);

  // Opens a running process that is not our child. The caller verifies its identity after this returns (then
  // the pidfd pins it) and before it signals. NOT_FOUND if it does not exist.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Process>> Adopt(const asio::any_io_executor& executor,
                                                                      pid_t pid);

  virtual ~Process() = default;

  [[nodiscard]] virtual pid_t pid() const = 0;

  // Sends `signal` to the process. NOT_FOUND once it has ended.
  [[nodiscard]] virtual absl::Status Signal(int signal) = 0;

  // Sends `signal` to the process and its group (it leads its session), for stopping a whole tree. NOT_FOUND
  // once the group is empty; before Linux 6.9, once the process itself has been reaped.
  [[nodiscard]] virtual absl::Status SignalGroup(int signal) = 0;

  // Waits until it has ended (and reaps our child). May be called again, after a cancellation too.
  // One waiter at a time. Throws operation_aborted when cancelled.
  [[nodiscard]] virtual Awaitable<ExitStatus> Wait() = 0;
};

// Distinguishes a process from a later one with the same pid.
struct ProcessIdentity {
  std::string boot_id;
  pid_t pid = 0;
  uint64_t start_time = 0;  // field 22 of /proc/pid/stat, in clock ticks since boot
  std::string executable;   // /proc/pid/exe, without the " (deleted)" of a file that was since replaced
  std::string cgroup;       // /proc/pid/cgroup, whole

  bool operator==(const ProcessIdentity&) const = default;
};
// Reads it from /proc. NOT_FOUND where there is no such process, or it is a zombie.
[[nodiscard]] absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);
// In clock ticks since boot, also of a process that is just ending, and if its first thread has ended while
// others run: the kernel shows no executable for either. NOT_FOUND if it does not exist.
[[nodiscard]] absl::StatusOr<uint64_t> StartTimeOf(pid_t pid);

// The real user of a process. NOT_FOUND: it does not exist.
[[nodiscard]] absl::StatusOr<uid_t> UserOf(pid_t pid);
// /proc/sys/kernel/random/boot_id.
[[nodiscard]] const std::string& BootId();

}  // namespace berth
