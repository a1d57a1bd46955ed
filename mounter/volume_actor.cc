#include "mounter/volume_actor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr Duration kFirstBackgroundRetry = std::chrono::seconds(1);
// After so many tries a plugin that does not take a volume back is a person's business.
constexpr int kRefusesForGood = 5;

}  // namespace

std::shared_ptr<VolumeActor> VolumeActor::Create(MounterContext& context, VolumeMachine machine,
                                                 std::function<void()> on_gone) {
  auto actor = std::make_shared<VolumeActor>(PrivateTag(), context, std::move(machine), std::move(on_gone));
  const std::weak_ptr<VolumeActor> weak = actor;
  actor->volume_.start = [weak] {
    if (const auto self = weak.lock()) self->Start();
  };
  actor->volume_.on_consumer_ended = [weak](const PublicationKey& key, const ConsumerLife& life,
                                            const std::string& why) {
    if (const auto self = weak.lock()) self->Release(key, life, why);
  };
  return actor;
}

VolumeActor::VolumeActor(PrivateTag /*tag*/, MounterContext& context, VolumeMachine machine,
                         std::function<void()> on_gone)
    : volume_(context, std::move(machine)),
      reconciler_(volume_),
      driver_(volume_, reconciler_),
      publisher_(volume_, reconciler_, driver_),
      health_(volume_),
      on_gone_(std::move(on_gone)) {}

absl::StatusOr<std::shared_ptr<VolumeOperation>> VolumeActor::Submit(VolumeRequest request, TimePoint until) {
  BERTH_ASSIGN_OR_RETURN(auto operation, volume_.queue.Submit(std::move(request), until));
  volume_.changed.NotifyAll();
  EnsureWorking();
  return operation;
}

void VolumeActor::EnsureWorking() {
  if (working_ || volume_.context.stopping) return;
  working_ = true;
  volume_.context.scope.Spawn(fmt::format("volume {}", Printable(volume_.machine.record().volume_id, 128)),
                              Work(shared_from_this()));
}

TimePoint VolumeActor::NextMove() const {
  const TimePoint retry = Unfinished() ? next_retry_ : TimePoint::max();
  const BootTime renewal = volume_.tokens.Next();
  if (renewal == BootTime::max()) return retry;
  const BootTime now = BootClock::now();
  return renewal <= now ? TimePoint::min() : std::min(retry, Clock::now() + (renewal - now));
}

void VolumeActor::Start() {
  next_retry_ = Clock::now();
  volume_.changed.NotifyAll();
  if (NextMove() != TimePoint::max()) EnsureWorking();
}

Awaitable<void> VolumeActor::Work(std::shared_ptr<VolumeActor> self) {
  struct Leave {
    VolumeActor* actor;
    ~Leave() {
      actor->working_ = false;
      actor->volume_.context.work_ended.NotifyAll();
    }
  } leave{self.get()};
  MounterContext& context = self->volume_.context;
  while (!context.stopping) {
    if (!self->volume_.queue.empty()) {
      self->volume_.queue.Begin();
      self->driver_.OnRequest();
      absl::Status status = co_await self->Execute(self->volume_.queue.current());
      self->volume_.status.OnEnded();
      std::shared_ptr<VolumeOperation> ended = self->volume_.queue.End();
      if (self->driver_.GivesWay(*ended, status)) {
        // It goes on once those have ended that take something back.
        self->volume_.queue.PutBack(std::move(ended));
      } else {
        ended->Finish(std::move(status));
      }
      self->reconciler_.RepairDeadStaging();
      self->volume_.reporter.ReportView();
      continue;
    }
    const TimePoint next_move = self->NextMove();
    if (next_move == TimePoint::max()) break;
    self->volume_.status.SetNextRetry({});
    if (self->Unfinished()) {
      // The first pause is counted from here, not from a failure of long ago.
      self->volume_.status.SetNextRetry(WallClock::now() +
                                        std::max(Duration(0), self->next_retry_ - Clock::now()));
    }
    // Until it is time, which may come earlier than it seemed.
    self->slept_ = false;
    auto disturbed = [actor = self.get()] {
      return !actor->volume_.queue.empty() || actor->volume_.context.stopping || actor->slept_ ||
             Clock::now() >= actor->NextMove();
    };
    co_await self->volume_.changed.WaitUntil(std::move(disturbed), next_move);
    if (!self->volume_.queue.empty() || context.stopping) continue;
    if (self->Unfinished() && Clock::now() >= self->next_retry_) {
      co_await self->Settle();
      self->reconciler_.RepairDeadStaging();
    } else if (BootClock::now() >= self->volume_.tokens.Next()) {
      co_await self->RenewTokens();
      self->reconciler_.RepairDeadStaging();
    }
    self->volume_.reporter.ReportView();
  }
  self->volume_.status.SetNextRetry({});
  self->volume_.reporter.ReportView();
  if (context.stopping) {
    self->FailAll(absl::UnavailableError("berthd is stopping; the request may be repeated once it is back"));
    co_return;
  }
  if (!self->volume_.machine.present()) self->on_gone_();
}

