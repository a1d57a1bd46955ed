// Whether a process outside of berthd, for instance in a container, sees the tree of volumes, and whether
// what it mounts there is seen here.
//
// The decision is pure; LookForTree blocks only on /proc. Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace berth {

// A mount as a mount table shows it (mountinfo.h).
struct MountInTable {
  std::string target;
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  std::string root;  // the directory of that file system which is mounted
  uint64_t peer_group = 0;
  uint64_t follows = 0;
};

// Why the process with the mounts `theirs`, in the order of its mount table, cannot work with the tree at
// `path`, as it sees it. `tree`: the tree's mount, as we see it. Empty: it can.
[[nodiscard]] std::string WhyTreeIsNotUsable(const MountInTable& tree,
                                             const std::vector<MountInTable>& theirs,
                                             const std::string& path);

// The same of the process `pid`. `path` empty: where we see the tree. An error: a mount table cannot be read.
[[nodiscard]] absl::StatusOr<std::string> LookForTree(const std::string& tree, pid_t pid,
                                                      const std::string& path);

}  // namespace berth
