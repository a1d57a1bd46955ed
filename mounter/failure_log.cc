#include "mounter/failure_log.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace berth {
namespace {

// Beyond this many the one that has not come for the longest time is forgotten.
constexpr size_t kKinds = 32;
// After the first failure; then each hour.
constexpr std::array<Duration, 3> kTold = {std::chrono::minutes(1), std::chrono::minutes(10),
                                           std::chrono::minutes(60)};

}  // namespace

bool FailureLog::ShouldReport(const std::string& kind, TimePoint now) {
  const auto [it, added] = kinds_.try_emplace(kind, Kind{.first = now, .last = now, .next = now});
  Kind& known = it->second;
  known.last = now;
  if (now < known.next) return false;
  const auto reported = static_cast<size_t>(known.reported++);
  known.next = reported < kTold.size() ? known.first + kTold.at(reported) : now + kTold.back();
  // After a long pause the next failure is not reported at once.
  known.next = std::max(known.next, now + kTold.front());
  if (added && kinds_.size() > kKinds) {
    kinds_.erase(std::ranges::min_element(kinds_, {}, [](const auto& entry) { return entry.second.last; }));
  }
  return true;
}

}  // namespace berth
