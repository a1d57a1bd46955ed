// The mount table of one process, line by line, as /proc/PID/mountinfo shows it: for tables of other mount
// namespaces, and where only a few of very many lines are wanted. Of one's own, all at once: mount_table.h.
//
// Blocks, and touches no file system but /proc. Any thread.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace berth {

struct MountinfoLine {
  uint64_t id = 0;  // not the unique one; of one mount at a time, in all namespaces
  uint64_t parent = 0;
  // What is mounted on or taken away from any mount of a group comes and goes on all of them, and on those
  // that follow it (mount_namespaces(7)). 0: of none, follows none.
  uint64_t peer_group = 0;
  uint64_t follows = 0;
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  // As the file has them, with \040 and the like: see DecodeMountinfo. Valid during the call only.
  std::string_view root;  // of the file system, that is: which directory of it is mounted
  std::string_view target;
  std::string_view fs_type;
  std::string_view source;
};

// Calls `each` for every line until it says false. Lines that are not in the known form are passed over.
// Errors: those of reading; OUT_OF_RANGE beyond 256 MiB.
[[nodiscard]] absl::Status ReadMountinfo(const std::string& path,
                                         const std::function<bool(const MountinfoLine& line)>& each);

[[nodiscard]] std::string DecodeMountinfo(std::string_view field);

}  // namespace berth
