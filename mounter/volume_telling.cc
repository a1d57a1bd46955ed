// VolumeActor: what is told of a volume, in events and to who asks.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/volume_actor.h"

namespace berth {
namespace {

// After so many tries a plugin that does not take a volume back is a person's business.
constexpr int kRefusesForGood = 5;

std::string Seconds(WallTime since) {
  return fmt::format("{:.0f} s", std::chrono::duration<double>(WallClock::now() - since).count());
}

}  // namespace

void VolumeActor::Announce(const Step& step, const StepReport& report, FollowUp follow_up) {
  if (step.kind == StepKind::kRenew) return;  // TokenRenewer reports it
  const bool done = report.outcome == CallOutcome::kDone || report.outcome == CallOutcome::kAbsent;
  if (done) {
    log_.Clear();
    tries_failed_ = 0;
    AnnounceDone(step);
    return;
  }
  // What gave way to a request that came meanwhile has not failed.
  if (!absl::IsAborted(report.error)) ++tries_failed_;
  const bool repeat = follow_up == FollowUp::kRepeat;
  const std::string kind = fmt::format("{} {} {} {}", static_cast<int>(step.kind), Describe(step.key), repeat,
                                       report.stuck ? report.stuck->on : CodeName(report.error.code()));
  if (!log_.Tell(kind, Clock::now())) return;
  if (repeat) {
    SPDLOG_WARN("{}; trying again{}", report.error.ToString(), Times());
    return;
  }
  const std::string message(MessageOf(report.error));
  if (step.kind == StepKind::kForget && report.in_use) {
    reporter_.Emit("volume.still_in_use", "", fmt::format("not released: {}{}", message, Times()));
    return;
  }
  if (report.stuck) {
    reporter_.Emit(
        "volume.stuck", step.key.consumer,
        fmt::format("{} does not return{}{}; other volumes go on: {}", report.stuck->on,
                    report.stuck->pid == 0 ? "" : fmt::format(" (process {})", report.stuck->pid),
                    report.stuck->plugin_hangs ? ": the plugin itself hangs, and has to be restarted" : "",
                    message));
    return;
  }
  const bool later = follow_up == FollowUp::kPause || step.kind == StepKind::kExpand;
  if (later && report.outcome != CallOutcome::kFinal) {
    reporter_.Emit("volume.uncertain", step.key.consumer,
                   fmt::format("not finished, to be tried again: {}{}", message, Times()));
    return;
  }
  reporter_.Emit("volume.failed", step.key.consumer, message + Times());
}

std::string VolumeActor::Times() const {
  return tries_failed_ > 1 ? fmt::format(" (failed {} times)", tries_failed_) : "";
}

std::string VolumeActor::LastFailures() const {
  if (last_error_.ok()) return "";
  std::string text = fmt::format("{}: {}", CodeName(last_error_.code()), MessageOf(last_error_));
  if (tries_failed_ > 1) text = fmt::format("failed {} times, last: {}", tries_failed_, text);
  if (!next_retry_at_) return text;
  const double wait = std::chrono::duration<double>(*next_retry_at_ - WallClock::now()).count();
  return fmt::format("{}, next try in {:.0f} s", text, std::max(wait, 0.0));
}

void VolumeActor::AnnounceDone(const Step& step) {
  switch (step.kind) {
    case StepKind::kStage:
      reporter_.Emit("volume.staged", step.key.consumer, "staged");
      return;
    case StepKind::kUnpublish:
      reporter_.Emit("volume.unpublished", step.key.consumer,
                     fmt::format("unpublished for {}", Describe(step.key)));
      return;
    case StepKind::kUnstage:
      if (machine_.record().stages) reporter_.Emit("volume.unstaged", "", "unstaged");
      return;
    case StepKind::kExpand:
      reporter_.Emit("volume.expanded", "", "the node's part of its expansion is done");
      return;
    case StepKind::kForget:
      // Who waits for that, to detach it for instance, is woken by this.
      reporter_.Emit("volume.free", "", "the kernel has released it");
      return;
    case StepKind::kPublish:    // told once it is durable
    case StepKind::kMountPath:  // OnPathMounted tells
    case StepKind::kRenew:
    case StepKind::kNone:
      return;
  }
}

void VolumeActor::TellAwaiting() {
  const bool awaiting = machine_.present() && machine_.AwaitingSecrets();
  if (awaiting == std::exchange(told_awaiting_, awaiting) || !awaiting) return;
  for (const PublicationRecord& p : machine_.record().publications) {
    if (p.state != PublicationState::kPublishing || !machine_.AwaitsSecrets(p)) continue;
    reporter_.Emit(
        "volume.awaiting_secrets", p.key.consumer,
        "it has to be mounted again, and its secrets are never written down: repeat the publish with them, "
        "or unpublish it");
  }
}

std::string VolumeActor::WhatRuns() const {
  std::string whom;
  const auto& current = queue_.current();
  if (current != nullptr) {
    if (const auto* publish = std::get_if<PublishRequest>(&current->request)) {
      whom = " to publish it for " + Describe({.consumer = publish->consumer, .name = publish->name});
    } else if (const auto* unpublish = std::get_if<UnpublishRequest>(&current->request)) {
      whom = " to unpublish it for " + Describe({.consumer = unpublish->consumer, .name = unpublish->name});
    } else {
      whom = " to expand it";
    }
  } else if (!trying_.key.consumer.empty()) {
    whom = " for " + Describe(trying_.key);
  }
  if (!waiting_for_.empty()) return fmt::format("what comes before it{} waits: {}", whom, waiting_for_);
  if (!running_.empty() && running_since_) {
    return fmt::format("{} has run for {}{}", running_, Seconds(*running_since_), whom);
  }
  if (current == nullptr) {
    const std::string failed = LastFailures();
    return fmt::format("what was begun before it is finished or undone first{}{}{}", whom,
                       failed.empty() ? "" : ": ", failed);
  }
  return fmt::format("other requests for this volume come before it{}",
                     whom.empty() ? "" : ", the first" + whom);
}

absl::Status VolumeActor::Overdue(const VolumeOperation& operation) const {
  if (&operation != queue_.current().get()) {
    const std::string message = fmt::format("not begun: {}", WhatRuns());
    return waiting_for_.empty() ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
  }
  if (!waiting_for_.empty()) return absl::UnavailableError(waiting_for_);
  const std::string failed = LastFailures();
  const std::string last =
      failed.empty() ? "" : "; " + (tries_failed_ > 1 ? failed : "last error: " + failed);
  const std::string done = WhatLeversDid();
  const std::string before = done.empty() ? "" : done + "; ";
  const bool plugin_hangs = machine_.stuck() && machine_.stuck()->plugin_hangs;
  const std::string_view hangs = plugin_hangs ? "; the plugin itself hangs: restart it" : "";
  if (!running_.empty() && running_since_) {
    return absl::DeadlineExceededError(
        fmt::format("{}plugin {}: {} has run for {} and goes on{}; the same request joins it{}", before,
                    machine_.record().plugin_id, running_, Seconds(*running_since_), hangs, last));
  }
  return absl::DeadlineExceededError(
      fmt::format("{}not done yet{}; it goes on, and the same request joins it{}", before, hangs, last));
}

std::string VolumeActor::WhatLeversDid() const {
  std::string done;
  if (levers_.aborted_at)
    done = fmt::format("its file system was aborted {} ago", Seconds(*levers_.aborted_at));
  if (levers_.detached_at) {
    done += fmt::format("{}a mount of it was detached {} ago", done.empty() ? "" : "; ",
                        Seconds(*levers_.detached_at));
  }
  return done;
}

std::string VolumeActor::ErrorOf(const PublicationRecord& publication) const {
  if (!publication.last_error.empty()) return publication.last_error;
  return tokens_.ErrorOf(publication.key);
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
  view.holders = holders_;
  for (const PublicationRecord& p : record.publications) {
    view.publications.push_back(
        {.consumer = p.key.consumer,
         .name = p.key.name,
         .target_path = context_.paths->TargetPath(record, p),
         .readonly = p.readonly,
         .state = p.state,
         .uncertain = p.uncertain,
         .last_error = ErrorOf(p),
         .published_at = p.published_at,
         .origin = p.origin,
         .remount = p.remount,
         .ephemeral = p.ephemeral,
         .life = p.life,
         .awaiting_secrets = p.state == PublicationState::kPublishing && machine_.AwaitsSecrets(p),
         .blocked = VolumeMachine::WaitsFor(p),
         .dead = p.dead,
         .hung = p.hung,
         .writes_refused = p.writes_refused,
         .again = p.again,
         .path = p.path,
         .path_mounted = p.path_mounted,
         .path_error = p.path_error});
    // Nothing is repeated of one that is blocked: `blocked` says why.
    if (!view.publications.back().blocked.empty()) continue;
    view.uncertain = view.uncertain || p.uncertain;
    if (view.last_error.empty()) view.last_error = view.publications.back().last_error;
  }
  view.next_retry_at = next_retry_at_;
  view.running = running_;
  view.running_since = running_since_;
  view.stuck = machine_.stuck();
  view.pending_expansion_bytes = record.pending_expansion_bytes;
  view.still_in_use = record.still_in_use;
  view.condition = condition_;
  view.aborted_at = levers_.aborted_at;
  view.detached_at = levers_.detached_at;
  const auto plugin = context_.plugins.Find(record.plugin_id);
  view.plugin_missing = absl::IsNotFound(plugin.status());
  if (plugin.ok()) view.driver_version = plugin->facts.vendor_version;
  view.driver_name = record.driver_name;
  view.label = record.label;
  view.rebuilt = record.rebuilt;
  view.without_plugin = record.without_plugin;
  view.failures = tries_failed_;
  view.plugin_refuses = plugin_cannot_ && tries_failed_ >= kRefusesForGood;
  return view;
}

}  // namespace berth
