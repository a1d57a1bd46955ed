// The lease keeper as the uplink sees it: berth.v1's messages on one side, the keeper's values on the other.
// Owned by whoever owns both; loop thread only.
#pragma once

#include "rpc/uplink/lease_keeper.h"
#include "rpc/uplink/link_lease.h"

namespace berth {

class KeptLease final : public LinkLease {
 public:
  explicit KeptLease(LeaseKeeper& keeper) : keeper_(keeper) {}

  void OnStream() override { keeper_.OnStream(); }
  [[nodiscard]] absl::Status OnWelcome(uint64_t epoch) override { return keeper_.OnWelcome(epoch); }
  void OnHeartbeat(uint64_t number) override { keeper_.OnSent(number); }
  [[nodiscard]] Awaitable<absl::Status> OnAnswer(v1::HeartbeatAnswer answer) override;
  [[nodiscard]] v1::Refusal Judge(uint64_t epoch, bool forward) const override;
  [[nodiscard]] v1::LeaseState state() const override;
  [[nodiscard]] uint64_t epoch() const override { return keeper_.epoch(); }
  [[nodiscard]] std::optional<Duration> left() const override;
  [[nodiscard]] std::string why_not_valid() const override { return keeper_.WhyNotValid(); }
  [[nodiscard]] std::vector<v1::GivenUp> given_up() const override { return keeper_.List(); }
  void AcknowledgeGivenUp(uint64_t number) override { keeper_.Acknowledge(number); }
  [[nodiscard]] bool giving_up(const std::string& plugin_id, const std::string& volume_id) const override {
    return keeper_.GivingUp(plugin_id, volume_id);
  }

 private:
  LeaseKeeper& keeper_;
};

}  // namespace berth
