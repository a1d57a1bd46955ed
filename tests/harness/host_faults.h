// A host that fails a berthd: its disk does not sync, it has no memory for another process, or it ends berthd
// at a write of its journal. Made for real at the C library's calls (host_faults_preload.cc), for berthd
// alone: what it launches is loaded without.
//
// One thread. Made before the node is started; what is asked for holds at once, and for the next berthd too.
#pragma once

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
  void Heal() const { Say(""); }

 private:
  void Say(const std::string& fault) const;

  std::string file_;
};

}  // namespace berth
