// Where the mounter gets the tokens that plugins want: the scheduler, asked over the link. What comes is
// known as a secret of the plugin's before anybody has it, wherever the plugin is then given it.
//
// Owned by main, which makes it before the mounter; loop thread only. Decides nothing.
#pragma once

#include <functional>
#include <vector>

#include "berth/v1/scheduler.pb.h"
#include "csi/recent_secrets.h"
#include "mounter/consumer_tokens.h"

namespace berth {

class SchedulerTokens final : public TokenSource {
 public:
  using AskScheduler =
      std::function<Awaitable<absl::StatusOr<v1::TokenAnswer>>(v1::TokenAsk ask, TimePoint deadline)>;

  // `secrets` outlives this.
  SchedulerTokens(RecentSecrets& secrets, AskScheduler ask) : secrets_(secrets), ask_(std::move(ask)) {}

  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<ConsumerToken>>> Get(TokenQuery query,
                                                                          TimePoint deadline) override;

 private:
  RecentSecrets& secrets_;
  AskScheduler ask_;
};

}  // namespace berth
