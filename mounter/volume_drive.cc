// VolumeActor's second half: how a publication is taken to its goal, and what people are told of it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/volume_actor.h"
#include "mounter/volume_rpcs.h"

namespace berth {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kRetryLimit = std::chrono::seconds(5);

std::string Seconds(WallTime since) {
  return fmt::format("{:.0f} s", std::chrono::duration<double>(WallClock::now() - since).count());
}

}  // namespace

// One call of NodeGetVolumeStats, with everybody who waits for it.
struct VolumeActor::SharedStats {
  explicit SharedStats(asio::any_io_executor executor) : finished(std::move(executor)) {}

  std::optional<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> result;
  Condition finished;

  static Awaitable<void> Ask(std::shared_ptr<SharedStats> self, std::shared_ptr<VolumeActor> actor,
                             std::shared_ptr<CsiClient> client, ::csi::v1::NodeGetVolumeStatsRequest request,
                             TimePoint deadline) {
    self->result = co_await client->NodeGetVolumeStats(std::move(request), deadline);
    if (actor->stats_ == self) actor->stats_.reset();
    self->finished.NotifyAll();
  }
};

Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> VolumeActor::Stats(
    std::shared_ptr<VolumeActor> self, TimePoint deadline) {
  const std::string plugin_id = self->machine_.record().plugin_id;
  const auto published = [&self] {
    const auto& publications = self->machine_.record().publications;
    return std::ranges::find(publications, PublicationState::kPublished, &PublicationRecord::state);
  };
  if (published() == self->machine_.record().publications.end()) {
    co_return absl::NotFoundError("the volume is not published on this node");
  }
  if (self->stats_ == nullptr) {
    // It may be on its way back: being restarted or swapped.
    const StepProgress untold{.waiting = [](std::string) {}, .sending = [](std::string_view) {}};
    const auto usable = co_await self->steps_.FindPlugin(plugin_id, untold, deadline);
    if (!usable.ok()) co_return usable.status();
  }
  std::shared_ptr<SharedStats> shared = self->stats_;
  if (shared == nullptr) {
    const VolumeRecord& record = self->machine_.record();
    const auto found = published();
    if (found == record.publications.end())
      co_return absl::NotFoundError("the volume is not published on this node");
    auto plugin = self->context_.plugins.Find(plugin_id);
    if (!plugin.ok()) co_return plugin.status();
    if (!plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::GET_VOLUME_STATS)) {
      co_return absl::FailedPreconditionError(
          fmt::format("plugin {} has no GET_VOLUME_STATS", record.plugin_id));
    }
    shared = std::make_shared<SharedStats>(self->context_.executor);
    self->stats_ = shared;
    auto request = SeenByPlugin(StatsRequest(record, *found, *self->context_.paths),
                                self->context_.paths->tree(), plugin->volumes_path);
    self->context_.scope.Spawn("stats", SharedStats::Ask(shared, self, plugin->client, std::move(request),
                                                         Clock::now() + self->context_.options.rpc_timeout));
  }
  auto done = [shared] { return shared->result.has_value(); };
  if (!co_await shared->finished.WaitUntil(std::move(done), deadline)) {
    co_return absl::DeadlineExceededError(
        fmt::format("plugin {}: NodeGetVolumeStats: no answer yet", self->machine_.record().plugin_id));
  }
  co_return *shared->result;
}

Awaitable<absl::Status> VolumeActor::Drive(PublicationKey key) {
  while (true) {
    const Step step = machine_.NextFor(key);
    if (step.kind == StepKind::kNone) co_return co_await CommitOutcome(key);
    const FollowUp follow_up = co_await RunStep(step);
    if (follow_up != FollowUp::kPause) continue;
    SaveSoon();
    const auto failure = machine_.TakeFailure(key);
    co_return failure ? *failure : last_error_;
  }
}

