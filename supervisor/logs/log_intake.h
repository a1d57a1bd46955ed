// What a plugin's lines go through when they are read for the first time, in order: secrets are overwritten
// in the file, the rate is kept, what is shown goes to the journal; and after each line it is stored how far
// that went. One step handles one chunk, so that a worker with many logs takes them in turn.
//
// The worker thread of PluginLogs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csi/recent_secrets.h"
#include "supervisor/logs/log_file.h"
#include "supervisor/logs/log_journal.h"
#include "supervisor/logs/log_lines.h"
#include "supervisor/logs/plugin_log.h"

namespace berth {

class LogIntake {
 public:
  LogIntake(std::string plugin_id, std::unique_ptr<LogFile> file, const LogLimits& limits);

  void Configure(const LogLimits& limits);
  void SetPid(pid_t pid) { pid_ = pid; }

  // Handles one chunk, if there is one. kCaughtUp: no whole line was left unread. kBlocked: the journal is
  // busy.
  enum class Step { kMore, kCaughtUp, kBlocked };
  [[nodiscard]] Step Run(const RecentSecrets& secrets, LogJournal& journal, LogBuffer buffer);

  // The plugin is silent: reports to the journal what was dropped until now, and frees old parts.
  void Settle(LogJournal& journal);

  [[nodiscard]] LogFile& file() { return *file_; }
  [[nodiscard]] const LogLimits& limits() const { return limits_; }
  // Where the file ended when last looked at.
  [[nodiscard]] uint64_t end() const { return end_; }

  // What was lost since TakeLosses, for people.
  [[nodiscard]] bool any_losses() const {
    return losses_.dropped_lines + losses_.skipped_bytes + losses_.not_in_journal > 0;
  }
  [[nodiscard]] std::string TakeLosses();

 private:
  void HideSecrets(const SecretSet& secrets, std::string_view text, size_t whole, LogBuffer buffer);
  // These three say whether the journal was not busy.
  [[nodiscard]] bool Handle(std::string_view line, const LogSpan& span, WallTime now, LogJournal& journal);
  bool ReportDropped(LogJournal& journal);
  bool ToJournal(std::string_view message, int priority, uint64_t position, LogJournal& journal);

  std::string id_;
  std::unique_ptr<LogFile> file_;
  LogLimits limits_;
  LogRate rate_;
  pid_t pid_ = 0;
  uint64_t end_ = 0;
  std::vector<LogSpan> spans_;
  std::optional<bool> admitted_;  // the line at state().position, if that was decided already
  uint64_t dropped_untold_ = 0;
  struct Losses {
    uint64_t dropped_lines = 0;
    uint64_t skipped_bytes = 0;
    uint64_t not_in_journal = 0;
  } losses_;
};

}  // namespace berth
