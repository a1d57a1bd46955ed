// What a reboot leaves of a node, in the test's own mount namespace: another boot id, no process of the
// node's and no mount of its volumes.
#pragma once

#include "tests/harness/node.h"

namespace berth {

// Ends berthd, which runs, and its plugins, unmounts what they had mounted, and gives the kernel another boot
// id, as far as this process and its children see, until this is destroyed. The node is to be started again.
class Reboot {
 public:
  // kPanic: berthd is killed. kOrderly: it stops first.
  enum class Ending { kPanic, kOrderly };
  explicit Reboot(Node& node, Ending ending = Ending::kPanic);
  ~Reboot();
  Reboot(const Reboot&) = delete;
  Reboot& operator=(const Reboot&) = delete;
};

}  // namespace berth
