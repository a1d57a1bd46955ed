#include "base/event_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/status.h"

namespace berth {

EventLog::EventLog(asio::any_io_executor executor, size_t capacity, uint64_t first_sequence)
    : capacity_(std::max<size_t>(capacity, 1)),
      next_(std::max<uint64_t>(first_sequence, 1)),
      appended_(std::move(executor)) {}

void EventLog::BeginAt(uint64_t first_sequence) { next_ = std::max(next_, first_sequence); }

void EventLog::Append(Event event) {
  event.sequence = next_++;
  event.time = WallClock::now();
  SPDLOG_INFO("{}{}{}{}: {}", event.type, event.plugin_id.empty() ? "" : " plugin=" + event.plugin_id,
              event.volume_id.empty() ? "" : " volume=" + Printable(event.volume_id, 128),
              event.consumer.empty() ? "" : " consumer=" + Printable(event.consumer, 128), event.message);
  events_.push_back(std::move(event));
  if (events_.size() > capacity_) events_.pop_front();
  appended_.NotifyAll();
}

EventLog::Batch EventLog::After(uint64_t after, size_t limit) const {
  Batch batch;
  if (events_.empty() || after >= next_ - 1) return batch;
  const uint64_t oldest = events_.front().sequence;
  if (after + 1 < oldest) batch.missed = oldest - after - 1;
  const size_t skip = after + 1 > oldest ? after + 1 - oldest : 0;
  const size_t count = std::min(limit, events_.size() - skip);
  const auto begin = events_.begin() + static_cast<ptrdiff_t>(skip);
  batch.events.assign(begin, begin + static_cast<ptrdiff_t>(count));
  return batch;
}

Awaitable<bool> EventLog::WaitAfter(uint64_t after, TimePoint deadline) {
  return appended_.WaitUntil([this, after] { return after < next_ - 1 && !events_.empty(); }, deadline);
}

}  // namespace berth
