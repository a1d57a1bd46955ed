// What a reboot leaves of a node, in the test's own mount namespace: another boot id, no process of the
// node's and no mount of its volumes.
#pragma once

#include "tests/harness/node.h"

namespace berth {

// Ends berthd and its plugins at once, unmounts what they had mounted, and gives the kernel another boot id,
// as far as this process and its children see, until this is destroyed. The node is to be started again.
class Reboot {
 public:
  explicit Reboot(Node& node);
  ~Reboot();
  Reboot(const Reboot&) = delete;
  Reboot& operator=(const Reboot&) = delete;
};

}  // namespace berth
