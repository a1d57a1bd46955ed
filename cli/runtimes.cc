#include "cli/runtimes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
  return fmt::format("In addition to those in berthd.toml there are {}{}", kRuntimeKinds,
                     DidYouMean(kind, KnownKinds()));
}

v1::RuntimeAbility AbilityOf(std::string_view kind) {
  v1::RuntimeAbility ability;
  ability.set_name(std::string(kind));
  const auto* runtime = std::ranges::find(kRuntimes, kind, &Runtime::kind);
  if (runtime == kRuntimes.end()) return ability;
  ability.set_mount(runtime->mount);
  ability.set_block(runtime->block);
  ability.set_readonly(runtime->readonly);
  return ability;
}

}  // namespace berth::cli
