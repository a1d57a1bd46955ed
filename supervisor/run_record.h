// What berthd leaves behind about a running plugin, for the next berthd to take it back:
// <runtime_dir>/plugins/<id>/run.toml.
//
// Written before the plugin's program is executed (the child waits at a gate meanwhile, base/process.h), so
// that berthd's death at any moment leaves no plugin that nobody knows of; written again once its socket
// answers, since a wrapper script has become the real program by then; removed when the process has ended.
// Blocking calls on a small local file; loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "supervisor/registry.h"

namespace berth {

struct RunRecord {
  std::string plugin_id;
  PluginKind kind = PluginKind::kMonolith;
  ProcessIdentity process;
  // False: written at the gate. `process.executable` is then berthd's own.
  bool executed = false;
  std::string socket_path;
  std::string config_file;
  std::string launch_fingerprint;  // LaunchFingerprint of the file as it was then
  WallTime started_at;
  uint64_t output_offset = 0;  // where in its log this run's output begins
  Duration stop_timeout{};

  bool operator==(const RunRecord&) const = default;
};

[[nodiscard]] std::string RunRecordPath(const std::string& plugin_runtime_dir);

[[nodiscard]] absl::Status WriteRunRecord(const std::string& plugin_runtime_dir, const RunRecord& record);
// NOT_FOUND where there is none; INVALID_ARGUMENT where it is not what WriteRunRecord writes.
[[nodiscard]] absl::StatusOr<RunRecord> ReadRunRecord(const std::string& plugin_runtime_dir);
// OK where there is none.
[[nodiscard]] absl::Status RemoveRunRecord(const std::string& plugin_runtime_dir);

// The ids of the plugins that have a record beneath <runtime_dir>/plugins.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> ListRunRecords(const std::string& runtime_dir);

// Whether the process that bears the recorded pid now is the recorded one.
enum class RecordMatch {
  kSame,
  kAtTheGate,  // it is ours, but has not executed its program; without its berthd it ends by itself
  kStranger,   // another process: never to be touched
  kInDoubt,    // the recorded process itself, yet it runs another program or was moved to another cgroup
};
[[nodiscard]] RecordMatch MatchRecord(const RunRecord& record, const ProcessIdentity& now);

}  // namespace berth
