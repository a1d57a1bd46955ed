#include "supervisor/plugin_instance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/process_tree.h"
#include "base/status.h"
#include "supervisor/plugin_launch.h"
#include "supervisor/plugin_socket.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a child of a berthd that died may take to notice that at the gate.
constexpr Duration kGateLeavesWithin = seconds(5);
constexpr Duration kGateLook = milliseconds(1);
// What an end may cost beyond its being noticed: the next launch waits for it.
constexpr Duration kLastLinesWithin = milliseconds(500);
constexpr Duration kChildrenEndWithin = seconds(5);
// How often to check a socket again that another process serves.
constexpr Duration kForeignRetry = milliseconds(200);
constexpr Duration kProcessesReadWithin = seconds(5);

// The user that a plugin runs as; unset: berthd's own.
std::optional<uid_t> OtherUser(const std::optional<ProcessUser>& user) {
  if (!user.has_value() || user->uid == geteuid()) return std::nullopt;
  return user->uid;
}

// The directory that holds all plugins' directories: one that runs as another user comes through it to its
// own. It is not listed.
absl::Status LetThroughParentOf(const std::string& directory) {
  const std::string parent = std::filesystem::path(directory).parent_path().string();
  struct stat info{};
  if (stat(parent.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", parent));
  constexpr mode_t kTraverse = 0111;
  if ((info.st_mode & kTraverse) == kTraverse) return absl::OkStatus();
  if (chmod(parent.c_str(), (info.st_mode & 07777) | kTraverse) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("chmod {}", parent));
}

// The directories of a launch.
absl::Status PrepareDirectories(const std::string& socket_path, const std::string& state_dir,
                                const std::optional<ProcessUser>& user) {
  const std::optional<uid_t> other = OtherUser(user);
  BERTH_RETURN_IF_ERROR(PrepareSocket(socket_path, other));
  BERTH_RETURN_IF_ERROR(MakeDirectories(state_dir, 0700));
  if (!user.has_value()) return absl::OkStatus();
  if (other.has_value()) {
    BERTH_RETURN_IF_ERROR(LetThroughParentOf(std::filesystem::path(socket_path).parent_path().string()));
    BERTH_RETURN_IF_ERROR(LetThroughParentOf(state_dir));
  }
  if (lchown(state_dir.c_str(), user->uid, user->gid) != 0) {
    return ErrnoStatus(errno, fmt::format("chown {}", state_dir));
  }
  return absl::OkStatus();
}

absl::StatusOr<PluginLaunch> PrepareLaunch(const PluginConfig& config, const PluginPaths& paths) {
  BERTH_ASSIGN_OR_RETURN(PluginLaunch launch, MakePluginLaunch(config, paths));
  BERTH_RETURN_IF_ERROR(PrepareDirectories(PluginSocketPath(paths, config.id),
                                           PluginStateDir(paths, config.id), launch.spec.user));
  return launch;
}

std::string DescribeEnd(const ExitStatus& exit, const CgroupExit& group_end) {
  if (group_end.out_of_memory && (!exit.known || exit.signal == SIGKILL)) return "killed: " + group_end.text;
  return group_end.text.empty() ? exit.Describe() : fmt::format("{}; {}", exit.Describe(), group_end.text);
}

std::string UtcText(WallTime time) {
  const std::time_t seconds_since = WallClock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds_since, &parts);
  std::array<char, 32> text{};
  const size_t length = strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), length};
}

ChildrenPolicy ChildrenOf(const RunRecord& record) {
  return record.keep_children ? ChildrenPolicy::kKeep : ChildrenPolicy::kEnd;
}

// One round of ending the processes of a tree by their descriptors. Whether any was left to end.
absl::StatusOr<bool> KillTree(const TreeQuery& query, ChildrenPolicy children, TreeOccasion occasion) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<TreeProcess> tree, FindTree(query));
  const TreeVerdict verdict = DecideChildren(MembersOf(tree, query.main), children, occasion);
  for (const TreeProcess& process : tree) {
    if (std::find(verdict.end.begin(), verdict.end.end(), process.pid()) == verdict.end.end()) continue;
    const absl::Status killed = process.Signal(SIGKILL);
    if (!killed.ok() && !absl::IsNotFound(killed)) SPDLOG_WARN("{}", killed.ToString());
  }
  return !verdict.end.empty();
}

}  // namespace

std::string InstanceEnd::Describe() const {
  return last_output.empty() ? how : fmt::format("{}, its last line: {}", how, last_output.back());
}

