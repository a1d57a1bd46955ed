// What happened on this node, in order: a bounded ring of numbered events that readers can follow and
// resume by number.
//
// One EventLog per berthd, owned by main, used on the loop thread only. Numbers grow for ever, across
// restarts too: main begins each run at a number that is durably above all that were given out before.
#pragma once

#include <cstdint>
#include <deque>
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

  // Numbers from `first_sequence` on. Only before the first Append (which numbers are free is known once the
  // journal is open, and its opener already wants somewhere to tell events).
  void BeginAt(uint64_t first_sequence);

  // Numbers and stamps `event`, keeps it, and wakes those who follow. Also logs it at info level.
  void Append(Event event);

  struct Batch {
    std::vector<Event> events;
    // How many events after the asked-for number are no longer kept (their number, not a guess).
    uint64_t missed = 0;
  };
  // Up to `limit` events numbered above `after`. `after` above everything given out so far yields none.
  [[nodiscard]] Batch After(uint64_t after, size_t limit) const;

  // Waits until an event numbered above `after` exists, or `deadline`. Says whether one does.
  [[nodiscard]] Awaitable<bool> WaitAfter(uint64_t after, TimePoint deadline);

  // The number that the next event will get.
  [[nodiscard]] uint64_t next_sequence() const { return next_; }

 private:
  size_t capacity_;
  uint64_t next_;
  std::deque<Event> events_;
  Condition appended_;
};

}  // namespace berth
