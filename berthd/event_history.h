// Keeps the events of this node, and their numbers, across restarts of berthd.
//
//   <state_dir>/events           one line an event, appended; at 1 MiB it becomes events.old. An orderly end
//                                appends the line "ended", which the next start removes. 0600
//   <state_dir>/events.old       the half before. 0600
//   <runtime_dir>/event-number   this boot's id and the last number that was given out. 0600
//
// Events are appended as they come, on a helper thread and without waiting for the disk: nothing waits for
// it. No number is used twice. The first number after a start follows
//
//   event-number         in the same boot: it is on a tmpfs, and written before anybody sees the event
//   the last line kept   after an orderly end, or where there is no history at all (then it is 1)
//   neither              after a power cut or a panic events may have been seen that are not kept: the last
//                        kept number + 1,000,000, or the milliseconds since 1970 if that is more
//
// Events that were seen and not written yet when berthd was killed are lost, a few milliseconds at most.
// Numbers that are left out or lost are reported by an event, "node.events_lost". A torn last line is
// ignored; lines that cannot be read are skipped and reported ("node.events_damaged"). A full disk costs the
// history, and nothing else: the events stay in memory, and are written once there is space.
//
// One per Berthd; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"

namespace berth {

// An event as a line of the file, with its line feed, and back. Times and all bytes are kept exactly.
[[nodiscard]] std::string EventLine(const Event& event);
[[nodiscard]] std::optional<Event> ParseEventLine(std::string_view line);

class EventHistory {
 public:
  // `events` outlives it.
  EventHistory(std::string state_dir, std::string runtime_dir, EventLog& events);
  ~EventHistory();

  // Has `events` go on with the history. What cannot be read costs the history.
  [[nodiscard]] Awaitable<void> Begin();
  // Writes events as they come. Runs until it is cancelled.
  [[nodiscard]] Awaitable<void> Write();
  // Writes what is not written yet, after the last event, and that this is the end.
  [[nodiscard]] Awaitable<void> End(TimePoint deadline);

 private:
  class File;
  [[nodiscard]] Awaitable<absl::Status> WriteNow(TimePoint deadline);

  const std::string state_dir_;
  const std::string runtime_dir_;
  EventLog& events_;
  std::shared_ptr<File> file_;  // shared with the helper thread
  bool begun_ = false;
  uint64_t written_ = 0;
};

}  // namespace berth
