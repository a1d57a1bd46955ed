// What the runtimes of consumers can use of a volume, so that a publish for one that cannot is refused before
// anything is done.
//
// Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// `kind` as --runtime names it. Of one that is not known here only the name is given, for berthd to find
// among its own.
[[nodiscard]] v1::RuntimeAbility AbilityOf(std::string_view kind);
// What to say where berthd does not know the runtime `kind` either.
[[nodiscard]] std::string RuntimeHint(std::string_view kind);
inline constexpr std::string_view kRuntimeKinds =
    "podman, podman-rootless, docker, nspawn, oci, systemd, process, vm";

}  // namespace berth::cli
