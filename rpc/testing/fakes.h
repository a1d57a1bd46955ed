// For tests only: stateful stand-ins for what NodeApi stands on. Loop thread only, like the real ones.
#pragma once

#include <absl/status/statusor.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "controller/controller_directory.h"
#include "declared/declared_directory.h"
#include "mounter/mounter.h"
#include "rpc/plugin_control.h"
#include "rpc/scheduler_directory.h"

namespace berth {

class FakePluginControl final : public PluginControl {
 public:
  std::map<std::string, PluginSnapshot> plugins_by_id;
  // What the next lever answers; OK once it is empty.
  std::deque<absl::Status> next;
  std::vector<std::string> pulled;  // "start P", "stop P", "stop P force", "swap P /command"
  TimePoint last_deadline;          // of what was pulled
  SwapRequest last_swap;
  NodeReload reload;
  // Stands for the log.
  std::function<Awaitable<absl::StatusOr<LogBatch>>(std::string, LogQuery, TimePoint)> read_log;
  std::vector<LogQuery> queries;
  std::string placement = "none: a fake";
  std::vector<Finding> findings;
  std::function<void()> on_wait;  // WaitChange was called: the test changes something

  // A plugin that is ready, of the driver "driver.test", serving Node, with these capabilities.
  PluginSnapshot& Add(const std::string& id) {
    PluginSnapshot& plugin = plugins_by_id[id];
    plugin.id = id;
    plugin.state = PluginState::kReady;
    plugin.alive = plugin.ready = plugin.registered = true;
    plugin.facts = PluginFacts{.name = "driver.test", .vendor_version = "1", .has_node_service = true};
    return plugin;
  }

