#include "mounter/volume_machine.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/recovered_record.h"

namespace berth {
namespace {

std::string Text(const absl::Status& error) {
  const absl::string_view message = error.message();
  return std::string(CodeName(error.code())) + ": " + std::string(message.data(), message.size());
}

// It was published once, and the wish for it outlives a failure to mount it again.
bool Persists(const PublicationRecord& publication) {
  return publication.published_at.has_value() &&
         (publication.ephemeral || publication.Remounts() || publication.origin == Origin::kScheduler);
}

// Of a step that undoes: the kernel agrees that it is undone.
bool Succeeded(CallOutcome outcome) {
  return outcome == CallOutcome::kDone || outcome == CallOutcome::kAbsent;
}

// Of a forward step that failed. A twin that still runs when the time is over may have its effect yet.
bool MayHaveHappened(CallOutcome outcome, bool time_left, bool sent) {
  return outcome == CallOutcome::kUncertain || (!time_left && sent);
}

FollowUp Repeat(const absl::Status& error, bool time_left, std::string* last_error) {
  *last_error = Text(error);
  return time_left ? FollowUp::kRepeat : FollowUp::kPause;
}

}  // namespace

VolumeMachine VolumeMachine::Fresh(VolumeRecord record) {
  VolumeMachine machine;
  machine.record_ = std::move(record);
  machine.record_.stage_sent = false;
  return machine;
}

VolumeMachine VolumeMachine::Recovered(VolumeRecord record, bool rebooted) {
  VolumeMachine machine;
  machine.record_ = RecoveredRecord(std::move(record), rebooted);
  machine.present_ = true;
  return machine;
}

void VolumeMachine::RequestPublish(PublicationRecord publication) {
  present_ = true;
  record_.without_plugin.reset();
  failures_.erase(publication.key);
  publication.state = PublicationState::kPublishing;
  publication.blocked.clear();
  publication.forward_blocked.clear();
  publication.unconfirmed = false;
  if (record_.NeedsStaging(publication) && record_.stage_state == StageState::kAbsent) {
    record_.stage_state = StageState::kStaging;
    record_.stage_sent = false;
    record_.stage_uncertain = false;
    record_.last_error.clear();
  }
  if (PublicationRecord* known = record_.Find(publication.key)) {
    known->RequestAgain(publication);
    return;
  }
  publication.sent = false;
  publication.uncertain = false;
  publication.path_made = publication.path;
  record_.publications.push_back(std::move(publication));
}

void VolumeMachine::RollBackRequest(const PublicationKey& key, const VolumeMachine& before) {
  present_ = before.present_;
  record_.without_plugin = before.record_.without_plugin;
  if (record_.stage_state == StageState::kStaging && !record_.stage_sent) {
    record_.stage_state = before.record_.stage_state;
    record_.stage_sent = before.record_.stage_sent;
    record_.stage_uncertain = before.record_.stage_uncertain;
  }
  const PublicationRecord* was = before.record_.Find(key);
  PublicationRecord* now = record_.Find(key);
  if (was == nullptr) {
    std::erase_if(record_.publications, [&key](const PublicationRecord& p) { return p.key == key; });
    return;
  }
  if (now == nullptr) return;
  const bool confirmed = now->RollBackRequest(*was);
  if (confirmed && now->confirmed_at) Confirm(key, *now->confirmed_at);
  if (permissions_.ChangedSince(before.permissions_, was->origin)) permissions_.ApplyTo(*now);
}

bool VolumeMachine::RequestUnpublish(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return false;
  if (publication->state == PublicationState::kPublishing && !publication->sent) {
    Remove(key);
    return true;
  }
  publication->Undo();
  return true;
}

void VolumeMachine::DoubtStaging() {
  if (record_.stage_state == StageState::kStaged) record_.stage_uncertain = true;
}

void VolumeMachine::MarkStagingLost(std::string error) {
  if (record_.stage_state != StageState::kStaged) return;
  record_.staging_lost = true;
  record_.stage_uncertain = true;
  record_.last_error = std::move(error);
}

void VolumeMachine::MarkStagingFound() {
  if (record_.stage_state != StageState::kStaged || !record_.staging_lost) return;
  record_.staging_lost = false;
  record_.stage_uncertain = false;
  record_.last_error.clear();
}

void VolumeMachine::OnStuck(StuckView stuck) {
  const bool still = stuck_ && stuck_->on == stuck.on && stuck_->pid == stuck.pid;
  if (still) stuck.since = std::min(stuck.since, stuck_->since);
  stuck_ = std::move(stuck);
}

bool VolumeMachine::SetLabel(const std::string& label) {
  if (label.empty() || record_.label == label) return false;
  record_.label = label;
  return true;
}

bool VolumeMachine::Repair(const PublicationKey& key, std::string error, bool asked) {
  PublicationRecord* publication = Published(key);
  if (publication == nullptr) return false;
  if (record_.rebuilt || !leaving_.empty() || (!publication->forward_blocked.empty() && !asked)) return false;
  if (!publication->hung.empty()) return false;
  publication->MountAgain(std::move(error));
  return true;
}

bool VolumeMachine::RepairStaging(const std::string& error, bool asked) {
  if (!record_.stages || record_.stage_state != StageState::kStaged || record_.rebuilt) return false;
  if (!leaving_.empty()) return false;
  for (const PublicationRecord& p : record_.publications) {
    if (!record_.NeedsStaging(p) || p.state == PublicationState::kUnpublishing) continue;
    if (!p.hung.empty()) return false;
    if (!p.blocked.empty() || (!p.forward_blocked.empty() && !asked)) return false;
    // A publication that is on its way is not in use yet.
    if (p.state == PublicationState::kPublished && !asked && !p.Remounts()) return false;
  }
  for (PublicationRecord& p : record_.publications) {
    if (!record_.NeedsStaging(p)) continue;
    if (p.state == PublicationState::kPublished) Repair(p.key, error, asked);
    if (p.state == PublicationState::kPublishing && p.sent) p.UndoAndRemount();
  }
  record_.stage_state = StageState::kUnstaging;
  record_.last_error = error;
  return true;
}

void VolumeMachine::Resume(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state == PublicationState::kUnpublishing || record_.rebuilt) {
    return;
  }
  publication->blocked.clear();
  publication->MountAgain(std::move(error));
  const bool all_undone = std::ranges::all_of(record_.publications, [this](const PublicationRecord& p) {
    return !record_.NeedsStaging(p) || p.state == PublicationState::kUnpublishing;
  });
  if (all_undone && record_.stage_state == StageState::kStaging && record_.stage_sent) {
    record_.stage_state = StageState::kUnstaging;
  }
}

