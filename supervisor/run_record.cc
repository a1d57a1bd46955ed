#include "supervisor/run_record.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "base/file.h"
#include "base/status.h"
#include "base/toml_reader.h"
#include "supervisor/plugin_config.h"

namespace berth {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kRecordLimit = 256 * size_t{1024};

int64_t Milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// Takes typed values out of a table, and remembers whether one was missing.
class Fields {
 public:
  explicit Fields(const toml::table& table) : table_(table) {}

  template <class T>
  T Take(std::string_view key) {
    std::optional<T> value = table_[key].value<T>();
    if (!value.has_value() && missing_.empty()) missing_ = key;
    return std::move(value).value_or(T{});
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  const toml::table& table_;
  std::string missing_;
};

// As in a plugin's file.
constexpr std::string_view kInSecrets = "secrets";
constexpr std::string_view kInVolumeContext = "volume_context";

toml::array TokensTable(const std::vector<WantedToken>& tokens) {
  toml::array tables;
  for (const WantedToken& token : tokens) {
    toml::table table;
    table.insert("audience", token.audience);
    table.insert("name", token.name);
    table.insert("in", token.place == WantedToken::Place::kSecrets ? kInSecrets : kInVolumeContext);
    table.insert("republish", token.republish);
    if (token.kubernetes) table.insert("kubernetes", true);
    tables.push_back(std::move(table));
  }
  return tables;
}

// Where there are none, none are wanted.
absl::StatusOr<std::vector<WantedToken>> ReadTokensTable(const toml::table& record) {
  std::vector<WantedToken> tokens;
  const toml::array* tables = record["token"].as_array();
  if (tables == nullptr) return tokens;
  for (const toml::node& each : *tables) {
    if (!each.is_table()) return absl::InvalidArgumentError("token is no table");
    Fields fields(*each.as_table());
    WantedToken token;
    token.audience = fields.Take<std::string>("audience");
    token.name = fields.Take<std::string>("name");
    const auto place = fields.Take<std::string>("in");
    token.republish = fields.Take<bool>("republish");
    token.kubernetes = (*each.as_table())["kubernetes"].value_or(false);
    if (!fields.missing().empty()) {
      return absl::InvalidArgumentError(fmt::format("token.{} is missing", fields.missing()));
    }
    if (place != kInSecrets && place != kInVolumeContext) {
      return absl::InvalidArgumentError(fmt::format("token.in is \"{}\"", Printable(place, 64)));
    }
    if (place == kInVolumeContext) token.place = WantedToken::Place::kVolumeContext;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

std::string RunRecordPath(const std::string& plugin_runtime_dir) { return plugin_runtime_dir + "/run.toml"; }

absl::Status WriteRunRecord(const std::string& plugin_runtime_dir, const RunRecord& record) {
  toml::table table;
  table.insert("format", kFormat);
  table.insert("plugin_id", record.plugin_id);
  table.insert("kind", std::string(PluginKindName(record.kind)));
  table.insert("pid", int64_t{record.process.pid});
  table.insert("boot_id", record.process.boot_id);
  table.insert("start_time", static_cast<int64_t>(record.process.start_time));
  table.insert("executable", record.process.executable);
  table.insert("cgroup", record.process.cgroup);
  table.insert("group_id", static_cast<int64_t>(record.group_id));
  table.insert("executed", record.executed);
  table.insert("socket_path", record.socket_path);
  table.insert("config_file", record.config_file);
  table.insert("launch_fingerprint", record.launch_fingerprint);
  table.insert("started_at_ms", Milliseconds(record.started_at.time_since_epoch()));
  table.insert("output_offset", static_cast<int64_t>(record.output_position));
  table.insert("stop_timeout_ms", Milliseconds(record.stop_timeout));
  table.insert("generation", static_cast<int64_t>(record.generation));
  table.insert("draining", record.draining);
  table.insert("keep_children", record.keep_children);
  table.insert("serves_mounts", record.serves_mounts);
  table.insert("command", record.command);
  table.insert("volumes_path", record.volumes_path);
  table.insert("token", TokensTable(record.tokens));
  table.insert("pod_info", record.pod_info);
  std::ostringstream text;
  text << table << '\n';
  return WriteFileAtomic(RunRecordPath(plugin_runtime_dir), text.str(), 0600);
}

absl::StatusOr<RunRecord> ReadRunRecord(const std::string& plugin_runtime_dir) {
  const std::string path = RunRecordPath(plugin_runtime_dir);
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("read {}", path));
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return absl::InvalidArgumentError(fmt::format("read {}: it is not berthd's own file", path));
  }
  BERTH_ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kRecordLimit));
  BERTH_ASSIGN_OR_RETURN(const toml::table table, ParseToml(path, content));
  Fields fields(table);
  RunRecord record;
  const auto format = fields.Take<int64_t>("format");
  record.plugin_id = fields.Take<std::string>("plugin_id");
  const auto kind = fields.Take<std::string>("kind");
  for (const PluginKind each : {PluginKind::kNode, PluginKind::kController, PluginKind::kMonolith}) {
    if (kind == PluginKindName(each)) record.kind = each;
  }
  const auto pid = fields.Take<int64_t>("pid");
  record.process.pid = static_cast<pid_t>(pid);
  record.process.boot_id = fields.Take<std::string>("boot_id");
  record.process.start_time = static_cast<uint64_t>(fields.Take<int64_t>("start_time"));
  record.process.executable = fields.Take<std::string>("executable");
  record.process.cgroup = fields.Take<std::string>("cgroup");
  record.executed = fields.Take<bool>("executed");
  record.socket_path = fields.Take<std::string>("socket_path");
  record.config_file = fields.Take<std::string>("config_file");
  record.launch_fingerprint = fields.Take<std::string>("launch_fingerprint");
  record.started_at = WallTime(std::chrono::milliseconds(fields.Take<int64_t>("started_at_ms")));
  record.output_position = static_cast<uint64_t>(fields.Take<int64_t>("output_offset"));
  record.stop_timeout = std::chrono::milliseconds(fields.Take<int64_t>("stop_timeout_ms"));
  record.group_id = static_cast<uint64_t>(fields.Take<int64_t>("group_id"));
  record.generation = static_cast<uint64_t>(fields.Take<int64_t>("generation"));
  record.draining = fields.Take<bool>("draining");
  record.keep_children = fields.Take<bool>("keep_children");
  record.serves_mounts = fields.Take<bool>("serves_mounts");
  record.command = fields.Take<std::string>("command");
  record.volumes_path = fields.Take<std::string>("volumes_path");
  absl::StatusOr<std::vector<WantedToken>> tokens = ReadTokensTable(table);
  if (!tokens.ok()) return Annotate(tokens.status(), fmt::format("read {}", path));
  record.tokens = *std::move(tokens);
  record.pod_info = table["pod_info"].value_or(false);
  if (!fields.missing().empty()) {
    return absl::InvalidArgumentError(fmt::format("read {}: {} is missing", path, fields.missing()));
  }
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        fmt::format("read {}: its format is {}, and {} is known", path, format, kFormat));
  }
  // The pid is signalled one day: 0 and below would mean a whole group, or everybody.
  if (pid <= 1 || pid != record.process.pid) {
    return absl::InvalidArgumentError(fmt::format("read {}: {} is no plugin's process", path, pid));
  }
  return record;
}

