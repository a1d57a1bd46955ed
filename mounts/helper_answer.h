// What berth-mount-helper writes (helper/main.cc), as values. Bytes in another form are an error, whoever
// wrote them.
//
// Pure; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mounts/mount_helper.h"

namespace berth {

// The number in "errno N"; 0: it says something else.
[[nodiscard]] int ErrnoIn(std::string_view output);

// Of `read`: "mode OCTAL owner UID", a line's end, the content; or why not. INTERNAL: neither. `what` begins
// an error's message, which has nothing of the content.
[[nodiscard]] absl::StatusOr<FileContent> ParseRead(std::string_view output, const std::string& what);

// Of `mount-path`. FAILED_PRECONDITION: why it is not mounted at `path`, and what to do. INTERNAL: it did not
// say.
[[nodiscard]] absl::StatusOr<PathMount> ParseMountPath(std::string_view output, const std::string& path);
// FAILED_PRECONDITION: another mount is at `path`.
[[nodiscard]] absl::Status SomethingElseMounted(const std::string& path);

// Of `probe`, for each of `paths`, as far as it had come.
struct ProbeAnswer {
  pid_t child = 0;                      // who asks; 0: it has not begun
  std::optional<absl::Status> verdict;  // see MountHelper::Probe; unset: none yet
};
[[nodiscard]] std::vector<ProbeAnswer> ParseProbe(std::string_view output,
                                                  const std::vector<std::string>& paths);

}  // namespace berth
