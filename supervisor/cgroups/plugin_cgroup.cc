// What this node offers, and the placers: who makes and finds places.
#include "supervisor/cgroups/plugin_cgroup.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "supervisor/cgroups/plugin_cgroup_kinds.h"

namespace berth {
namespace {

using cgroup_internal::Enforceable;
using cgroup_internal::Scopes;

constexpr size_t kProcFileLimit = size_t{4} << 20;
constexpr Duration kSystemdAnswersWithin = std::chrono::seconds(5);
// Another berthd may take the directory away between two steps of ours.
constexpr int kTries = 10;
constexpr const char* kControllers[] = {"memory", "pids", "cpu"};

class NoCgroupImpl : public PluginCgroup {
 public:
  NoCgroupImpl(std::string why, std::string unenforced)
      : why_(std::move(why)), unenforced_(std::move(unenforced)) {}

  [[nodiscard]] std::string describe() const override { return "none: " + why_; }
  [[nodiscard]] const std::string& unenforced() const override { return unenforced_; }
  [[nodiscard]] bool has_group() const override { return false; }
  Awaitable<absl::Status> Enter(pid_t /*pid*/, TimePoint /*deadline*/) override {
    co_return absl::OkStatus();
  }
  Awaitable<CgroupExit> HowItEnded() override { co_return CgroupExit{}; }
  absl::StatusOr<std::vector<pid_t>> Members() const override { return absl::UnimplementedError(describe()); }
  Awaitable<absl::Status> KillAll(TimePoint /*deadline*/) override {
    co_return absl::UnimplementedError(describe());
  }
  Awaitable<void> Release() override { co_return; }

 private:
  std::string why_;
  std::string unenforced_;
};

// Where a running process is, whichever berthd put it there.
std::unique_ptr<PluginCgroup> FindCgroup(std::shared_ptr<Scopes> scopes,
                                         const asio::any_io_executor& executor, const GroupName& wanted,
                                         bool lives) {
  const std::optional<std::string> path = Cgroup2Path(wanted.cgroup);
  if (!path.has_value() || !scopes->mount.has_value()) {
    return cgroup_internal::NoCgroup("its cgroup is not of the v2 hierarchy", "");
  }
  const std::filesystem::path as_path(*path);
  const std::string name = as_path.filename().string();
  const std::string parent = as_path.parent_path().filename().string();
  const bool scope = parent == cgroup_internal::kSlice && name.starts_with(cgroup_internal::kScopePrefix) &&
                     name.ends_with(cgroup_internal::kScopeSuffix);
  if (!scope && parent != cgroup_internal::kDirectory) {
    return cgroup_internal::NoCgroup(
        fmt::format("it was launched in {}, no group of its own", Printable(*path, 512)), "");
  }
  const std::optional<std::string> directory = scopes->mount->DirectoryOf(*path);
  absl::StatusOr<CgroupDir> group = directory.has_value()
                                        ? CgroupDir::Open(*directory)
                                        : absl::NotFoundError("it is outside of this cgroup namespace");
  if (!group.ok()) return cgroup_internal::NoCgroup(std::string(MessageOf(group.status())), "");
  // Another group by the same name, though the process has ended: another berthd's plugin lives there now.
  const bool another = wanted.id != 0 && group->Id() != wanted.id;
  // The earlier holder of a directory has ended: one that is held now is held by another process.
  const bool held = !scope && !group->Lock();
  if (!lives && (another || held)) {
    return cgroup_internal::NoCgroup(fmt::format("{} is another plugin's now", Printable(group->path(), 512)),
                                     "");
  }
  if (scope) return cgroup_internal::FoundScopeCgroup(std::move(scopes), executor, *std::move(group));
  const CgroupLimits limits = cgroup_internal::ReadLimits(*group);
  return cgroup_internal::DirectoryCgroup(*std::move(group), limits, "");
}

class CgroupProviderBase : public CgroupProvider {
 public:
  CgroupProviderBase(asio::any_io_executor executor, std::shared_ptr<Scopes> scopes, std::string description)
      : executor_(std::move(executor)), scopes_(std::move(scopes)), description_(std::move(description)) {}

