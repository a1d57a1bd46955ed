// A plugin's transient scope.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/cgroups/plugin_cgroup_kinds.h"

namespace berth::cgroup_internal {
namespace {

constexpr size_t kProcFileLimit = size_t{64} << 10;

// Reads a file of counters whenever the kernel says that it has changed, as long as this lives. The last
// content stays when the group goes. The wait is a plain callback on shared state: its destructor has nothing
// to join.
class CounterWatch {
 public:
  CounterWatch(const asio::any_io_executor& executor, UniqueFd file)
      : state_(std::make_shared<State>(executor, file.Release())) {
    Look(state_);
  }
  ~CounterWatch() {
    boost::system::error_code ignored;
    [[maybe_unused]] const auto closed = state_->file.close(ignored);
  }
  CounterWatch(const CounterWatch&) = delete;
  CounterWatch& operator=(const CounterWatch&) = delete;

  // As it is now, or was last where the group has gone; `gone` says which.
  [[nodiscard]] const std::string& Text(bool* gone) {
    *gone = !state_->Read();
    return state_->text;
  }

 private:
  struct State {
    State(const asio::any_io_executor& executor, int fd) : file(executor, fd) {}
    // False: the group has gone.
    bool Read() {
      std::array<char, 1024> buffer{};
      const ssize_t count = pread(file.native_handle(), buffer.data(), buffer.size(), 0);
      if (count < 0) return false;
      text.assign(buffer.data(), static_cast<size_t>(count));
      return true;
    }
    asio::posix::stream_descriptor file;
    std::string text;
  };

  static void Look(std::shared_ptr<State> state) {
    if (!state->Read()) return;
    State& waiting = *state;
    waiting.file.async_wait(asio::posix::stream_descriptor::wait_error,
                            [state = std::move(state)](const boost::system::error_code& error) {
                              if (!error) Look(state);
                            });
  }

  std::shared_ptr<State> state_;
};

}  // namespace

class ScopeCgroupImpl : public PluginCgroup {
 public:
  ScopeCgroupImpl(std::shared_ptr<Scopes> scopes, asio::any_io_executor executor, std::string plugin_id,
                  CgroupLimits limits)
      : scopes_(std::move(scopes)),
        executor_(std::move(executor)),
        plugin_id_(std::move(plugin_id)),
        name_(ScopeName(plugin_id_, 1)),
        limits_(limits),
        unenforced_(
            Unenforced(limits, scopes_->enforceable, "this node's cgroups have no such controllers")) {}

  ScopeCgroupImpl(std::shared_ptr<Scopes> scopes, asio::any_io_executor executor, CgroupDir group)
      : scopes_(std::move(scopes)),
        executor_(std::move(executor)),
        name_(std::filesystem::path(group.path()).filename().string()),
        limits_(ReadLimits(group)) {
    Watch(std::move(group));
    // Earlier kills in it are not reported again.
    bool gone = false;
    seen_ = memory_ == nullptr ? 0 : FlatKeyedValue(memory_->Text(&gone), "oom_kill");
    before_.oom_kill = seen_;
    before_.pids_max = RefusedForks();
  }

  ~ScopeCgroupImpl() override { scopes_->cgroups.erase(this); }

  [[nodiscard]] std::string describe() const override { return "scope " + name_; }
  [[nodiscard]] const std::string& unenforced() const override { return unenforced_; }
  [[nodiscard]] bool has_group() const override { return true; }
  [[nodiscard]] uint64_t group_id() const override { return group_.has_value() ? group_->Id() : 0; }

  Awaitable<absl::Status> Enter(pid_t pid, TimePoint deadline) override {
    ScopeRequest request;
    request.slice = kSlice;
    request.description = fmt::format("Berth's plugin {}", plugin_id_);
    request.pid = pid;
    request.memory_max = limits_.memory_max;
    request.tasks_max = limits_.pids_max;
    request.cpus = limits_.cpus;
    request.before = scopes_->before;
    absl::Status started = absl::AlreadyExistsError("");
    for (int number = 1; number <= kCgroupsOfOne && absl::IsAlreadyExists(started); ++number) {
      // One that exists holds what outlived an earlier main process: it keeps its name.
      name_ = ScopeName(plugin_id_, number);
      request.name = name_;
      started = co_await Start(request, deadline);
    }
    BERTH_CO_RETURN_IF_ERROR(started);
    co_return OpenGroup(pid);
  }

  Awaitable<CgroupExit> HowItEnded() override {
    GroupCounters counters;
    counters.oom_kill = Account() - before_.oom_kill;
    counters.oom = oom_seen_;
    counters.pids_max = RefusedForks() - before_.pids_max;
    co_return Judge(counters, limits_);
  }

  absl::StatusOr<std::vector<pid_t>> Members() const override {
    if (group_.has_value()) return group_->Members();
    return absl::UnimplementedError("this node has no cgroup v2 hierarchy to list processes by");
  }

  Awaitable<absl::Status> KillAll(TimePoint deadline) override {
    // What has been counted by now is all that the kernel did; from here on it is us.
    if (group_.has_value() && TakeIntoAccount()) settled_ = true;
    if (group_.has_value()) co_return co_await group_->KillAll(deadline);
    const absl::Status killed = co_await scopes_->bus.KillUnit(name_, deadline);
    // Not there: it went with its last process.
    co_return absl::IsNotFound(killed) ? absl::OkStatus() : killed;
  }

  // systemd removes it with its last process.
  Awaitable<void> Release() override { co_return; }

