#include "cli/runtimes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

struct Runtime {
  std::string_view kind;
  bool mount;
  bool block;
  bool readonly;
};

constexpr std::array<Runtime, 8> kRuntimes = {{
    {"podman", true, true, true},
    // A device of root's cannot be opened from its user namespace.
    {"podman-rootless", true, false, true},
    {"docker", true, true, true},
    {"nspawn", true, true, true},
    {"oci", true, true, true},
    {"systemd", true, true, true},
    // No container at all: it uses the path as it is.
    {"process", true, true, true},
    // A virtual machine takes devices, not directories of the host.
    {"vm", false, true, true},
}};

std::vector<std::string> KnownKinds() {
  std::vector<std::string> known;
  for (const Runtime& each : kRuntimes) known.emplace_back(each.kind);
  return known;
}

}  // namespace

std::string RuntimeHint(std::string_view kind) {
  return fmt::format("Besides those of berthd.toml there are {}{}", kRuntimeKinds,
                     DidYouMean(kind, KnownKinds()));
}

absl::StatusOr<v1::RuntimeAbility> AbilityOf(std::string_view kind, const std::vector<std::string>& cannot,
                                             const std::vector<std::string>& fs_types) {
  const auto* runtime = std::find_if(kRuntimes.begin(), kRuntimes.end(),
                                     [&](const Runtime& each) { return each.kind == kind; });
  v1::RuntimeAbility ability;
  ability.set_name(std::string(kind));
  if (runtime == kRuntimes.end()) {
    if (cannot.empty() && fs_types.empty()) return ability;
    return UsageError(
        fmt::format("--runtime-cannot and --runtime-fs do not go with --runtime {}: what it can use "
                    "is berthd's to say{}",
                    Printable(kind, 80), DidYouMean(kind, KnownKinds())),
        fmt::format("They go with {}", kRuntimeKinds));
  }
  ability.set_mount(runtime->mount);
  ability.set_block(runtime->block);
  ability.set_readonly(runtime->readonly);
  for (const std::string& what : cannot) {
    if (what == "mount") {
      ability.set_mount(false);
    } else if (what == "block") {
      ability.set_block(false);
    } else if (what == "readonly") {
      ability.set_readonly(false);
    } else {
      return UsageError(fmt::format("--runtime-cannot: there is no '{}'", Printable(what, 80)),
                        "There are mount, block, readonly");
    }
  }
  for (const std::string& type : fs_types) ability.add_fs_types(type);
  return ability;
}

}  // namespace berth::cli
