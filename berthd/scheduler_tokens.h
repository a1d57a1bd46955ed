// Where the mounter gets the tokens that plugins want: the scheduler, asked over the link. That they are kept
// out of logs and errors is the affair of the call that carries them (csi/client.h).
//
// Owned by main, which makes it before the mounter; loop thread only. Decides nothing.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "berth/v1/scheduler.pb.h"
#include "mounter/consumer_tokens.h"

namespace berth {

class SchedulerTokens final : public TokenSource {
 public:
  using AskScheduler =
      std::function<Awaitable<absl::StatusOr<v1::TokenAnswer>>(v1::TokenAsk ask, TimePoint deadline)>;

  explicit SchedulerTokens(AskScheduler ask) : ask_(std::move(ask)) {}

  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<ConsumerToken>>> Get(TokenQuery query,
                                                                          TimePoint deadline) override;

 private:
  AskScheduler ask_;
};

}  // namespace berth