void VolumeMachine::Block(const PublicationKey& key, std::string why) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return;
  if (publication->state == PublicationState::kPublished) publication->uncertain = true;
  publication->last_error = why;
  publication->blocked = std::move(why);
}

bool VolumeMachine::Confirm(const PublicationKey& key, BootTime at) {
  PublicationRecord* publication = record_.Find(key);
  if (!leaving_.empty()) return false;
  if (publication == nullptr || publication->origin != Origin::kScheduler || record_.rebuilt) return false;
  if (publication->state == PublicationState::kUnpublishing && !publication->remount_after_undo) return false;
  publication->confirmed_at = at;
  ++publication->confirmations;
  if (std::exchange(publication->unconfirmed, false)) publication->forward_blocked.clear();
  if (!publication->blocked.empty()) {
    Resume(publication->key, publication->blocked);
    publication->blocked.clear();
  }
  return true;
}

void VolumeMachine::SetPendingExpansion(int64_t bytes) {
  if (bytes <= 0) return;
  record_.pending_expansion_bytes = std::max(record_.pending_expansion_bytes, bytes);
  expansion_deferred_ = false;
  expansion_refused_ = false;
}

void VolumeMachine::OnExpanded(int64_t bytes) {
  if (bytes >= record_.pending_expansion_bytes) record_.pending_expansion_bytes = 0;
}

void VolumeMachine::Unsettle(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = Published(key);
  if (publication == nullptr) return;
  publication->state = PublicationState::kPublishing;
  publication->uncertain = true;
  publication->secrets_at_hand = publication->had_secrets;
  publication->last_error = std::move(error);
}

