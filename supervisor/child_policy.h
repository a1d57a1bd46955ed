// Decides which processes of a plugin's tree end with its main process, and which stay: those that serve file
// systems (they hold /dev/fuse), if the plugin's file says children = "keep".
//
//                                      "end"           "keep"
//   the main process ended by itself   all             all but those that serve
//   restart, replacement, swap         all             all but those that serve
//   a limit was broken                 all             all
//   stop, after a drain too            all             all
//
// If we cannot tell whether a process serves a mount, we keep it: a lost mount cannot be repaired, a process
// too many can be ended. The main process itself is never kept; it is ended in its own order.
//
// Pure. Any thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/process_tree.h"
#include "supervisor/plugin_config.h"

namespace berth {

enum class TreeOccasion {
  kMainEnded,     // by itself: it may be launched again
  kReplaced,      // restart, replacement for ill health, swap
  kLimitReached,  // memory above all
  kStopped,
};

struct TreeMember {
  pid_t pid = 0;
  FuseUse fuse = FuseUse::kUnknown;
  bool main = false;
};

struct TreeVerdict {
  std::vector<pid_t> end;   // the main process not among them
  std::vector<pid_t> keep;  // likewise
};

[[nodiscard]] TreeVerdict DecideChildren(const std::vector<TreeMember>& members, ChildrenPolicy children,
                                         TreeOccasion occasion);

// Members as FindTree found them.
[[nodiscard]] std::vector<TreeMember> MembersOf(const std::vector<TreeProcess>& tree, pid_t main);

}  // namespace berth