absl::Status RemoveRunRecord(const std::string& plugin_runtime_dir) {
  const std::string path = RunRecordPath(plugin_runtime_dir);
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("remove {}", path));
}

absl::StatusOr<std::vector<std::string>> ListRunRecords(const std::string& runtime_dir) {
  const std::string dir = runtime_dir + "/plugins";
  DIR* open = opendir(dir.c_str());
  if (open == nullptr) {
    if (errno == ENOENT) return std::vector<std::string>();
    return ErrnoStatus(errno, fmt::format("read {}", dir));
  }
  std::vector<std::string> ids;
  while (const dirent* entry = readdir(open)) {
    const std::string id = entry->d_name;
    if (ValidPluginId(id) && access(RunRecordPath(dir + "/" + id).c_str(), F_OK) == 0) ids.push_back(id);
  }
  closedir(open);
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::Status RunRecordFile::Write(const RunRecord& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (record.generation < newest_ || (record.generation == newest_ && removed_)) {
    return absl::AbortedError(fmt::format("write {}: its process has ended", RunRecordPath(dir_)));
  }
  newest_ = record.generation;
  removed_ = false;
  return WriteRunRecord(dir_, record);
}

absl::Status RunRecordFile::Remove(uint64_t generation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation < newest_) return absl::OkStatus();
  newest_ = generation;
  removed_ = true;
  return RemoveRunRecord(dir_);
}

absl::StatusOr<RunRecord> RunRecordFile::Read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ReadRunRecord(dir_);
}

RecordMatch MatchRecord(const RunRecord& record, const ProcessIdentity& now) {
  const ProcessIdentity& then = record.process;
  if (then.boot_id != now.boot_id || then.pid != now.pid || then.start_time != now.start_time) {
    return RecordMatch::kUnknown;
  }
  // From here on it is the recorded process, by what the kernel never gives twice in one boot.
  if (then.cgroup != now.cgroup) return RecordMatch::kInDoubt;
  if (!record.executed) {
    return then.executable == now.executable ? RecordMatch::kAtTheGate : RecordMatch::kSame;
  }
  return then.executable == now.executable ? RecordMatch::kSame : RecordMatch::kInDoubt;
}

}  // namespace berth
