#include "rpc/user_limits.h"

#include <fmt/format.h>

namespace berth {

absl::StatusOr<UserCounter::Use> UserCounter::Take(uid_t uid) {
  const auto known = of_.find(uid);
  const size_t has = known == of_.end() ? 0 : known->second;
  if (has >= (IsRoot(uid) ? limits_.total : limits_.per_user)) {
    return absl::ResourceExhaustedError(
        fmt::format("uid {} has {} {} already, the most for one user: try again", uid, has, what_));
  }
  if (!IsRoot(uid) && others_ >= limits_.total) {
    return absl::ResourceExhaustedError(
        fmt::format("there are {} {} already, the most for all users: try again", others_, what_));
  }
  ++of_[uid];
  if (!IsRoot(uid)) ++others_;
  return Use(this, uid);
}

void UserCounter::Leave(uid_t uid) {
  const auto known = of_.find(uid);
  if (--known->second == 0) of_.erase(known);
  if (!IsRoot(uid)) --others_;
}

}  // namespace berth
