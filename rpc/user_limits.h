// How many of one thing users have at once: connections, calls, watches.
//
// Root, and the user that berthd runs as, have a budget of their own, so that others cannot use it up. Pure;
// one thread. It outlives what it has given.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace berth {

struct UserLimits {
  size_t total = 0;  // of all others together, and once more of root
  size_t per_user = 0;
};

class UserCounter {
 public:
  // `what`: "connections", for messages.
  UserCounter(std::string what, UserLimits limits, uid_t own_uid)
      : what_(std::move(what)), limits_(limits), own_uid_(own_uid) {}
  UserCounter(const UserCounter&) = delete;
  UserCounter& operator=(const UserCounter&) = delete;

  // Counts as long as it lives.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : counter_(std::exchange(other.counter_, nullptr)), uid_(other.uid_) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (counter_ != nullptr) counter_->Leave(uid_);
    }

   private:
    friend class UserCounter;
    Use(UserCounter* counter, uid_t uid) : counter_(counter), uid_(uid) {}
    UserCounter* counter_ = nullptr;
    uid_t uid_ = 0;
  };

  // One more for that user. RESOURCE_EXHAUSTED names the limit.
  [[nodiscard]] absl::StatusOr<Use> Take(uid_t uid);

  [[nodiscard]] bool IsRoot(uid_t uid) const { return uid == 0 || uid == own_uid_; }

 private:
  void Leave(uid_t uid);

  std::string what_;
  UserLimits limits_;
  uid_t own_uid_;
  std::map<uid_t, size_t> of_;  // never 0
  size_t others_ = 0;
};

}  // namespace berth
