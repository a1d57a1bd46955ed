#include "rpc/uplink/uplink_context.h"

#include <spdlog/spdlog.h>

#include <random>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

constexpr auto kWriteAgainAfter = std::chrono::seconds(1);

// Numbers of other runs of berthd are far away; exact in languages that have only doubles.
uint64_t FirstAsk() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, uint64_t{1} << 52)(random);
}

}  // namespace

UplinkContext::UplinkContext(const asio::any_io_executor& loop, UplinkOptions opts, UplinkParts joined)
    : executor(loop),
      options(std::move(opts)),
      parts(std::move(joined)),
      state{.outbox = Outbox(), .operations = OperationTable(), .asks = AskTable(FirstAsk())},
      changed(loop) {}

void UplinkContext::Wake() {
  if (session != nullptr) session->Wake();
  changed.NotifyAll();
}

bool UplinkContext::IsGreeted() const {
  return session != nullptr && session->phase() != LinkSession::Phase::kGreeting;
}

Awaitable<void> UplinkContext::PutUntilDone(std::string key, std::function<std::string()> value) {
  for (int failures = 1;; ++failures) {
    const absl::Status kept = co_await parts.rows.Put(key, value());
    if (kept.ok()) co_return;
    if (failures == 1) SPDLOG_WARN("link.db: {} waits to be written: {}", key, MessageOf(kept));
    co_await SleepUntil(Clock::now() + kWriteAgainAfter);
  }
}

}  // namespace berth
