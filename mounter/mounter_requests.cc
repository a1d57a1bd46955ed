// The mounter's requests: each is checked, handed to its volume, and awaited until its caller's deadline.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/mounter_impl.h"
#include "mounter/publish_check.h"

namespace berth {
namespace {

constexpr const char* kUnpublishFollows = "an unpublish of the same, or its consumer's end, came after it";

std::string Context(std::string_view what, const std::string& volume_id) {
  return fmt::format("{} volume {}", what, Printable(volume_id, 128));
}

}  // namespace

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
  BERTH_CO_RETURN_IF_ERROR(CheckRuntime(request));
  const std::string context = Context("publish", request.volume_id);
  BERTH_CO_RETURN_IF_ERROR(Annotate(context_.CheckNotShuttingDown(), context));
  BERTH_CO_RETURN_IF_ERROR(Annotate(tree_watch_.RepairTree(), context));
  const int withholds = scheduler_blocks_;
  // A mistake that no wait repairs is reported at once.
  const auto plugin = context_.plugins.Find(request.plugin_id);
  if (!plugin.ok() && plugin.status().code() != absl::StatusCode::kUnavailable) {
    co_return Annotate(plugin.status(), context);
  }
  if (IsSet(request.life)) {
    // It has its place already: what comes for the same meanwhile counts as coming after it.
    const Arriving::Place arriving(
        arriving_, {.volume_key = VolumePaths::VolumeKey(request.plugin_id, request.volume_id),
                    .publication = {.consumer = request.consumer, .name = request.name}});
    auto life = co_await context_.consumers.Identify(request.life, deadline);
    if (arriving->superseded)
      co_return absl::AbortedError(fmt::format("{}: not begun: {}", context, kUnpublishFollows));
    // NOT_FOUND would mean the volume.
    if (absl::IsNotFound(life.status())) {
      co_return absl::FailedPreconditionError(fmt::format("{}: {}", context, MessageOf(life.status())));
    }
    if (!life.ok()) co_return Annotate(life.status(), context);
    request.life = *std::move(life);
    BERTH_CO_RETURN_IF_ERROR(Annotate(context_.CheckNotShuttingDown(), context));
  }
  // It is not queued yet, so that BlockForward has not ended it.
  if (request.origin == Origin::kScheduler && withholds != scheduler_blocks_) {
    co_return absl::UnavailableError(fmt::format("{}: not begun: {}", context, scheduler_blocked_));
  }
  table_.ForgetEnded(request.consumer);
  const auto actor = table_.FindOrAdd(request.plugin_id, request.volume_id);
  const auto done = co_await Run(actor, std::move(request), deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  co_return (*done)->target_path;
}

Awaitable<absl::StatusOr<UnpublishResult>> MounterImpl::Unpublish(UnpublishRequest request,
                                                                  TimePoint deadline) {
  const std::string context = Context("unpublish", request.volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  for (Arriving& arriving : arriving_) {
    const bool same = arriving.volume_key == VolumePaths::VolumeKey(request.plugin_id, request.volume_id);
    if (same && Concerns(request, arriving.publication)) arriving.superseded = true;
  }
  const auto actor = table_.Find(request.plugin_id, request.volume_id);
  if (actor == nullptr) {
    BERTH_CO_RETURN_IF_ERROR(
        Annotate(co_await CheckUnrecorded(request.plugin_id, request.volume_id, deadline), context));
    co_return UnpublishResult{};
  }
  if (request.wait_for_consumer) {
    const bool there =
        std::ranges::any_of(actor->machine().record().publications,
                            [&](const PublicationRecord& p) { return Concerns(request, p.key); });
    BERTH_CO_RETURN_IF_ERROR(Annotate(co_await WaitForConsumer(request, deadline), context));
    if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
    // Its end may have released it already.
    request.wait_for_consumer = false;
    auto result = co_await Unpublish(std::move(request), deadline);
    if (result.ok() && there) result->was_published = true;
    co_return result;
  }
  const auto done = co_await Run(actor, request, deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  // There may have been a publish alone, which had not come to a record.
  if (!(*done)->undone) {
    BERTH_CO_RETURN_IF_ERROR(
        Annotate(co_await CheckUnrecorded(request.plugin_id, request.volume_id, deadline), context));
  }
  co_return UnpublishResult{.was_published = (*done)->undone,
                            .still_in_use = (*done)->still_in_use,
                            .used_by = (*done)->used_by,
                            .aborted = (*done)->aborted,
                            .detached = (*done)->detached,
                            .without_plugin = (*done)->without_plugin};
}

Awaitable<absl::Status> MounterImpl::CheckUnrecorded(std::string plugin_id, std::string volume_id,
                                                     TimePoint deadline) {
  if (queries_.Find(plugin_id, volume_id).has_value()) co_return absl::OkStatus();
  VolumeRecord record;
  record.plugin_id = std::move(plugin_id);
  record.volume_id = std::move(volume_id);
  const ReleaseCheck check = co_await context_.release.CheckReleased(std::move(record), deadline);
  if (check.released) co_return absl::OkStatus();
  co_return absl::UnavailableError(fmt::format(
      "this node has no record of the volume, and cannot confirm that it is released: {}", check.why));
}

Awaitable<absl::Status> MounterImpl::WaitForConsumer(UnpublishRequest request, TimePoint deadline) {
  // Meanwhile other requests may publish for it, and may change what it consists of.
  std::vector<ConsumerLife> ended;
  while (true) {
    const auto actor = table_.Find(request.plugin_id, request.volume_id);
    if (actor == nullptr) co_return absl::OkStatus();
    // By value: what is awaited may change the record.
    const std::vector<PublicationRecord> publications = actor->machine().record().publications;
    const auto next = std::ranges::find_if(publications, [&](const PublicationRecord& p) {
      return Concerns(request, p.key) && !p.before_reboot && std::ranges::find(ended, p.life) == ended.end();
    });
    if (next == publications.end()) co_return absl::OkStatus();
    const PublicationRecord& publication = *next;
    if (!IsSet(publication.life)) {
      co_return absl::FailedPreconditionError(
          fmt::format("{}: it is not known what it consists of, so its end cannot be waited for: publish "
                      "with its process, cgroup or unit, or unpublish once it has ended",
                      Describe(publication.key)));
    }
    if (!co_await context_.consumers.WaitEnded(publication.life, deadline)) {
      co_return absl::DeadlineExceededError(fmt::format("{} still runs ({}): nothing was begun",
                                                        Describe(publication.key),
                                                        DescribeLife(publication.life)));
    }
    ended.push_back(publication.life);
  }
}

Awaitable<absl::StatusOr<size_t>> MounterImpl::ConsumerEnded(std::string consumer, std::string cause,
                                                             TimePoint deadline) {
  if (consumer.empty()) co_return absl::InvalidArgumentError("consumer: empty; name who has ended");
  if (context_.stopping) co_return absl::UnavailableError("berthd is stopping");
  // All are begun before one is awaited.
  struct Begun {
    std::shared_ptr<VolumeActor> actor;
    std::shared_ptr<VolumeOperation> operation;
    std::string volume_id;
  };
  std::vector<Begun> begun;
  size_t count = 0;
  absl::Status first_error;
  for (Arriving& arriving : arriving_) {
    if (arriving.publication.consumer == consumer) arriving.superseded = true;
  }
  std::vector<std::shared_ptr<VolumeActor>> actors = table_.Of(consumer);
  // What has not begun for it yet must not begin after its end.
  for (const auto& [key, actor] : table_.all()) {
    if (actor->Expects(consumer) && std::ranges::find(actors, actor) == actors.end()) actors.push_back(actor);
  }
  for (const auto& actor : actors) {
    const VolumeRecord& record = actor->machine().record();
    for (const PublicationRecord& p : record.publications) {
      if (p.key.consumer != consumer) continue;
      ++count;
      table_.ReportEnded(consumer, cause, p.origin);
    }
    UnpublishRequest request;
    request.plugin_id = record.plugin_id;
    request.volume_id = record.volume_id;
    request.consumer = consumer;
    request.all_names = true;
    auto operation = actor->Submit(std::move(request), deadline);
    if (operation.ok()) {
      begun.push_back({actor, *std::move(operation), record.volume_id});
    } else if (first_error.ok()) {
      first_error = Annotate(operation.status(), Context("unpublish", record.volume_id));
    }
  }
  for (const Begun& one : begun) {
    const auto operation = one.operation;
    absl::Status status;
    if (co_await operation->finished.WaitUntil([operation] { return operation->done; }, deadline)) {
      status = operation->status;
    } else {
      status = one.actor->Overdue(*operation);
    }
    if (first_error.ok() && !status.ok()) first_error = Annotate(status, Context("unpublish", one.volume_id));
  }
  if (!first_error.ok()) co_return first_error;
  co_return count;
}

Awaitable<absl::Status> MounterImpl::SetPendingExpansion(std::string plugin_id, std::string volume_id,
                                                         int64_t required_bytes) {
  const std::string context = Context("expand", volume_id);
  if (required_bytes <= 0) co_return absl::InvalidArgumentError(context + ": to no size");
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor != nullptr && actor->present() && !actor->Leaving()) {
    co_return Annotate(co_await VolumeActor::SetPendingExpansion(actor, required_bytes), context);
  }
  const int64_t bytes = std::max(context_.pending_expansions.Of(plugin_id, volume_id), required_bytes);
  auto rows = context_.pending_expansions.Set(plugin_id, volume_id, bytes);
  if (!rows.ok()) co_return Annotate(rows.status(), context);
  // Nothing has to be prepared, but a full disk refuses it: what is left there is for letting volumes go.
  auto new_work = [] { return absl::OkStatus(); };
  co_return Annotate(co_await context_.journal->Write(*std::move(rows), std::move(new_work)), context);
}

Awaitable<absl::Status> MounterImpl::CancelPendingExpansion(std::string plugin_id, std::string volume_id) {
  const std::string context = Context("forget the expansion of", volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const int64_t before = context_.pending_expansions.Of(plugin_id, volume_id);
  if (before == 0) co_return absl::OkStatus();
  const absl::Status status =
      co_await context_.journal->Write(context_.pending_expansions.End(plugin_id, volume_id));
  if (status.ok()) co_return status;
  // Remembered still, so that a repeat writes it.
  [[maybe_unused]] const auto on_disk = context_.pending_expansions.Set(plugin_id, volume_id, before);
  co_return Annotate(status, context);
}

Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> MounterImpl::Stats(std::string plugin_id,
                                                                                    std::string volume_id,
                                                                                    TimePoint deadline) {
  const std::string context = Context("stats of", volume_id);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor == nullptr) co_return absl::NotFoundError(context + ": not published on this node");
  auto answer = co_await VolumeHealth::Stats(VolumeActor::Health(actor), deadline);
  if (!answer.ok()) co_return Annotate(answer.status(), context);
  co_return answer;
}

Awaitable<absl::StatusOr<int64_t>> MounterImpl::NodeExpand(std::string plugin_id, std::string volume_id,
                                                           ::csi::v1::CapacityRange range,
                                                           std::map<std::string, std::string> secrets,
                                                           TimePoint deadline) {
  const std::string context = Context("expand", volume_id);
  BERTH_CO_RETURN_IF_ERROR(Annotate(context_.CheckNotShuttingDown(), context));
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor == nullptr) co_return absl::NotFoundError(context + ": not published on this node");
  ExpandRequest request{.required_bytes = range.required_bytes(),
                        .limit_bytes = range.limit_bytes(),
                        .secrets = std::move(secrets)};
  const auto done = co_await Run(actor, std::move(request), deadline);
  if (!done.ok()) co_return Annotate(done.status(), context);
  co_return (*done)->capacity_bytes;
}

}  // namespace berth
