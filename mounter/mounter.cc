#include "mounter/mounter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/boot_timer.h"
#include "base/file.h"
#include "base/status.h"
#include "journal/journal.h"
#include "mounter/leftovers.h"
#include "mounter/mounter_impl.h"
#include "mounts/immutable.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

// The least that every plugin has to accept for a path.
constexpr size_t kPathPromise = 128;
constexpr size_t kTargetLength =
    sizeof("/0123456789abcdef0123456789abcdef/publish/0123456789abcdef0123456789abcdef/target") - 1;

// How often to check whether the machine has slept. A shorter sleep does no harm.
constexpr Duration kLookForSleep = std::chrono::seconds(10);
constexpr Duration kShortSleep = std::chrono::seconds(1);
// How long a plugin may take to say whether something is wrong with a volume.
constexpr Duration kConditionWithin = std::chrono::seconds(20);

void Warn(const absl::Status& status) {
  if (!status.ok()) SPDLOG_WARN("{}", MessageOf(status));
}

// Closes the directory beneath the tree. Nothing of it keeps berthd from starting. Returns the names of what
// lies in it.
std::set<std::string> TidyUp(const std::string& tree, UniqueFd directory, const VolumePaths& paths) {
  std::set<std::string> found;
  Warn(paths.RemoveUnfinishedIdentities());
  if (!directory.valid()) return found;
  const SafeRoot covered = SafeRoot::Of(tree, std::move(directory));
  const auto leftovers = ListLeftovers(covered);
  Warn(leftovers.status());
  for (const Leftover& leftover : leftovers.ok() ? *leftovers : std::vector<Leftover>()) {
    SPDLOG_WARN("{}: files lie on the disk beneath the mount, and were left there: {}", tree,
                Describe(leftover));
    found.insert(leftover.name);
  }
  if (const absl::Status closed = MakeImmutable(covered.fd()); !closed.ok()) {
    SPDLOG_WARN("{}: while berthd has not started, files can be put into this directory: {}", tree,
                MessageOf(closed));
  }
  return found;
}

}  // namespace

absl::Status MounterImpl::Load(const std::set<std::string>& leftovers) {
  BERTH_ASSIGN_OR_RETURN(const auto rows, RestoreRows(*context_.journal, *context_.paths, BootId()));
  BERTH_ASSIGN_OR_RETURN(auto machines, ReadRows(rows, BootId()));
  const EarlierMounts mounts = MountsNow(context_.paths->tree());
  for (auto& [key, machine] : machines) {
    // Of another boot: the kernel has nothing of it.
    if (machine.record().boot_id != BootId()) machine.SetEarlierMounts(mounts);
    AddActor(key, std::move(machine));
  }
  context_.pending_expansions.Load(context_.journal->TakeMeta());
  CompareIdentities(leftovers);
  return absl::OkStatus();
}

void MounterImpl::CompareIdentities(const std::set<std::string>& leftovers) {
  const VolumePaths& paths = *context_.paths;
  bool written = false;
  for (const auto& [key, actor] : volumes_) {
    if (paths.HasIdentity(key)) continue;
    Warn(paths.WriteIdentity(actor->machine().record()));
    written = true;
  }
  if (written) {
    context_.journal->WhenIdle([&paths] { Warn(paths.SyncAllIdentities()); });
  }
  const auto keys = paths.ListIdentities();
  Warn(keys.status());
  for (const std::string& key : keys.ok() ? *keys : std::vector<std::string>()) {
    if (volumes_.contains(key) || leftovers.contains(key)) continue;
    const auto directory = paths.LookAtVolume(key);
    const auto identity = paths.ReadIdentity(key);
    if (!directory.ok() || directory->exists || !identity.ok()) continue;
    Warn(paths.RemoveIdentity(key));
  }
}

std::shared_ptr<VolumeActor> MounterImpl::AddActor(const std::string& key, VolumeMachine machine) {
  auto on_gone = [this, key] {
    const auto it = volumes_.find(key);
    if (it != volumes_.end()) volumes_.erase(it);
  };
  if (!context_.leaving.empty()) machine.BeginShutdown(context_.leaving);
  auto actor = VolumeActor::Create(context_, std::move(machine), std::move(on_gone));
  volumes_[key] = actor;
  actor->ReportUsers();
  return actor;
}