Awaitable<absl::Status> VolumeActor::Execute(std::shared_ptr<VolumeOperation> operation) {
  absl::Status status;
  if (const auto* publish = std::get_if<PublishRequest>(&operation->request)) {
    status = co_await publisher_.Publish(operation, *publish);
  } else if (const auto* unpublish = std::get_if<UnpublishRequest>(&operation->request)) {
    status = co_await ExecuteUnpublish(operation, *unpublish);
  } else if (const auto* expand = std::get_if<ExpandRequest>(&operation->request)) {
    status = co_await ExecuteExpand(operation, *expand);
  }
  volume_.reporter.ReportAwaitingSecrets();
  if (volume_.machine.plan().Unsettled()) {
    failures_in_a_row_ = 1;
    next_retry_ =
        Clock::now() + Backoff(1, kFirstBackgroundRetry, volume_.context.options.retry_limit, RandomShare());
  }
  co_return status;
}

void VolumeActor::OnTokensWantedChanged() {
  volume_.tokens.OnWantedChanged();
  volume_.changed.NotifyAll();
  if (volume_.tokens.Next() != BootTime::max()) EnsureWorking();
}

Awaitable<void> VolumeActor::RenewTokens() {
  for (const PublicationKey& key : volume_.tokens.Due(BootClock::now())) {
    if (!volume_.queue.empty() || volume_.context.stopping) co_return;
    // Something may have come in between.
    if (!volume_.tokens.Renews(key)) continue;
    co_await driver_.RunStep({StepKind::kRenew, key});
    // What became of the mount meanwhile, or of its staging, only the kernel knows.
    if (std::exchange(volume_.reconcile_again, false)) reconciler_.Reconcile({});
  }
}

Awaitable<void> VolumeActor::Settle() {
  volume_.machine.RetryExpansion();
  bool all_done = !volume_.row.stale || (co_await volume_.row.Commit()).ok();
  for (const PublicationKey& key : volume_.machine.plan().Movable()) {
    if (!volume_.queue.empty() || volume_.context.stopping) break;
    const absl::Status status = co_await driver_.Drive(key);
    all_done = all_done && status.ok();
  }
  if (volume_.queue.empty() && volume_.machine.plan().NextTeardown().kind != StepKind::kNone) {
    const absl::Status status = co_await driver_.Drive({});
    all_done = all_done && status.ok();
  }
  const Step expansion = volume_.machine.plan().NextExpansion();
  if (volume_.queue.empty() && !volume_.context.stopping && expansion.kind != StepKind::kNone) {
    co_await driver_.RunStep(expansion);
    const absl::Status status = co_await volume_.row.Commit();
    all_done = all_done && status.ok() && volume_.machine.record().pending_expansion_bytes == 0;
  }
  volume_.status.OnEnded();
  volume_.reporter.ReportAwaitingSecrets();
  failures_in_a_row_ = all_done ? 0 : failures_in_a_row_ + 1;
  next_retry_ = Clock::now() + Backoff(std::max(failures_in_a_row_, 1), kFirstBackgroundRetry,
                                       volume_.context.options.retry_limit, RandomShare());
}

