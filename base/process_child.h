// The child's half of a launch: what happens between clone3 and the program. For process_launch.cc alone.
//
// It runs on a copy of a memory in which other threads may have held locks: system calls only, nothing is
// allocated; all that it needs stands in its plan.
#pragma once

#include <absl/status/status.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/process.h"

namespace berth::process_internal {

// Where in the child a launch failed.
enum class LaunchStep : int {
  kSession,
  kDescriptors,
  kDirectory,
  kResourceLimit,  // detail: which
  kOomScore,
  kBoundingSet,  // detail: the capability
  kGroups,
  kGroup,
  kUser,
  kCapabilities,
  kAmbient,  // detail: the capability
  kNoNewPrivileges,
  kExecute,
  kInterpreter,  // the program is there, what is to interpret it is not
};

// What the child writes to its error pipe; nothing once the program runs.
struct ChildError {
  LaunchStep step = LaunchStep::kSession;
  int error = 0;
  int detail = 0;
};

struct ChildPlan {
  const char* executable = nullptr;
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const char* directory = nullptr;
  int stdio[3] = {-1, -1, -1};  // all above 2
  int gate_read = -1;           // -1: no gate
  int gate_write = -1;          // the parent's end, closed here: else the gate could not see the parent die
  int error_pipe = -1;
  mode_t umask = 0;
  bool new_session = true;
  const ResourceLimit* limits = nullptr;
  size_t limit_count = 0;
  char oom_score_adjust[16] = {};
  bool oom_score_required = false;
  bool drop_from_bounding_set = false;
  uint64_t bounding_set = 0;
  bool change_user = false;
  uid_t uid = 0;
  gid_t gid = 0;
  const gid_t* groups = nullptr;
  size_t group_count = 0;
  uint64_t ambient = 0;
  bool no_new_privileges = false;
  bool try_only = false;
};

// In the child, with all signals blocked.
[[noreturn]] void RunChild(const ChildPlan& plan);

// What `report` means, in words: "launch /bin/x: become user 993: Operation not permitted".
[[nodiscard]] absl::Status StepStatus(const ChildError& report, const ProcessSpec& spec);

}  // namespace berth::process_internal
