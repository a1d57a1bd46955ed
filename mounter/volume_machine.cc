#include "mounter/volume_machine.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

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

// A scheduler that asks for what a caller has published keeps its books of it from then on.
bool TakesOver(const PublicationRecord& said, const PublicationRecord& known) {
  return said.origin == Origin::kScheduler && known.origin == Origin::kCaller;
}

constexpr size_t kDetachedMounts = 64;

constexpr const char* kNotHeardYet = "berthd was restarted: no valid lease of its scheduler is known yet";
constexpr const char* kUnconfirmed =
    "its scheduler has not confirmed it since the lease ended: another node may have the volume";

// Only the file that declares a publication says where it is mounted too.
bool GivesPath(const PublicationRecord& said, const PublicationRecord& known) {
  return said.origin == Origin::kDeclared && known.origin == Origin::kDeclared && said.path != known.path;
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
  if (rebooted) {
    r.still_in_use = false;
    r.objects.clear();
    r.detached_mounts.clear();
    r.earlier_mounts = {};
    r.mounts_unknown = false;
    r.past_consumers.clear();
  }
  const bool cut_off = r.rebuilt || r.stage_state == StageState::kStaging ||
                       std::ranges::any_of(r.publications, [](const PublicationRecord& p) {
                         return p.state == PublicationState::kPublishing;
                       });
  if (cut_off && !rebooted) r.mounts_unknown = true;
  // What kept it in use was not written down.
  if (r.still_in_use && r.objects.empty() && (r.rebuilt || !r.mounts_unknown))
    r.objects.push_back(KernelObject{});
  if (rebooted && r.stage_state == StageState::kStaged) r.stage_state = StageState::kStaging;
  // Whatever the row does not say is assumed the worse way. A staging that was repaired may have begun again
  // since the row was written.
  const bool needed =
      std::ranges::any_of(r.publications, [&r](const PublicationRecord& p) { return r.NeedsStaging(p); });
  if (needed && r.stage_state == StageState::kAbsent) r.stage_state = StageState::kStaging;
  if (r.stage_state == StageState::kStaging || r.stage_state == StageState::kUnstaging) {
    r.stage_uncertain = true;
  }
  r.stage_sent = true;
  if (rebooted) {
    r.staging_mount_id = 0;
    r.staging_lost = false;
  }
  for (PublicationRecord& publication : r.publications) {
    publication.sent = true;
    publication.secrets_at_hand = false;
    publication.dead.clear();
    publication.hung.clear();
    publication.writes_refused.clear();
    if (publication.origin == Origin::kScheduler) publication.forward_blocked = kNotHeardYet;
    if (rebooted) publication.confirmed_at.reset();
    // Whether it is mounted at its path the kernel says, once that is asked.
    publication.path_mounted = false;
    publication.path_error.clear();
    if (rebooted) publication.path_mount_id = 0;
    if (rebooted) publication.mount_id = 0;
    if (rebooted) publication.before_reboot = true;
    if (publication.state == PublicationState::kPublished) continue;
    publication.uncertain = true;
    // The staging was being repaired, and how far the publication had come meanwhile was not written.
    if (r.stage_state == StageState::kUnstaging && !publication.ephemeral &&
        publication.state == PublicationState::kPublishing) {
      publication.state = PublicationState::kUnpublishing;
      publication.remount_after_undo = true;
    }
  }
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
    UpdateRequest(publication);
    known->blocked.clear();
    known->forward_blocked.clear();
    known->unconfirmed = false;
    if (publication.confirmed_at) known->confirmed_at = publication.confirmed_at;
    known->before_reboot = false;
    known->state = PublicationState::kPublishing;
    known->had_secrets = publication.had_secrets;
    known->secrets_at_hand = publication.secrets_at_hand;
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
  // If it was a caller's before, a scheduler's confirmation means nothing.
  const bool confirmed = was->origin == Origin::kScheduler && now->confirmations != was->confirmations;
  RollBackUpdate(*was);
  now->had_secrets = was->had_secrets;
  now->secrets_at_hand = now->secrets_at_hand && was->secrets_at_hand;
  now->before_reboot = was->before_reboot;
  // Want ended what blocked it. It is blocked again, unless it was confirmed or permitted since.
  now->forward_blocked = was->forward_blocked;
  now->unconfirmed = was->unconfirmed;
  now->blocked = was->blocked;
  if (!confirmed) now->confirmed_at = was->confirmed_at;
  now->confirmations = was->confirmations;
  if (confirmed && now->confirmed_at) Confirm(key, *now->confirmed_at);
  const auto permission = permissions_.find(was->origin);
  if (permission == permissions_.end()) return;
  const auto known_before = before.permissions_.find(was->origin);
  const bool since =
      known_before == before.permissions_.end() || known_before->second.changes != permission->second.changes;
  if (since) Apply(permission->second, *now);
}

