// How many calls are being answered, so that the end of the process can wait for them. Any thread.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace berth::hostpath {

class ActiveCalls {
 public:
  // Counts while it lives.
  class Scope {
   public:
    explicit Scope(ActiveCalls& calls) : calls_(calls) {
      const std::lock_guard lock(calls_.mutex_);
      ++calls_.count_;
    }
    ~Scope() {
      const std::lock_guard lock(calls_.mutex_);
      if (--calls_.count_ == 0) calls_.idle_.notify_all();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ActiveCalls& calls_;
  };

  // Waits until no call is being answered, at most `patience`. Says whether none is.
  [[nodiscard]] bool WaitUntilIdle(Duration patience) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, patience, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int count_ = 0;
};

}  // namespace berth::hostpath
