// What a rule can do to a process without any call: children, memory, output. Each returns what it did, for
// the history. Any thread; Write stops early when `stopping` becomes true.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <atomic>
#include <vector>

#include "tests/fault_plugin/script.h"

namespace berth::fault {

// Leaves `count` processes behind: forked twice, each in a session of its own, with our output open and
// nothing else. They pause for ever. The first one opens /dev/fuse if `hold_fuse`. Returns their pids.
[[nodiscard]] absl::StatusOr<std::vector<pid_t>> LeaveChildren(int64_t count, bool hold_fuse);

// `count` children that pause, every second one in a session of its own; 0: children that have children
// without end, so that only a limit from outside ends it. Returns how many there are, with 0: one.
[[nodiscard]] absl::StatusOr<int64_t> ForkBomb(int64_t count);

// Takes memory and touches it; kept until the process ends.
void TakeMemory(int64_t bytes);

// Writes to standard output. Errors are the write's.
[[nodiscard]] absl::Status Write(const Output& output, const std::atomic<bool>& stopping);

// The text of line `number`, with its end: "line 17 xxxx…\n". Pure.
[[nodiscard]] std::string NumberedLine(int64_t number, int64_t length);

}  // namespace berth::fault
