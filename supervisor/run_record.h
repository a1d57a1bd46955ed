// What berthd leaves behind about a running plugin, for the next berthd to take it back:
// <runtime_dir>/plugins/<id>/run.toml.
//
// Written before the plugin's program is executed (the child waits at a gate meanwhile, base/process.h), so
// that berthd's death at any moment leaves no unknown plugin; written again once its socket answers, since a
// wrapper script has become the real program by then, and when a request or its file changes what it says;
// removed when the process has ended. Blocking calls on a small local file; any thread. A file that is not
// owned by berthd's user is no record: the directory may be one in which the plugin, as another user, makes
// its socket.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "csi/wanted_token.h"
#include "supervisor/registry.h"

namespace berth {

// How long a few of the small local files may take that belong to a process.
inline constexpr Duration kRunFilesWithin = std::chrono::seconds(10);

struct RunRecord {
  std::string plugin_id;
  PluginKind kind = PluginKind::kMonolith;
  ProcessIdentity process;
  uint64_t group_id = 0;  // PluginCgroup::group_id; 0: not known
  // False: written at the gate. `process.executable` is then berthd's own.
  bool executed = false;
  std::string socket_path;
  std::string config_file;
  std::string launch_fingerprint;  // LaunchFingerprint of the file as it was then
  WallTime started_at;
  uint64_t output_position = 0;  // where in its log this run's output begins
  Duration stop_timeout{};
  uint64_t generation = 0;     // grows with each launch of the plugin
  bool draining = false;       // a person has asked for a drain
  bool keep_children = false;  // what holds /dev/fuse outlives the main process
  bool serves_mounts = false;
  // What it is to be given when it publishes, by the last file that could be read.
  std::vector<WantedToken> tokens;
  bool pod_info = false;
  std::string command;  // for people
  std::string volumes_path;

  bool operator==(const RunRecord&) const = default;
};

[[nodiscard]] std::string RunRecordPath(const std::string& plugin_runtime_dir);

[[nodiscard]] absl::Status WriteRunRecord(const std::string& plugin_runtime_dir, const RunRecord& record);
// NOT_FOUND if it does not exist; INVALID_ARGUMENT if WriteRunRecord did not write it.
[[nodiscard]] absl::StatusOr<RunRecord> ReadRunRecord(const std::string& plugin_runtime_dir);
// OK if it does not exist.
[[nodiscard]] absl::Status RemoveRunRecord(const std::string& plugin_runtime_dir);

// The ids of the plugins that have a record beneath <runtime_dir>/plugins.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> ListRunRecords(const std::string& runtime_dir);

// A plugin's record, written by threads that may have been left behind (base/blocking.h): what a thread
// writes too late, for a process that has ended meanwhile, must not replace the record of the next. Hence
// each process has a generation, and only the newest one's writes count. Blocking; any thread.
class RunRecordFile {
 public:
  explicit RunRecordFile(std::string plugin_runtime_dir) : dir_(std::move(plugin_runtime_dir)) {}

  // Of record.generation; one that is no longer the newest, or was removed, is ABORTED.
  [[nodiscard]] absl::Status Write(const RunRecord& record);
  [[nodiscard]] absl::Status Remove(uint64_t generation);
  [[nodiscard]] absl::StatusOr<RunRecord> Read();

 private:
  const std::string dir_;
  std::mutex mutex_;
  uint64_t newest_ = 0;
  bool removed_ = false;
};

// Whether the process that bears the recorded pid now is the recorded one.
enum class RecordMatch {
  kSame,
  kAtTheGate,  // it is ours, but has not executed its program; without its berthd it ends by itself
  kUnknown,    // another process: never to be touched
  kInDoubt,    // the recorded process itself, yet it runs another program or was moved to another cgroup
};
[[nodiscard]] RecordMatch MatchRecord(const RunRecord& record, const ProcessIdentity& now);

}  // namespace berth
