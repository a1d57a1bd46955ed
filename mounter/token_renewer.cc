#include "mounter/token_renewer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);

}  // namespace

TokenRenewer::TokenRenewer(MounterContext& context, VolumeMachine& machine, const VolumeReporter& reporter,
                           std::map<PublicationKey, Secrets>& secrets, std::string key)
    : context_(context), machine_(machine), reporter_(reporter), secrets_(secrets), key_(std::move(key)) {}

std::vector<WantedToken> TokenRenewer::Wanted() const {
  return context_.plugins.TokensWanted(machine_.record().plugin_id);
}

bool TokenRenewer::Renews(const PublicationKey& key) const {
  return machine_.plan().MayRenew(key) && WantsRenewal(Wanted());
}

BootTime TokenRenewer::DueAt(const PublicationKey& key) const {
  const auto known = renewals_.find(key);
  return known == renewals_.end() ? BootTime::min() : known->second.due();
}

BootTime TokenRenewer::Next() const {
  BootTime next = BootTime::max();
  if (!context_.recovered) return next;
  for (const PublicationRecord& publication : machine_.record().publications) {
    if (Renews(publication.key)) next = std::min(next, DueAt(publication.key));
  }
  return next;
}

std::vector<PublicationKey> TokenRenewer::Due(BootTime now) const {
  std::vector<PublicationKey> due;
  for (const PublicationRecord& publication : machine_.record().publications) {
    if (Renews(publication.key) && now >= DueAt(publication.key)) due.push_back(publication.key);
  }
  return due;
}

void TokenRenewer::OnPassed(const PublicationKey& key, const TokenLife& life) {
  TokenRenewal& renewal = renewals_[key];
  renewal.OnPassed(life, RandomShare());
  // The plugin's file may have changed during the call.
  renewal.OnWanted(Wanted());
}

void TokenRenewer::OnWantedChanged() {
  const std::vector<WantedToken> wanted = Wanted();
  for (auto& [key, renewal] : renewals_) renewal.OnWanted(wanted);
  if (WantsRenewal(wanted)) return;
  // They were kept for nothing else.
  std::erase_if(secrets_, [this](const auto& kept) {
    const PublicationRecord* publication = machine_.record().Find(kept.first);
    return publication != nullptr && publication->state == PublicationState::kPublished;
  });
}

void TokenRenewer::OnPublished(const PublicationKey& key, const std::optional<TokenLife>& tokens) {
  renewals_.erase(key);
  if (tokens) OnPassed(key, *tokens);
}

void TokenRenewer::Forget(const PublicationKey& key) {
  renewals_.erase(key);
  if (const auto before = mount_before_renewal_.extract(key)) context_.Untrack(before.mapped());
}

void TokenRenewer::BeforeCall(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  // Of several calls that have not come back the first one's counts.
  if (publication != nullptr && publication->mount_id != 0) {
    mount_before_renewal_[key] = publication->mount_id;
  }
}

bool TokenRenewer::AfterCall(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr) return false;
  const auto facts = context_.paths->LookAtTarget(machine_.record(), *publication);
  const uint64_t id = facts.ok() && facts->mount_root ? facts->mount_id : 0;
  const auto known = mount_before_renewal_.extract(key);
  // Nothing was sent: a mount over ours is not the plugin's.
  if (!known && publication->mount_id != 0) return false;
  const uint64_t before = known ? known.mapped() : 0;
  const bool another = id != publication->mount_id;
  if (another) machine_.SetMountId(key, id);
  if (id == 0 || id == before) return another;
  context_.Untrack(before);
  context_.Track(id, key_);
  if (before == 0) return another;
  reporter_.Emit("volume.remounted", key.consumer,
                 fmt::format("its plugin mounted it again when it got new tokens; {} has to be restarted if "
                             "it had the old mount",
                             Describe(key)));
  return another;
}

bool TokenRenewer::OnOutcome(const PublicationKey& key, const StepReport& report) {
  TokenRenewal& renewal = renewals_[key];
  if (report.outcome == CallOutcome::kDone) {
    const bool failed_before = renewal.failures() > 0;
    if (report.tokens) OnPassed(key, *report.tokens);
    if (failed_before) reporter_.Emit("volume.token_renewed", key.consumer, "its tokens are renewed again");
    return false;
  }
  const Duration pause =
      Backoff(renewal.failures() + 1, kFirstPause, context_.options.retry_limit, RandomShare());
  std::string error = fmt::format("its tokens are not renewed: {}", MessageOf(report.error));
  if (renewal.OnFailed(BootClock::now(), pause, error)) {
    reporter_.Emit("volume.token_failed", key.consumer,
                   fmt::format("{}; it stays mounted, and this is tried again", error));
  }
  // The plugin answered OK, and the kernel shows something else.
  return report.outcome == CallOutcome::kFinal;
}

void TokenRenewer::KeepSecrets(const PublishRequest& request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr || !publication->had_secrets || request.secrets.empty() || !Renews(key)) return;
  if (IsSet(publication->secrets_reference)) return;
  const bool lacked = secrets_.insert_or_assign(key, request.secrets).second;
  if (lacked) renewals_[key].Hasten();
}

void TokenRenewer::DropSecrets(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  const bool elsewhere = publication != nullptr && IsSet(publication->secrets_reference);
  if (elsewhere || !Renews(key)) secrets_.erase(key);
}

std::string TokenRenewer::ErrorOf(const PublicationKey& key) const {
  const auto renewal = renewals_.find(key);
  return renewal != renewals_.end() && Renews(key) ? renewal->second.error() : "";
}

}  // namespace berth