Awaitable<absl::Status> VolumeActor::CommitOutcome(PublicationKey key) {
  const auto failure = machine_.TakeFailure(key);
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication != nullptr && publication->state == PublicationState::kPublishing) {
    co_return absl::FailedPreconditionError(
        "this publication needs its secrets again, since they are never written down: repeat the publish "
        "with "
        "them, or unpublish it");
  }
  if (machine_.present()) {
    const absl::Status status = co_await Commit();
    if (!status.ok()) {
      machine_.Unsettle(key, std::string(MessageOf(status)));
      co_return status;
    }
  }
  secrets_.erase(key);
  if (failure) co_return *failure;
  // Looked up again: the commit was awaited.
  publication = machine_.record().Find(key);
  if (publication != nullptr) {
    Event("volume.published", key.consumer,
          fmt::format("published for {}{} at {}", Describe(key), publication->readonly ? ", read-only" : "",
                      context_.paths->TargetPath(machine_.record(), *publication)));
  }
  co_return absl::OkStatus();
}

Awaitable<FollowUp> VolumeActor::RunStep(Step step) {
  const TimePoint deadline = Clock::now() + context_.options.rpc_timeout;
  absl::Status before;  // what the try before this one failed with
  for (int failures = 1;; ++failures) {
    StepReport report =
        co_await steps_.Perform(machine_.record(), step, SecretsFor(step.key), Progress(step), deadline);
    // A try that the step's own deadline cut short says nothing: the one before it said why.
    if (absl::IsDeadlineExceeded(report.error) && !before.ok() && Clock::now() >= deadline) {
      report.error = before;
    }
    before = report.error;
    running_.clear();
    running_since_.reset();
    waiting_for_.clear();
    last_error_ = report.error;
    const bool time_left = Clock::now() < deadline && !Superseded(step) && !context_.stopping;
    const FollowUp follow_up =
        machine_.OnOutcome(step, report.outcome, report.error, time_left, WallClock::now());
    TellHolders();
    Announce(step, report, follow_up);
    if (follow_up != FollowUp::kRepeat) co_return follow_up;

    const Duration pause = context_.RetryAfter(failures, kFirstRetry, kRetryLimit);
    next_retry_at_ = WallClock::now() + pause;
    auto disturbed = [this, &step] { return Superseded(step) || context_.stopping; };
    if (co_await changed_.WaitUntil(std::move(disturbed), std::min(Clock::now() + pause, deadline))) {
      co_return FollowUp::kPause;
    }
    next_retry_at_.reset();
  }
}

Awaitable<absl::Status> VolumeActor::Commit() {
  context_.Boundary("outcome: writing");
  const absl::Status status = co_await context_.journal->Put(key_, EncodeRecord(machine_.record()));
  stale_row_ = !status.ok();
  context_.Boundary("outcome: written");
  co_return status;
}

void VolumeActor::TellHolders() {
  const size_t holders = Holders();
  if (holders == std::exchange(told_holders_, holders) || !context_.options.on_holders_changed) return;
  context_.options.on_holders_changed(machine_.record().plugin_id);
}

void VolumeActor::SaveSoon() {
  if (machine_.present()) context_.journal->PutSoon(key_, EncodeRecord(machine_.record()));
}

StepProgress VolumeActor::Progress(const Step& step) {
  return {.waiting = [this](std::string why) { waiting_for_ = std::move(why); },
          .sending =
              [this, step](std::string_view rpc) {
                machine_.OnSent(step);
                waiting_for_.clear();
                running_ = rpc;
                running_since_ = WallClock::now();
              }};
}

Secrets VolumeActor::SecretsFor(const PublicationKey& key) const {
  const auto it = secrets_.find(key);
  return it == secrets_.end() ? Secrets{} : it->second;
}

bool VolumeActor::Superseded(const Step& step) const {
  if (step.kind != StepKind::kStage && step.kind != StepKind::kPublish) return false;
  return std::ranges::any_of(queue_, [&step](const std::shared_ptr<VolumeOperation>& operation) {
    const auto* unpublish = std::get_if<UnpublishRequest>(&operation->request);
    return unpublish != nullptr && Concerns(*unpublish, step.key);
  });
}

