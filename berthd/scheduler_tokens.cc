#include "berthd/scheduler_tokens.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/uplink/operation_check.h"

namespace berth {
namespace {

// More than any clock can count is for ever.
constexpr int64_t kMostSeconds = int64_t{100} * 366 * 24 * 3600;

Duration LifetimeOf(const v1::Token& token) {
  const google::protobuf::Duration& told = token.expires_after();
  const int64_t seconds = std::clamp<int64_t>(told.seconds(), 0, kMostSeconds);
  return std::chrono::seconds(seconds) + std::chrono::nanoseconds(told.nanos());
}

}  // namespace

Awaitable<absl::StatusOr<std::vector<ConsumerToken>>> SchedulerTokens::Get(TokenQuery query,
                                                                           TimePoint deadline) {
  const ConsumerName name = SplitConsumer(query.consumer);
  v1::TokenAsk ask;
  ask.set_namespace_(ToUtf8(name.name_space));
  ask.set_consumer(ToUtf8(name.consumer));
  ask.set_plugin_id(ToUtf8(query.plugin_id));
  ask.set_volume_id(ToUtf8(query.volume_id));
  for (const std::string& audience : query.audiences) ask.add_audiences(audience);
  BERTH_CO_ASSIGN_OR_RETURN(const v1::TokenAnswer answer, co_await ask_(std::move(ask), deadline));
  std::vector<ConsumerToken> tokens;
  for (const v1::Token& token : answer.tokens()) {
    tokens.push_back({.audience = token.audience(), .token = token.token(), .lifetime = LifetimeOf(token)});
  }
  co_return tokens;
}

}  // namespace berth
