#include "mounter/mounter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/process.h"
#include "base/status.h"
#include "mounter/journal.h"
#include "mounter/mount_tree.h"
#include "mounter/mounter_context.h"
#include "mounter/publish_check.h"
#include "mounter/recovery.h"
#include "mounter/volume_actor.h"

namespace berth {
namespace {

// The least that every plugin has to accept for a path.
constexpr size_t kPathPromise = 128;
constexpr size_t kTargetLength =
    sizeof("/0123456789abcdef0123456789abcdef/publish/0123456789abcdef0123456789abcdef/target") - 1;

class MounterImpl final : public Mounter {
 public:
  MounterImpl(const asio::any_io_executor& executor, MounterOptions options, PluginDirectory& plugins,
              EventLog& events, std::unique_ptr<Journal> journal, VolumePaths paths)
      : context_(executor, std::move(options), plugins, events, std::move(journal), std::move(paths)) {
    context_.volumes_through = [this](const std::string& plugin_id) { return VolumesThrough(plugin_id); };
  }

  [[nodiscard]] absl::Status Load() {
    BERTH_ASSIGN_OR_RETURN(loaded_, ReadRows(context_.journal->TakeLoaded(), BootId()));
    for (const auto& [key, machine] : loaded_) AddActor(key, machine);
    return absl::OkStatus();
  }

  Awaitable<absl::Status> Recover() override;
  Awaitable<void> Shutdown(TimePoint deadline) override;
  Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request, TimePoint deadline) override;
  Awaitable<absl::StatusOr<bool>> Unpublish(UnpublishRequest request, TimePoint deadline) override;
  Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(std::string plugin_id,
                                                                         std::string volume_id,
                                                                         TimePoint deadline) override;
  Awaitable<absl::StatusOr<int64_t>> NodeExpand(std::string plugin_id, std::string volume_id,
                                                ::csi::v1::CapacityRange range,
                                                std::map<std::string, std::string> secrets,
                                                TimePoint deadline) override;
  std::vector<VolumeView> List() const override;
  std::optional<VolumeView> Find(const std::string& plugin_id, const std::string& volume_id) const override;
  std::vector<std::string> HeldThrough(const std::string& plugin_id) const override;
  Awaitable<absl::StatusOr<uint64_t>> ReserveEventNumbers(uint64_t count) override {
    return context_.journal->ReserveEventNumbers(count);
  }

 private:
  std::shared_ptr<VolumeActor> AddActor(const std::string& key, VolumeMachine machine);
  [[nodiscard]] std::shared_ptr<VolumeActor> FindActor(const std::string& plugin_id,
                                                       const std::string& volume_id) const;
  [[nodiscard]] std::shared_ptr<VolumeActor> FindOrAdd(const std::string& plugin_id,
                                                       const std::string& volume_id);
  [[nodiscard]] size_t VolumesThrough(const std::string& plugin_id) const;

  // Queues `request`, and waits for its end until `deadline`.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::shared_ptr<VolumeOperation>>> Run(
      std::shared_ptr<VolumeActor> actor, VolumeRequest request, TimePoint deadline);

  MounterContext context_;
  std::map<std::string, std::shared_ptr<VolumeActor>> volumes_;  // by the journal's key
  std::map<std::string, VolumeMachine> loaded_;                  // until Recover
};

std::string Context(std::string_view what, const std::string& volume_id) {
  return fmt::format("{} volume {}", what, Printable(volume_id, 128));
}