std::string InstanceEnd::DescribeAtLength() const {
  if (last_output.size() < 2) return Describe();
  return fmt::format("{}, its last lines: {}", how, fmt::join(last_output, " | "));
}

namespace {

GroupName GroupOf(const RunRecord& record) {
  return {.cgroup = record.process.cgroup, .id = record.group_id};
}

}  // namespace

PluginInstance::PluginInstance(InstanceContext& context, std::shared_ptr<RunRecordFile> file)
    : context_(context),
      file_(std::move(file)),
      tasks_(context.executor, "plugin process"),
      notes_(context.executor, "plugin process") {}

PluginInstance::~PluginInstance() = default;

// --- Launch ---------------------------------------------------------------------------------------------

struct PluginInstance::Gate {
  PluginInstance& instance;
  TimePoint deadline;

  // The scope first: the cgroup is part of what the process is known by.
  Awaitable<absl::Status> Pass(pid_t pid) {
    BERTH_CO_RETURN_IF_ERROR(co_await instance.cgroup_->Enter(pid, deadline));
    instance.record_.group_id = instance.cgroup_->group_id();
    auto write = [file = instance.file_, record = instance.record_, pid]() -> absl::StatusOr<RunRecord> {
      RunRecord written = record;
      BERTH_ASSIGN_OR_RETURN(written.process, IdentifyProcess(pid));
      BERTH_RETURN_IF_ERROR(file->Write(written));
      return written;
    };
    BERTH_CO_ASSIGN_OR_RETURN(instance.record_,
                              co_await RunBlocking("write down the process", std::move(write), deadline));
    co_return absl::OkStatus();
  }
};

Awaitable<absl::StatusOr<std::unique_ptr<PluginInstance>>> PluginInstance::Launch(
    InstanceContext& context, std::shared_ptr<RunRecordFile> file, InstanceLaunch launch,
    TimePoint deadline) {
  const PluginConfig& config = launch.config;
  std::unique_ptr<PluginInstance> instance(new PluginInstance(context, std::move(file)));

  auto prepare = [config, paths = context.paths] { return PrepareLaunch(config, paths); };
  BERTH_CO_ASSIGN_OR_RETURN(
      PluginLaunch prepared,
      co_await RunBlocking(fmt::format("prepare {}", config.command), std::move(prepare), deadline));
  // Before the plugin can know them, so that it cannot log what is not recognised.
  context.secrets.Hold(config.id, prepared.secrets);
  BERTH_CO_ASSIGN_OR_RETURN(const UniqueFd output, co_await context.logs.Open(config.id, config.log));
  CgroupLimits limits = config.limits;
  limits.killed_together = config.children == ChildrenPolicy::kEnd;
  BERTH_CO_ASSIGN_OR_RETURN(instance->cgroup_,
                            co_await context.cgroups->Prepare(config.id, limits, deadline));

  RunRecord& record = instance->record_;
  record.plugin_id = config.id;
  record.kind = config.kind;
  record.socket_path = PluginSocketPath(context.paths, config.id);
  record.config_file = config.file;
  record.launch_fingerprint = LaunchFingerprint(config, context.paths);
  record.started_at = WallClock::now();
  record.output_position = context.logs.End(config.id);
  record.stop_timeout = config.stop_timeout;
  record.generation = launch.generation;
  record.draining = launch.draining;
  record.keep_children = config.children == ChildrenPolicy::kKeep;
  record.serves_mounts = config.serves_mounts;
  record.tokens = config.tokens;
  record.command = config.command;
  for (const std::string& argument : config.arguments) record.command += " " + Printable(argument, 256);
  record.volumes_path = config.volumes_path;

  instance->ReportUser(OtherUser(prepared.spec.user));
  ProcessSpec spec = std::move(prepared.spec);
  spec.stdout_fd = output.get();
  spec.stderr_fd = output.get();
  spec.cgroup_fd = instance->cgroup_->cgroup_fd();
  Gate gate{*instance, deadline};
  spec.before_exec = [&gate](pid_t pid) { return gate.Pass(pid); };
  absl::StatusOr<std::unique_ptr<Process>> process =
      co_await Process::Launch(context.executor, std::move(spec), deadline);
  if (!process.ok()) {
    instance->ReportUser(std::nullopt);
    co_await instance->RemoveRecord();
    co_await instance->cgroup_->Release();
    co_return process.status();
  }
  instance->process_ = *std::move(process);
  context.logs.SetPid(config.id, instance->process_->pid());
  co_return instance;
}

// --- Taking back ----------------------------------------------------------------------------------------

