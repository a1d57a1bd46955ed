#include "base/event_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/status.h"

namespace berth {

EventLog::EventLog(asio::any_io_executor executor, size_t capacity, uint64_t first_sequence)
    : capacity_(std::max<size_t>(capacity, 1)),
      next_(std::max<uint64_t>(first_sequence, 1)),
      appended_(std::move(executor)) {}

void EventLog::BeginAt(uint64_t first_sequence, std::vector<Event> history,
                       std::function<void(uint64_t)> on_number) {
  next_ = std::max(next_, first_sequence);
  on_number_ = std::move(on_number);
  const size_t left_out = history.size() - std::min(history.size(), capacity_);
  events_.assign(std::make_move_iterator(history.begin() + static_cast<ptrdiff_t>(left_out)),
                 std::make_move_iterator(history.end()));
}

void EventLog::Append(Event event) {
  event.sequence = next_++;
  if (on_number_) on_number_(event.sequence);
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
  if (!AnyAfter(after)) return batch;
  const uint64_t oldest = events_.front().sequence;
  if (after + 1 < oldest) batch.missed = oldest - after - 1;
  const auto begin =
      std::ranges::upper_bound(events_, after, {}, [](const Event& event) { return event.sequence; });
  const auto count = std::min(static_cast<ptrdiff_t>(limit), events_.end() - begin);
  batch.events.assign(begin, begin + count);
  return batch;
}

uint64_t EventLog::Before(WallTime time) const {
  // Not a binary search: the clock may have been set back.
  const auto first = std::ranges::find_if(events_, [time](const Event& event) { return event.time >= time; });
  return first == events_.end() ? next_ - 1 : first->sequence - 1;
}

Awaitable<bool> EventLog::WaitAfter(uint64_t after, TimePoint deadline) {
  return appended_.WaitUntil([this, after] { return AnyAfter(after); }, deadline);
}

}  // namespace berth
