// What the runtimes of consumers can use of a volume, so that a publish for one that cannot is refused before
// anything is done.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// `kind` as --runtime names it; `cannot` takes abilities away ("mount", "block", "readonly"); `fs_types` are
// the only ones that it can use, where there are any. Of a kind that is not known here only the name is
// given, for berthd to find among its own. UsageError for what cannot be taken from such a one, or is not
// known.
[[nodiscard]] absl::StatusOr<v1::RuntimeAbility> AbilityOf(std::string_view kind,
                                                           const std::vector<std::string>& cannot,
                                                           const std::vector<std::string>& fs_types);
// What to say where berthd does not know the runtime `kind` either.
[[nodiscard]] std::string RuntimeHint(std::string_view kind);
inline constexpr std::string_view kRuntimeKinds =
    "podman, podman-rootless, docker, nspawn, oci, systemd, process, vm";

}  // namespace berth::cli
