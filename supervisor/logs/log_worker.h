// The thread that does all file work of PluginLogs: follows every log, in turn, and does what it is asked
// in between.
//
// A silent log costs nothing: its file is watched by inotify. With the first event the watch is removed and
// the log is read on a timer, so that a chatty plugin does not pay for being watched with each write. Once
// nothing new is found the file is watched again, and its size is compared once more.
//
// No lost event stops a reader. Only this thread removes a watch, and it forgets the descriptor first, so an
// IN_IGNORED that comes later is about no watch that counts; one about a watch that counts makes the log be
// read. IN_ONESHOT would not do: there the kernel removes the watch after it has queued the event, and a new
// watch that is added in between is the old one, and is removed with it. For all that is not thought of, one
// timer compares the sizes of all silent logs with what was read.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "supervisor/logs/log_intake.h"
#include "supervisor/logs/log_journal.h"

namespace berth {

class LogWorker {
 public:
  struct News {
    std::string plugin_id;
    uint64_t position = 0;  // up to which everything was handled
    uint64_t end = 0;       // where the file ended
    std::string loss;       // empty: nothing was lost
  };

  // `tell` is called on the worker. Silent logs are compared with what was read every `check_interval`.
  LogWorker(std::string dir, const RecentSecrets& secrets, std::string journal_socket,
            Duration check_interval, std::function<void(News)> tell);
  // Stops at the next chunk, and joins. What was posted and not begun is dropped.
  ~LogWorker();
  LogWorker(const LogWorker&) = delete;
  LogWorker& operator=(const LogWorker&) = delete;

  // Any thread. RESOURCE_EXHAUSTED where too much waits already.
  [[nodiscard]] absl::Status Post(std::function<void()> work);
  // Any thread: ends the thread, which calls `stopped` last.
  void Stop(std::function<void()> stopped);

  // The rest on the worker, in what was posted.

  // Begins following, unless it does so already, and takes `limits` if there are any.
  [[nodiscard]] absl::StatusOr<LogIntake*> Follow(const std::string& id, const LogLimits* limits,
                                                  bool create);
  [[nodiscard]] LogIntake* Find(const std::string& id);
  // Reads what is there now, within bounds.
  void CatchUp(const std::string& id);
  void Close(const std::string& id);
  [[nodiscard]] const RecentSecrets& secrets() const { return secrets_; }
  [[nodiscard]] LogBuffer buffer() { return buffer_; }

 private:
  enum class Phase {
    kBusy,     // look at once
    kResting,  // look at look_at: it was written to a moment ago
    kIdle,     // watched, and nothing was unread; at look_at, settle
  };
  struct Log {
    std::unique_ptr<LogIntake> intake;
    Phase phase = Phase::kBusy;
    TimePoint look_at;
    int watch = -1;  // while it is kIdle
    uint64_t seen_end = 0;
    uint64_t told = 0;  // position
    TimePoint tell_loss_at;
  };

  void Run();
  // Says whether there is more to do at once.
  [[nodiscard]] bool RunPosted();
  void Look(const std::string& id, Log& log);
  void BeginIdle(const std::string& id, Log& log);
  // It is read at once.
  void Wake(Log& log);
  void Unwatch(Log& log);
  void CheckIdle();
  void Settle(const std::string& id, Log& log);
  void Tell(const std::string& id, Log& log);
  void Wait(TimePoint until);
  void TakeWatchEvents();

  const std::string dir_;
  const RecentSecrets& secrets_;
  const Duration check_interval_;
  const std::function<void(News)> tell_;
  LogJournal journal_;
  UniqueFd wake_;
  UniqueFd inotify_;
  std::vector<char> buffer_;
  std::map<std::string, Log> logs_;
  std::map<int, std::string> watches_;
  TimePoint next_check_;
  bool said_no_watch_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::function<void()> stopped_;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace berth