Awaitable<absl::StatusOr<PluginInstance::Recovered>> PluginInstance::TakeBack(
    InstanceContext& context, std::shared_ptr<RunRecordFile> file, RunRecord record, LogLimits log) {
  std::unique_ptr<PluginInstance> instance(new PluginInstance(context, std::move(file)));
  const pid_t pid = record.process.pid;
  instance->record_ = std::move(record);
  const RunRecord& known = instance->record_;
  // Where it has written is read in any case: of one that has ended, its last lines.
  const absl::Status followed = co_await context.logs.Follow(known.plugin_id, log);
  if (!followed.ok()) SPDLOG_ERROR("plugin {}: {}", known.plugin_id, followed.ToString());
  const TimePoint deadline = Clock::now() + kGateLeavesWithin;
  while (true) {
    absl::StatusOr<std::unique_ptr<Process>> process = Process::Adopt(context.executor, pid);
    const bool absent = absl::IsNotFound(process.status());
    if (!absent && !process.ok()) co_return process.status();
    // From here on the descriptor pins the process: what is read now is about it.
    absl::StatusOr<ProcessIdentity> identity =
        absent ? absl::StatusOr<ProcessIdentity>(process.status()) : IdentifyProcess(pid);
    if (absl::IsNotFound(identity.status())) {
      ExitStatus exit;
      if (!absent) exit = co_await (*process)->Wait();
      co_return co_await EndTakenBack(std::move(instance), exit);
    }
    if (!identity.ok()) co_return identity.status();
    switch (MatchRecord(known, *identity)) {
      case RecordMatch::kSame: {
        BERTH_CO_ASSIGN_OR_RETURN(instance->cgroup_,
                                  co_await context.cgroups->Find(GroupOf(known), /*lives=*/true));
        instance->process_ = *std::move(process);
        if (const auto user = UserOf(pid); user.ok() && *user != geteuid()) instance->ReportUser(*user);
        context.logs.SetPid(known.plugin_id, pid);
        Recovered recovered;
        recovered.instance = std::move(instance);
        co_return recovered;
      }
      case RecordMatch::kUnknown: {
        Recovered recovered;
        recovered.unknown =
            fmt::format("process {} is another one now ({})", pid, Printable(identity->executable, 256));
        // What the recorded process has left behind is not its own number's.
        BERTH_CO_ASSIGN_OR_RETURN(instance->cgroup_,
                                  co_await context.cgroups->Find(GroupOf(known), /*lives=*/false));
        co_await instance->EndChildren(TreeOccasion::kMainEnded, Clock::now() + kChildrenEndWithin);
        co_await instance->RemoveRecord();
        co_return recovered;
      }
      case RecordMatch::kInDoubt:
        co_return absl::FailedPreconditionError(
            fmt::format("process {} was launched by an earlier berthd as {}, but runs as {} now{}: it is not "
                        "taken back, and no second one is launched; end it, then start the plugin",
                        pid, Printable(known.process.executable, 256), Printable(identity->executable, 256),
                        known.process.cgroup == identity->cgroup ? "" : ", in another cgroup"));
      case RecordMatch::kAtTheGate:
        if (Clock::now() >= deadline) {
          co_return absl::FailedPreconditionError(fmt::format(
              "process {}, which an earlier berthd was about to make this plugin, does not end", pid));
        }
        co_await SleepUntil(Clock::now() + kGateLook);
        continue;
    }
  }
}

Awaitable<absl::StatusOr<PluginInstance::Recovered>> PluginInstance::EndTakenBack(
    std::unique_ptr<PluginInstance> instance, ExitStatus exit) {
  BERTH_CO_ASSIGN_OR_RETURN(instance->cgroup_, co_await instance->context_.cgroups->Find(
                                                   GroupOf(instance->record_), /*lives=*/false));
  Recovered recovered;
  recovered.ended = co_await instance->End(exit, TreeOccasion::kMainEnded);
  if (exit.known) co_return recovered;
  const std::string when = UtcText(WallClock::now());
  recovered.ended->how =
      recovered.ended->how == exit.Describe()
          ? fmt::format("ended while berthd was away, no later than {}", when)
          : fmt::format("{}, while berthd was away, no later than {}", recovered.ended->how, when);
  co_return recovered;
}

// --- Life -----------------------------------------------------------------------------------------------

void PluginInstance::Watch(InstanceSinks sinks) {
  tasks_.Spawn("exit", WatchExit(sinks));
  tasks_.Spawn("socket", WatchSocket(std::move(sinks)));
}