bool VolumeMachine::UpdateRequest(const PublicationRecord& said) {
  PublicationRecord* known = record_.Find(said.key);
  if (known == nullptr) return false;
  const bool news = known->remount != said.remount || !(known->life == said.life) ||
                    known->secrets_reference != said.secrets_reference ||
                    known->consumer_labels != said.consumer_labels || TakesOver(said, *known) ||
                    GivesPath(said, *known);
  if (TakesOver(said, *known)) {
    known->origin = said.origin;
    known->confirmed_at = said.confirmed_at;
  }
  known->remount = said.remount;
  known->life = said.life;
  known->secrets_reference = said.secrets_reference;
  known->consumer_labels = said.consumer_labels;
  if (GivesPath(said, *known)) {
    known->path = said.path;
    known->path_mounted = false;
    known->path_error.clear();
    // Written together with what else is news: then it is mounted without one more commit.
    if (known->path_made.path.empty()) known->path_made = said.path;
  }
  return news;
}

void VolumeMachine::RollBackUpdate(const PublicationRecord& before) {
  PublicationRecord* known = record_.Find(before.key);
  if (known == nullptr) return;
  // What blocks it depends on who requested it.
  if (known->origin != before.origin) {
    known->forward_blocked = before.forward_blocked;
    known->unconfirmed = before.unconfirmed;
    known->confirmed_at = before.confirmed_at;
  }
  known->origin = before.origin;
  known->remount = before.remount;
  known->life = before.life;
  known->secrets_reference = before.secrets_reference;
  known->consumer_labels = before.consumer_labels;
  if (known->path != before.path) {
    known->path = before.path;
    known->path_made = before.path_made;
    known->path_mounted = before.path_mounted;
    known->path_error = before.path_error;
  }
}

void VolumeMachine::FillRebuilt(const PublicationRecord& said, VolumeUse use,
                                std::map<std::string, std::string> volume_context,
                                std::optional<std::map<std::string, std::string>> publish_context) {
  if (!record_.rebuilt) return;
  if (PublicationRecord* known = record_.Find(said.key)) {
    known->permissions = said.permissions;
    known->had_secrets = said.had_secrets;
  }
  record_.rebuilt = false;
  record_.use = std::move(use);
  record_.volume_context = std::move(volume_context);
  record_.publish_context = std::move(publish_context);
}

