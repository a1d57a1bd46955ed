// Tokens that speak for the consumer of a volume: what is asked for, what came, and how the plugin gets it.
//
//   PluginDirectory::TokensWanted ──▶ TokenSource::Get ──▶ ForPlugin ──▶ PassTo the request
//   (the plugin's [[token]]s)         (the scheduler)      (checked)     of NodePublishVolume
//
// They live in memory for as long as the call that they are for: in no record, event, log or error.
//
// Pure but for TokenSource, which is awaited on the loop.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "csi/csi.pb.h"
#include "csi/errors.h"
#include "csi/wanted_token.h"

namespace berth {

enum class Origin;

// Which consumer tokens are for, and which audience.
struct TokenQuery {
  std::string plugin_id;
  std::string volume_id;
  std::string consumer;  // as the publication has it
  std::vector<std::string> audiences;
};

struct ConsumerToken {
  std::string audience;
  std::string token;
  Duration lifetime{};  // from when it came
};

// Who makes tokens out. Implemented by berthd over the link to the scheduler.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // DEADLINE_EXCEEDED, UNAVAILABLE: the scheduler is away. RESOURCE_EXHAUSTED: too much is asked of it.
  // FAILED_PRECONDITION: this node has none. Whatever else the scheduler answers. No message holds a token.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<std::vector<ConsumerToken>>> Get(TokenQuery query,
                                                                                  TimePoint deadline) = 0;
};

// How long what a plugin was given is good for.
struct TokenLife {
  BootTime since;                   // they grow old while the machine sleeps, too
  Duration lifetime{};              // the shortest of those that are to be renewed
  std::vector<WantedToken> wanted;  // for what they were made out
};

// What one call carries.
struct PluginTokens {
  std::map<std::string, std::string> secrets;
  std::map<std::string, std::string> volume_context;
  std::vector<std::string> in_maps;  // the tokens that are entries of a map in one of the two
  std::optional<TokenLife> life;     // unset: none of them is renewed
  std::vector<WantedToken> wanted;   // for what they were made out; empty: the plugin wanted none
};

// Whether a plugin that wants these is to be given new ones before the old ones end.
[[nodiscard]] bool WantsRenewal(const std::vector<WantedToken>& wanted);

// Whether a publication of this origin can have tokens. FAILED_PRECONDITION: only the scheduler knows its
// consumers, so no other origin gets tokens.
[[nodiscard]] absl::Status MayHaveTokens(Origin origin, const std::string& plugin_id);

// What came at `now`, which is `wall` for people and plugins, as the plugin wants it. INTERNAL: a token that
// is wanted did not come, or is empty, has no lifetime, or is longer than 64 KiB.
[[nodiscard]] absl::StatusOr<PluginTokens> ForPlugin(const std::vector<WantedToken>& wanted,
                                                     std::vector<ConsumerToken> came, BootTime now,
                                                     WallTime wall);

// Puts them into the request, in place of what stood under their keys.
void PassTo(const PluginTokens& tokens, ::csi::v1::NodePublishVolumeRequest* request);

// What it means for a publish that its tokens did not come: nothing was sent. kRetry or kFinal; decides over
// every code, with no default.
[[nodiscard]] CallOutcome ClassifyNoTokens(absl::StatusCode code);

}  // namespace berth
