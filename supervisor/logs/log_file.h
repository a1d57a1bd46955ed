// One plugin's log on the disk: <id>.log and its index. Knows positions, marks, what can still be read, and
// how old parts are freed. log_intake.h handles a line that is read for the first time.
//
// The file is sparse. A position is the file's offset plus a base, which is 0 until the file is truncated or
// replaced: then positions go on, and what was lost is a gap.
//
//   position   0 …………………… first ………………………… next ……………… end
//                freed            readable         not read yet
//
// If the file system cannot punch holes, the file is truncated to nothing instead, once it is above 16 MiB
// and everything in it was read: readers then lose the tail, and a line that is written in that very moment
// may be lost. That is logged once.
//
// The worker thread of PluginLogs. Blocks, on local disk.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "supervisor/logs/log_index.h"

namespace berth {

// Room for one chunk, shared by all logs of a worker.
using LogBuffer = std::span<char>;

class LogFile {
 public:
  // NOT_FOUND if it does not exist, unless `create`. FAILED_PRECONDITION if it is not a regular file; else
  // the errno's code. Without a usable index, existing content counts as read: it can be read out (stamped
  // with the file's time), and is not forwarded again.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LogFile>> Open(const std::string& path, bool create);

  // A descriptor that appends.
  [[nodiscard]] absl::StatusOr<UniqueFd> OpenToAppend() const;
  // Ends a last line without a line feed: it will not be completed.
  [[nodiscard]] absl::Status EndUnfinishedLine();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const LogState& state() const { return index_.state(); }
  [[nodiscard]] uint64_t first_position() const { return index_.first().position; }
  [[nodiscard]] uint64_t first_line() const { return index_.first().line; }
  // The position after what is written now. Notices here that the file was cut off.
  [[nodiscard]] uint64_t End(WallTime now);

  // For the intake, at state().position:
  // What is written there, as far as it fits.
  [[nodiscard]] std::string_view Read(uint64_t position, LogBuffer buffer) const;
  // Overwrites with asterisks in the file.
  void Redact(uint64_t position, size_t size);
  // What follows was read at `now` and is of this kind.
  void Mark(LogRegion region, WallTime now);
  [[nodiscard]] const LogMark& last_mark() const { return last_mark_; }
  void Advance(uint64_t bytes, uint64_t lines) {
    index_.mutable_state().position += bytes;
    index_.mutable_state().line += lines;
  }
  void Store(WallTime now);
  // Leaves out what lies before `position`, up to the next line.
  void SkipTo(uint64_t position, LogBuffer buffer, WallTime now);

  // Gives back what is older than the last `keep` bytes that were read, if that is more than `slack`.
  void PunchHole(uint64_t keep, uint64_t slack);

  // What can be read, oldest first: never empty; each mark says what lies between it and the next one, the
  // last one what lies between it and state().position.
  [[nodiscard]] std::vector<LogMark> Marks() const { return index_.Marks(); }

 private:
  LogFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  void Adopt(uint64_t size, uint64_t inode, WallTime modified);
  void BeginAgain(uint64_t inode, WallTime now);
  void Punch(uint64_t begin, uint64_t end);
  void Truncate();

  std::string path_;
  UniqueFd fd_;
  LogIndex index_;
  LogMark last_mark_;
  uint64_t given_back_ = 0;  // up to this offset
  bool cannot_punch_ = false;
};

}  // namespace berth