Awaitable<void> PluginInstance::WatchExit(InstanceSinks sinks) {
  const ExitStatus exit = co_await process_->Wait();
  sinks.on_exit(exit);
}

Awaitable<void> PluginInstance::WatchSocket(InstanceSinks sinks) {
  std::string told;
  while (true) {
    absl::StatusOr<ServedSocket> served = co_await WaitForServer(record_.socket_path, {});
    if (!served.ok()) {
      sinks.on_socket(served.status());
      co_return;
    }
    SocketPath path;
    path.Keep(record_.socket_path, *served);
    std::string foreign = co_await WhyForeign(*std::move(served));
    if (foreign.empty()) {
      socket_path_ = std::move(path);
      sinks.on_socket(absl::OkStatus());
      co_return;
    }
    if (foreign != told) {
      SPDLOG_WARN("plugin {}: {}", record_.plugin_id, foreign);
      if (sinks.on_foreign_socket) sinks.on_foreign_socket(foreign);
      told = std::move(foreign);
    }
    co_await SleepUntil(Clock::now() + kForeignRetry);
  }
}

// The kernel says who called listen(). That is the plugin's main process, or one that belongs to it: a child
// of a launcher script, say. Others are taken for the plugin
//   - as root (berthd's own user): a plugin's command may ask a container engine or systemd to run the
//     server, which then is in none of its groups; and root needs no socket to deceive us;
//   - as the plugin's user, where it cannot be known what belongs to the plugin: the listener is in a pid
//     namespace that we do not see, has ended and left the socket to a child, the queue of connections is
//     full, or the plugin has no cgroup.
Awaitable<std::string> PluginInstance::WhyForeign(ServedSocket served) {
  const bool known = served.connection.valid() && served.pid != 0 && served.start_time != 0;
  if (!served.connection.valid() || served.pid == pid() || served.uid == geteuid()) co_return std::string();
  const auto user = UserOf(pid());
  const bool plugins_user = user.ok() && *user == served.uid;
  if (plugins_user && (!known || !cgroup_->has_group())) co_return std::string();
  if (known) {
    TreeQuery query{
        .main = record_.process.pid, .main_start_time = record_.process.start_time, .members = {}};
    if (cgroup_->has_group()) query.members = cgroup_->Members().value_or(std::vector<pid_t>());
    auto find = [query] { return FindTree(query); };
    const absl::StatusOr<std::vector<TreeProcess>> tree =
        co_await RunBlocking(fmt::format("find the processes of plugin {}", record_.plugin_id),
                             std::move(find), Clock::now() + kProcessesReadWithin);
    if (!tree.ok() && plugins_user) co_return std::string();
    const auto serves = [&served](const TreeProcess& each) {
      return each.pid() == served.pid && each.start_time() == served.start_time;
    };
    if (tree.ok() && std::ranges::any_of(*tree, serves)) co_return std::string();
  }
  co_return fmt::format(
      "its socket {} is served by process {} of uid {}, which is not one of the plugin's: it is not used",
      record_.socket_path, served.pid, served.uid);
}

void PluginInstance::ReportUser(std::optional<uid_t> user) const {
  if (context_.on_user) context_.on_user(record_.socket_path, user);
}

std::string PluginInstance::placement() const { return cgroup_->describe(); }

std::string PluginInstance::unenforced() const { return cgroup_->unenforced(); }

void PluginInstance::Terminate() {
  absl::Status status = process_->Signal(SIGTERM);
  if (status.ok()) status = process_->Signal(SIGCONT);
  // One that has ended meanwhile is about to be handled as such.
  if (!status.ok() && !absl::IsNotFound(status))
    SPDLOG_ERROR("plugin {}: {}", record_.plugin_id, status.ToString());
}

void PluginInstance::Kill() {
  if (!record_.keep_children) {
    const absl::Status group = process_->SignalGroup(SIGKILL);
    if (!group.ok() && !absl::IsNotFound(group))
      SPDLOG_ERROR("plugin {}: {}", record_.plugin_id, group.ToString());
  }
  // It may have left its group, or the kernel may be too old to signal one by descriptor.
  const absl::Status status = process_->Signal(SIGKILL);
  if (!status.ok() && !absl::IsNotFound(status))
    SPDLOG_ERROR("plugin {}: {}", record_.plugin_id, status.ToString());
}

void PluginInstance::Announced() { tasks_.Spawn("record", RecordExecuted()); }

