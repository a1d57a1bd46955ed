#include "mounter/tree_watch.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/boot_timer.h"
#include "base/status.h"
#include "mounter/recovery.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

// How often to check whether the machine has slept. A shorter sleep does no harm.
constexpr Duration kLookForSleep = std::chrono::seconds(10);
constexpr Duration kShortSleep = std::chrono::seconds(1);
// How long a plugin may take to say whether something is wrong with a volume.
constexpr Duration kConditionWithin = std::chrono::seconds(20);

}  // namespace

void TreeWatch::Start() {
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
}

void TreeWatch::StartRounds() {
  WatchHealth();
  context_.scope.Spawn("sleep of the machine", WatchSleep());
}

std::vector<std::string> TreeWatch::Problems() const {
  std::vector<std::string> problems;
  if (!not_watching_.empty()) problems.push_back(not_watching_);
  if (!tree_problem_.empty()) problems.push_back(tree_problem_);
  return problems;
}

void TreeWatch::OnMountChanges(const std::optional<std::set<std::string>>& keys) {
  if (context_.stopping) return;
  if (!keys) {
    [[maybe_unused]] const absl::Status tree = RepairTree();
    const auto actors = table_.all();
    for (const auto& [key, actor] : actors) actor->reconciler().Reconcile({});
    return;
  }
  for (const std::string& key : *keys) {
    const auto it = table_.all().find(key);
    if (it != table_.all().end() && it->second->present()) {
      it->second->reconciler().Reconcile({});
    } else if (!reported_orphans_.contains(key) && ReportOrphan(*context_.paths, key, context_.events)) {
      reported_orphans_.insert(key);
    }
  }
}

Awaitable<void> TreeWatch::WatchSleep() {
  while (true) {
    const BootTime began = BootClock::now();
    const TimePoint awake = Clock::now();
    // Ends as soon as the machine is awake, if it has slept past that.
    co_await SleepUntil(began + kLookForSleep);
    const Duration slept = (BootClock::now() - began) - (Clock::now() - awake);
    if (slept < kShortSleep) continue;
    const auto actors = table_.all();
    for (const auto& [key, actor] : actors) actor->AfterSleep();
  }
}

absl::Status TreeWatch::RepairTree() {
  if (context_.stopping) return absl::OkStatus();
  const absl::Status stands = context_.paths->CheckTree();
  tree_problem_ = absl::IsNotFound(stands) ? "" : std::string(MessageOf(stands));
  if (!absl::IsNotFound(stands)) return stands;
  // What was mounted in it is gone, or stays with the processes that use it; no path leads to a volume.
  const std::string tree = context_.paths->tree();
  absl::Status mounted = SetUpMountTree(tree).status();
  if (mounted.ok()) mounted = context_.paths->RenewTree();
  if (!mounted.ok()) {
    tree_problem_ = fmt::format("{}, and is not mounted again: {}", MessageOf(stands), MessageOf(mounted));
    return absl::UnavailableError(tree_problem_);
  }
  context_.events.Append(
      {.type = "tree.mounted_again", .message = fmt::format("{} was unmounted: it was mounted again", tree)});
  if (context_.options.on_tree_mounted) context_.options.on_tree_mounted();
  const auto actors = table_.all();
  for (const auto& [key, actor] : actors) actor->reconciler().Reconcile({});
  return absl::OkStatus();
}

void TreeWatch::WatchHealth() {
  if (context_.options.health_interval <= Duration(0)) return;
  auto which = [this] {
    [[maybe_unused]] const absl::Status tree = RepairTree();  // Problems reports it
    std::vector<WatchedMount> mounts;
    for (const auto& [key, actor] : table_.all()) {
      auto some = actor->reconciler().WatchedMounts();
      mounts.insert(mounts.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    return mounts;
  };
  auto on_verdict = [this](const WatchedMount& mount, const absl::Status& verdict) {
    const auto it = table_.all().find(mount.key);
    if (it == table_.all().end()) return;
    const auto actor = it->second;
    actor->reconciler().OnHealth(mount.component, verdict);
  };
  health_.emplace(context_.executor, context_.helper, context_.options.health_interval, std::move(which),
                  std::move(on_verdict), context_.options.health_patience);
  context_.scope.Spawn("health of mounts", health_->Run());
  context_.scope.Spawn("condition of volumes", WatchConditions());
}

Awaitable<void> TreeWatch::WatchConditions() {
  while (true) {
    co_await SleepUntil(Clock::now() + context_.options.health_interval);
    std::map<std::string, std::vector<std::shared_ptr<VolumeActor>>> plugins;
    for (const auto& [key, actor] : table_.all()) {
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

Awaitable<void> TreeWatch::AskConditions(std::vector<std::shared_ptr<VolumeActor>> volumes,
                                         std::shared_ptr<size_t> left) {
  for (const std::shared_ptr<VolumeActor>& volume : volumes) {
    const Duration patience = std::min(context_.options.rpc_timeout, kConditionWithin);
    if (!co_await VolumeHealth::Ask(VolumeActor::Health(volume), Clock::now() + patience)) break;
  }
  --*left;
  conditions_asked_.NotifyAll();
}

}  // namespace berth
