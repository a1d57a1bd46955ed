// What berthd knows about a plugin's log beyond its bytes: how far it was read, and when. A small file of
// fixed size next to the log, written in place with pwrite, so that a killed berthd leaves it whole (memory
// mapped it would be quicker, but a truncated file would then kill berthd by SIGBUS).
//
//   0     LogState, with a checksum
//   4096  a ring of LogMarks, each with a checksum
//
// A **mark** describes the lines from its position to the next mark's: the first number, when they were read,
// and whether they are shown. The tail that can be read begins at a mark.
//
// The worker thread of PluginLogs. Nothing here is fatal: if the file cannot be written or is damaged, its
// content is kept in memory only, or found again from the log (log_file.h).
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace berth {

// As times stand in it: of the wall clock.
[[nodiscard]] inline int64_t Nanoseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

struct LogState {
  uint64_t position = 0;    // everything before was split, redacted, forwarded
  uint64_t line = 0;        // number of the line that begins there
  uint64_t base = 0;        // position of the file's first byte
  uint64_t first_mark = 0;  // at which the readable tail begins; marks are numbered from 0 for ever
  uint64_t next_mark = 0;
  int64_t time = 0;  // when that was, in nanoseconds of the wall clock
  uint64_t inode = 0;

  bool operator==(const LogState&) const = default;
};

enum class LogRegion : uint32_t {
  kShown = 1,
  kDropped = 2,  // beyond the rate: counted, not shown
  kSkipped = 3,  // never read: too much was unread, or the file was cut off
};

struct LogMark {
  uint64_t position = 0;
  uint64_t line = 0;
  int64_t time = 0;
  LogRegion region = LogRegion::kShown;

  bool operator==(const LogMark&) const = default;
};

class LogIndex {
 public:
  static constexpr uint64_t kMarks = 8192;

  // In memory alone, until it is opened.
  LogIndex();

  // Opens or makes the file. An error (something else lies at the path, no room) is for the log of berthd:
  // the index works on, and remembers nothing beyond this process.
  [[nodiscard]] absl::Status Open(const std::string& path);

  // Whether a state was found that can be believed; marks that cannot are then left out: the state's
  // first_mark equals its next_mark.
  [[nodiscard]] bool found() const { return found_; }
  [[nodiscard]] const LogState& state() const { return state_; }
  // To be stored by the next Store or Add.
  [[nodiscard]] LogState& mutable_state() { return state_; }

  void Store();
  // Appends a mark; beyond kMarks the first is forgotten. Stores.
  void Add(const LogMark& mark);
  // Those from first_mark on, oldest first.
  [[nodiscard]] std::vector<LogMark> Marks() const;
  // The first of them, or the state's position if there are no marks.
  [[nodiscard]] const LogMark& first() const { return first_; }
  // Forgets marks before `number`.
  void ForgetBefore(uint64_t number);

 private:
  [[nodiscard]] bool ReadMark(uint64_t number, LogMark* mark) const;
  void LoadFirst();

  UniqueFd fd_;
  LogState state_;
  LogMark first_;
  bool found_ = false;
};

}  // namespace berth
