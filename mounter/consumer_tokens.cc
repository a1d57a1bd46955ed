#include "mounter/consumer_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/utc_text.h"
#include "mounter/volume_types.h"

namespace berth {
namespace {

constexpr size_t kTokenLimit = size_t{64} << 10U;
// No token is good for longer than that; a larger number could not be counted with.
constexpr Duration kLongestLife = std::chrono::hours(24 * 366);

absl::Status Check(const ConsumerToken& token) {
  const std::string who = fmt::format("the token for {}", Printable(token.audience, 128));
  if (token.token.empty()) return absl::InternalError(who + " is empty");
  if (token.token.size() > kTokenLimit) {
    return absl::InternalError(
        fmt::format("{} has {} bytes, at most {}", who, token.token.size(), kTokenLimit));
  }
  if (token.lifetime <= Duration(0)) return absl::InternalError(who + " comes without a lifetime");
  return absl::OkStatus();
}

}  // namespace

bool WantsRenewal(const std::vector<WantedToken>& wanted) {
  return std::ranges::any_of(wanted, &WantedToken::republish);
}

absl::Status MayHaveTokens(Origin origin, const std::string& plugin_id) {
  if (origin == Origin::kScheduler) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "plugin {} needs tokens that identify the consumer ([[token]] in its file), and none can be "
      "issued: the scheduler does that only for what it publishes itself",
      plugin_id));
}

absl::StatusOr<PluginTokens> ForPlugin(const std::vector<WantedToken>& wanted,
                                       std::vector<ConsumerToken> came, BootTime now, WallTime wall) {
  PluginTokens tokens{.secrets = {}, .volume_context = {}, .in_maps = {}, .life = {}, .wanted = wanted};
  std::map<WantedToken::Place, nlohmann::json> maps;
  for (const WantedToken& want : wanted) {
    const auto found = std::ranges::find(came, want.audience, &ConsumerToken::audience);
    if (found == came.end()) {
      return absl::InternalError(
          fmt::format("the scheduler's answer has no token for {}", Printable(want.audience, 128)));
    }
    BERTH_RETURN_IF_ERROR(Check(*found));
    auto& place = want.place == WantedToken::Place::kSecrets ? tokens.secrets : tokens.volume_context;
    const Duration lifetime = std::min(found->lifetime, kLongestLife);
    place[want.name] = found->token;
    if (want.kubernetes) {
      nlohmann::json& map = maps[want.place];
      map[want.audience] = {{"token", found->token}, {"expirationTimestamp", UtcText(wall + lifetime)}};
      place[want.name] = map.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      tokens.in_maps.push_back(found->token);
    }
    if (!want.republish) continue;
    if (!tokens.life || lifetime < tokens.life->lifetime) {
      tokens.life = TokenLife{.since = now, .lifetime = lifetime};
    }
  }
  if (tokens.life) tokens.life->wanted = wanted;
  return tokens;
}

void PassTo(const PluginTokens& tokens, ::csi::v1::NodePublishVolumeRequest* request) {
  for (const auto& [name, token] : tokens.secrets) (*request->mutable_secrets())[name] = token;
  for (const auto& [name, token] : tokens.volume_context) (*request->mutable_volume_context())[name] = token;
}

CallOutcome ClassifyNoTokens(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return CallOutcome::kDone;
    // The scheduler is away, busy or out of order: it may answer later.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return CallOutcome::kRetry;
    // The scheduler answered that it has no token.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      return CallOutcome::kFinal;
  }
  return CallOutcome::kFinal;
}

}  // namespace berth