void MounterImpl::Uses(const std::string& consumer, const std::string& key, bool used) {
  if (used) {
    by_consumer_[consumer].insert(key);
    return;
  }
  const auto it = by_consumer_.find(consumer);
  if (it == by_consumer_.end()) return;
  it->second.erase(key);
  if (!it->second.empty()) return;
  by_consumer_.erase(it);
  ForgetEnded(consumer);
}

std::vector<std::shared_ptr<VolumeActor>> MounterImpl::ActorsOf(const std::string& consumer) const {
  std::vector<std::shared_ptr<VolumeActor>> actors;
  const auto it = by_consumer_.find(consumer);
  if (it == by_consumer_.end()) return actors;
  for (const std::string& key : it->second) {
    if (const auto actor = volumes_.find(key); actor != volumes_.end()) actors.push_back(actor->second);
  }
  return actors;
}

std::shared_ptr<VolumeActor> MounterImpl::FindActor(const std::string& plugin_id,
                                                    const std::string& volume_id) const {
  const auto it = volumes_.find(VolumePaths::VolumeKey(plugin_id, volume_id));
  return it == volumes_.end() ? nullptr : it->second;
}

std::shared_ptr<VolumeActor> MounterImpl::FindOrAdd(const std::string& plugin_id,
                                                    const std::string& volume_id) {
  if (auto known = FindActor(plugin_id, volume_id)) return known;
  VolumeRecord record;
  record.plugin_id = plugin_id;
  record.volume_id = volume_id;
  return AddActor(VolumePaths::VolumeKey(plugin_id, volume_id), VolumeMachine::Fresh(std::move(record)));
}

size_t MounterImpl::VolumesThrough(const std::string& plugin_id) const {
  return static_cast<size_t>(std::ranges::count_if(volumes_, [&plugin_id](const auto& entry) {
    return entry.second->present() && entry.second->machine().record().plugin_id == plugin_id;
  }));
}

std::vector<uint64_t> MounterImpl::RecordedMounts(const std::set<dev_t>& devices) const {
  std::vector<uint64_t> mounts;
  for (const auto& [key, actor] : volumes_) {
    if (!actor->present()) continue;
    const VolumeRecord& record = actor->machine().record();
    const bool shares = std::ranges::any_of(
        record.objects, [&devices](const KernelObject& object) { return devices.contains(object.device); });
    if (!shares) continue;
    const std::vector<uint64_t> theirs = record.Mounts();
    mounts.insert(mounts.end(), theirs.begin(), theirs.end());
  }
  return mounts;
}

Awaitable<absl::Status> MounterImpl::Recover() {
  ReportRestored(*context_.journal, context_.events);
  std::set<std::string> known;
  for (const auto& [key, actor] : volumes_) known.insert(key);
  ReportOrphans(*context_.paths, known, context_.events);
  // Before anything is looked at, so that no change falls between.
  auto watch =
      MountWatch::Start(context_.executor, context_.scope, context_.paths->tree(),
                        [this](const std::optional<std::set<std::string>>& keys) { OnMountChanges(keys); });
  if (watch.ok()) {
    context_.watch = *std::move(watch);
    // An older kernel is no problem of the node's: nothing goes unnoticed.
    SPDLOG_INFO("mounts are watched by {}", context_.watch->describe());
  } else {
    not_watching_ = fmt::format("what others do to mounts is not noticed before a restart: {}",
                                MessageOf(watch.status()));
    SPDLOG_WARN("{}", not_watching_);
  }

  size_t unfinished = 0;
  size_t awaiting = 0;
  bool rebooted = false;
  // By value: an actor may be gone as soon as it begins.
  const auto actors = volumes_;
  context_.recovered = true;
  for (const auto& [key, actor] : actors) {
    const VolumeRecord& record = actor->machine().record();
    const std::string before = record.boot_id;
    actor->reconciler().Reconcile({.start = true, .rebooted = before != BootId()});
    actor->ReportUsers();
    awaiting += actor->reconciler().HasBlocked(Origin::kScheduler) ? 1 : 0;
    rebooted = rebooted || before != BootId();
    if (!actor->machine().Unsettled()) continue;
    ++unfinished;
    context_.events.Append({.type = "volume.recovered",
                            .plugin_id = record.plugin_id,
                            .volume_id = record.volume_id,
                            .consumer = "",
                            .message = "not finished when berthd ended: finishing it"});
    actor->Start();
  }
  if (awaiting > 0) {
    ReportAwaitingScheduler(
        fmt::format("{} volumes wait for their scheduler's confirmation, since {} was restarted", awaiting,
                    rebooted ? "the node" : "berthd"));
  }
  WatchHealth();
  context_.scope.Spawn("sleep of the machine", WatchSleep());
  SPDLOG_INFO("{} volumes in the journal, {} with unfinished steps, {} that wait for a scheduler",
              actors.size(), unfinished, awaiting);
  co_return absl::OkStatus();
}

