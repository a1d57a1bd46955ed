// A sender of lines to the systemd journal, in its native protocol: one datagram a line, with fields of our
// own (systemd.journal-fields(7)).
//
// The worker thread of PluginLogs alone. A journal that is busy is given some seconds, in which lines wait
// in the plugins' files; one that hangs for longer costs lines, and never the worker.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace berth {

struct JournalLine {
  std::string_view message;  // printable, of one line
  int priority = 6;
  std::string_view plugin_id;
  uint64_t position = 0;
  pid_t pid = 0;  // 0: unknown
};

class LogJournal {
 public:
  explicit LogJournal(std::string socket_path) : path_(std::move(socket_path)) {}

  // kAbsent: there is no journal on this machine. kBusy: try again, the line was not taken yet. kLost: there
  // is a journal, but it has taken nothing for 5 s, or does not take this line.
  enum class Outcome { kSent, kAbsent, kBusy, kLost };
  [[nodiscard]] Outcome Send(const JournalLine& line);

  // Whether there was one when it was last looked for.
  [[nodiscard]] bool present() const { return socket_.valid(); }

 private:
  [[nodiscard]] bool Connect();

  std::string path_;
  UniqueFd socket_;
  std::string datagram_;
  TimePoint connect_again_at_{};
  TimePoint wait_again_at_{};
  TimePoint busy_since_{};  // unset while it takes lines
  bool known_ = false;      // there was one, once
};

}  // namespace berth
