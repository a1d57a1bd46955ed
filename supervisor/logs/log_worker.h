// The thread that does all file work of PluginLogs: follows every log, in turn, and does what it is asked
// in between.
//
// A silent log costs nothing: its file is watched by inotify, once. After that event the log is looked at
// on a timer, so that a chatty plugin does not pay for being watched with each write, until a look
// finds nothing new; then it is watched again, and looked at once more.
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

  // `tell` is called on the worker.
  LogWorker(std::string dir, const RecentSecrets& secrets, std::string journal_socket,
            std::function<void(News)> tell);
  // Stops at the next chunk, and joins. What was posted and not begun is let go.
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
    kIdle,     // watched; at look_at, settle
  };
  struct Log {
    std::unique_ptr<LogIntake> intake;
    Phase phase = Phase::kBusy;
    TimePoint look_at;
    uint64_t seen_end = 0;
    uint64_t told = 0;  // position
    TimePoint tell_loss_at;
  };

  void Run();
  // Says whether there is more to do at once.
  [[nodiscard]] bool RunPosted();
  void Look(const std::string& id, Log& log);
  void BeginIdle(const std::string& id, Log& log);
  void Settle(const std::string& id, Log& log);
  void Tell(const std::string& id, Log& log);
  void Wait(TimePoint until);
  void TakeWatchEvents();

  const std::string dir_;
  const RecentSecrets& secrets_;
  const std::function<void(News)> tell_;
  LogJournal journal_;
  UniqueFd wake_;
  UniqueFd inotify_;
  std::vector<char> buffer_;
  std::map<std::string, Log> logs_;
  std::map<int, std::string> watches_;
  bool said_no_watch_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::function<void()> stopped_;
  bool stop_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace berth
