// The keys of the scheduler's records.
//
//   c                 the cluster
//   t                 the term
//   n/NAME/INSTANCE   a node
//   v/NAMESPACE/ID    a volume
//   x/DRIVER/EXTERNAL the name of a volume of the storage
//   h/NAMESPACE/ID    the head of a volume and its claims
//   u/NAMESPACE/ID/CONSUMER/NAME   a claim of a volume
//
// Parts are joined by "/". In a part "/", "%" and bytes below 0x20 or above 0x7e are written as %XX. A part
// that is longer than 128 bytes then stands as its hash; the record has it in full. So a prefix that ends
// with "/" names all records beneath it, and no other ones. Pure.
#pragma once

#include <string>
#include <string_view>

namespace berth::scheduler {

inline constexpr std::string_view kClusterKey = "c";
inline constexpr std::string_view kTermKey = "t";
inline constexpr std::string_view kNodesPrefix = "n/";
inline constexpr std::string_view kVolumesPrefix = "v/";
inline constexpr std::string_view kHeadsPrefix = "h/";
inline constexpr std::string_view kClaimsPrefix = "u/";

// One part of a key.
[[nodiscard]] std::string KeyPart(std::string_view text);

// All records of that name.
[[nodiscard]] std::string NodePrefix(std::string_view name);
[[nodiscard]] std::string NodeKey(std::string_view name, std::string_view instance_id);
[[nodiscard]] std::string VolumeKey(std::string_view name_space, std::string_view id);
[[nodiscard]] std::string ExternalKey(std::string_view driver, std::string_view external_id);
[[nodiscard]] std::string HeadKey(std::string_view name_space, std::string_view id);
// All claims of a volume.
[[nodiscard]] std::string ClaimPrefix(std::string_view name_space, std::string_view id);
[[nodiscard]] std::string ClaimKey(std::string_view name_space, std::string_view id,
                                   std::string_view consumer, std::string_view name);

}  // namespace berth::scheduler
