// A sender of lines to the systemd journal, in its native protocol: one datagram a line, with fields of our
// own (systemd.journal-fields(7)).
//
// The worker thread of PluginLogs alone. Waits a short while for a journal that is busy, once a second at
// most, so that a hung one costs lines and not the worker.
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

  enum class Outcome { kSent, kAbsent, kLost };
  // kAbsent: there is no journal on this machine. kLost: there is one, and it did not take the line.
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
  bool known_ = false;  // there was one, once
};

}  // namespace berth