void VolumeMachine::OnSent(const Step& step) {
  switch (step.kind) {
    case StepKind::kStage:
      record_.stage_state = StageState::kStaging;
      record_.stage_sent = true;
      // From here on what lies there may be the plugin's, whatever it answers.
      SetStagingMount({});
      return;
    case StepKind::kPublish:
      if (PublicationRecord* publication = record_.Find(step.key)) {
        publication->sent = true;
        publication->before_reboot = false;
      }
      return;
    case StepKind::kUnstage:
      record_.stage_state = StageState::kUnstaging;
      return;
    case StepKind::kExpand:
      expanding_ = record_.pending_expansion_bytes;
      return;
    case StepKind::kRenew:
      // From here on the plugin may mount it again, whatever it answers.
      SetMountId(step.key, 0);
      return;
    case StepKind::kNone:
    case StepKind::kMountPath:
    case StepKind::kUnpublish:
    case StepKind::kForget:
      return;
  }
}

FollowUp VolumeMachine::OnOutcome(const Step& step, CallOutcome outcome, const absl::Status& error,
                                  bool time_left, WallTime now) {
  // "Another call for this volume is pending" is what a plugin answers if its first call has not returned.
  if (!absl::IsAborted(error) && !absl::IsDeadlineExceeded(error)) stuck_.reset();
  PublicationRecord* publication = record_.Find(step.key);
  switch (step.kind) {
    case StepKind::kNone:
      return FollowUp::kPause;
    case StepKind::kStage:
      return OnStage(outcome, error, time_left);
    case StepKind::kPublish:
      if (publication == nullptr) return FollowUp::kNext;
      return OnPublish(*publication, outcome, error, time_left, now);
    case StepKind::kExpand:
      return OnExpand(outcome, error);
    case StepKind::kRenew:
      // The publication does not change. TokenRenewer decides when it is tried again.
      return outcome == CallOutcome::kDone ? FollowUp::kNext : FollowUp::kPause;
    case StepKind::kMountPath:
      if (publication == nullptr) return FollowUp::kNext;
      return OnMountPath(*publication, outcome, error, time_left);
    case StepKind::kUnpublish:
      if (publication == nullptr) return FollowUp::kNext;
      return OnUnpublish(*publication, outcome, error, time_left);
    case StepKind::kUnstage:
      return OnUnstage(outcome, error, time_left);
    case StepKind::kForget:
      if (outcome == CallOutcome::kDone) {
        present_ = false;
        record_.last_error.clear();
        return FollowUp::kNext;
      }
      return Repeat(error, false, &record_.last_error);
  }
  return FollowUp::kPause;
}

bool VolumeMachine::GiveUp(const PublicationKey& key, const absl::Status& error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return false;
  failures_[key] = error;
  publication->last_error = Text(error);
  if (!Persists(*publication)) {
    RequestUnpublish(key);
    return false;
  }
  publication->secrets_at_hand = false;
  if (publication->ephemeral) {
    // Unpublishing would delete it: published it was, and counts as lost.
    publication->uncertain = true;
    if (!publication->Remounts()) publication->state = PublicationState::kPublished;
  } else if (publication->sent) {
    publication->UndoAndRemount();
  }
  return true;
}

