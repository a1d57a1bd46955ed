// What plugins write: kept, followed, read out.
//
//   <dir>/<id>.log         the plugin's standard output and error, opened for append by the plugin itself, so
//                          that it needs no reader: it neither blocks nor dies while berthd is away. Sparse:
//                          what was read and is older than the kept tail is given back to the file system.
//   <dir>/<id>.log.index   how far it was read, and when (log_index.h)
//
// A line's **position** is where it begins in all that the plugin ever wrote; it grows and never repeats,
// also over restarts of the plugin and of berthd. Readers go on by it.
//
// One PluginLogs, owned by the Supervisor; loop thread only. A worker thread of its own does all file work
// for all plugins, in turn: splitting into lines, stamping (the time is when berthd read it), limits,
// redaction, forwarding to the journal, giving back. No line is held in memory: readers read the kept tail,
// through the worker.
//
// What a line goes through, once, in order: secrets known by then are overwritten *in the file*; a line
// longer than max_line is shown by its first max_line bytes and "… (N bytes cut)" (one above 128 KiB counts
// as several); lines beyond the rate are counted, not shown; what remains is forwarded to the journal, where
// there is one. How far that went is stored after each line, so that a berthd that was killed goes on there:
// no line is lost, and at most the one that was being sent comes twice, with the same BERTH_LOG_POSITION.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "csi/recent_secrets.h"

namespace berth {

// [log] of a plugin's file.
struct LogLimits {
  uint64_t max_line = uint64_t{16} * 1024;  // bytes of a line that are shown; 64 KiB at most
  uint64_t rate = 10'000;                   // lines a second; 0: no limit
  uint64_t burst = 100'000;                 // lines at once, above the rate
  uint64_t keep = uint64_t{1024} * 1024;    // bytes of the tail that stay readable; of 8192 looks at most
  uint64_t max_unread = uint64_t{256} * 1024 * 1024;  // what lies unread beyond is skipped, oldest first
  bool journal = true;                                // forward to the systemd journal, where there is one

  bool operator==(const LogLimits&) const = default;
};

// Largest LogLimits::max_line; more is taken as this.
inline constexpr uint64_t kLogMaxLine = uint64_t{64} * 1024;

struct LogLine {
  uint64_t position = 0;
  uint64_t number = 0;  // of all the plugin's lines, from 0; where the index was lost it began again
  WallTime time;
  std::string text;     // printable, redacted, without its line feed
  bool notice = false;  // berthd's own remark, such as "(1200 lines dropped: …)"
};

// Where a reader stands: its next line begins at or after `position`.
struct LogCursor {
  uint64_t position = 0;
  std::optional<uint64_t> number;  // if known, the missed part can be counted in lines
};

struct LogQuery {
  // Where to begin; the first that is set counts. None: with the oldest line that is kept.
  std::optional<LogCursor> after;  // LogBatch::next of the batch before, or what a client remembered
  std::optional<WallTime> since;   // the first line that was read at or after
  std::optional<uint64_t> last;    // so many lines before the end (0: only those to come)
  // Nothing that begins before, however it is asked (where the present run began, say).
  uint64_t from_position = 0;
  bool follow = false;  // wait until there is a line, or the deadline
  // Of one batch; at least one line is given, whatever its length.
  size_t max_lines = 512;
  size_t max_bytes = size_t{128} * 1024;
};

struct LogBatch {
  std::vector<LogLine> lines;
  // Lines between the cursor asked with and the first one here that are no longer kept, and their bytes.
  // Lines are counted where the cursor had its number, else 0.
  uint64_t missed_lines = 0;
  uint64_t missed_bytes = 0;
  LogCursor next;
  bool at_end = false;  // there was nothing more at that moment
};

// Lines that no reader will see, or that the journal did not get. At most one each ten seconds for a plugin.
struct LogLoss {
  std::string plugin_id;
  std::string text;  // for people: "1200 lines dropped: more than 10000 a second; 3 not taken by the journal"
};

struct PluginLogsOptions {
  // Called on the loop thread.
  std::function<void(const LogLoss&)> on_loss = {};
  std::string journal_socket = "/run/systemd/journal/socket";
  // How often the sizes of silent logs are compared with what was read, should the kernel not have reported a
  // write. One timer for all of them.
  Duration check_interval = std::chrono::seconds(30);
};

class PluginLogs {
 public:
  // `dir` is made when first needed (0700). `secrets` outlives this.
  PluginLogs(asio::any_io_executor executor, std::string dir, const RecentSecrets& secrets,
             PluginLogsOptions options = {});
  // Shutdown() has been awaited, or nothing waits any more. Joins the worker.
  ~PluginLogs();
  PluginLogs(const PluginLogs&) = delete;
  PluginLogs& operator=(const PluginLogs&) = delete;

  // For a launch: the descriptor (append only) for the plugin's standard output and error; begins following.
  // A line that the run before left unfinished is ended. FAILED_PRECONDITION where something else than a
  // file lies at that path (a symlink, a directory, a pipe); else the errno's code; DEADLINE_EXCEEDED.
  [[nodiscard]] Awaitable<absl::StatusOr<UniqueFd>> Open(std::string id, LogLimits limits);
  // For one that runs already: begins following where the last berthd stopped. Errors as above.
  [[nodiscard]] Awaitable<absl::Status> Follow(std::string id, LogLimits limits);
  // From the next line on. Unknown plugins are ignored.
  void Configure(const std::string& id, LogLimits limits);
  // The plugin's main process, for BERTH_PLUGIN_PID in the journal; 0: unknown.
  void SetPid(const std::string& id, pid_t pid);
  // Stops following, once what is there has been read; the files stay.
  void Close(const std::string& id);

  // The position after everything the plugin has written until now: right after Open, where its run begins.
  // 0 where the plugin is not followed.
  [[nodiscard]] uint64_t End(const std::string& id) const;

  // For when a plugin has ended: its last lines from `from_position` on, whatever the rate; at most 20, each
  // of at most 512 bytes. An unfinished last line is ended, and among them. Empty where the run wrote nothing
  // (or nothing but blank lines), and at the deadline.
  [[nodiscard]] Awaitable<std::vector<std::string>> LastLines(std::string id, uint64_t from_position,
                                                              TimePoint deadline);

  // A batch, oldest first. A plugin that is not followed is read as it lies on the disk. NOT_FOUND where
  // there is no log; DEADLINE_EXCEEDED where the disk does not answer. With `follow` an empty batch at the
  // deadline.
  [[nodiscard]] Awaitable<absl::StatusOr<LogBatch>> Read(std::string id, LogQuery query, TimePoint deadline);

  // Stops the worker, having let it finish what it is at. Readers that wait get CANCELLED.
  [[nodiscard]] Awaitable<void> Shutdown();

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

// <state_dir>/logs, and a plugin's file in it.
[[nodiscard]] std::string PluginLogDir(std::string_view state_dir);
[[nodiscard]] std::string PluginLogPath(std::string_view dir, std::string_view id);

}  // namespace berth
