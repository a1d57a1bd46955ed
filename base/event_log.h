// What happened on this node, in order: a bounded ring of numbered events that readers can follow and
// resume by number.
//
// One EventLog per berthd, owned by main, used on the loop thread only. Numbers grow for ever, across
// restarts too, and none is given out twice. They have gaps where events were lost (berthd/event_history.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

struct Event {
  uint64_t sequence = 0;
  WallTime time;
  std::string type;       // dotted, e.g. "plugin.ready", "volume.published"
  std::string plugin_id;  // empty where none is concerned
  std::string volume_id;  // the storage's own id, any bytes; empty where none is concerned
  std::string consumer;
  std::string message;  // for people; holds no secret
};

class EventLog {
 public:
  // Keeps the newest `capacity` events; the first one is numbered `first_sequence`.
  EventLog(asio::any_io_executor executor, size_t capacity, uint64_t first_sequence = 1);

  // Keeps `history`, oldest first, and numbers from `first_sequence` on, which is above all in there. Calls
  // `on_number` with each number before anybody can read its event. Only before the first Append (which
  // numbers are free is known once the journal is open, and its opener already takes an EventLog).
  void BeginAt(uint64_t first_sequence, std::vector<Event> history = {},
               std::function<void(uint64_t)> on_number = nullptr);

  // Numbers and stamps `event`, keeps it, and wakes those who follow. Also logs it at info level.
  void Append(Event event);

  struct Batch {
    std::vector<Event> events;
    // How many numbers after the asked-for one lie before the oldest event that is kept.
    uint64_t missed = 0;
  };
  // Up to `limit` events numbered above `after`. `after` above everything given out so far yields none.
  [[nodiscard]] Batch After(uint64_t after, size_t limit) const;

  // After which number the first event that happened at `time` or later comes: for After.
  [[nodiscard]] uint64_t Before(WallTime time) const;

  // Waits until an event numbered above `after` exists, or `deadline`. Says whether one does.
  [[nodiscard]] Awaitable<bool> WaitAfter(uint64_t after, TimePoint deadline);

  // The number that the next event will get.
  [[nodiscard]] uint64_t next_sequence() const { return next_; }

 private:
  [[nodiscard]] bool AnyAfter(uint64_t sequence) const {
    return !events_.empty() && events_.back().sequence > sequence;
  }

  size_t capacity_;
  uint64_t next_;
  std::deque<Event> events_;
  std::function<void(uint64_t)> on_number_;
  Condition appended_;
};

}  // namespace berth
