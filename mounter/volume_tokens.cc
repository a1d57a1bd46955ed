// VolumeActor: tokens of consumers, passed anew before they end.
//
// The plugin is told so with NodePublishVolume once more, the arguments being the same but for the tokens: it
// declares that it takes that (republish = true in its file), and must only renew what it has. A plugin that
// mounts anew instead is not taken for a liar: what it mounts during this call is the publication's own mount
// from then on, whatever it answers and whoever ends meanwhile: so the row does not name a mount from before
// the call until what came of it is known. An unpublish takes away all that lies at the target. Its
// consumer may hold the old one, so it is told.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/status.h"
#include "mounter/volume_actor.h"
#include "mounts/mount_watch.h"

namespace berth {
namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);

}  // namespace

bool VolumeActor::Renews(const PublicationKey& key) const {
  return machine_.MayRenew(key) && WantsRenewal(context_.plugins.TokensWanted(machine_.record().plugin_id));
}

BootTime VolumeActor::RenewalOf(const PublicationKey& key) const {
  const auto known = renewals_.find(key);
  return known == renewals_.end() ? BootTime::min() : known->second.due();
}

BootTime VolumeActor::NextRenewal() const {
  BootTime next = BootTime::max();
  if (!context_.recovered) return next;
  for (const PublicationRecord& publication : machine_.record().publications) {
    if (Renews(publication.key)) next = std::min(next, RenewalOf(publication.key));
  }
  return next;
}

TimePoint VolumeActor::NextMove() const {
  const TimePoint retry = Unfinished() ? next_retry_ : TimePoint::max();
  const BootTime renewal = NextRenewal();
  if (renewal == BootTime::max()) return retry;
  const BootTime now = BootClock::now();
  return renewal <= now ? TimePoint::min() : std::min(retry, Clock::now() + (renewal - now));
}

void VolumeActor::OnTokensPassed(const PublicationKey& key, const TokenLife& life) {
  TokenRenewal& renewal = renewals_[key];
  renewal.OnPassed(life, RandomShare());
  // The plugin's file may have changed during the call.
  renewal.OnWanted(context_.plugins.TokensWanted(machine_.record().plugin_id));
}

void VolumeActor::OnTokensWantedChanged() {
  const std::vector<WantedToken> wanted = context_.plugins.TokensWanted(machine_.record().plugin_id);
  for (auto& [key, renewal] : renewals_) renewal.OnWanted(wanted);
  if (!WantsRenewal(wanted)) {
    // They were kept for nothing else.
    std::erase_if(secrets_, [this](const auto& kept) {
      const PublicationRecord* publication = machine_.record().Find(kept.first);
      return publication != nullptr && publication->state == PublicationState::kPublished;
    });
  }
  changed_.NotifyAll();
  if (NextRenewal() != BootTime::max()) EnsureWorking();
}

Awaitable<void> VolumeActor::RenewTokens() {
  std::vector<PublicationKey> keys;
  for (const PublicationRecord& publication : machine_.record().publications) keys.push_back(publication.key);
  for (const PublicationKey& key : keys) {
    if (!queue_.empty() || context_.stopping) co_return;
    if (!Renews(key) || BootClock::now() < RenewalOf(key)) continue;
    co_await RunStep({StepKind::kRenew, key});
    // What became of the mount meanwhile, or of its staging, is the kernel's to say.
    if (std::exchange(reconcile_again_, false)) Reconcile({});
  }
}

void VolumeActor::AfterRenewal(const Step& step, const StepReport& report) {
  // Begun again after what came in between: nobody's failure.
  if (report.outcome != CallOutcome::kDone && (!Renews(step.key) || !queue_.empty() || context_.stopping)) {
    return;
  }
  TokenRenewal& renewal = renewals_[step.key];
  if (report.outcome != CallOutcome::kDone) {
    // The plugin has said OK, and the kernel something else.
    reconcile_again_ = reconcile_again_ || report.outcome == CallOutcome::kFinal;
    const Duration pause =
        context_.RetryAfter(renewal.failures() + 1, kFirstPause, context_.options.retry_limit);
    std::string error = fmt::format("its tokens are not renewed: {}", MessageOf(report.error));
    const bool news = renewal.OnFailed(BootClock::now(), pause, error);
    if (!news) return;
    Event("volume.token_failed", step.key.consumer,
          fmt::format("{}; it stays mounted, and this is tried again", error));
    return;
  }
  const bool failed_before = renewal.failures() > 0;
  if (report.tokens) OnTokensPassed(step.key, *report.tokens);
  if (failed_before) Event("volume.token_renewed", step.key.consumer, "its tokens are renewed again");
}

void VolumeActor::RememberMount(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  // Of several calls that have not come back the first one's counts.
  if (publication != nullptr && publication->mount_id != 0) renewed_over_[key] = publication->mount_id;
}

void VolumeActor::AdoptMount(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr) return;
  const auto facts = context_.paths->LookAtTarget(machine_.record(), *publication);
  const uint64_t id = facts.ok() && facts->mount_root ? facts->mount_id : 0;
  const auto known = renewed_over_.extract(key);
  // Nothing was sent: what lies over ours is somebody else's.
  if (!known && publication->mount_id != 0) return;
  const uint64_t before = known ? known.mapped() : 0;
  if (id != publication->mount_id) {
    machine_.SetMountId(key, id);
    SaveSoon();
  }
  if (id == 0 || id == before) return;
  Untrack(before);
  if (context_.watch != nullptr) context_.watch->Track(id, key_);
  if (before == 0) return;
  Event("volume.remounted", key.consumer,
        fmt::format("its plugin mounted it again when it got new tokens; {} has to be restarted if it "
                    "had the old mount",
                    Describe(key)));
}

void VolumeActor::KeepForRenewal(const PublishRequest& request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr || !publication->had_secrets || request.secrets.empty() || !Renews(key)) return;
  if (IsSet(publication->secrets_reference)) return;
  const bool lacked = secrets_.insert_or_assign(key, request.secrets).second;
  if (lacked) renewals_[key].Hasten();
}

void VolumeActor::LetGoOfSecrets(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  const bool elsewhere = publication != nullptr && IsSet(publication->secrets_reference);
  if (elsewhere || !Renews(key)) secrets_.erase(key);
}

}  // namespace berth
