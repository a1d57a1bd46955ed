// One process of a plugin, from its launch (or from when it was taken back) to its end: the process, its
// cgroup, its output, its socket, and its record on the disk.
//
// Owned by a PluginRunner; loop thread only. Decides nothing about when: it launches, signals and ends on
// request, and reports to its owner, through InstanceSinks, that its socket answers and that it has ended.
// What blocks (names, files, records) runs off the loop, under deadlines.
//
//   Launch ──▶ Watch ──on_socket──▶ Announced ──on_exit──▶ End
//   TakeBack ──▶  │                                │
//                 └────────── LetGo: berthd goes, the process stays
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/task_scope.h"
#include "csi/recent_secrets.h"
#include "supervisor/cgroups/plugin_cgroup.h"
#include "supervisor/child_policy.h"
#include "supervisor/logs/plugin_log.h"
#include "supervisor/plugin_config.h"
#include "supervisor/run_record.h"
#include "supervisor/served_socket.h"

namespace berth {

// What the processes of all plugins share; outlives them. The placer is there before the first launch.
struct InstanceContext {
  asio::any_io_executor executor;
  PluginPaths paths;
  std::unique_ptr<CgroupProvider> cgroups;
  PluginLogs& logs;
  RecentSecrets& secrets;
  // Called with the user of a plugin's process, known by its socket, before it can call anybody; unset: it
  // has ended, or runs as berthd's own user. Not when berthd ends and the plugin runs on. May be empty.
  std::function<void(const std::string& socket_path, std::optional<uid_t> user)> on_user;
};

// Called on the loop from a task of the instance: not to end it from there. Each at most once, unless it says
// otherwise.
struct InstanceSinks {
  std::function<void(ExitStatus)> on_exit;
  // OK: the plugin accepts connections. Else it cannot be waited for, and why.
  std::function<void(absl::Status)> on_socket;
  // Before that, and more than once: another process serves the socket, which is not used. May be empty.
  std::function<void(const std::string& why)> on_foreign_socket;
};

// All that can be known of an end.
struct InstanceEnd {
  ExitStatus exit;
  std::string how;  // "signal 9 (Killed)", "killed: out of memory (its limit is 64 MiB)"
  std::vector<std::string> last_output;

  [[nodiscard]] bool clean() const { return exit.known && exit.signal == 0 && exit.code == 0; }
  // With the last line, where there is one; with all the last lines, for who waits for a new program to
  // serve.
  [[nodiscard]] std::string Describe() const;
  [[nodiscard]] std::string DescribeAtLength() const;
};

struct InstanceLaunch {
  PluginConfig config;
  uint64_t generation = 0;
  bool draining = false;
};

class PluginInstance {
 public:
  // Errors are the launch's: the message says what was attempted. Nothing is left behind then.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::unique_ptr<PluginInstance>>> Launch(
      InstanceContext& context, std::shared_ptr<RunRecordFile> file, InstanceLaunch launch,
      TimePoint deadline);

  struct Recovered {
    std::unique_ptr<PluginInstance> instance;  // it runs, and is ours again
    std::optional<InstanceEnd> ended;          // or it has ended meanwhile
    std::string unknown;                       // or another process has its number: what it is
  };
  // The process of `record`. `file` is removed unless it runs. Errors: a process exists, and it is not known
  // whether it is the recorded one, so that no second one may be launched.
  [[nodiscard]] static Awaitable<absl::StatusOr<Recovered>> TakeBack(InstanceContext& context,
                                                                     std::shared_ptr<RunRecordFile> file,
                                                                     RunRecord record, LogLimits log);

  ~PluginInstance();
  PluginInstance(const PluginInstance&) = delete;
  PluginInstance& operator=(const PluginInstance&) = delete;

  void Watch(InstanceSinks sinks);

  [[nodiscard]] pid_t pid() const { return process_->pid(); }
  // As it is written down, or is about to be.
  [[nodiscard]] const RunRecord& record() const { return record_; }
  // Where it lives, and limits that are not enforced there (empty: all hold).
  [[nodiscard]] std::string placement() const;
  [[nodiscard]] std::string unenforced() const;

  // SIGTERM; a process that is stopped (SIGSTOP) is made to notice it.
  void Terminate();
  // SIGKILL to it and its group; what may be kept lives.
  void Kill();

  // A wrapper script has become the program that serves the socket by now: what the next berthd compares is
  // written down again, in the background.
  void Announced();
  // Why its socket's path does not lead to it any more; empty: it does. After Announced.
  [[nodiscard]] std::string SocketTrouble() { return socket_path_.Trouble(); }
  // Changes the record, in the background: one write at a time, whatever comes meanwhile going into the next.
  void Note(std::function<void(RunRecord&)> change);

  // Once on_exit was called: how it ended, the rest of its tree ended as child_policy.h says, its record
  // removed. Within a few seconds whatever hangs.
  [[nodiscard]] Awaitable<InstanceEnd> End(ExitStatus exit, TreeOccasion occasion);
  // Leaves the process, which runs on, once pending notes are written down: this berthd must not write into
  // the record of the next one.
  [[nodiscard]] Awaitable<void> LetGo();

 private:
  // The recorded process has ended: what it has left behind is ended, too.
  [[nodiscard]] static Awaitable<absl::StatusOr<Recovered>> EndTakenBack(
      std::unique_ptr<PluginInstance> instance, ExitStatus exit);
  PluginInstance(InstanceContext& context, std::shared_ptr<RunRecordFile> file);

  // What is done while the child waits at the gate.
  struct Gate;

  Awaitable<void> WatchExit(InstanceSinks sinks);
  Awaitable<void> WatchSocket(InstanceSinks sinks);
  // Why the socket is not the plugin's own; empty: it is, as far as that can be known.
  Awaitable<std::string> WhyForeign(ServedSocket served);
  void ReportUser(std::optional<uid_t> user) const;
  Awaitable<void> RecordExecuted();
  Awaitable<void> WriteNotes();
  Awaitable<void> EndChildren(TreeOccasion occasion, TimePoint deadline);
  Awaitable<void> RemoveRecord();

  InstanceContext& context_;
  std::shared_ptr<RunRecordFile> file_;
  RunRecord record_;
  std::unique_ptr<PluginCgroup> cgroup_;
  std::unique_ptr<Process> process_;
  SocketPath socket_path_;
  TaskScope tasks_;
  // Of the changes that Note has made, those written down.
  TaskScope notes_;
  bool noting_ = false;
  uint64_t noted_ = 0;
};

}  // namespace berth
