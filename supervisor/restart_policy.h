// Decides what follows a plugin's unexpected end: restart it now, later, or never.
//
// Pure: no clock, no randomness, no I/O. The caller passes both in and carries out the returned decision.
//
// The first restart after a stable period is immediate; then each waits twice as long as the one before, up
// to a limit, and a little more or less by chance, so that many nodes that lost one storage do not return to
// it in step. A stable period makes the next restart immediate again. After too many ends within a window,
// stable or not, it is not restarted any more (kGiveUp).
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"

namespace berth {

enum class RestartMode {
  kAlways,     // whatever the exit code
  kOnFailure,  // unless it exits with code 0
  kNever,
};

// [restart]
struct RestartLimits {
  RestartMode mode = RestartMode::kAlways;
  Duration initial_backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::minutes(1);
  int burst = 20;  // at least 1
  Duration window = std::chrono::minutes(30);
  Duration stable_after = std::chrono::minutes(1);

  bool operator==(const RestartLimits&) const = default;
};

enum class EndCause {
  kClean,         // exit code 0
  kFailure,       // any other exit code, a signal, a start that took too long
  kLaunchFailed,  // it never ran; there is no use in trying again at once
};

struct RestartDecision {
  enum class What {
    kNow,
    kLater,     // after `delay`
    kGiveUp,    // failed: see `why`
    kStayDown,  // it ended well, and is not to be restarted then
  };
  What what = What::kNow;
  Duration delay{};
  std::string why;  // with kGiveUp, for people
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(limits) {}

  // `uptime`: how long it ran. `random`: evenly out of [0, 1), for Backoff (base/backoff.h). Returns
  // kGiveUp once `limits.burst` ends fall within `limits.window`.
  [[nodiscard]] RestartDecision OnEnd(EndCause cause, Duration uptime, TimePoint now, double random);

  // Forgets all ends: a person has started it again.
  void Reset();

 private:
  RestartLimits limits_;
  int streak_ = 0;  // ends since the last stable period
  std::deque<TimePoint> ends_;
};

// [health]: when a plugin that runs, but is ill, is replaced. It has a budget of its own; once that is used
// up, the plugin has failed.
struct ReplaceLimits {
  Duration after = std::chrono::minutes(2);  // ill without a break; zero: never replaced
  int burst = 5;                             // replacements within `window`; at least 1
  Duration window = std::chrono::hours(1);

  bool operator==(const ReplaceLimits&) const = default;
};

// Pure, likewise.
class ReplacePolicy {
 public:
  explicit ReplacePolicy(ReplaceLimits limits) : limits_(limits) {}

  // When a plugin that is ill since `ill_since` is to be replaced; never: nullopt.
  [[nodiscard]] std::optional<TimePoint> ReplaceAt(TimePoint ill_since) const;
  // It was replaced too often within the window: it has failed, instead of one more replacement.
  [[nodiscard]] bool Exhausted(TimePoint now) const;
  // It is replaced.
  void OnReplaced(TimePoint now);
  void Reset() { replaced_.clear(); }
  [[nodiscard]] const ReplaceLimits& limits() const { return limits_; }

 private:
  ReplaceLimits limits_;
  std::deque<TimePoint> replaced_;  // the last `burst`
};

}  // namespace berth
