#include "consumers/consumer_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status.h"
#include "base/systemd_units.h"
#include "base/unique_fd.h"
#include "consumers/consumer_fds.h"

namespace berth {
namespace {

// A cgroup that is larger than this is not ended by us.
constexpr int kDeepest = 32;
constexpr size_t kMostGroups = 4096;
constexpr size_t kProcsLimit = 4 << 20;
constexpr size_t kCgroupLimit = 64 << 10;
// Between rounds of killing, where the kernel has no cgroup.kill (before 5.14).
constexpr Duration kRound = std::chrono::milliseconds(50);

bool HasPart(std::string_view path, std::string_view part) {
  while (!path.empty()) {
    const size_t end = std::min(path.find_first_of("/\n"), path.size());
    if (path.substr(0, end) == part) return true;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return false;
}

absl::Status Refused(const ConsumerLife& life, std::string_view why) {
  return absl::FailedPreconditionError(fmt::format("{} is never ended: {}", DescribeLife(life), why));
}

absl::Status NotYet(const ConsumerLife& life) {
  return absl::DeadlineExceededError(fmt::format("{} was asked to end, and has not yet", DescribeLife(life)));
}

// Whether what lies in this cgroup (a path, or /proc/PID/cgroup) is a plugin's.
bool IsPlugins(const ConsumerEndOptions& options, std::string_view cgroup) {
  return HasPart(cgroup, options.plugins_slice) || HasPart(cgroup, options.plugins_directory);
}

absl::Status SendSignal(const UniqueFd& pidfd, int signal, std::string_view what) {
  if (syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return absl::OkStatus();  // it has ended
  return ErrnoStatus(errno, fmt::format("send signal {} to {}", signal, what));
}

// A group and the groups below it, with the processes `pids`.
struct GroupTree {
  std::vector<std::string> directories;
  std::set<pid_t> pids;
};

// OK, with none of them, where a group is gone meanwhile.
absl::Status ReadProcesses(const std::string& directory, std::set<pid_t>* pids) {
  const auto text = ReadFile(directory + "/cgroup.procs", kProcsLimit);
  if (!text.ok()) {
    // A threaded group does not list them: the group above it does.
    const int error = ErrnoOf(text.status()).value_or(0);
    const bool none = absl::IsNotFound(text.status()) || error == ENODEV || error == EOPNOTSUPP;
    return none ? absl::OkStatus() : text.status();
  }
  const char* at = text->data();
  const char* const end = at + text->size();
  while (at < end) {
    pid_t pid = 0;
    const auto [stopped, error] = std::from_chars(at, end, pid);
    // 0: it lives in another PID namespace, where we cannot reach it.
    if (error == std::errc() && pid > 0) pids->insert(pid);
    at = std::find(stopped, end, '\n');
    if (at < end) ++at;
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupTree> ReadGroupTree(const std::string& root) {
  GroupTree tree;
  std::vector<std::pair<std::string, int>> next{{root, 0}};
  while (!next.empty()) {
    const auto [directory, depth] = std::move(next.back());
    next.pop_back();
    if (depth > kDeepest || tree.directories.size() >= kMostGroups) {
      return absl::ResourceExhaustedError(fmt::format("cgroup {}: too many groups in it", root));
    }
    BERTH_RETURN_IF_ERROR(ReadProcesses(directory, &tree.pids));
    tree.directories.push_back(directory);
    std::error_code error;
    for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code ignored;
      if (it->symlink_status(ignored).type() == std::filesystem::file_type::directory) {
        next.emplace_back(it->path().string(), depth + 1);
      }
    }
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::no_such_device) {
      return ErrnoStatus(error.value(), fmt::format("read {}", directory));
    }
  }
  return tree;
}

absl::Status CheckGroup(const ConsumerLife& life, const GroupTree& tree, const ConsumerEndOptions& options) {
  if (tree.pids.contains(getpid())) return Refused(life, "berthd is in it");
  if (tree.pids.contains(1)) return Refused(life, "process 1 is in it");
  for (const std::string& directory : tree.directories) {
    if (IsPlugins(options, directory)) return Refused(life, "plugins are in it");
  }
  return absl::OkStatus();
}

// Sends `signal` to each process of the group. Blocks, though not for long: cgroup file systems answer.
absl::Status SignalGroup(const ConsumerLife& life, const ConsumerEndOptions& options, int signal) {
  BERTH_ASSIGN_OR_RETURN(const GroupTree before, ReadGroupTree(life.cgroup()));
  BERTH_RETURN_IF_ERROR(CheckGroup(life, before, options));
  std::vector<std::pair<pid_t, UniqueFd>> pinned;
  for (const pid_t pid : before.pids) {
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd.valid()) pinned.emplace_back(pid, std::move(pidfd));
  }
  // The processes that are in the group now, after it was pinned, are meant, not one with a reused number.
  BERTH_ASSIGN_OR_RETURN(const GroupTree now, ReadGroupTree(life.cgroup()));
  absl::Status first_error;
  for (const auto& [pid, pidfd] : pinned) {
    if (!now.pids.contains(pid)) continue;
    const absl::Status sent = SendSignal(pidfd, signal, fmt::format("process {}", pid));
    if (first_error.ok()) first_error = sent;
  }
  return first_error;
}

// The kernel kills all of a group at once, forks in flight included. NOT_FOUND: this kernel cannot, or the
// group is gone.
absl::Status KillGroup(const ConsumerLife& life, const ConsumerEndOptions& options) {
  BERTH_ASSIGN_OR_RETURN(const GroupTree tree, ReadGroupTree(life.cgroup()));
  BERTH_RETURN_IF_ERROR(CheckGroup(life, tree, options));
  const std::string path = life.cgroup() + "/cgroup.kill";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return ErrnoStatus(errno, path);
  return WriteAll(file.get(), "1", path);
}

// Systemd's own name of a unit, which may have been asked for by an alias.
std::string UnitOf(const UnitState& state) {
  char* name = nullptr;
  if (sd_bus_path_decode(state.path.c_str(), "/org/freedesktop/systemd1/unit", &name) <= 0) return "";
  const std::unique_ptr<char, decltype(&std::free)> owned(name, &std::free);
  return name;
}

}  // namespace

Awaitable<absl::Status> ConsumerEnd::End(ConsumerLife life, TimePoint deadline) const {
  switch (life.kind_case()) {
    case ConsumerLife::KIND_NOT_SET:
      co_return absl::OkStatus();
    case ConsumerLife::kPid:
      co_return co_await EndProcess(std::move(life), deadline);
    case ConsumerLife::kCgroup:
      co_return co_await EndCgroup(std::move(life), deadline);
    case ConsumerLife::kUnit:
      co_return co_await EndUnit(std::move(life), deadline);
  }
  co_return absl::OkStatus();
}

Awaitable<absl::StatusOr<bool>> ConsumerEnd::EndsInGrace(ConsumerLife life, TimePoint deadline) const {
  const TimePoint kill_at = Clock::now() + options_.grace;
  const bool ended = co_await watch_.WaitEnded(life, std::min(deadline, kill_at));
  if (!ended && deadline < kill_at) co_return NotYet(life);
  co_return ended;
}

Awaitable<absl::Status> ConsumerEnd::AwaitEnd(ConsumerLife life, TimePoint deadline) const {
  const std::string what = DescribeLife(life);
  if (co_await watch_.WaitEnded(std::move(life), deadline)) co_return absl::OkStatus();
  co_return absl::DeadlineExceededError(fmt::format("{} was killed, and does not end", what));
}

Awaitable<absl::Status> ConsumerEnd::EndProcess(ConsumerLife life, TimePoint deadline) const {
  const std::string what = DescribeLife(life);
  if (life.start_time() == 0) {
    co_return absl::InvalidArgumentError(what + ": without its start time it could be anybody's");
  }
  if (life.pid() == 1) co_return Refused(life, "the node ends with it");
  if (life.pid() == getpid()) co_return Refused(life, "it is berthd");
  uint64_t start_time = life.start_time();
  const auto process = consumer_internal::OpenProcess(life.pid(), &start_time);
  if (absl::IsNotFound(process.status()) || absl::IsFailedPrecondition(process.status())) {
    co_return absl::OkStatus();  // it has ended, and its number may be another's
  }
  if (!process.ok()) co_return process.status();
  const auto identity = IdentifyProcess(static_cast<pid_t>(life.pid()));
  if (identity.ok() && IsPlugins(options_, identity->cgroup)) co_return Refused(life, "it is a plugin's");
  BERTH_CO_RETURN_IF_ERROR(SendSignal(*process, SIGTERM, what));
  BERTH_CO_ASSIGN_OR_RETURN(const bool by_itself, co_await EndsInGrace(life, deadline));
  if (by_itself) co_return absl::OkStatus();
  BERTH_CO_RETURN_IF_ERROR(SendSignal(*process, SIGKILL, what));
  co_return co_await AwaitEnd(life, deadline);
}

Awaitable<absl::Status> ConsumerEnd::EndCgroup(ConsumerLife life, TimePoint deadline) const {
  const std::string what = DescribeLife(life);
  // Any path may be named, also one on a file system that does not answer.
  auto ask = [life, options = options_]() -> absl::Status {
    const auto events = consumer_internal::OpenCgroup(life.cgroup());
    if (!events.ok()) return events.status();
    return SignalGroup(life, options, SIGTERM);
  };
  const absl::Status asked = co_await RunBlocking("end " + what, std::move(ask), deadline);
  if (absl::IsNotFound(asked)) co_return absl::OkStatus();
  if (!asked.ok()) co_return asked;
  BERTH_CO_ASSIGN_OR_RETURN(const bool by_itself, co_await EndsInGrace(life, deadline));
  if (by_itself) co_return absl::OkStatus();

  auto kill = [life, options = options_] { return KillGroup(life, options); };
  const absl::Status killed = co_await RunBlocking("kill " + what, std::move(kill), deadline);
  if (killed.ok()) co_return co_await AwaitEnd(life, deadline);
  if (!absl::IsNotFound(killed)) co_return killed;
  // One by one, again and again, since they may fork meanwhile.
  while (Clock::now() < deadline) {
    auto kill_each = [life, options = options_] { return SignalGroup(life, options, SIGKILL); };
    BERTH_CO_RETURN_IF_ERROR(co_await RunBlocking("kill " + what, std::move(kill_each), deadline));
    if (co_await watch_.WaitEnded(life, std::min(deadline, Clock::now() + kRound)))
      co_return absl::OkStatus();
  }
  co_return absl::DeadlineExceededError(fmt::format("{} was killed, and does not end", what));
}

Awaitable<absl::Status> ConsumerEnd::EndUnit(ConsumerLife life, TimePoint deadline) const {
  const std::string what = DescribeLife(life);
  std::string unit = life.unit();
  {
    asio::any_io_executor executor = co_await asio::this_coro::executor;
    const SystemdUnits units(std::move(executor), systemd_);
    BERTH_CO_ASSIGN_OR_RETURN(const UnitState state, co_await units.Ask(life.unit(), deadline));
    if (state.load == "not-found" || state.ended()) co_return absl::OkStatus();
    if (std::string its = UnitOf(state); !its.empty()) unit = std::move(its);
  }
  BERTH_CO_ASSIGN_OR_RETURN(const std::string own, ReadFile("/proc/self/cgroup", kCgroupLimit));
  for (const std::string& name : {life.unit(), unit}) {
    if (name == "init.scope" || name == "-.slice") co_return Refused(life, "the node ends with it");
    if (HasPart(own, name)) co_return Refused(life, "berthd is in it");
    if (name == options_.plugins_slice || name.starts_with("berth-plugin-")) {
      co_return Refused(life, "it is a plugin's");
    }
    // Others would end with it.
    if (!name.ends_with(".service") && !name.ends_with(".scope")) {
      co_return Refused(life, "only services and scopes are");
    }
  }
  const SystemdBus systemd(systemd_);
  const TimePoint kill_at = Clock::now() + options_.grace;
  const absl::Status stopped = co_await systemd.StopUnit(unit, std::min(deadline, kill_at));
  // A unit's own patience may be longer than ours.
  const bool patient = absl::IsDeadlineExceeded(stopped);
  if (patient && deadline < kill_at) co_return NotYet(life);
  if (!stopped.ok() && !patient && !absl::IsNotFound(stopped)) co_return stopped;
  if (patient) BERTH_CO_RETURN_IF_ERROR(co_await systemd.KillUnit(unit, deadline));
  co_return co_await AwaitEnd(life, deadline);
}

}  // namespace berth
