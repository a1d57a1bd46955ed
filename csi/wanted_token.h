// A token that speaks for a volume's consumer, which a plugin is to be given with NodePublishVolume: its
// file's [[token]]. It is asked of the central scheduler.
//
// A plain value. supervisor/ reads it from the plugin's file, mounter/ has the token made out and passes it.
#pragma once

#include <string>
#include <string_view>

namespace berth {

// Kubernetes' key of the JSON map that has all tokens: {"AUDIENCE": {"token": "…", "expirationTimestamp":
// "…"}}.
inline constexpr std::string_view kKubernetesTokens = "csi.storage.k8s.io/serviceAccount.tokens";

struct WantedToken {
  enum class Place { kSecrets, kVolumeContext };
  std::string audience;  // the token's audience
  std::string name;      // the key under which it is passed
  Place place = Place::kSecrets;
  bool kubernetes = false;  // as an entry of a JSON map, as drivers read it that are written for Kubernetes
  bool republish = false;   // published again with a new one before the old one ends

  bool operator==(const WantedToken&) const = default;
};

}  // namespace berth
