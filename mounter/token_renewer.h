// The tokens of one volume's consumers, passed to the plugin again before they end.
//
// The plugin gets them with NodePublishVolume once more, with the same arguments but for the tokens: its file
// declares that it takes that (republish = true), and it must only renew what it has. A plugin that mounts
// again instead is not taken for a liar: what it mounts during this call is the publication's own mount from
// then on, whatever it answers and whichever process ends meanwhile. So the row names no mount from before
// the call until its outcome is known. An unpublish removes all that lies at the target. The consumer may
// have the old mount, so an event says so.
//
// Decides when, and keeps what a renewal needs; the actor runs the step. Owned by the volume's actor; loop
// thread only. What is given to it outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "mounter/mounter_context.h"
#include "mounter/step_report.h"
#include "mounter/token_renewal.h"
#include "mounter/volume_machine.h"
#include "mounter/volume_reporter.h"

namespace berth {

class TokenRenewer {
 public:
  // `key`: the volume's, in the journal. `secrets`: those that the actor has, which a renewal repeats.
  TokenRenewer(MounterContext& context, VolumeMachine& machine, const VolumeReporter& reporter,
               std::map<PublicationKey, Secrets>& secrets, std::string key);

  // Whether the plugin of this publication is to be given new tokens while it is published.
  [[nodiscard]] bool Renews(const PublicationKey& key) const;
  // When the next tokens are due; max(): never.
  [[nodiscard]] BootTime Next() const;
  // The publications that need new tokens now.
  [[nodiscard]] std::vector<PublicationKey> Due(BootTime now) const;

  // Its plugin may want other tokens than before.
  void OnWantedChanged();
  // It was published, with these tokens; unset: without.
  void OnPublished(const PublicationKey& key, const std::optional<TokenLife>& tokens);
  // It is being unpublished.
  void Forget(const PublicationKey& key);

  // A renewal's call leaves now, or has ended. After it, what the plugin has mounted is noted in the machine:
  // true if that is another mount than the record names.
  void BeforeCall(const PublicationKey& key);
  [[nodiscard]] bool AfterCall(const PublicationKey& key);
  // How a renewal ended. True: the kernel is to be asked again, since it disagrees with the plugin.
  [[nodiscard]] bool OnOutcome(const PublicationKey& key, const StepReport& report);

  // Keeps the secrets that a repeated publish brings and a renewal lacks.
  void KeepSecrets(const PublishRequest& request);
  // The publication has arrived, or is gone: secrets that no renewal needs are dropped.
  void DropSecrets(const PublicationKey& key);

  // Why the tokens of this publication are not renewed; empty: they are.
  [[nodiscard]] std::string ErrorOf(const PublicationKey& key) const;

 private:
  [[nodiscard]] BootTime DueAt(const PublicationKey& key) const;
  [[nodiscard]] std::vector<WantedToken> Wanted() const;
  void OnPassed(const PublicationKey& key, const TokenLife& life);

  MounterContext& context_;
  VolumeMachine& machine_;
  const VolumeReporter& reporter_;
  std::map<PublicationKey, Secrets>& secrets_;
  std::string key_;
  // Of what is published. One that is not in here is due.
  std::map<PublicationKey, TokenRenewal> renewals_;
  // The mounts before renewals with an unknown outcome.
  std::map<PublicationKey, uint64_t> mount_before_renewal_;
};

}  // namespace berth