bool VolumeMachine::RequestUnpublish(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return false;
  if (publication->state == PublicationState::kPublishing && !publication->sent) {
    Remove(key);
    return true;
  }
  publication->state = PublicationState::kUnpublishing;
  publication->blocked.clear();
  publication->remount_after_undo = false;
  publication->secrets_at_hand = false;
  publication->uncertain = false;
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

void VolumeMachine::MarkLost(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  publication->uncertain = true;
  // It is of a mount that is not there any more.
  publication->dead.clear();
  publication->hung.clear();
  publication->writes_refused.clear();
  publication->last_error = std::move(error);
}

void VolumeMachine::MarkFound(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  publication->uncertain = false;
  publication->before_reboot = false;
  publication->blocked.clear();
  publication->last_error.clear();
}

void VolumeMachine::OnVerdict(const PublicationKey& key, const absl::Status& verdict) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
  const bool dead = absl::IsUnavailable(verdict);
  const bool hung = absl::IsDeadlineExceeded(verdict);
  const bool read_only = absl::IsFailedPrecondition(verdict);
  if (!verdict.ok() && !dead && !hung && !read_only) return;
  // Not empty, whatever it says.
  const std::string why = verdict.message().empty() ? "it does not answer" : std::string(verdict.message());
  publication->dead = dead ? why : "";
  publication->hung = hung ? why : "";
  publication->writes_refused = read_only ? why : "";
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

void VolumeMachine::Inherit(const VolumeRecord& last) {
  record_.label = last.label;
  record_.objects = last.objects;
  record_.detached_mounts = last.detached_mounts;
  record_.earlier_mounts = last.earlier_mounts;
  record_.mounts_unknown = last.mounts_unknown;
  record_.past_consumers = last.past_consumers;
  record_.still_in_use = last.still_in_use;
  SetPendingExpansion(last.pending_expansion_bytes);
}

void VolumeMachine::AddDetachedMount(uint64_t mount_id) {
  record_.still_in_use = true;
  std::vector<uint64_t>& mounts = record_.detached_mounts;
  if (mount_id == 0 || std::ranges::find(mounts, mount_id) != mounts.end()) return;
  mounts.push_back(mount_id);
  if (mounts.size() > kDetachedMounts) mounts.erase(mounts.begin());
}

void VolumeMachine::SetInUse(std::vector<KernelObject> objects) {
  record_.still_in_use = true;
  record_.objects = std::move(objects);
  if (record_.objects.empty()) record_.mounts_unknown = true;
}

void VolumeMachine::SetWithoutPlugin(WithoutPlugin said) {
  record_.without_plugin = std::move(said);
  record_.still_in_use = false;
  record_.objects.clear();
  record_.detached_mounts.clear();
}

void VolumeMachine::SetMountId(const PublicationKey& key, uint64_t mount_id) {
  if (PublicationRecord* publication = record_.Find(key)) publication->mount_id = mount_id;
}

void VolumeMachine::SetSecretsAtHand(const PublicationKey& key, bool at_hand) {
  if (PublicationRecord* publication = record_.Find(key)) publication->secrets_at_hand = at_hand;
}

void VolumeMachine::SetOfThisBoot(const PublicationKey& key) {
  if (PublicationRecord* publication = record_.Find(key)) publication->before_reboot = false;
}

void VolumeMachine::SetPermissionsSet(const PublicationKey& key) {
  if (PublicationRecord* publication = record_.Find(key)) publication->permissions_set = true;
}

bool VolumeMachine::NotePath(const PublicationKey& key) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || !publication->path_made.path.empty()) return false;
  publication->path_made = publication->path;
  return !publication->path.path.empty();
}

void VolumeMachine::UnnotePath(const PublicationKey& key) {
  if (PublicationRecord* publication = record_.Find(key)) publication->path_made = {};
}

void VolumeMachine::SetPathMounted(const PublicationKey& key, uint64_t mount_id, std::string unguarded) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return;
  publication->path_mounted = true;
  publication->path_mount_id = mount_id;
  publication->path_unguarded = std::move(unguarded);
}

void VolumeMachine::DoubtPath(const PublicationKey& key, std::string error) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return;
  publication->path_mounted = false;
  publication->path_error = std::move(error);
}

