// When new tokens for one publication are to be got and passed to its plugin.
//
//              OnPassed                      its time comes, and it succeeds: OnPassed
//   unknown ───────────────▶ good until … ◀──────────────────────────────┐
//   (at once)                    │ a fifth of the lifetime is left       │
//      │                         ▼                                       │
//      └────────────────────▶ due ── OnFailed ──▶ failing ── a pause ──▶ due
//
// A failure does not touch the mount, and the old tokens are valid until they end.
//
// Pure: time and chance are passed in. Owned by the volume's actor.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "mounter/consumer_tokens.h"

namespace berth {

class TokenRenewal {
 public:
  // Never more often, whatever a scheduler says of its tokens' lifetimes.
  static constexpr Duration kLeastPause = std::chrono::seconds(1);

  // Unknown: what berthd did not pass itself, since it was restarted or the plugin's file has changed. Due.
  TokenRenewal() = default;

  // The plugin has taken them. Due when a fifth of their life is left; up to a twentieth earlier by `random`
  // in [0, 1), so that what began together does not come together.
  void OnPassed(const TokenLife& life, double random);
  // What the plugin wants now: due at once where it was given what was made out for something else.
  void OnWanted(const std::vector<WantedToken>& wanted);
  // They could not be got, or not be passed; due again after `pause`. True if it did not fail before.
  [[nodiscard]] bool OnFailed(BootTime now, Duration pause, std::string error);

  // What it lacked has come: due at once.
  void Hasten() { due_ = BootTime::min(); }

  [[nodiscard]] BootTime due() const { return due_; }
  // Failures since it last succeeded, and the last one's words; 0 and empty: it is well.
  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  BootTime due_ = BootTime::min();
  std::vector<WantedToken> passed_;
  int failures_ = 0;
  std::string error_;
};

}  // namespace berth
