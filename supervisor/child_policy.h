// Decides which processes of a plugin's tree are ended when its main process is, and which live on: those
// that serve file systems (they hold /dev/fuse), where the plugin's file says children = "keep".
//
//                                      "end"           "keep"
//   the main process ended by itself   all             all but those that serve
//   restart, replacement, swap         all             all but those that serve
//   a limit was broken                 all             all
//   stop, after a drain too            all             all
//
// Of whom it cannot be said whether he serves counts as one who does: a mount lost cannot be mended, a
// process too many can. The main process itself is never kept; the occasion has it ended in its own order.
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