void MounterImpl::OnMountChanges(const std::optional<std::set<std::string>>& keys) {
  if (context_.stopping) return;
  if (!keys) {
    [[maybe_unused]] const absl::Status tree = RepairTree();
    const auto actors = volumes_;
    for (const auto& [key, actor] : actors) actor->reconciler().Reconcile({});
    return;
  }
  for (const std::string& key : *keys) {
    const auto it = volumes_.find(key);
    if (it != volumes_.end() && it->second->present()) {
      it->second->reconciler().Reconcile({});
    } else if (!reported_orphans_.contains(key) && ReportOrphan(*context_.paths, key, context_.events)) {
      reported_orphans_.insert(key);
    }
  }
}

Awaitable<void> MounterImpl::WatchSleep() {
  while (true) {
    const BootTime began = BootClock::now();
    const TimePoint awake = Clock::now();
    // Ends as soon as the machine is awake, if it has slept past that.
    co_await SleepUntil(began + kLookForSleep);
    const Duration slept = (BootClock::now() - began) - (Clock::now() - awake);
    if (slept < kShortSleep) continue;
    const auto actors = volumes_;
    for (const auto& [key, actor] : actors) actor->AfterSleep();
  }
}

absl::Status MounterImpl::RepairTree() {
  if (context_.stopping) return absl::OkStatus();
  const absl::Status stands = context_.paths->CheckTree();
  tree_problem_ = absl::IsNotFound(stands) ? "" : std::string(MessageOf(stands));
  if (!absl::IsNotFound(stands)) return stands;
  // What was mounted in it is gone, or stays with the processes that use it; no path leads to a volume.
  const std::string tree = context_.paths->tree();
  absl::Status mended = SetUpMountTree(tree).status();
  if (mended.ok()) mended = context_.paths->RenewTree();
  if (!mended.ok()) {
    tree_problem_ = fmt::format("{}, and is not mounted again: {}", MessageOf(stands), MessageOf(mended));
    return absl::UnavailableError(tree_problem_);
  }
  context_.events.Append(
      {.type = "tree.mounted_again", .message = fmt::format("{} was unmounted: it was mounted again", tree)});
  if (context_.options.on_tree_mounted) context_.options.on_tree_mounted();
  const auto actors = volumes_;
  for (const auto& [key, actor] : actors) actor->reconciler().Reconcile({});
  return absl::OkStatus();
}

