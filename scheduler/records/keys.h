// The keys of the scheduler's records.
//
//   c                 the cluster
//   t                 the term
//   n/NAME/INSTANCE   a node
//
// Parts are joined by "/". In a part "/", "%" and bytes below 0x20 or above 0x7e are written as %XX. A part
// that is longer than 128 bytes stands as its hash; the record has it in full. So a prefix that ends with "/"
// names all records beneath it, and no other ones. Pure.
#pragma once

#include <string>
#include <string_view>

namespace berth::scheduler {

inline constexpr std::string_view kClusterKey = "c";
inline constexpr std::string_view kTermKey = "t";
inline constexpr std::string_view kNodesPrefix = "n/";

// One part of a key.
[[nodiscard]] std::string KeyPart(std::string_view text);

// All records of that name.
[[nodiscard]] std::string NodePrefix(std::string_view name);
[[nodiscard]] std::string NodeKey(std::string_view name, std::string_view instance_id);

}  // namespace berth::scheduler