bool VolumeMachine::Repair(const PublicationKey& key, std::string error, bool asked) {
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return false;
  if (record_.rebuilt || !leaving_.empty() || (!publication->forward_blocked.empty() && !asked)) return false;
  if (!publication->hung.empty()) return false;
  publication->uncertain = true;
  publication->last_error = std::move(error);
  publication->secrets_at_hand = false;
  if (publication->ephemeral) {
    publication->state = PublicationState::kPublishing;
    return true;
  }
  publication->state = PublicationState::kUnpublishing;
  publication->remount_after_undo = true;
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
    if (p.state != PublicationState::kPublishing || !p.sent) continue;
    p.state = PublicationState::kUnpublishing;
    p.remount_after_undo = true;
    p.secrets_at_hand = false;
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
  publication->uncertain = true;
  publication->secrets_at_hand = false;
  publication->last_error = std::move(error);
  publication->remount_after_undo = !publication->ephemeral;
  publication->state =
      publication->ephemeral ? PublicationState::kPublishing : PublicationState::kUnpublishing;
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

bool VolumeMachine::Apply(const Permission& permission, PublicationRecord& publication) {
  const bool was_blocked = !publication.forward_blocked.empty();
  publication.unconfirmed = false;
  publication.forward_blocked = permission.forward_blocked;
  if (!permission.forward_blocked.empty()) return false;
  if (publication.origin != Origin::kScheduler) return was_blocked;
  if (publication.confirmed_at && *publication.confirmed_at >= permission.since) return was_blocked;
  publication.unconfirmed = true;
  publication.forward_blocked = kUnconfirmed;
  return false;
}

void VolumeMachine::BlockForward(Origin origin, const std::string& why) {
  Permission& permission = permissions_[origin];
  permission.forward_blocked = why;
  ++permission.changes;
  for (PublicationRecord& publication : record_.publications) {
    if (publication.origin == origin) Apply(permission, publication);
  }
}

bool VolumeMachine::UnblockForward(Origin origin, BootTime since) {
  Permission& permission = permissions_[origin];
  permission.forward_blocked.clear();
  permission.since = since;
  ++permission.changes;
  bool any = false;
  for (PublicationRecord& publication : record_.publications) {
    if (publication.origin == origin) any = Apply(permission, publication) || any;
  }
  return any;
}

std::optional<Blocked> VolumeMachine::BlockedBecause(const PublicationRecord& publication) {
  using Reason = Blocked::Reason;
  if (!publication.blocked.empty()) return Blocked{Reason::kRestart, publication.blocked};
  if (publication.state == PublicationState::kUnpublishing && !publication.remount_after_undo) return {};
  if (publication.unconfirmed) return Blocked{Reason::kUnconfirmed, publication.forward_blocked};
  const bool well =
      publication.state == PublicationState::kPublished && !publication.uncertain && publication.dead.empty();
  if (well || publication.forward_blocked.empty()) return {};
  return Blocked{Reason::kNoLease, publication.forward_blocked};
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
  PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr || publication->state != PublicationState::kPublished) return;
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
      record_.staging_mount_id = 0;
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
      record_.last_error = Text(error);
      return FollowUp::kPause;
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
    publication->state = PublicationState::kUnpublishing;
    publication->remount_after_undo = true;
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
      // A twin that still runs when the time is over may have its effect yet.
      if (outcome == CallOutcome::kUncertain || (!time_left && record_.stage_sent))
        record_.stage_uncertain = true;
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
      publication.dead.clear();
      publication.hung.clear();
      publication.writes_refused.clear();
      publication.secrets_at_hand = false;
      publication.published_at = now;
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
      // A twin that still runs when the time is over may have its effect yet.
      if (outcome == CallOutcome::kUncertain || (!time_left && publication.sent))
        publication.uncertain = true;
      publication.last_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnExpand(CallOutcome outcome, const absl::Status& error) {
  switch (outcome) {
    case CallOutcome::kDone:
      OnExpanded(expanding_);
      record_.last_error.clear();
      return FollowUp::kNext;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent:
      expansion_refused_ = true;
      record_.last_error = Text(error);
      return FollowUp::kNext;
    case CallOutcome::kUncertain:
    case CallOutcome::kRetry:
      expansion_deferred_ = true;
      record_.last_error = Text(error);
      return FollowUp::kNext;
  }
  return FollowUp::kNext;
}

FollowUp VolumeMachine::OnMountPath(PublicationRecord& publication, CallOutcome outcome,
                                    const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
    case CallOutcome::kAbsent:
      publication.path_error.clear();
      // It has left the path that is not wanted any more. The new one comes next.
      if (publication.path_made != publication.path) {
        publication.path_made = {};
        publication.path_mount_id = 0;
        publication.path_mounted = false;
        publication.path_unguarded.clear();
      }
      return FollowUp::kNext;
    case CallOutcome::kFinal:
      publication.path_error = Text(error);
      return FollowUp::kPause;
    case CallOutcome::kUncertain:
    case CallOutcome::kRetry:
      publication.path_error = Text(error);
      return time_left ? FollowUp::kRepeat : FollowUp::kPause;
  }
  return FollowUp::kPause;
}

FollowUp VolumeMachine::OnUnpublish(PublicationRecord& publication, CallOutcome outcome,
                                    const absl::Status& error, bool time_left) {
  switch (outcome) {
    case CallOutcome::kDone:
    case CallOutcome::kAbsent:
      if (!publication.remount_after_undo) {
        Remove(publication.key);
        return FollowUp::kNext;
      }
      publication.remount_after_undo = false;
      publication.state = PublicationState::kPublishing;
      publication.sent = false;
      publication.uncertain = false;
      publication.mount_id = 0;
      publication.path_mount_id = 0;
      publication.path_mounted = false;
      publication.dead.clear();
      publication.hung.clear();
      publication.writes_refused.clear();
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
      record_.staging_mount_id = 0;
      record_.staging_lost = false;
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