FollowUp VolumeMachine::OnStage(CallOutcome outcome, const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
      record_.stage_state = StageState::kStaged;
      record_.stage_uncertain = false;
      record_.staging_lost = false;
      record_.last_error.clear();
      expansion_deferred_ = false;
      expansion_refused_ = false;
      return FollowUp::kNext;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent: {
      // The publications that wait for the staging fail with it. The published ones keep the volume here. If
      // nothing was sent it is as doubtful as before.
      if (record_.stage_state != StageState::kStaged) record_.stage_uncertain = false;
      record_.last_error = Text(error);
      std::vector<PublicationKey> waiting;
      for (const PublicationRecord& publication : record_.publications) {
        if (publication.state == PublicationState::kPublishing && record_.NeedsStaging(publication)) {
          waiting.push_back(publication.key);
        }
      }
      bool kept = false;
      for (const PublicationKey& key : waiting) kept = GiveUp(key, error) || kept;
      Normalize();
      return kept ? FollowUp::kPause : FollowUp::kNext;
    }
    case CallOutcome::kUncertain:
    case CallOutcome::kRetry:
      if (MayHaveHappened(outcome, time_left, record_.stage_sent)) record_.stage_uncertain = true;
      return Repeat(error, time_left, &record_.last_error);
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnPublish(PublicationRecord& publication, CallOutcome outcome,
                                  const absl::Status& error, bool time_left, WallTime now) {
  switch (outcome) {
    case CallOutcome::kDone:
      publication.MarkPublished(now);
      if (!record_.NeedsStaging(publication)) expansion_deferred_ = false;
      // Of a block volume a plugin may find the device only where it is published.
      expansion_refused_ = false;
      return FollowUp::kNext;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent: {
      const PublicationKey key = publication.key;  // what it lies in may be erased
      return GiveUp(key, error) ? FollowUp::kPause : FollowUp::kNext;
    }
    case CallOutcome::kUncertain:
    case CallOutcome::kRetry:
      if (MayHaveHappened(outcome, time_left, publication.sent)) publication.uncertain = true;
      return Repeat(error, time_left, &publication.last_error);
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnExpand(CallOutcome outcome, const absl::Status& error) {
  if (outcome == CallOutcome::kDone) {
    OnExpanded(expanding_);
    record_.last_error.clear();
    return FollowUp::kNext;
  }
  const bool again = outcome == CallOutcome::kUncertain || outcome == CallOutcome::kRetry;
  (again ? expansion_deferred_ : expansion_refused_) = true;
  record_.last_error = Text(error);
  return FollowUp::kNext;
}

FollowUp VolumeMachine::OnMountPath(PublicationRecord& publication, CallOutcome outcome,
                                    const absl::Status& error, bool time_left) {
  if (!Succeeded(outcome)) {
    return Repeat(error, time_left && outcome != CallOutcome::kFinal, &publication.path_error);
  }
  publication.path_error.clear();
  // It has left the path that is not wanted any more. The new one comes next.
  if (publication.path_made != publication.path) publication.ForgetPath();
  return FollowUp::kNext;
}

FollowUp VolumeMachine::OnUnpublish(PublicationRecord& publication, CallOutcome outcome,
                                    const absl::Status& error, bool time_left) {
  if (!Succeeded(outcome)) {
    if (outcome == CallOutcome::kUncertain) publication.uncertain = true;
    return Repeat(error, time_left && outcome != CallOutcome::kFinal, &publication.last_error);
  }
  if (publication.remount_after_undo) {
    publication.MarkUndone();
  } else {
    Remove(publication.key);
  }
  return FollowUp::kNext;
}

FollowUp VolumeMachine::OnUnstage(CallOutcome outcome, const absl::Status& error, bool time_left) {
  if (!Succeeded(outcome)) {
    if (outcome == CallOutcome::kUncertain) record_.stage_uncertain = true;
    return Repeat(error, time_left && outcome != CallOutcome::kFinal, &record_.last_error);
  }
  record_.stage_state = StageState::kAbsent;
  record_.stage_uncertain = false;
  SetStagingMount({});
  record_.staging_lost = false;
  record_.last_error.clear();
  return FollowUp::kNext;
}

bool VolumeMachine::ApplyPermissions(Origin origin) {
  bool any = false;
  for (PublicationRecord& publication : record_.publications) {
    if (publication.origin == origin) any = permissions_.ApplyTo(publication) || any;
  }
  return any;
}

PublicationRecord* VolumeMachine::Published(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  return publication != nullptr && publication->state == PublicationState::kPublished ? publication : nullptr;
}

std::optional<absl::Status> VolumeMachine::TakeFailure(const PublicationKey& key) {
  const auto node = failures_.extract(key);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

void VolumeMachine::Remove(PublicationKey key) {
  std::vector<std::string>& past = record_.past_consumers;
  const std::string consumer = past.size() + 1 < kPastConsumers ? key.consumer : "";
  if (std::ranges::find(past, consumer) == past.end()) past.push_back(consumer);
  std::erase_if(record_.publications, [&key](const PublicationRecord& p) { return p.key == key; });
  Normalize();
}

void VolumeMachine::Normalize() {
  // If nothing of an intent left this process, it needs no reverse call.
  const bool unsent = record_.stage_state == StageState::kStaging && !record_.stage_sent;
  if (record_.publications.empty() && unsent) record_.stage_state = StageState::kAbsent;
}

}  // namespace berth