void VolumeActor::Event(std::string type, const std::string& consumer, std::string message) {
  context_.events.Append({.type = std::move(type),
                          .plugin_id = machine_.record().plugin_id,
                          .volume_id = machine_.record().volume_id,
                          .consumer = consumer,
                          .message = std::move(message)});
}

void VolumeActor::Announce(const Step& step, const StepReport& report, FollowUp follow_up) {
  const bool done = report.outcome == CallOutcome::kDone || report.outcome == CallOutcome::kAbsent;
  if (follow_up == FollowUp::kRepeat) {
    SPDLOG_WARN("{}; trying again", report.error.ToString());
    return;
  }
  if (done) {
    last_told_.clear();
  } else {
    // In the background the same error may come every minute, for days: it is told once.
    const std::string told = fmt::format("{} {}", static_cast<int>(step.kind), report.error.ToString());
    if (told == std::exchange(last_told_, told)) return;
  }
  if (follow_up == FollowUp::kPause && report.outcome != CallOutcome::kFinal) {
    Event("volume.uncertain", step.key.consumer,
          fmt::format("not finished, to be tried again: {}", MessageOf(report.error)));
    return;
  }
  if (!done) {
    Event("volume.failed", step.key.consumer, std::string(MessageOf(report.error)));
    return;
  }
  switch (step.kind) {
    case StepKind::kStage:
      Event("volume.staged", step.key.consumer, "staged");
      return;
    case StepKind::kUnpublish:
      Event("volume.unpublished", step.key.consumer, fmt::format("unpublished for {}", Describe(step.key)));
      return;
    case StepKind::kUnstage:
      if (machine_.record().stages) Event("volume.unstaged", "", "unstaged");
      return;
    case StepKind::kPublish:  // told once it is durable
    case StepKind::kForget:
    case StepKind::kNone:
      return;
  }
}

absl::Status VolumeActor::Overdue(const VolumeOperation& operation) const {
  if (&operation != current_.get()) {
    return absl::DeadlineExceededError("waiting behind other requests for this volume");
  }
  if (!waiting_for_.empty()) return absl::UnavailableError(waiting_for_);
  const std::string last =
      last_error_.ok()
          ? ""
          : fmt::format("; last error: {}: {}", CodeName(last_error_.code()), MessageOf(last_error_));
  if (!running_.empty() && running_since_) {
    return absl::DeadlineExceededError(
        fmt::format("plugin {}: {} has run for {} and goes on; the same request joins it{}",
                    machine_.record().plugin_id, running_, Seconds(*running_since_), last));
  }
  return absl::DeadlineExceededError(
      fmt::format("not done yet; it goes on, and the same request joins it{}", last));
}

VolumeView VolumeActor::View() const {
  const VolumeRecord& record = machine_.record();
  VolumeView view;
  view.plugin_id = record.plugin_id;
  view.volume_id = record.volume_id;
  view.stage_state = record.stage_state;
  view.uncertain = record.stage_uncertain;
  view.awaiting_secrets = machine_.AwaitingSecrets();
  view.use = record.use;
  if (record.stages) view.staging_path = context_.paths->StagingPath(record);
  view.last_error = record.last_error;
  for (const PublicationRecord& publication : record.publications) {
    view.publications.push_back({.consumer = publication.key.consumer,
                                 .name = publication.key.name,
                                 .target_path = context_.paths->TargetPath(record, publication),
                                 .readonly = publication.readonly,
                                 .state = publication.state,
                                 .uncertain = publication.uncertain,
                                 .last_error = publication.last_error,
                                 .published_at = publication.published_at});
    view.uncertain = view.uncertain || publication.uncertain;
    if (view.last_error.empty()) view.last_error = publication.last_error;
  }
  view.next_retry_at = next_retry_at_;
  view.running = running_;
  view.running_since = running_since_;
  return view;
}

}  // namespace berth
