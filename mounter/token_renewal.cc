#include "mounter/token_renewal.h"

#include <algorithm>
#include <utility>

namespace berth {

void TokenRenewal::OnPassed(const TokenLife& life, double random) {
  const double share = 0.8 - 0.05 * std::clamp(random, 0.0, 1.0);
  const auto wait = Duration(static_cast<Duration::rep>(static_cast<double>(life.lifetime.count()) * share));
  due_ = life.since + std::max(wait, kLeastPause);
  passed_ = life.wanted;
  failures_ = 0;
  error_.clear();
}

void TokenRenewal::OnWanted(const std::vector<WantedToken>& wanted) {
  if (wanted != passed_) Hasten();
}

bool TokenRenewal::OnFailed(BootTime now, Duration pause, std::string error) {
  due_ = now + pause;
  error_ = std::move(error);
  return failures_++ == 0;
}

}  // namespace berth
