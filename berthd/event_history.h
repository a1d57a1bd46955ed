// Keeps the events of this node, and their numbers, across restarts of berthd.
//
//   <state_dir>/events       one line an event, appended; at 1 MiB it becomes events.old. 0600
//   <state_dir>/events.old   the half before. 0600
//   <runtime_dir>/event-number   this boot's id and the last number that was given out. 0600
//   the journal              numbers are reserved there in blocks, durably
//
// Events are appended as they come, on a helper thread and without waiting for the disk: nothing waits for
// it. No number is used twice, whatever happens:
//
//   berthd restarts, or is killed   event-number (on a tmpfs, written before anybody sees the event): go on
//   there the machine is rebooted         the journal: an orderly end has released the numbers that were not
//   used power cut, panic                the journal: the end of the reserved block. This leaves numbers out
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
#include "mounter/mounter.h"

namespace berth {

// An event as a line of the file, with its line feed, and back. Times and all bytes are kept exactly.
[[nodiscard]] std::string EventLine(const Event& event);
[[nodiscard]] std::optional<Event> ParseEventLine(std::string_view line);

class EventHistory {
 public:
  // All outlive it.
  EventHistory(std::string state_dir, std::string runtime_dir, Mounter& mounter, EventLog& events);
  ~EventHistory();

  // Reserves numbers, and has `events` go on with the history. What cannot be read costs the history. Errors:
  // the journal's.
  [[nodiscard]] Awaitable<absl::Status> Begin();
  // Writes events as they come. Runs until it is cancelled.
  [[nodiscard]] Awaitable<void> Write();
  // Reserves the next block of numbers long before this one is used up. Runs until it is cancelled.
  [[nodiscard]] Awaitable<void> ReserveNumbers();
  // Writes what is not written yet, after the last event.
  [[nodiscard]] Awaitable<void> End(TimePoint deadline);

 private:
  class File;
  [[nodiscard]] Awaitable<absl::Status> WriteNow(TimePoint deadline);

  const std::string state_dir_;
  const std::string runtime_dir_;
  Mounter& mounter_;
  EventLog& events_;
  std::shared_ptr<File> file_;  // shared with the helper thread
  uint64_t reserved_end_ = 0;
  uint64_t written_ = 0;
};

}  // namespace berth