 private:
  Awaitable<absl::Status> Start(ScopeRequest request, TimePoint deadline) {
    if (scopes_->oom_policy) request.oom_policy = limits_.killed_together ? "kill" : "continue";
    const absl::Status started = co_await scopes_->bus.StartScope(request, deadline);
    if (!absl::IsInvalidArgument(started) || !request.oom_policy.has_value()) co_return started;
    SPDLOG_INFO("systemd knows no OOMPolicy= of scopes ({}): memory.oom.group is set instead",
                MessageOf(started));
    scopes_->oom_policy = false;
    request.oom_policy.reset();
    co_return co_await scopes_->bus.StartScope(std::move(request), deadline);
  }

  // Where systemd has put the process.
  absl::Status OpenGroup(pid_t pid) {
    BERTH_ASSIGN_OR_RETURN(const std::string text,
                           ReadFile(fmt::format("/proc/{}/cgroup", pid), kProcFileLimit));
    const std::optional<std::string> path = Cgroup2Path(text);
    if (!path.has_value() || !scopes_->mount.has_value()) return absl::OkStatus();  // cgroup v1 alone
    const std::optional<std::string> directory = scopes_->mount->DirectoryOf(*path);
    if (!path->ends_with("/" + name_) || !directory.has_value()) {
      return absl::InternalError(fmt::format("systemd made {}, but process {} is in {}", name_, pid, *path));
    }
    BERTH_ASSIGN_OR_RETURN(CgroupDir group, CgroupDir::Open(*directory));
    if (!scopes_->oom_policy && limits_.killed_together) {
      const absl::Status grouped = group.Write("memory.oom.group", "1");
      if (!grouped.ok() && scopes_->enforceable.memory)
        SPDLOG_WARN("plugin {}: {}", plugin_id_, MessageOf(grouped));
    }
    Watch(std::move(group));
    return absl::OkStatus();
  }

  void Watch(CgroupDir group) {
    absl::StatusOr<UniqueFd> memory = group.OpenFile("memory.events");
    if (memory.ok()) memory_ = std::make_unique<CounterWatch>(executor_, *std::move(memory));
    absl::StatusOr<UniqueFd> pids = group.OpenFile("pids.events");
    if (pids.ok()) pids_ = std::make_unique<CounterWatch>(executor_, *std::move(pids));
    group_.emplace(std::move(group));
    if (!scopes_->accounted.has_value()) scopes_->accounted = SliceKills();
    scopes_->cgroups.insert(this);
  }

  [[nodiscard]] uint64_t SliceKills() const {
    const absl::StatusOr<CgroupDir> slice =
        CgroupDir::Open(std::filesystem::path(group_->path()).parent_path().string());
    const absl::StatusOr<std::string> text = slice.ok() ? slice->Read("memory.events") : slice.status();
    return text.ok() ? FlatKeyedValue(*text, "oom_kill") : 0;
  }

  // Takes what this scope's own counter says into the account. False: the group has gone.
  bool TakeIntoAccount() {
    if (memory_ == nullptr) return true;
    bool gone = false;
    const std::string& text = memory_->Text(&gone);
    const uint64_t now = FlatKeyedValue(text, "oom_kill");
    oom_seen_ = FlatKeyedValue(text, "oom");
    if (now > seen_) *scopes_->accounted += now - seen_;
    seen_ = std::max(seen_, now);
    return !gone;
  }

  [[nodiscard]] uint64_t RefusedForks() {
    bool gone = false;
    return pids_ == nullptr ? 0 : FlatKeyedValue(pids_->Text(&gone), "max");
  }

  // All kills in this scope that are known of.
  uint64_t Account() {
    if (!group_.has_value() || TakeIntoAccount() || settled_) return seen_;
    for (ScopeCgroupImpl* group : scopes_->cgroups) {
      [[maybe_unused]] const bool there = group->TakeIntoAccount();
    }
    const uint64_t slice = SliceKills();
    uint64_t& accounted = *scopes_->accounted;
    // Less than before: the slice, too, is a new one.
    if (slice > accounted) {
      seen_ += slice - accounted;
      // Which limit it was went with the group: if the group has one, that is the likely one.
      oom_seen_ = std::max<uint64_t>(oom_seen_, 1);
    }
    accounted = slice;
    return seen_;
  }

  std::shared_ptr<Scopes> scopes_;
  asio::any_io_executor executor_;
  std::string plugin_id_;  // empty where it was found
  std::string name_;
  CgroupLimits limits_;
  std::string unenforced_;
  std::optional<CgroupDir> group_;
  std::unique_ptr<CounterWatch> memory_;
  std::unique_ptr<CounterWatch> pids_;
  GroupCounters before_;  // as it was found
  uint64_t seen_ = 0;     // of its own kills, in the account
  uint64_t oom_seen_ = 0;
  bool settled_ = false;  // its processes were ended by us: no kill that was missed is its own
};

std::unique_ptr<PluginCgroup> NewScopeCgroup(std::shared_ptr<Scopes> scopes, asio::any_io_executor executor,
                                             std::string plugin_id, CgroupLimits limits) {
  return std::make_unique<ScopeCgroupImpl>(std::move(scopes), std::move(executor), std::move(plugin_id),
                                           limits);
}

std::unique_ptr<PluginCgroup> FoundScopeCgroup(std::shared_ptr<Scopes> scopes, asio::any_io_executor executor,
                                               CgroupDir group) {
  return std::make_unique<ScopeCgroupImpl>(std::move(scopes), std::move(executor), std::move(group));
}

}  // namespace berth::cgroup_internal
