// Makes identity files durable some time after they were written: nobody waits for it, and each takes a write
// of the disk. A few at a time, on the journal's thread, whenever the journal rests (Journal::WhenIdle).
// However many wait, each is there once. What still waits at an end is left: the next start finds the files.
//
// Owned by the Mounter. Loop thread.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "journal/journal.h"

namespace berth {

class IdentitySync {
 public:
  // `sync` is called on the journal's thread with at most kAtOnce journal keys; its error is logged.
  using Sync = std::function<absl::Status(const std::vector<std::string>& keys)>;
  static constexpr size_t kAtOnce = 32;
  IdentitySync(Journal& journal, Sync sync);

  // The identity file of the volume with this journal key was written.
  void Add(const std::string& key);

 private:
  struct Waiting;

  Journal& journal_;
  std::shared_ptr<Waiting> waiting_;
};

}  // namespace berth
