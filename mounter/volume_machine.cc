#include "mounter/volume_machine.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace berth {
namespace {

std::string Text(const absl::Status& error) {
  const absl::string_view message = error.message();
  return std::string(CodeName(error.code())) + ": " + std::string(message.data(), message.size());
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
  machine.record_ = std::move(record);
  machine.present_ = true;
  VolumeRecord& r = machine.record_;
  if (rebooted && r.stage_state == StageState::kStaged) r.stage_state = StageState::kStaging;
  if (r.stage_state == StageState::kStaging || r.stage_state == StageState::kUnstaging)
    r.stage_uncertain = true;
  // Whatever the row does not tell is assumed the worse way.
  r.stage_sent = true;
  for (PublicationRecord& publication : r.publications) {
    publication.sent = true;
    publication.secrets_at_hand = false;
    if (publication.state == PublicationState::kPublished) continue;
    publication.uncertain = true;
    publication.held = rebooted && publication.state == PublicationState::kPublishing;
    if (publication.held) {
      publication.last_error =
          "not finished before the node was restarted: publish it again, or unpublish it";
    }
  }
  return machine;
}

bool VolumeMachine::Awaits(const PublicationRecord& publication) const {
  return publication.had_secrets && !publication.secrets_at_hand;
}

void VolumeMachine::Want(PublicationRecord publication) {
  present_ = true;
  failures_.erase(publication.key);
  publication.state = PublicationState::kPublishing;
  publication.held = false;
  if (record_.stages && record_.stage_state == StageState::kAbsent) {
    record_.stage_state = StageState::kStaging;
    record_.stage_sent = false;
    record_.stage_uncertain = false;
    record_.last_error.clear();
  }
  if (PublicationRecord* known = record_.Find(publication.key)) {
    known->held = false;
    known->state = PublicationState::kPublishing;
    known->had_secrets = publication.had_secrets;
    known->secrets_at_hand = publication.secrets_at_hand;
    return;
  }
  publication.sent = false;
  publication.uncertain = false;
  record_.publications.push_back(std::move(publication));
}

bool VolumeMachine::Unwant(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return false;
  if (publication->state == PublicationState::kPublishing && !publication->sent) {
    Remove(key);
    return true;
  }
  publication->state = PublicationState::kUnpublishing;
  publication->held = false;
  publication->secrets_at_hand = false;
  publication->uncertain = false;
  return true;
}

void VolumeMachine::MarkLost(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  publication->uncertain = true;
  publication->last_error = std::move(error);
}

void VolumeMachine::MarkFound(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  publication->uncertain = false;
  publication->last_error.clear();
}

void VolumeMachine::Unsettle(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  publication->state = PublicationState::kPublishing;
  publication->uncertain = true;
  publication->secrets_at_hand = publication->had_secrets;
  publication->last_error = std::move(error);
}

Step VolumeMachine::NextFor(const PublicationKey& key) const {
  const PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return NextTeardown();
  switch (publication->state) {
    case PublicationState::kPublished:
      return {};
    case PublicationState::kUnpublishing:
      return {StepKind::kUnpublish, key};
    case PublicationState::kPublishing:
      if (Awaits(*publication)) return {};
      if (record_.stages && record_.stage_state != StageState::kStaged) return {StepKind::kStage, key};
      return {StepKind::kPublish, key};
  }
  return {};
}

std::vector<PublicationKey> VolumeMachine::Movable() const {
  std::vector<PublicationKey> keys;
  for (const PublicationRecord& publication : record_.publications) {
    const bool undone = publication.state == PublicationState::kUnpublishing;
    const bool forward =
        publication.state == PublicationState::kPublishing && !publication.held && !Awaits(publication);
    if (undone || forward) keys.push_back(publication.key);
  }
  return keys;
}

Step VolumeMachine::NextTeardown() const {
  if (!present_ || !record_.publications.empty()) return {};
  if (record_.stage_state != StageState::kAbsent) return {StepKind::kUnstage, {}};
  return {StepKind::kForget, {}};
}

bool VolumeMachine::Unsettled() const { return NextTeardown().kind != StepKind::kNone || !Movable().empty(); }

bool VolumeMachine::AwaitingSecrets() const {
  return std::ranges::any_of(record_.publications, [this](const PublicationRecord& publication) {
    return publication.state == PublicationState::kPublishing && Awaits(publication);
  });
}

void VolumeMachine::OnSent(const Step& step) {
  switch (step.kind) {
    case StepKind::kStage:
      record_.stage_state = StageState::kStaging;
      record_.stage_sent = true;
      return;
    case StepKind::kPublish:
      if (PublicationRecord* publication = record_.Find(step.key)) publication->sent = true;
      return;
    case StepKind::kUnstage:
      record_.stage_state = StageState::kUnstaging;
      return;
    case StepKind::kNone:
    case StepKind::kUnpublish:
    case StepKind::kForget:
      return;
  }
}

FollowUp VolumeMachine::OnOutcome(const Step& step, CallOutcome outcome, const absl::Status& error,
                                  bool time_left, WallTime now) {
  PublicationRecord* publication = record_.Find(step.key);
  switch (step.kind) {
    case StepKind::kNone:
      return FollowUp::kPause;
    case StepKind::kStage:
      return OnStage(outcome, error, time_left);
    case StepKind::kPublish:
      if (publication == nullptr) return FollowUp::kNext;
      return OnPublish(*publication, outcome, error, time_left, now);
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
      record_.last_error = Text(error);
      return FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnStage(CallOutcome outcome, const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
      record_.stage_state = StageState::kStaged;
      record_.stage_uncertain = false;
      record_.last_error.clear();
      return FollowUp::kNext;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent: {
      // Whoever waits for the staging fails with it. Those that are published keep the volume here.
      record_.stage_uncertain = false;
      record_.last_error = Text(error);
      std::vector<PublicationKey> waiting;
      for (const PublicationRecord& publication : record_.publications) {
        if (publication.state == PublicationState::kPublishing) waiting.push_back(publication.key);
      }
      for (const PublicationKey& key : waiting) {
        failures_[key] = error;
        record_.Find(key)->last_error = Text(error);
        Unwant(key);
      }
      Normalize();
      return FollowUp::kNext;
    }
    case CallOutcome::kUncertain:
      record_.stage_uncertain = true;
      [[fallthrough]];
    case CallOutcome::kRetry:
      record_.last_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnPublish(PublicationRecord& publication, CallOutcome outcome,
                                  const absl::Status& error, bool time_left, WallTime now) {
  switch (outcome) {
    case CallOutcome::kDone:
      publication.state = PublicationState::kPublished;
      publication.uncertain = false;
      publication.last_error.clear();
      publication.secrets_at_hand = false;
      publication.published_at = now;
      return FollowUp::kNext;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent:
      failures_[publication.key] = error;
      publication.last_error = Text(error);
      Unwant(publication.key);
      return FollowUp::kNext;
    case CallOutcome::kUncertain:
      publication.uncertain = true;
      [[fallthrough]];
    case CallOutcome::kRetry:
      publication.last_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnUnpublish(PublicationRecord& publication, CallOutcome outcome,
                                    const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
    case CallOutcome::kAbsent:
      Remove(publication.key);
      return FollowUp::kNext;
    case CallOutcome::kFinal:
      publication.last_error = Text(error);
      return FollowUp::kPause;
    case CallOutcome::kUncertain:
      publication.uncertain = true;
      [[fallthrough]];
    case CallOutcome::kRetry:
      publication.last_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnUnstage(CallOutcome outcome, const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
    case CallOutcome::kAbsent:
      record_.stage_state = StageState::kAbsent;
      record_.stage_uncertain = false;
      record_.last_error.clear();
      return FollowUp::kNext;
    case CallOutcome::kFinal:
      record_.last_error = Text(error);
      return FollowUp::kPause;
    case CallOutcome::kUncertain:
      record_.stage_uncertain = true;
      [[fallthrough]];
    case CallOutcome::kRetry:
      record_.last_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

std::optional<absl::Status> VolumeMachine::TakeFailure(const PublicationKey& key) {
  const auto node = failures_.extract(key);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

void VolumeMachine::Remove(PublicationKey key) {
  std::erase_if(record_.publications, [&key](const PublicationRecord& p) { return p.key == key; });
  Normalize();
}

void VolumeMachine::Normalize() {
  // An intent of which nothing left this process needs no reverse call.
  const bool unsent = record_.stage_state == StageState::kStaging && !record_.stage_sent;
  if (record_.publications.empty() && unsent) record_.stage_state = StageState::kAbsent;
}

Duration RetryDelay(int failures, Duration first, Duration limit, double random) {
  const double doubled = static_cast<double>(first.count()) * std::exp2(std::clamp(failures - 1, 0, 40));
  const double full = std::min(doubled, static_cast<double>(limit.count()));
  return Duration(static_cast<Duration::rep>(full * (0.5 + 0.5 * random)));
}

}  // namespace berth
