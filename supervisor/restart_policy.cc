#include "supervisor/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/backoff.h"
#include "base/duration_text.h"

namespace berth {
RestartDecision RestartPolicy::OnEnd(EndCause cause, Duration uptime, TimePoint now, double random) {
  using What = RestartDecision::What;
  if (cause == EndCause::kClean && limits_.mode != RestartMode::kAlways) return {What::kStayDown, {}, ""};
  if (limits_.mode == RestartMode::kNever) {
    return {What::kGiveUp, {}, "its file says that it is never restarted"};
  }

  ends_.push_back(now);
  while (now - ends_.front() > limits_.window) ends_.pop_front();
  if (ends_.size() >= static_cast<size_t>(limits_.burst)) {
    return {What::kGiveUp,
            {},
            fmt::format("it ended {} times within {}", ends_.size(), FormatDuration(limits_.window))};
  }

  if (cause != EndCause::kLaunchFailed && uptime >= limits_.stable_after) streak_ = 0;
  ++streak_;
  if (streak_ == 1 && cause != EndCause::kLaunchFailed) return {What::kNow, {}, ""};
  // The second end in a row is the first to wait; of a failed launch, the first.
  const int failures = std::max(streak_ - 1, 1);
  return {What::kLater, Backoff(failures, limits_.initial_backoff, limits_.max_backoff, random), ""};
}

void RestartPolicy::Reset() {
  streak_ = 0;
  ends_.clear();
}

std::optional<TimePoint> ReplacePolicy::ReplaceAt(TimePoint ill_since) const {
  if (limits_.after == Duration::zero()) return std::nullopt;
  return ill_since + limits_.after;
}

bool ReplacePolicy::Exhausted(TimePoint now) const {
  const auto burst = static_cast<size_t>(limits_.burst);
  return replaced_.size() >= burst && replaced_[replaced_.size() - burst] + limits_.window > now;
}

void ReplacePolicy::OnReplaced(TimePoint now) {
  replaced_.push_back(now);
  while (replaced_.size() > static_cast<size_t>(limits_.burst)) replaced_.pop_front();
}

}  // namespace berth