std::shared_ptr<VolumeActor> MounterImpl::AddActor(const std::string& key, VolumeMachine machine) {
  auto actor =
      std::make_shared<VolumeActor>(context_, std::move(machine), [this, key] { volumes_.erase(key); });
  volumes_[key] = actor;
  return actor;
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

Awaitable<absl::Status> MounterImpl::Recover() {
  ReportStrangers(*context_.paths, loaded_, context_.events);
  loaded_.clear();
  size_t unfinished = 0;
  // By value: an actor may be gone as soon as it begins.
  const auto actors = volumes_;
  for (const auto& [key, actor] : actors) {
    const VolumeRecord& record = actor->machine().record();
    for (auto& [publication, error] : FindLost(record, *context_.paths, BootId())) {
      context_.events.Append({.type = "volume.lost",
                              .plugin_id = record.plugin_id,
                              .volume_id = record.volume_id,
                              .consumer = publication.consumer,
                              .message = error});
      actor->MarkLost(publication, std::move(error));
    }
    if (!actor->machine().Unsettled()) continue;
    ++unfinished;
    context_.events.Append({.type = "volume.recovered",
                            .plugin_id = record.plugin_id,
                            .volume_id = record.volume_id,
                            .consumer = "",
                            .message = "berthd ended in the middle of a step: finishing it"});
    actor->Start();
  }
  SPDLOG_INFO("{} volumes in the journal, {} with unfinished steps", actors.size(), unfinished);
  co_return absl::OkStatus();
}

Awaitable<void> MounterImpl::Shutdown(TimePoint deadline) {
  context_.stopping = true;
  const auto actors = volumes_;
  for (const auto& [key, actor] : actors) actor->WakeUp();
  auto quiet = [&actors] {
    return std::ranges::none_of(actors, [](const auto& a) { return a.second->busy(); });
  };
  if (!co_await context_.work_ended.WaitUntil(quiet, deadline)) {
    SPDLOG_WARN("steps of volumes still run; they are taken up again at the next start");
  }
  co_await context_.scope.Join();
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

Awaitable<absl::StatusOr<std::shared_ptr<VolumeOperation>>> MounterImpl::Run(
    std::shared_ptr<VolumeActor> actor, VolumeRequest request, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const auto operation, actor->Submit(std::move(request), deadline));
  if (!co_await operation->finished.WaitUntil([operation] { return operation->done; }, deadline)) {
    co_return actor->Overdue(*operation);
  }
  if (!operation->status.ok()) co_return operation->status;
  co_return operation;
}

Awaitable<absl::StatusOr<std::string>> MounterImpl::Publish(PublishRequest request, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(CheckForm(request));
  const std::string context = Context("publish", request.volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  // What no waiting mends is said at once.
  const auto plugin = context_.plugins.Find(request.plugin_id);
  if (!plugin.ok() && plugin.status().code() != absl::StatusCode::kUnavailable) {
    co_return Annotate(plugin.status(), context);
  }
  const auto actor = FindOrAdd(request.plugin_id, request.volume_id);
  const auto done = co_await Run(actor, std::move(request), deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  co_return (*done)->target_path;
}

Awaitable<absl::StatusOr<bool>> MounterImpl::Unpublish(UnpublishRequest request, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(CheckForm(request));
  const std::string context = Context("unpublish", request.volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = FindActor(request.plugin_id, request.volume_id);
  if (actor == nullptr) co_return false;
  const auto done = co_await Run(actor, std::move(request), deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  co_return (*done)->undone;
}

Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> MounterImpl::Stats(std::string plugin_id,
                                                                                    std::string volume_id,
                                                                                    TimePoint deadline) {
  const std::string context = Context("stats of", volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = FindActor(plugin_id, volume_id);
  if (actor == nullptr) co_return absl::NotFoundError(context + ": not published on this node");
  auto answer = co_await VolumeActor::Stats(actor, deadline);
  if (!answer.ok()) co_return Annotate(answer.status(), context);
  co_return answer;
}

Awaitable<absl::StatusOr<int64_t>> MounterImpl::NodeExpand(std::string plugin_id, std::string volume_id,
                                                           ::csi::v1::CapacityRange range,
                                                           std::map<std::string, std::string> secrets,
                                                           TimePoint deadline) {
  const std::string context = Context("expand", volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = FindActor(plugin_id, volume_id);
  if (actor == nullptr) co_return absl::NotFoundError(context + ": not published on this node");
  ExpandRequest request{.required_bytes = range.required_bytes(),
                        .limit_bytes = range.limit_bytes(),
                        .secrets = std::move(secrets)};
  const auto done = co_await Run(actor, std::move(request), deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  co_return (*done)->capacity_bytes;
}

std::vector<VolumeView> MounterImpl::List() const {
  std::vector<VolumeView> views;
  for (const auto& [key, actor] : volumes_) {
    if (actor->present()) views.push_back(actor->View());
  }
  // By what people know, rather than by hash.
  std::ranges::sort(views, [](const VolumeView& a, const VolumeView& b) {
    return std::tie(a.plugin_id, a.volume_id) < std::tie(b.plugin_id, b.volume_id);
  });
  return views;
}

std::optional<VolumeView> MounterImpl::Find(const std::string& plugin_id,
                                            const std::string& volume_id) const {
  const auto actor = FindActor(plugin_id, volume_id);
  if (actor == nullptr || !actor->present()) return std::nullopt;
  return actor->View();
}

std::vector<std::string> MounterImpl::HeldThrough(const std::string& plugin_id) const {
  std::vector<std::string> held;
  for (const auto& [key, actor] : volumes_) {
    const VolumeRecord& record = actor->machine().record();
    if (!actor->present() || record.plugin_id != plugin_id) continue;
    const std::string volume = Printable(record.volume_id, 128);
    for (const PublicationRecord& publication : record.publications) {
      held.push_back(fmt::format("volume {} by {}", volume, Describe(publication.key)));
    }
    if (record.publications.empty()) held.push_back(fmt::format("volume {}, being unstaged", volume));
  }
  return held;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mounter>> Mounter::Open(asio::any_io_executor executor, MounterOptions options,
                                                       PluginDirectory& plugins, EventLog& events) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(options.state_dir, 0711));
  std::error_code error;
  // The kernel shows mounts by their true paths.
  const std::string state_dir = std::filesystem::canonical(options.state_dir, error).string();
  if (error) return ErrnoStatus(error.value(), fmt::format("resolve {}", options.state_dir));
  options.state_dir = state_dir;
  const std::string tree = state_dir + "/volumes";
  if (tree.size() + kTargetLength > kPathPromise) {
    SPDLOG_WARN("{}: target paths of {} bytes; a plugin need not accept more than {}", state_dir,
                tree.size() + kTargetLength, kPathPromise);
  }
  // The journal first: its lock says that the tree is ours to touch.
  BERTH_ASSIGN_OR_RETURN(auto journal, Journal::Open(executor, {.path = state_dir + "/journal.db"}));
  BERTH_RETURN_IF_ERROR(SetUpMountTree(tree));
  BERTH_ASSIGN_OR_RETURN(VolumePaths paths, VolumePaths::Open(tree));
  auto mounter = std::make_unique<MounterImpl>(executor, std::move(options), plugins, events,
                                               std::move(journal), std::move(paths));
  BERTH_RETURN_IF_ERROR(mounter->Load());
  return mounter;
}

}  // namespace berth
