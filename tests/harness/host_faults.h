// A host that fails a berthd: its disk does not sync, it has no memory for another process, no file can be
// watched, it ends berthd at a write of its journal, or its wall clock jumps. Made for real at the C
// library's calls (host_faults_preload.cc), for berthd alone: what it launches is loaded without.
//
// One thread. Made before the node is started; what is asked for holds at once, and for the next berthd too.
#pragma once

#include <chrono>
#include <string>

#include "tests/harness/node.h"

namespace berth {

class HostFaults {
 public:
  explicit HostFaults(Node& node);

  // Syncs of the journal fail with EIO.
  void FailSyncs() const { Say("sync"); }
  // Processes cannot be made: ENOMEM.
  void FailLaunches() const { Say("launch"); }
  // SIGKILL in place of the n-th write or sync of the journal from now on.
  void KillAtWrite(int n) const;
  // No file can be watched: others have all inotify instances of the user.
  void FailWatches() const { Say("inotify"); }
  void Heal() const { Say(""); }
  // The wall clock is off by so much from the machine's; Heal leaves it there. What waits in the kernel for a
  // time of it does not notice the jump.
  void ShiftWallClock(std::chrono::seconds by) const;

 private:
  void Say(const std::string& fault) const;

  std::string file_;
  std::string clock_file_;
};

}  // namespace berth
