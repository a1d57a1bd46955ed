#include "berthd/event_numbers.h"

#include <spdlog/spdlog.h>

#include <chrono>

#include "base/status.h"

namespace berth {
namespace {

constexpr uint64_t kBlock = 1'000'000;
constexpr auto kRetry = std::chrono::seconds(10);

}  // namespace

Awaitable<absl::StatusOr<uint64_t>> ReserveEventNumbers(Mounter& mounter, EventLog& events) {
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t first, co_await mounter.ReserveEventNumbers(kBlock));
  events.BeginAt(first);
  co_return first + kBlock;
}

Awaitable<void> KeepEventNumbersReserved(Mounter& mounter, EventLog& events, uint64_t end) {
  while (true) {
    const bool half_used = co_await events.WaitAfter(end - kBlock / 2, TimePoint::max());
    if (!half_used) continue;
    // The block reserved now follows the present one directly: nobody else reserves.
    const auto next = co_await mounter.ReserveEventNumbers(kBlock);
    if (next.ok()) {
      end = *next + kBlock;
      continue;
    }
    SPDLOG_WARN("event numbers: {}; half a block is left", MessageOf(next.status()));
    co_await SleepUntil(Clock::now() + kRetry);
  }
}

}  // namespace berth
