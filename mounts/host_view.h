// Whether the host sees what is mounted here: a daemon in a mount namespace of its own would publish volumes
// that no other process can see.
//
// Used at start, on any thread. Blocks: it mounts a small tmpfs and reads PID 1's mount table twice.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace berth {

// Mounts something in `directory` for a moment and looks for it in PID 1's mount namespace. Leaves nothing
// behind. FAILED_PRECONDITION: it is not seen there, or stays there; the message gives the likely reason, and
// what to do. If PID 1 is a container's (a pid namespace of its own) only that is known, and logged. Other
// errors: those of mounting (PERMISSION_DENIED, RESOURCE_EXHAUSTED), of reading /proc/1/mountinfo.
[[nodiscard]] absl::Status CheckSeenByHost(const std::string& directory);

}  // namespace berth