  [[nodiscard]] const std::map<std::string, PluginSnapshot>& plugins() const override {
    return plugins_by_id;
  }
  [[nodiscard]] Awaitable<absl::Status> StartPlugin(std::string id, TimePoint deadline) override {
    return Pull("start " + id, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> StopPlugin(std::string id, bool force, TimePoint deadline) override {
    return Pull("stop " + id + (force ? " force" : ""), deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> RestartPlugin(std::string id, bool force,
                                                      TimePoint deadline) override {
    return Pull("restart " + id + (force ? " force" : ""), deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> DrainPlugin(std::string id, TimePoint deadline) override {
    return Pull("drain " + id, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> SwapPlugin(std::string id, SwapRequest request,
                                                   TimePoint deadline) override {
    last_swap = request;
    return Pull("swap " + id + " " + request.command, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> PlacePlugin(std::string id, std::string content,
                                                    TimePoint deadline) override {
    return Pull("place " + id + " " + content, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> RemovePlacedPlugin(std::string id, TimePoint deadline) override {
    return Pull("remove " + id, deadline);
  }
  [[nodiscard]] Awaitable<absl::StatusOr<NodeReload>> Reload(TimePoint answer_by) override {
    if (absl::Status status = co_await Pull("reload", answer_by); !status.ok()) co_return status;
    co_return reload;
  }
  // Needs `read_log`.
  [[nodiscard]] Awaitable<absl::StatusOr<LogBatch>> ReadLog(std::string id, LogQuery query,
                                                            TimePoint deadline) override {
    queries.push_back(query);
    return read_log(std::move(id), std::move(query), deadline);
  }
  [[nodiscard]] std::string Placement() const override { return placement; }
  [[nodiscard]] std::vector<Finding> Findings() const override { return findings; }
  // Without `on_wait` nothing ever changes.
  [[nodiscard]] Awaitable<void> WaitChange(TimePoint deadline) override {
    if (!on_wait) co_return co_await SleepUntil(deadline);
    on_wait();
  }

 private:
  Awaitable<absl::Status> Pull(std::string lever, TimePoint deadline) {
    pulled.push_back(std::move(lever));
    last_deadline = deadline;
    if (next.empty()) co_return absl::OkStatus();
    const absl::Status status = next.front();
    next.pop_front();
    co_return status;
  }
};

class FakeControllerDirectory final : public ControllerDirectory {
 public:
  explicit FakeControllerDirectory(const FakePluginControl& control) : control_(control) {}

  std::map<std::string, std::shared_ptr<CsiClient>> clients;
  std::function<void()> on_wait;  // WaitChange was called: the test changes something

  [[nodiscard]] std::shared_ptr<CsiClient> ClientOf(const std::string& plugin_id) override {
    const auto it = clients.find(plugin_id);
    return it == clients.end() ? nullptr : it->second;
  }
  // Without `on_wait` nothing ever changes.
  [[nodiscard]] Awaitable<void> WaitChange(TimePoint deadline) override {
    if (!on_wait) co_return co_await SleepUntil(deadline);
    on_wait();
  }
  [[nodiscard]] const std::map<std::string, PluginSnapshot>& plugins() const override {
    return control_.plugins();
  }

 private:
  const FakePluginControl& control_;
};

class FakeDeclared final : public DeclaredDirectory {
 public:
  std::vector<UnpublishRequest> unpublishes;

  void OnUnpublish(const UnpublishRequest& request) override { unpublishes.push_back(request); }
  std::vector<DeclaredView> files;
  std::vector<std::string> problems;

  // A file that asks for the volume.
  DeclaredView& Add(const std::string& plugin_id, const std::string& volume_id, const std::string& consumer) {
    DeclaredView& view = files.emplace_back();
    view.file = "/etc/berth/volumes.d/" + volume_id + ".toml";
    view.request.set_plugin_id(plugin_id);
    view.request.set_volume_id(volume_id);
    view.request.set_consumer(consumer);
    return view;
  }

  std::function<void()> on_wait;

  [[nodiscard]] std::vector<DeclaredView> List() const override { return files; }
  [[nodiscard]] uint64_t version() const override { return 0; }
  [[nodiscard]] Awaitable<void> WaitChange(uint64_t /*seen*/, TimePoint deadline) const override {
    if (!on_wait) co_return co_await SleepUntil(deadline);
    on_wait();
  }
  [[nodiscard]] std::vector<std::string> Problems() const override { return problems; }
  [[nodiscard]] Awaitable<absl::StatusOr<DeclaredReload>> Reload(TimePoint /*deadline*/) override {
    co_return DeclaredReload{};
  }
};

// Grants every ask, at once or once the test says so.
class FakeScheduler final : public SchedulerDirectory {
 public:
  explicit FakeScheduler(asio::any_io_executor executor) : granted_(std::move(executor)) {}

  std::optional<v1::LinkStatus> link;
  v1::ClaimAnswer answer;
  absl::Status next_error;  // of the next Ask
  bool hang = false;        // Ask waits for Grant, its deadline or its cancellation
  std::vector<v1::ClaimAsk> asks;
  std::vector<v1::ReleaseAsk> releases;
  std::vector<std::string> progress;  // what the next Ask hears before its answer
  bool last_wait = false;
  int waiting = 0;    // how many wait
  int withdrawn = 0;  // how many were cancelled while they waited

  void Grant() {
    hang = false;
    granted_.NotifyAll();
  }

  [[nodiscard]] std::optional<v1::LinkStatus> Status() const override { return link; }
  [[nodiscard]] Awaitable<absl::StatusOr<v1::Answer>> Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                          OnProgress on_progress) override {
    struct Waiting {
      FakeScheduler* scheduler;
      bool ended = false;
      explicit Waiting(FakeScheduler* its) : scheduler(its) { ++scheduler->waiting; }
      ~Waiting() {
        --scheduler->waiting;
        if (!ended) ++scheduler->withdrawn;
      }
    } waits(this);
    if (ask.has_claim()) asks.push_back(ask.claim());
    if (ask.has_release()) releases.push_back(ask.release());
    last_wait = wait;
    for (const std::string& text : std::exchange(progress, {})) {
      if (!co_await on_progress(text)) co_return absl::CancelledError("the caller has gone");
    }
    const bool go = co_await granted_.WaitUntil([this] { return !hang; }, deadline);
    waits.ended = true;
    if (!go) co_return absl::DeadlineExceededError("the fake hangs");
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    v1::Answer answered;
    *answered.mutable_claim() = answer;
    co_return answered;
  }

 private:
  Condition granted_;
};

// Keeps volumes in memory; a publish can be made to hang, fail, or throw.
class FakeMounter : public Mounter {
 public:
  explicit FakeMounter(asio::any_io_executor executor) : released_(std::move(executor)) {}

  std::vector<VolumeView> volumes;
  std::set<std::pair<std::string, std::string>> unrecorded;  // plugin and volume: mounted without a record
  absl::Status next_error;                                   // of the next Publish, NodeExpand or Stats
  bool hang = false;        // Publish waits for Release, its deadline or its cancellation
  bool throws = false;      // Publish has a bug
  int publishing = 0;       // how many wait
  int cancelled = 0;        // how many were cancelled while they waited
  TimePoint last_deadline;  // of whatever was asked for
  UnpublishRequest last_unpublish;
  std::map<std::string, std::string> last_secrets;
  std::optional<RuntimeAbility> last_runtime;
  ::csi::v1::CapacityRange last_range;
  ::csi::v1::NodeGetVolumeStatsResponse stats;
  std::map<std::string, absl::Status> stats_errors;  // by volume
  std::set<std::string> stats_hang;
  std::map<std::string, int> stats_calls;
  int asked = 0;  // how many volumes at this moment, and at most
  int most_asked = 0;
  int64_t node_capacity = 0;
  std::vector<ConsumerMount> mounts;
  VolumeExplanation explanation;  // of every volume, but for its view
  std::vector<Finding> findings;
  std::vector<std::string> problems;
  std::string leaving;  // why nothing goes forward any more
  std::vector<PublicationRef> confirmed;
  std::vector<std::pair<Origin, BootTime>> allowed;
  std::vector<std::string> ended_causes;
  std::vector<std::string> freed_paths;
  std::vector<std::string> steps;  // "note V", "expand V", in order
  // To volumes that are not here, by plugin and volume.
  std::map<std::pair<std::string, std::string>, int64_t> owed_elsewhere;
  absl::Status owe_error;  // of SetPendingExpansion

  VolumeView& Add(const std::string& plugin_id, const std::string& volume_id, const std::string& consumer) {
    VolumeView view;
    view.plugin_id = plugin_id;
    view.volume_id = volume_id;
    view.stage_state = StageState::kStaged;
    view.publications.push_back({.consumer = consumer,
                                 .target_path = "/volumes/" + volume_id,
                                 .state = PublicationState::kPublished});
    return volumes.emplace_back(std::move(view));
  }
  void Release() {
    hang = false;
    released_.NotifyAll();
  }

  [[nodiscard]] Awaitable<absl::Status> Recover() override { co_return absl::OkStatus(); }
  [[nodiscard]] Awaitable<void> Shutdown(TimePoint) override { co_return; }
  void BeginShutdown(std::string why) override { leaving = std::move(why); }
  [[nodiscard]] absl::Status CheckNotShuttingDown() const override {
    return leaving.empty() ? absl::OkStatus() : absl::UnavailableError(leaving);
  }

  [[nodiscard]] Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request,
                                                               TimePoint deadline) override {
    last_deadline = deadline;
    last_secrets = request.secrets;
    last_runtime = request.runtime;
    if (throws) throw std::runtime_error("a bug");
    if (hang) {
      struct Waiting {
        FakeMounter* mounter;
        bool ended = false;
        explicit Waiting(FakeMounter* its) : mounter(its) { ++mounter->publishing; }
        ~Waiting() {
          --mounter->publishing;
          if (!ended) ++mounter->cancelled;
        }
      } waiting(this);
      const bool go = co_await released_.WaitUntil([this] { return !hang; }, deadline);
      waiting.ended = true;
      if (!go) co_return absl::DeadlineExceededError("the fake hangs");
    }
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    VolumeView& view = Add(request.plugin_id, request.volume_id, request.consumer);
    view.use = request.use;
    view.publications[0].origin = request.origin;
    co_return view.publications[0].target_path;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<UnpublishResult>> Unpublish(UnpublishRequest request,
                                                                     TimePoint deadline) override {
    last_deadline = deadline;
    last_unpublish = request;
    const auto undone = std::erase_if(volumes, [&](const VolumeView& view) {
      return view.plugin_id == request.plugin_id && view.volume_id == request.volume_id;
    });
    co_return UnpublishResult{.was_published = undone > 0};
  }
  [[nodiscard]] Awaitable<absl::StatusOr<size_t>> ConsumerEnded(std::string consumer, std::string cause,
                                                                TimePoint deadline) override {
    last_deadline = deadline;
    ended_causes.push_back(std::move(cause));
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    co_return std::erase_if(volumes, [&](const VolumeView& view) {
      return !view.publications.empty() && view.publications[0].consumer == consumer;
    });
  }
  [[nodiscard]] Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecrets(
      SecretsReference reference, TimePoint /*deadline*/) override {
    if (!IsSet(reference)) co_return std::map<std::string, std::string>{};
    co_return absl::FailedPreconditionError(reference.ShortDebugString() + ": this test has no secrets");
  }
  size_t UnblockForward(Origin origin, BootTime since) override {
    allowed.emplace_back(origin, since);
    return 0;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<PublicationRef>>> Confirm(
      std::vector<PublicationRef> wanted, TimePoint deadline) override {
    last_deadline = deadline;
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    std::vector<PublicationRef> not_confirmed;
    for (PublicationRef& use : wanted) {
      const bool here = std::ranges::any_of(volumes, [&](const VolumeView& view) {
        return view.plugin_id == use.plugin_id && view.volume_id == use.volume_id &&
               view.publications[0].consumer == use.consumer;
      });
      if (!here) {
        not_confirmed.push_back(use);
      } else {
        confirmed.push_back(use);
      }
    }
    co_return not_confirmed;
  }
  [[nodiscard]] Awaitable<absl::Status> FreePath(std::string path, TimePoint /*deadline*/) override {
    freed_paths.push_back(std::move(path));
    co_return absl::OkStatus();
  }
  void OnTokensWantedChanged() override {}
  void BlockForward(Origin /*origin*/, std::string /*why*/) override {}
  [[nodiscard]] std::vector<VolumeRef> SingleWriterVolumes(Origin /*origin*/) const override {
    std::vector<VolumeRef> names;
    for (const VolumeView& view : volumes) names.push_back({view.plugin_id, view.volume_id});
    return names;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<UnpublishResult>> ForceRelease(VolumeRef volume, Origin /*origin*/,
                                                                        TimePoint deadline) override {
    co_return co_await Unpublish({.plugin_id = volume.plugin_id, .volume_id = volume.volume_id}, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> SetPendingExpansion(std::string plugin_id, std::string volume_id,
                                                            int64_t required_bytes) override {
    steps.push_back("note " + volume_id);
    if (!owe_error.ok()) co_return owe_error;
    if (VolumeView* view = Known(plugin_id, volume_id)) {
      view->pending_expansion_bytes = required_bytes;
    } else {
      owed_elsewhere[{plugin_id, volume_id}] = required_bytes;
    }
    co_return absl::OkStatus();
  }
  [[nodiscard]] Awaitable<absl::Status> CancelPendingExpansion(std::string plugin_id,
                                                               std::string volume_id) override {
    owed_elsewhere.erase({plugin_id, volume_id});
    co_return absl::OkStatus();
  }
  [[nodiscard]] Awaitable<absl::Status> CheckUnrecorded(std::string plugin_id, std::string volume_id,
                                                        TimePoint) override {
    if (!unrecorded.contains({plugin_id, volume_id})) co_return absl::OkStatus();
    co_return absl::UnavailableError("this node has no record of the volume, and it is mounted");
  }
  [[nodiscard]] std::optional<ConsumerMount> MountOf(const std::string& plugin_id,
                                                     const std::string& volume_id,
                                                     const std::string& consumer,
                                                     const std::string& name) const override {
    for (const ConsumerMount& mount : mounts) {
      const bool same = mount.plugin_id == plugin_id && mount.volume_id == volume_id;
      if (same && mount.consumer == consumer && mount.name == name) return mount;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::vector<ConsumerMount> MountsOf(const std::string& consumer) const override {
    std::vector<ConsumerMount> found;
    for (const ConsumerMount& mount : mounts) {
      if (mount.consumer == consumer) found.push_back(mount);
    }
    return found;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<VolumeExplanation>> Explain(std::string plugin_id,
                                                                     std::string volume_id,
                                                                     TimePoint deadline) override {
    last_deadline = deadline;
    const auto view = Find(plugin_id, volume_id);
    if (!view) co_return absl::NotFoundError("not known here");
    VolumeExplanation told = explanation;
    told.view = *view;
    co_return told;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Finding>>> Examine(bool repair, TimePoint) override {
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    std::vector<Finding> told = findings;
    for (Finding& finding : told) finding.repaired = repair && !finding.repair.empty();
    co_return told;
  }
  [[nodiscard]] std::vector<std::string> Problems() const override { return problems; }
  // Hangs until its deadline of a volume in `stats_hang`.
  [[nodiscard]] Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(
      std::string /*plugin_id*/, std::string volume_id, TimePoint deadline) override {
    struct Asking {
      FakeMounter* mounter;
      explicit Asking(FakeMounter* its) : mounter(its) {
        mounter->most_asked = std::max(mounter->most_asked, ++mounter->asked);
      }
      ~Asking() { --mounter->asked; }
    } asking(this);
    ++stats_calls[volume_id];
    last_deadline = deadline;
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    const TimePoint until = stats_hang.contains(volume_id) ? deadline : Clock::now();
    co_await SleepUntil(until);
    if (Clock::now() >= deadline) co_return absl::DeadlineExceededError("the fake hangs");
    if (const auto error = stats_errors.find(volume_id); error != stats_errors.end()) co_return error->second;
    co_return stats;
  }
  [[nodiscard]] Awaitable<absl::StatusOr<int64_t>> NodeExpand(std::string plugin_id, std::string volume_id,
                                                              ::csi::v1::CapacityRange range,
                                                              std::map<std::string, std::string> secrets,
                                                              TimePoint deadline) override {
    last_deadline = deadline;
    last_range = range;
    last_secrets = std::move(secrets);
    steps.push_back("expand " + volume_id);
    if (absl::Status error = std::exchange(next_error, absl::OkStatus()); !error.ok()) co_return error;
    VolumeView* view = Known(plugin_id, volume_id);
    if (view == nullptr) co_return absl::NotFoundError("not published here");
    view->pending_expansion_bytes = 0;
    co_return node_capacity;
  }

  [[nodiscard]] std::vector<VolumeView> List(const VolumeFilter& filter) const override {
    std::vector<VolumeView> found;
    for (const VolumeView& view : volumes) {
      const auto& uses = view.publications;
      const bool applies =
          (filter.plugin_id.empty() || view.plugin_id == filter.plugin_id) &&
          (filter.consumer.empty() ||
           std::ranges::count(uses, filter.consumer, &PublicationView::consumer) > 0) &&
          view.label.starts_with(filter.label_prefix) &&
          (!filter.declared || std::ranges::count(uses, Origin::kDeclared, &PublicationView::origin) > 0) &&
          std::tie(view.plugin_id, view.volume_id) > std::tie(filter.after.plugin_id, filter.after.volume_id);
      if (applies) found.push_back(view);
    }
    std::ranges::sort(found, {}, [](const VolumeView& v) { return std::tie(v.plugin_id, v.volume_id); });
    if (found.size() > filter.limit) found.resize(filter.limit);
    return found;
  }
  [[nodiscard]] VolumeCounts Count() const override {
    VolumeCounts counts;
    for (const VolumeView& view : volumes) {
      const auto& uses = view.publications;
      ++counts.volumes[view.plugin_id];
      counts.publications += static_cast<int>(uses.size());
      counts.declared +=
          static_cast<int>(std::ranges::count(uses, Origin::kDeclared, &PublicationView::origin));
      counts.mounted +=
          static_cast<int>(std::ranges::count(uses, PublicationState::kPublished, &PublicationView::state));
    }
    return counts;
  }
  [[nodiscard]] std::optional<VolumeView> Find(const std::string& plugin_id,
                                               const std::string& volume_id) const override {
    const auto it = std::find_if(volumes.begin(), volumes.end(), [&](const VolumeView& view) {
      return view.plugin_id == plugin_id && view.volume_id == volume_id;
    });
    return it == volumes.end() ? std::nullopt : std::optional(*it);
  }
  // The drivers that the records name, by plugin.
  std::map<std::string, std::string> recorded_drivers;
  [[nodiscard]] std::vector<std::string> PluginsOf(const std::string& volume_id,
                                                   const std::string& name) const override {
    std::vector<std::string> ids;
    for (const VolumeView& view : volumes) {
      const auto driver = recorded_drivers.find(view.plugin_id);
      const bool drives = driver != recorded_drivers.end() && driver->second == name;
      if (view.volume_id == volume_id && (view.plugin_id == name || drives)) ids.push_back(view.plugin_id);
    }
    return ids;
  }
  [[nodiscard]] std::optional<VolumeView> ShownBy(const std::string& volume_id,
                                                  const std::string& name) const override {
    const auto other = other_names.find({name, volume_id});
    return other == other_names.end() ? std::nullopt : Find(other->second.plugin_id, other->second.volume_id);
  }
  // The volume that is the same object as one that has left, by plugin or driver and id.
  std::map<std::pair<std::string, std::string>, VolumeRef> other_names;
  [[nodiscard]] std::vector<std::string> HeldThrough(const std::string& plugin_id) const override {
    std::vector<std::string> held;
    for (const VolumeView& view : volumes) {
      if (view.plugin_id == plugin_id) held.push_back("volume " + view.volume_id);
    }
    return held;
  }

 private:
  VolumeView* Known(const std::string& plugin_id, const std::string& volume_id) {
    for (VolumeView& view : volumes) {
      if (view.plugin_id == plugin_id && view.volume_id == volume_id) return &view;
    }
    return nullptr;
  }

  Condition released_;
};

}  // namespace berth
