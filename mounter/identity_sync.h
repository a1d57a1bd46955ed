// Syncs identity files to the disk in the background: no publish waits for it.
//
// The journal's thread does it when the journal has nothing to write (Journal::WhenIdle), kAtOnce files at a
// time. A file that is written again while it waits is synced once. Files that still wait when berthd ends
// are not synced; the next start writes those that a power cut has taken away again, from the journal.
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