void MounterImpl::WatchHealth() {
  if (context_.options.health_interval <= Duration(0)) return;
  auto which = [this] {
    [[maybe_unused]] const absl::Status tree = RepairTree();  // Problems reports it
    std::vector<WatchedMount> mounts;
    for (const auto& [key, actor] : volumes_) {
      auto some = actor->reconciler().WatchedMounts();
      mounts.insert(mounts.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    return mounts;
  };
  auto told = [this](const WatchedMount& mount, const absl::Status& verdict) {
    const auto it = volumes_.find(mount.key);
    if (it == volumes_.end()) return;
    const auto actor = it->second;
    actor->reconciler().OnHealth(mount.component, verdict);
  };
  health_.emplace(context_.executor, context_.helper, context_.options.health_interval, std::move(which),
                  std::move(told), context_.options.health_patience);
  context_.scope.Spawn("health of mounts", health_->Run());
  context_.scope.Spawn("condition of volumes", WatchConditions());
}

Awaitable<void> MounterImpl::WatchConditions() {
  while (true) {
    co_await SleepUntil(Clock::now() + context_.options.health_interval);
    std::map<std::string, std::vector<std::shared_ptr<VolumeActor>>> plugins;
    for (const auto& [key, actor] : volumes_) {
      if (actor->present()) plugins[actor->machine().record().plugin_id].push_back(actor);
    }
    const auto left = std::make_shared<size_t>(plugins.size());
    for (auto& [id, volumes] : plugins) {
      context_.scope.Spawn("condition of volumes of " + id, AskConditions(std::move(volumes), left));
    }
    [[maybe_unused]] const bool asked =
        co_await conditions_asked_.WaitUntil([left] { return *left == 0; }, TimePoint::max());
  }
}

Awaitable<void> MounterImpl::AskConditions(std::vector<std::shared_ptr<VolumeActor>> volumes,
                                           std::shared_ptr<size_t> left) {
  for (const std::shared_ptr<VolumeActor>& volume : volumes) {
    const Duration patience = std::min(context_.options.rpc_timeout, kConditionWithin);
    if (!co_await VolumeHealth::Ask(VolumeActor::Health(volume), Clock::now() + patience)) break;
  }
  --*left;
  conditions_asked_.NotifyAll();
}

std::vector<std::string> MounterImpl::Problems() const {
  std::vector<std::string> problems;
  if (context_.journal != nullptr) {
    if (std::string problem = context_.journal->problem(); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  if (!not_watching_.empty()) problems.push_back(not_watching_);
  if (!tree_problem_.empty()) problems.push_back(tree_problem_);
  for (const StuckHelper& helper : context_.helper.stuck()) {
    problems.push_back(fmt::format("process {} hangs in the kernel: {}; it ends when its file system answers",
                                   helper.pid, helper.what));
  }
  return problems;
}

void MounterImpl::BeginShutdown(std::string why) {
  if (!context_.leaving.empty()) return;
  context_.leaving = std::move(why);
  const auto actors = volumes_;
  for (const auto& [key, actor] : actors) actor->reconciler().BeginShutdown(context_.leaving);
}

Awaitable<void> MounterImpl::Shutdown(TimePoint deadline) {
  BeginShutdown("berthd is stopping");
  context_.stopping = true;
  const auto actors = volumes_;
  for (const auto& [key, actor] : actors) actor->WakeUp();
  auto quiet = [&actors] {
    return std::ranges::none_of(actors, [](const auto& a) { return a.second->busy(); });
  };
  if (!co_await context_.work_ended.WaitUntil(quiet, deadline)) {
    SPDLOG_WARN("steps of volumes still run; they are taken up again at the next start");
  }
  co_await context_.consumers.Shutdown();
  co_await context_.scope.Join();
  context_.watch.reset();
  for (const auto& [key, actor] : actors) actor->FailAll(absl::UnavailableError("berthd is stopping"));
  co_await context_.journal->Flush(std::max(deadline, Clock::now() + std::chrono::seconds(1)));
  context_.journal.reset();

  const bool holds = std::ranges::any_of(actors, [](const auto& a) { return a.second->present(); });
  const std::string tree = context_.paths->tree();
  context_.paths.reset();
  volumes_.clear();
  if (holds) co_return;
  // A volume that the journal does not know keeps it busy, rightly.
  const absl::Status taken_down = TakeDownMountTree(tree);
  if (!taken_down.ok()) SPDLOG_WARN("{}", taken_down.ToString());
}

absl::StatusOr<std::unique_ptr<Mounter>> Mounter::Open(asio::any_io_executor executor, MounterOptions options,
                                                       PluginDirectory& plugins, EventLog& events) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(options.state_dir, 0711));
  std::error_code error;
  // The kernel shows mounts by their true paths.
  const std::string state_dir = std::filesystem::canonical(options.state_dir, error).string();
  if (error) return ErrnoStatus(error.value(), fmt::format("resolve {}", options.state_dir));
  options.state_dir = state_dir;
  const std::string tree = VolumePaths::TreeIn(state_dir);
  if (tree.size() + kTargetLength > kPathPromise) {
    SPDLOG_WARN("{}: target paths of {} bytes; a plugin need not accept more than {}", state_dir,
                tree.size() + kTargetLength, kPathPromise);
  }
  // The journal first: its lock says that the tree is ours to touch.
  BERTH_ASSIGN_OR_RETURN(auto journal, Journal::Open(executor, {.path = state_dir + "/journal.db"}));
  BERTH_ASSIGN_OR_RETURN(UniqueFd covered, SetUpMountTree(tree));
  BERTH_ASSIGN_OR_RETURN(VolumePaths paths, VolumePaths::Open(state_dir));
  const std::set<std::string> leftovers = TidyUp(tree, std::move(covered), paths);
  auto mounter = std::make_unique<MounterImpl>(executor, std::move(options), plugins, events,
                                               std::move(journal), std::move(paths));
  BERTH_RETURN_IF_ERROR(mounter->Load(leftovers));
  return mounter;
}

}  // namespace berth
