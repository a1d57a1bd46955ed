// Running a program of the system (mkfs, resize2fs, cp) to its end.
//
// Without a shell, with a fixed environment, none of our descriptors and a deadline. A program dies with
// the thread that waits for it, and so with us: a mkfs that outlived a killed plugin would write into an
// image that the next plugin is already using. Blocks; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace berth::hostpath {

// The path of `program` in the directories where the system keeps its own. FAILED_PRECONDITION where it is
// not installed.
[[nodiscard]] absl::StatusOr<std::string> FindProgram(std::string_view program);

// Runs `program` (a name, looked for as FindProgram does). OK if it ends with an exit code up to
// `highest_good_code`; INTERNAL with the end of its output if it ends otherwise; DEADLINE_EXCEEDED, after it
// was killed, if it takes longer than `patience`.
[[nodiscard]] absl::Status RunCommand(std::string_view program, const std::vector<std::string>& arguments,
                                      Duration patience, int highest_good_code = 0);

}  // namespace berth::hostpath