Awaitable<absl::Status> VolumeActor::ExecuteUnpublish(std::shared_ptr<VolumeOperation> operation,
                                                      UnpublishRequest request) {
  std::vector<PublicationKey> keys;
  for (const PublicationRecord& publication : volume_.machine.record().publications) {
    if (Concerns(request, publication.key)) keys.push_back(publication.key);
  }
  if (request.force || request.lazy) {
    volume_.forced.force = volume_.forced.force || request.force;
    volume_.forced.lazy = volume_.forced.lazy || request.lazy;
    volume_.forced.for_keys.insert(keys.begin(), keys.end());
  }
  driver_.OnUnpublish();
  const VolumeRecord before = volume_.machine.record();
  for (const PublicationKey& key : keys) {
    volume_.machine.RequestUnpublish(key);
    volume_.secrets.erase(key);
    const PublicationRecord* was = before.Find(key);
    if (was == nullptr || volume_.machine.record().Find(key) != nullptr) continue;
    // Nothing was sent, so no step follows that would take its directory away.
    VolumeRecord now = before;
    now.publications = volume_.machine.record().publications;
    now.publications.push_back(*was);
    const absl::Status removed = volume_.context.paths->RemovePublication(now, *was);
    if (!removed.ok()) SPDLOG_WARN("{}", MessageOf(removed));
  }
  operation->undone = !keys.empty();
  if (operation->undone) volume_.row.SaveSoon();
  absl::Status first_error;
  for (const PublicationKey& key : keys) {
    const absl::Status status = co_await driver_.Drive(key);
    if (first_error.ok()) first_error = status;
  }
  // One that a failed publish, or an unpublish before this one, left half undone.
  if (first_error.ok() && volume_.machine.plan().NextTeardown().kind != StepKind::kNone)
    first_error = co_await driver_.Drive({});
  if (first_error.ok() && volume_.row.stale) first_error = co_await volume_.row.Commit();
  if (!first_error.ok() && request.force && driver_.plugin_cannot() && !volume_.context.stopping) {
    co_return co_await driver_.ReleaseWithoutPlugin(operation, request.requested_by, first_error);
  }
  // All that berthd and the plugin can do is done: the rest is for those who use it still.
  if (volume_.machine.plan().InUseByKernel() && driver_.in_use()) {
    operation->used_by = std::string(MessageOf(first_error));
    first_error = absl::OkStatus();
  }
  operation->still_in_use = volume_.machine.present() && volume_.machine.record().still_in_use;
  operation->aborted = volume_.forced.aborted_at.has_value();
  operation->detached = volume_.forced.detached_at.has_value();
  volume_.forced.ForgetOld(volume_.machine.record());
  const std::string done = volume_.forced.WhatWasDone();
  if (!first_error.ok() && !done.empty()) co_return Annotate(first_error, done);
  co_return first_error;
}

Awaitable<absl::Status> VolumeActor::ExecuteExpand(std::shared_ptr<VolumeOperation> operation,
                                                   ExpandRequest request) {
  const auto& publications = volume_.machine.record().publications;
  if (std::ranges::find(publications, PublicationState::kPublished, &PublicationRecord::state) ==
      publications.end()) {
    co_return absl::NotFoundError("the volume is not published on this node");
  }
  const std::string plugin_id = volume_.machine.record().plugin_id;
  if (!ExpansionPath(volume_.machine.record(), *volume_.context.paths).has_value()) {
    volume_.machine.SetPendingExpansion(request.required_bytes);
    volume_.row.SaveSoon();
    co_return absl::NotFoundError("the volume is not published on this node to be written");
  }
  const TimePoint until =
      std::min(operation->wanted_until, Clock::now() + volume_.context.options.rpc_timeout);
  volume_.sent = false;
  auto should_end = [this] { return driver_.ExpansionShouldEnd(); };
  auto plugin = co_await driver_.AwaitPlugin(plugin_id, should_end, until);
  if (!volume_.machine.leaving().empty()) co_return NotBegun(volume_.machine.leaving());
  if (!plugin.ok()) co_return plugin.status();
  if (!plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::EXPAND_VOLUME)) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} has no EXPAND_VOLUME on the node", plugin_id));
  }
  const TimePoint deadline = Clock::now() + volume_.context.options.rpc_timeout;
  for (int failures = 1;; ++failures) {
    const StepReport report = co_await driver_.TryExpand(request, deadline);
    if (report.outcome == CallOutcome::kDone) {
      operation->capacity_bytes = report.capacity_bytes;
      volume_.machine.OnExpanded(std::max(report.capacity_bytes, request.required_bytes));
      volume_.row.SaveSoon();
      volume_.reporter.Emit("volume.expanded", "",
                            fmt::format("expanded on this node to {} bytes", report.capacity_bytes));
      co_return absl::OkStatus();
    }
    const bool repeat = report.outcome == CallOutcome::kRetry || report.outcome == CallOutcome::kUncertain;
    if (!volume_.sent && !volume_.machine.leaving().empty())
      co_return absl::UnavailableError(volume_.machine.leaving());
    if (repeat) {
      // It is pending, and tried again when nothing else is to be done.
      volume_.machine.SetPendingExpansion(request.required_bytes);
      volume_.row.SaveSoon();
    }
    const bool soon = absl::IsUnavailable(report.error) || absl::IsAborted(report.error);
    if (!repeat || !soon || Clock::now() >= deadline || !volume_.machine.leaving().empty())
      co_return report.error;
    const Duration pause =
        Backoff(failures, std::chrono::milliseconds(100), std::chrono::seconds(5), RandomShare());
    volume_.sent = false;
    auto disturbed = [this] { return !volume_.machine.leaving().empty() || !volume_.queue.empty(); };
    if (co_await volume_.changed.WaitUntil(std::move(disturbed), std::min(Clock::now() + pause, deadline))) {
      co_return report.error;
    }
  }
}