Awaitable<void> PluginInstance::RecordExecuted() {
  const pid_t process = pid();
  auto identify = [process] { return IdentifyProcess(process); };
  const absl::StatusOr<ProcessIdentity> identity = co_await RunBlocking(
      fmt::format("identify process {}", process), std::move(identify), Clock::now() + kRunFilesWithin);
  if (!identity.ok() || identity->start_time != record_.process.start_time) co_return;
  if (record_.executed && record_.process == *identity) co_return;
  Note([now = *identity](RunRecord& record) {
    record.process = now;
    record.executed = true;
  });
}

void PluginInstance::Note(std::function<void(RunRecord&)> change) {
  change(record_);
  ++noted_;
  if (!std::exchange(noting_, true)) notes_.Spawn("record", WriteNotes());
}

Awaitable<void> PluginInstance::WriteNotes() {
  struct Done {
    bool& noting;
    ~Done() { noting = false; }
  } const done{noting_};
  uint64_t writing = 0;
  do {
    writing = noted_;
    // A thread that is left behind is kept in order by RunRecordFile.
    auto write = [file = file_, record = record_] { return file->Write(record); };
    const absl::Status written =
        co_await RunBlocking("write down the process", std::move(write), Clock::now() + kRunFilesWithin);
    // Its process may have ended meanwhile.
    if (!written.ok() && !absl::IsAborted(written)) {
      SPDLOG_ERROR("plugin {}: {}", record_.plugin_id, written.ToString());
    }
  } while (writing != noted_);
}

Awaitable<void> PluginInstance::RemoveRecord() {
  auto remove = [file = file_, generation = record_.generation] { return file->Remove(generation); };
  const absl::Status removed = co_await RunBlocking("remove the record of a process", std::move(remove),
                                                    Clock::now() + kRunFilesWithin);
  // Harmless but for the reader: the next berthd sees that its process is no more.
  if (!removed.ok()) SPDLOG_ERROR("plugin {}: {}", record_.plugin_id, removed.ToString());
}

// --- The end --------------------------------------------------------------------------------------------

Awaitable<InstanceEnd> PluginInstance::End(ExitStatus exit, TreeOccasion occasion) {
  co_await tasks_.Join();
  co_await notes_.Join();
  InstanceEnd end;
  end.exit = exit;
  const CgroupExit group_end = co_await cgroup_->HowItEnded();
  end.how = DescribeEnd(exit, group_end);
  if (group_end.out_of_memory && occasion == TreeOccasion::kMainEnded) occasion = TreeOccasion::kLimitReached;
  co_await EndChildren(occasion, Clock::now() + kChildrenEndWithin);
  end.last_output = co_await context_.logs.LastLines(record_.plugin_id, record_.output_position,
                                                     Clock::now() + kLastLinesWithin);
  context_.logs.SetPid(record_.plugin_id, 0);
  ReportUser(std::nullopt);
  co_await cgroup_->Release();
  co_await RemoveRecord();
  process_.reset();
  co_return end;
}

Awaitable<void> PluginInstance::EndChildren(TreeOccasion occasion, TimePoint deadline) {
  const ChildrenPolicy children = ChildrenOf(record_);
  const bool whole =
      DecideChildren({TreeMember{.pid = 1, .fuse = FuseUse::kHolds}}, children, occasion).keep.empty();
  if (cgroup_->has_group() && whole) {
    const absl::Status killed = co_await cgroup_->KillAll(deadline);
    if (!killed.ok()) SPDLOG_WARN("plugin {}: {}", record_.plugin_id, killed.ToString());
    co_return;
  }
  TreeQuery query{.main = record_.process.pid, .main_start_time = record_.process.start_time, .members = {}};
  while (true) {
    if (cgroup_->has_group()) {
      query.members = cgroup_->Members().value_or(std::vector<pid_t>());
      if (query.members.empty()) co_return;
    }
    auto kill = [query, children, occasion] { return KillTree(query, children, occasion); };
    const absl::StatusOr<bool> killed = co_await RunBlocking(
        fmt::format("end what plugin {} has left behind", record_.plugin_id), std::move(kill), deadline);
    if (!killed.ok()) SPDLOG_WARN("plugin {}: {}", record_.plugin_id, killed.status().ToString());
    if (!killed.ok() || !*killed || Clock::now() >= deadline) co_return;
    co_await SleepUntil(Clock::now() + kGateLook);
  }
}

Awaitable<void> PluginInstance::LetGo() {
  co_await tasks_.Join();
  // Each write has its deadline.
  co_await notes_.WaitEmpty();
  process_.reset();
}

}  // namespace berth
