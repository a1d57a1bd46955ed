// The mount table of one process, line by line, as /proc/PID/mountinfo shows it: for tables of other mount
// namespaces, and where only a few of very many lines are wanted. All of one's own at once:
// mounts/mount_table.h.
//
// Blocks, and touches no file system but /proc. Any thread.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "base/mountinfo_line.h"

namespace berth {

// Calls `each` for every line until it returns false. Lines in an unknown form are skipped. Errors: those of
// reading; OUT_OF_RANGE beyond 256 MiB.
[[nodiscard]] absl::Status ReadMountinfo(const std::string& path,
                                         const std::function<bool(const MountinfoLine& line)>& each);

}  // namespace berth