void VolumeActor::Release(const PublicationKey& key, const ConsumerLife& life, const std::string& why) {
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  // Its consumer may be another by now.
  if (publication == nullptr || !(publication->life == life) || volume_.context.stopping) return;
  if (publication->state == PublicationState::kUnpublishing && !publication->remount_after_undo) return;
  volume_.reporter.Emit("volume.released", key.consumer, why);
  volume_.context.consumer_ended(key.consumer, why, publication->origin);
  UnpublishRequest request;
  request.plugin_id = volume_.machine.record().plugin_id;
  request.volume_id = volume_.machine.record().volume_id;
  request.consumer = key.consumer;
  request.name = key.name;
  volume_.queue.SubmitFirst(std::move(request), Clock::now() + volume_.context.options.rpc_timeout);
  volume_.changed.NotifyAll();
  EnsureWorking();
}

Awaitable<absl::Status> VolumeActor::SetPendingExpansion(std::shared_ptr<VolumeActor> self, int64_t bytes) {
  self->volume_.machine.SetPendingExpansion(bytes);
  const absl::Status status = co_await self->volume_.row.Commit();
  if (!status.ok()) co_return status;
  self->Start();
  co_return absl::OkStatus();
}

VolumeView VolumeActor::View() const {
  const VolumeRecord& record = volume_.machine.record();
  VolumeView view;
  view.plugin_id = record.plugin_id;
  view.volume_id = record.volume_id;
  view.stage_state = record.stage_state;
  view.uncertain = record.stage_uncertain;
  view.awaiting_secrets = volume_.machine.plan().AwaitsSecrets();
  view.use = record.use;
  if (record.stages) view.staging_path = volume_.context.paths->StagingPath(record);
  view.last_error = record.last_error;
  view.holders = driver_.holders();
  for (const PublicationRecord& p : record.publications) {
    view.publications.push_back(
        {.consumer = p.key.consumer,
         .name = p.key.name,
         .target_path = volume_.context.paths->TargetPath(record, p),
         .readonly = p.readonly,
         .state = p.state,
         .uncertain = p.uncertain,
         .last_error = p.last_error.empty() ? volume_.tokens.ErrorOf(p.key) : p.last_error,
         .published_at = p.published_at,
         .origin = p.origin,
         .remount = p.remount,
         .ephemeral = p.ephemeral,
         .life = p.life,
         .awaiting_secrets = p.state == PublicationState::kPublishing && p.AwaitsSecrets(),
         .blocked = p.BlockedBecause(),
         .dead = p.dead,
         .hung = p.hung,
         .writes_refused = p.writes_refused,
         .remount_after_undo = p.remount_after_undo,
         .path = p.path,
         .path_mounted = p.path_mounted,
         .path_error = p.path_error});
    // Nothing is repeated of one that is blocked: `blocked` says why.
    if (view.publications.back().blocked) continue;
    view.uncertain = view.uncertain || p.uncertain;
    if (view.last_error.empty()) view.last_error = view.publications.back().last_error;
  }
  view.next_retry_at = volume_.status.next_retry_at();
  view.running = volume_.status.running();
  view.running_since = volume_.status.running_since();
  view.stuck = volume_.machine.stuck();
  view.pending_expansion_bytes = record.pending_expansion_bytes;
  view.still_in_use = record.still_in_use;
  view.condition = volume_.condition;
  view.aborted_at = volume_.forced.aborted_at;
  view.detached_at = volume_.forced.detached_at;
  const auto plugin = volume_.context.plugins.Find(record.plugin_id);
  view.plugin_missing = absl::IsNotFound(plugin.status());
  if (plugin.ok()) view.driver_version = plugin->facts.vendor_version;
  view.driver_name = record.driver_name;
  view.label = record.label;
  view.rebuilt = record.rebuilt;
  view.without_plugin = record.without_plugin;
  view.failures = volume_.status.failures();
  view.plugin_refuses = driver_.plugin_cannot() && volume_.status.failures() >= kRefusesForGood;
  return view;
}

}  // namespace berth
