#include "controller/volume_call_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"

namespace berth {

Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> VolumeCallQueue::Wait(std::vector<CallKey> keys,
                                                                       TimePoint deadline,
                                                                       const void* owner) {
  return Wait(std::move(keys), [deadline] { return deadline; }, owner);
}

Awaitable<absl::StatusOr<VolumeCallQueue::Turn>> VolumeCallQueue::Wait(std::vector<CallKey> keys, Until until,
                                                                       const void* owner) {
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const CallKey& key : keys) {
    const auto line = lines_.find(key);
    if (line != lines_.end() && line->second.size() > kWaiting) {
      co_return absl::ResourceExhaustedError(
          fmt::format("{} calls about {} wait already", kWaiting, PrintableName(key.id)));
    }
  }
  // From here on it stands in line; however this ends, its end takes it out.
  Turn turn(*this, std::make_unique<Ticket>(std::move(keys), owner, executor_));
  Ticket* const ticket = turn.ticket_.get();
  for (const CallKey& key : ticket->keys) lines_[key].push_back(ticket);
  TimePoint deadline = until();
  while (!co_await ticket->moved.WaitUntil([this, ticket] { return IsFirst(*ticket); }, deadline)) {
    deadline = until();
    if (deadline > Clock::now()) continue;
    co_return absl::DeadlineExceededError(
        fmt::format("an earlier call about {} goes on still", PrintableName(ticket->keys.front().id)));
  }
  co_return turn;
}

bool VolumeCallQueue::IsLast(const std::vector<CallKey>& keys, const void* owner) const {
  return std::ranges::all_of(keys, [this, owner](const CallKey& key) {
    const auto line = lines_.find(key);
    return line == lines_.end() || line->second.back()->owner == owner;
  });
}

bool VolumeCallQueue::IsFirst(const Ticket& ticket) const {
  return std::ranges::all_of(
      ticket.keys, [this, &ticket](const CallKey& key) { return lines_.at(key).front() == &ticket; });
}

void VolumeCallQueue::Leave(const Ticket& ticket) {
  for (const CallKey& key : ticket.keys) {
    const auto line = lines_.find(key);
    std::erase(line->second, &ticket);
    if (line->second.empty()) {
      lines_.erase(line);
    } else {
      line->second.front()->moved.NotifyAll();
    }
  }
}

}  // namespace berth
