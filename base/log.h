// berthd's own log, by spdlog. If systemd reads our stderr, lines go to its journal, with levels; else they
// go to stderr as text. A LogFeed has the lines that followers read. main sets it up once, before any thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kCritical };
[[nodiscard]] std::string_view LogLevelName(LogLevel level);
// INVALID_ARGUMENT for anything but trace, debug, info, warning, error, critical.
[[nodiscard]] absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text);

class LogFeed;

// Whether stderr goes to systemd's journal: it says so in JOURNAL_STREAM, by device and inode, since a parent
// that redirects stderr leaves the variable in the environment (systemd.exec(5)).
[[nodiscard]] bool StderrIsTheJournal();

// `level` is one of trace, debug, info, warning, error, critical, off; anything else is INVALID_ARGUMENT. It
// is the level of stderr or the journal; subscribers of `feed` (null: there is no feed) have their own.
[[nodiscard]] absl::Status InitLog(const std::string& program, std::string_view level,
                                   const std::shared_ptr<LogFeed>& feed = nullptr);

// INVALID_ARGUMENT: InitLog and SetLogLevel do not know this `level`.
[[nodiscard]] absl::Status CheckLogLevel(std::string_view level);
// Another level from now on, of the log that InitLog set up with the same feed. INVALID_ARGUMENT as there:
// then the level stays.
[[nodiscard]] absl::Status SetLogLevel(std::string_view level, const std::shared_ptr<LogFeed>& feed);

struct LogEntry {
  uint64_t sequence = 0;  // of all entries of this run that reached any subscriber
  WallTime time;
  LogLevel level = LogLevel::kInfo;
  std::string text;    // cut at 4 KiB, printable
  std::string source;  // "mounter.cc:120", where it is known
};

// One reader of the log. Loop thread; ends with its destruction.
class LogSubscription {
 public:
  ~LogSubscription();
  LogSubscription(const LogSubscription&) = delete;
  LogSubscription& operator=(const LogSubscription&) = delete;

  struct Batch {
    std::vector<LogEntry> entries;
    uint64_t missed = 0;  // entries before these that the reader was too slow for
  };
  // Waits until there is an entry, or `deadline`: then the batch is empty. Not twice at once.
  [[nodiscard]] Awaitable<Batch> Next(size_t limit, TimePoint deadline);

 private:
  friend class LogFeed;
  struct Queue;
  LogSubscription(std::shared_ptr<LogFeed> feed, std::shared_ptr<Queue> queue);

  std::shared_ptr<LogFeed> feed_;
  std::shared_ptr<Queue> queue_;
};

// berthd's log for followers. Entries come in on any thread and never wait for a reader: each reader has a
// queue of `kQueueLimit`, loses the oldest beyond, and learns how many.
class LogFeed : public std::enable_shared_from_this<LogFeed> {
 public:
  static constexpr size_t kQueueLimit = 1024;

  LogFeed();
  ~LogFeed();

  // Loop thread. Entries of `level` and above from now on; while anybody asks for more than stderr gets, the
  // program logs that much, and stderr still gets its own.
  [[nodiscard]] std::unique_ptr<LogSubscription> Subscribe(asio::any_io_executor executor, LogLevel level);

 private:
  friend class LogSubscription;
  friend absl::Status InitLog(const std::string& program, std::string_view level,
                              const std::shared_ptr<LogFeed>& feed);
  friend absl::Status SetLogLevel(std::string_view level, const std::shared_ptr<LogFeed>& feed);
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace berth
