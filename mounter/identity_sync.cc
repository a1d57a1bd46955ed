#include "mounter/identity_sync.h"

#include <spdlog/spdlog.h>

#include <mutex>
#include <set>
#include <utility>

#include "base/status.h"

namespace berth {

// Filled by the loop thread, emptied by the journal's.
struct IdentitySync::Waiting {
  std::mutex mutex;
  std::set<std::string> keys;

  std::vector<std::string> Take() {
    const std::lock_guard lock(mutex);
    std::vector<std::string> taken;
    while (!keys.empty() && taken.size() < kAtOnce) {
      taken.push_back(std::move(keys.extract(keys.begin()).value()));
    }
    return taken;
  }
};

IdentitySync::IdentitySync(Journal& journal, Sync sync)
    : journal_(journal), waiting_(std::make_shared<Waiting>()) {
  journal.SetIdleWork([waiting = waiting_, sync = std::move(sync)] {
    const std::vector<std::string> keys = waiting->Take();
    if (keys.empty()) return false;
    if (const absl::Status synced = sync(keys); !synced.ok()) {
      SPDLOG_WARN("identity files may not outlive a power cut: {}", MessageOf(synced));
    }
    return true;
  });
}

void IdentitySync::Add(const std::string& key) {
  {
    const std::lock_guard lock(waiting_->mutex);
    waiting_->keys.insert(key);
  }
  journal_.WhenIdle();
}

}  // namespace berth
