// What /proc/pid/stat says of a process: shared by the files of process.h and process_tree.h. Not for others.
// Any thread.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

namespace berth::process_internal {

// Of /proc/pid/stat.
struct ProcStat {
  std::string name;         // field 2: of the program, cut; may hold anything
  char state = 0;           // field 3
  pid_t parent = 0;         // field 4
  pid_t session = 0;        // field 6
  uint64_t start_time = 0;  // field 22
  // Field 52: how a zombie ended, in the form of wait(). 0 also if the kernel hides it.
  int wait_status = 0;
};

// Errors: those of reading the file (if the process is gone: ErrnoOf ENOENT or ESRCH); INTERNAL if it is in
// an unknown form.
[[nodiscard]] absl::StatusOr<ProcStat> ReadProcStat(pid_t pid);

}  // namespace berth::process_internal
