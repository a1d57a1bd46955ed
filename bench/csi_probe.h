// The least that can ask a plugin how it is: the reference for berthd's probing.
//
// Blocks; any thread.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "base/clock.h"

namespace berth {

// Waits until something accepts connections on the Unix socket at `path`; `changes` is an inotify descriptor
// that does not block and watches its directory for what is created or moved there.
[[nodiscard]] absl::Status AwaitSocket(const std::string& path, int changes, TimePoint deadline);

// One Probe over a fresh channel. OK: it was answered as ready.
[[nodiscard]] absl::Status ProbeOnce(const std::string& path, TimePoint deadline);

// The program of the minimal client, run by the bench as a process of its own: one channel a plugin, a
// synchronous stub, one thread. It probes each plugin once and says "ready"; then, for each line "N GAP" on
// its standard input, it probes N times, the plugins in turn, one each GAP microseconds, and answers with
// the nanoseconds of CPU that this took and the number of probes that failed. The exit code.
int ProbeClientMain(const std::vector<std::string>& socket_paths);

}  // namespace berth
