#include "mounter/volume_plan.h"

#include <algorithm>

namespace berth {

bool VolumePlan::MayGoForward(const PublicationRecord& publication) const {
  return !limits_.leaving && publication.blocked.empty() && publication.forward_blocked.empty() &&
         !publication.AwaitsSecrets() && !record_.rebuilt;
}

bool VolumePlan::MayUnstage() const {
  return std::ranges::all_of(record_.publications, [this](const PublicationRecord& p) {
    return !record_.NeedsStaging(p) || (p.state == PublicationState::kPublishing && !p.sent);
  });
}

bool VolumePlan::UnstagesFirst() const {
  if (!record_.staging_lost || !MayUnstage()) return false;
  // A stage with an unknown outcome may still run: it is repeated, not reversed.
  return record_.stage_state == StageState::kStaged ||
         (record_.stage_state == StageState::kStaging && !record_.stage_uncertain);
}

bool VolumePlan::PathPending(const PublicationRecord& p) const {
  if (limits_.leaving) return false;
  const bool well = p.state == PublicationState::kPublished && !p.uncertain && p.dead.empty() &&
                    p.hung.empty() && p.blocked.empty() && p.forward_blocked.empty();
  return well && (p.path_made != p.path || (!p.path.path.empty() && !p.path_mounted));
}

bool VolumePlan::PathPending(const PublicationKey& key) const {
  const PublicationRecord* publication = record_.Find(key);
  return publication != nullptr && PathPending(*publication);
}

Step VolumePlan::NextFor(const PublicationKey& key) const {
  const PublicationRecord* publication = record_.Find(key);
  if (publication == nullptr) return NextTeardown();
  switch (publication->state) {
    case PublicationState::kPublished:
      return PathPending(*publication) ? Step{StepKind::kMountPath, key} : NextExpansion();
    case PublicationState::kUnpublishing:
      return {StepKind::kUnpublish, key};
    case PublicationState::kPublishing:
      if (!MayGoForward(*publication)) return {};
      return record_.NeedsStaging(*publication) ? NextOnStaging(key) : Step{StepKind::kPublish, key};
  }
  return {};
}

Step VolumePlan::NextOnStaging(const PublicationKey& key) const {
  if (record_.stage_state == StageState::kUnstaging) {
    return MayUnstage() ? Step{StepKind::kUnstage, {}} : Step{};
  }
  if (UnstagesFirst()) return {StepKind::kUnstage, {}};
  if (!record_.Staged()) return {StepKind::kStage, key};
  const Step expansion = NextExpansion();
  return {expansion.kind == StepKind::kNone ? StepKind::kPublish : StepKind::kExpand, key};
}

std::vector<PublicationKey> VolumePlan::Movable() const {
  std::vector<PublicationKey> undone;
  std::vector<PublicationKey> forward;
  for (const PublicationRecord& publication : record_.publications) {
    if (publication.state == PublicationState::kUnpublishing) undone.push_back(publication.key);
    const bool publishing = publication.state == PublicationState::kPublishing && MayGoForward(publication);
    if (publishing || PathPending(publication)) forward.push_back(publication.key);
  }
  // What is undone makes way.
  undone.insert(undone.end(), forward.begin(), forward.end());
  return undone;
}

Step VolumePlan::NextTeardown() const {
  if (!limits_.present || !record_.publications.empty()) return {};
  if (record_.stage_state != StageState::kAbsent) return {StepKind::kUnstage, {}};
  return {StepKind::kForget, {}};
}

Step VolumePlan::NextExpansion() const { return limits_.expansion_deferred ? Step{} : ExpansionWhereItCan(); }

Step VolumePlan::ExpansionWhereItCan() const {
  if (record_.pending_expansion_bytes == 0 || limits_.expansion_refused || limits_.leaving) return {};
  if (ReadsOnly(record_.use.access_mode)) return {};
  const bool staged = record_.Staged();
  for (const PublicationRecord& p : record_.publications) {
    if (!p.forward_blocked.empty()) continue;
    const bool published = p.state == PublicationState::kPublished && !p.uncertain;
    const bool grows = record_.NeedsStaging(p) ? staged : p.Writes(record_.use);
    if (published && grows) return {StepKind::kExpand, p.key};
  }
  // With staging, that it is staged will do.
  for (const PublicationRecord& p : record_.publications) {
    if (p.state == PublicationState::kPublishing && staged && record_.NeedsStaging(p) &&
        p.forward_blocked.empty()) {
      return {StepKind::kExpand, p.key};
    }
  }
  return {};
}

bool VolumePlan::MayRenew(const PublicationKey& key) const {
  const PublicationRecord* p = record_.Find(key);
  if (!limits_.present || p == nullptr || record_.rebuilt || limits_.leaving) return false;
  const bool well = p->state == PublicationState::kPublished && !p->uncertain;
  const bool asked_for = p->forward_blocked.empty() || p->unconfirmed;  // a token is no forward step
  return well && p->origin == Origin::kScheduler && p->blocked.empty() && asked_for &&
         (record_.Staged() || !record_.NeedsStaging(*p));
}

bool VolumePlan::Unsettled() const {
  return NextTeardown().kind != StepKind::kNone || !Movable().empty() ||
         ExpansionWhereItCan().kind != StepKind::kNone;
}

bool VolumePlan::AwaitsSecrets() const {
  return std::ranges::any_of(record_.publications, [](const PublicationRecord& publication) {
    return publication.state == PublicationState::kPublishing && publication.AwaitsSecrets();
  });
}

bool VolumePlan::InUseByKernel() const {
  return limits_.present && record_.publications.empty() && record_.stage_state == StageState::kAbsent &&
         record_.still_in_use;
}

bool VolumePlan::StagedForNobody() const {
  return limits_.present && record_.publications.empty() && record_.Staged() && !record_.rebuilt;
}

}  // namespace berth
