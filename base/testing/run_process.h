// For tests only: a child process from its launch to its end, with its output. Loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/process.h"

namespace berth {

// Runs `spec` to its end, with `input` on its standard input and its standard output and error kept up to
// `output_limit` bytes each. At `deadline` it is killed and DEADLINE_EXCEEDED is returned without waiting
// for it to die (a process in an uninterruptible system call does not); its reaping goes on in `reaper`.
// It counts as ended when the process itself has, whatever its own children still hold open. Cancelled, it
// kills likewise. The standard descriptors and the session of `spec` are replaced.
struct RunResult {
  ExitStatus exit;
  std::string out;
  std::string err;
};
[[nodiscard]] Awaitable<absl::StatusOr<RunResult>> RunProcess(TaskScope& reaper, ProcessSpec spec,
                                                              std::string input, size_t output_limit,
                                                              TimePoint deadline);

}  // namespace berth