  [[nodiscard]] const std::string& describe() const override { return description_; }

  Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Find(GroupName group, bool lives) override {
    co_return FindCgroup(scopes_, executor_, group, lives);
  }

 protected:
  asio::any_io_executor executor_;
  std::shared_ptr<Scopes> scopes_;
  std::string description_;
};

class NoCgroupProvider : public CgroupProviderBase {
 public:
  NoCgroupProvider(asio::any_io_executor executor, std::shared_ptr<Scopes> scopes, std::string why)
      : CgroupProviderBase(std::move(executor), std::move(scopes), "none: " + why), why_(std::move(why)) {}

  Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Prepare(std::string /*plugin_id*/,
                                                                   CgroupLimits limits,
                                                                   TimePoint /*deadline*/) override {
    co_return cgroup_internal::NoCgroup(why_, cgroup_internal::Unenforced(limits, Enforceable{}, why_));
  }

 private:
  std::string why_;
};

class ScopeProvider : public CgroupProviderBase {
 public:
  using CgroupProviderBase::CgroupProviderBase;

  Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Prepare(std::string plugin_id, CgroupLimits limits,
                                                                   TimePoint /*deadline*/) override {
    co_return cgroup_internal::NewScopeCgroup(scopes_, executor_, std::move(plugin_id), limits);
  }
};

// The directory in which the places are, made with the controllers that it can have.
class DirectoryProvider : public CgroupProviderBase {
 public:
  DirectoryProvider(asio::any_io_executor executor, std::shared_ptr<Scopes> scopes, std::string above)
      : CgroupProviderBase(std::move(executor), std::move(scopes), ""),
        above_(std::move(above)),
        directory_(fmt::format("{}/{}", above_, cgroup_internal::kDirectory)) {}

  // Makes the directory, to see whether that can be done.
  absl::Status Begin() {
    BERTH_RETURN_IF_ERROR(Make());
    BERTH_RETURN_IF_ERROR(Sweep());
    description_ = fmt::format("cgroups beneath {}", directory_);
    if (!enforceable_.all()) {
      description_ +=
          fmt::format("; no limits of {}: {}", cgroup_internal::MissingControllers(enforceable_), why_);
    }
    rmdir(directory_.c_str());  // made again with the first place, unless there are some
    return absl::OkStatus();
  }

  Awaitable<absl::StatusOr<std::unique_ptr<PluginCgroup>>> Prepare(std::string plugin_id, CgroupLimits limits,
                                                                   TimePoint /*deadline*/) override {
    BERTH_CO_ASSIGN_OR_RETURN(CgroupDir group, MakeCgroup(plugin_id));
    BERTH_CO_RETURN_IF_ERROR(SetLimits(group, limits));
    std::string unenforced = cgroup_internal::Unenforced(limits, enforceable_, why_);
    co_return cgroup_internal::DirectoryCgroup(std::move(group), limits, std::move(unenforced));
  }

 private:
  absl::Status Make() {
    BERTH_ASSIGN_OR_RETURN(const CgroupDir above, CgroupDir::Open(above_));
    if (mkdir(directory_.c_str(), 0755) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, fmt::format("mkdir {}", directory_));
    }
    BERTH_ASSIGN_OR_RETURN(const CgroupDir own, CgroupDir::Open(directory_));
    why_ = EnableControllers(above);
    const std::string beneath = EnableControllers(own);
    if (why_.empty()) why_ = beneath;
    const absl::StatusOr<std::string> enabled = own.Read("cgroup.subtree_control");
    if (!enabled.ok()) return enabled.status();
    enforceable_ = cgroup_internal::EnforceableBy(CgroupWords(*enabled));
    return absl::OkStatus();
  }

