#include "mounter/token_renewal.h"

#include <algorithm>
#include <utility>

namespace berth {

void TokenRenewal::OnPassed(TimePoint since, Duration lifetime, double random) {
  const double share = 0.8 - 0.05 * std::clamp(random, 0.0, 1.0);
  const auto wait = Duration(static_cast<Duration::rep>(static_cast<double>(lifetime.count()) * share));
  due_ = since + std::max(wait, kLeastPause);
  failures_ = 0;
  error_.clear();
}

bool TokenRenewal::OnFailed(TimePoint now, Duration pause, std::string error) {
  due_ = now + pause;
  error_ = std::move(error);
  return failures_++ == 0;
}

}  // namespace berth