  // Lets groups beneath `group` have what limits need. Why that cannot be, in words.
  static std::string EnableControllers(const CgroupDir& group) {
    const absl::StatusOr<std::string> there = group.Read("cgroup.controllers");
    const absl::StatusOr<std::string> enabled = group.Read("cgroup.subtree_control");
    if (!there.ok() || !enabled.ok()) return "its cgroup cannot be read";
    const std::vector<std::string> available = CgroupWords(*there);
    const std::vector<std::string> already = CgroupWords(*enabled);
    std::string why;
    for (const std::string controller : kControllers) {
      if (std::find(already.begin(), already.end(), controller) != already.end()) continue;
      if (std::find(available.begin(), available.end(), controller) == available.end()) {
        why = fmt::format("the cgroup v2 hierarchy at {} does not have the controllers", group.path());
        continue;
      }
      const absl::Status written = group.Write("cgroup.subtree_control", "+" + controller);
      if (written.ok()) continue;
      why = ErrnoOf(written) == EBUSY
                ? fmt::format(
                      "{} holds other processes, and the kernel limits only groups beneath one that holds "
                      "none",
                      group.path())
                : std::string(MessageOf(written));
    }
    return why;
  }

  // Removes what earlier runs left and nothing is in any more.
  absl::Status Sweep() {
    std::error_code error;
    std::vector<std::string> paths;
    for (std::filesystem::directory_iterator it(directory_, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code ignored;
      if (it->is_directory(ignored)) paths.push_back(it->path().string());
    }
    for (std::string& path : paths) RemoveIfUnused(std::move(path));
    return absl::OkStatus();
  }

  static bool RemoveIfUnused(std::string path) {
    const absl::StatusOr<CgroupDir> group = CgroupDir::Open(std::move(path));
    if (!group.ok()) return absl::IsNotFound(group.status());
    // A lock shows that a launch into it is about to begin.
    return group->Lock() && group->StillThere() && rmdir(group->path().c_str()) == 0;
  }

  absl::StatusOr<CgroupDir> MakeCgroup(const std::string& plugin_id) {
    int number = 1;
    absl::Status failure;
    for (int tries = 0; number <= cgroup_internal::kCgroupsOfOne && tries < kTries;) {
      const std::string path =
          fmt::format("{}/{}", directory_, cgroup_internal::DirectoryName(plugin_id, number));
      // Others do not open it: they would lock it.
      if (mkdir(path.c_str(), 0711) != 0) {
        failure = ErrnoStatus(errno, fmt::format("mkdir {}", path));
        if (errno == EEXIST) {
          // Always a new one, with counters at zero; one that is in use keeps its own.
          if (RemoveIfUnused(path)) {
            ++tries;
          } else {
            ++number;
          }
          continue;
        }
        if (errno != ENOENT) return failure;
        BERTH_RETURN_IF_ERROR(Make());
        ++tries;
        continue;
      }
      absl::StatusOr<CgroupDir> group = CgroupDir::Open(path);
      // In the moment before the lock another berthd may have taken it for unused.
      if (group.ok() && group->Lock() && group->StillThere()) return group;
      failure = group.ok() ? absl::AbortedError(path + " was taken by another process") : group.status();
      ++tries;
    }
    return failure;
  }

  [[nodiscard]] absl::Status SetLimits(const CgroupDir& group, const CgroupLimits& limits) const {
    if (enforceable_.memory) {
      if (limits.memory_max.has_value()) {
        BERTH_RETURN_IF_ERROR(group.Write("memory.max", fmt::format("{}", *limits.memory_max)));
      }
      BERTH_RETURN_IF_ERROR(group.Write("memory.oom.group", limits.killed_together ? "1" : "0"));
    }
    if (enforceable_.pids && limits.pids_max.has_value()) {
      BERTH_RETURN_IF_ERROR(group.Write("pids.max", fmt::format("{}", *limits.pids_max)));
    }
    if (enforceable_.cpu && limits.cpus.has_value()) {
      constexpr double kPeriod = 100'000;  // microseconds
      constexpr int64_t kLeast = 1'000;    // the kernel's
      const int64_t quota = std::max<int64_t>(kLeast, std::llround(*limits.cpus * kPeriod));
      BERTH_RETURN_IF_ERROR(group.Write("cpu.max", fmt::format("{} {:.0f}", quota, kPeriod)));
    }
    return absl::OkStatus();
  }

  std::string above_;
  std::string directory_;
  Enforceable enforceable_;
  std::string why_;  // not all
};

// Where a cgroup may be made; the reason if nowhere.
absl::StatusOr<std::string> OwnCgroup(const std::optional<CgroupMount>& mount) {
  if (!mount.has_value()) return absl::NotFoundError("no cgroup v2 hierarchy is mounted");
  BERTH_ASSIGN_OR_RETURN(const std::string own, ReadFile("/proc/self/cgroup", kProcFileLimit));
  const std::optional<std::string> path = Cgroup2Path(own);
  if (!path.has_value()) return absl::NotFoundError("berthd is in no cgroup v2");
  const std::optional<std::string> directory = mount->DirectoryOf(*path);
  if (directory.has_value()) return *directory;
  return absl::NotFoundError(
      fmt::format("berthd's cgroup {} is not beneath {}", Printable(*path, 512), mount->mount_point));
}

// What systemd can limit: it uses the old hierarchies where the unified one has no controllers.
Enforceable SystemdLimits(const std::optional<CgroupMount>& mount) {
  const absl::StatusOr<std::string> own = ReadFile("/proc/self/cgroup", kProcFileLimit);
  std::vector<std::string> controllers = Cgroup1Controllers(own.value_or(""));
  if (mount.has_value()) {
    const absl::StatusOr<CgroupDir> root = CgroupDir::Open(mount->mount_point);
    const absl::StatusOr<std::string> text = root.ok() ? root->Read("cgroup.controllers") : root.status();
    if (text.ok()) {
      for (std::string& word : CgroupWords(*text)) controllers.push_back(std::move(word));
    }
  }
  return cgroup_internal::EnforceableBy(controllers);
}

}  // namespace

namespace cgroup_internal {

std::unique_ptr<PluginCgroup> NoCgroup(std::string why, std::string unenforced) {
  return std::make_unique<NoCgroupImpl>(std::move(why), std::move(unenforced));
}

}  // namespace cgroup_internal

Awaitable<std::unique_ptr<CgroupProvider>> CgroupProvider::Detect(asio::any_io_executor executor,
                                                                  CgroupOptions options) {
  auto scopes = std::make_shared<Scopes>();
  scopes->mount = FindCgroup2Mount("/proc/self/mountinfo");

  std::string why_no_scopes;
  if (options.use_systemd && sd_booted() > 0) {
    const absl::StatusOr<std::string> version =
        co_await scopes->bus.Version(Clock::now() + kSystemdAnswersWithin);
    if (version.ok()) {
      // Plugins are to end after berthd when the machine goes down.
      scopes->before = OwnServiceUnit();
      scopes->enforceable = SystemdLimits(scopes->mount);
      std::string description = fmt::format("systemd scopes (systemd {})", *version);
      if (!scopes->enforceable.all()) {
        description += fmt::format("; no limits of {}: this node's cgroups have no such controllers",
                                   cgroup_internal::MissingControllers(scopes->enforceable));
      }
      co_return std::make_unique<ScopeProvider>(std::move(executor), std::move(scopes),
                                                std::move(description));
    }
    why_no_scopes = fmt::format("systemd does not answer ({}); ", MessageOf(version.status()));
    SPDLOG_WARN("systemd runs here, but does not answer: {}", MessageOf(version.status()));
  }

  absl::StatusOr<std::string> above = options.cgroup_parent.empty()
                                          ? OwnCgroup(scopes->mount)
                                          : absl::StatusOr<std::string>(options.cgroup_parent);
  absl::Status failure = above.status();
  if (above.ok()) {
    auto provider = std::make_unique<DirectoryProvider>(executor, scopes, *std::move(above));
    failure = provider->Begin();
    if (failure.ok()) co_return provider;
  }
  co_return std::make_unique<NoCgroupProvider>(std::move(executor), std::move(scopes),
                                               why_no_scopes + std::string(MessageOf(failure)));
}

}  // namespace berth
