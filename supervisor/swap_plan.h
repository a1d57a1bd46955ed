// A swap: one plugin's process replaced by another command, or by what its file says now. What may serve in
// place of what, and what is written down so that a berthd which dies in the middle leaves one that serves.
//
// clang-format off
//   callers queue ─▶ idle ─▶ override written ─▶ old stops ─▶ new starts ─▶ compared ─▶ serves
//                                                                 └─▶ new stops ─▶ old starts again
// clang-format on
//
// What a person asks to run instead of the file's command is kept in <state_dir>/swaps/<id>.toml, until the
// file is changed or a swap is asked for without a command.
//
// Functions and plain values; SwapStore blocks on a small local file. Any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "csi/plugin_facts.h"
#include "supervisor/plugin_config.h"

namespace berth {

// Whether the new one may have fewer capabilities or another topology.
enum class SwapChanges {
  kRefuse,
  // What a reload does by itself: only while nothing depends on the plugin. Something does while volumes are
  // in use through it on this node, and always if it attaches volumes: only the storage and the scheduler
  // know what it has attached.
  kAcceptWhileUnused,
  kAccept,  // an operator has asked for it
};

struct SwapTerms {
  bool holds_volumes = false;  // then another node id will not do
  SwapChanges changes = SwapChanges::kRefuse;
};

// Whether what says `now` of itself may serve in the place of what said `before`. FAILED_PRECONDITION: each
// reason why not. More capabilities, another version or limit of volumes are what swaps are for.
[[nodiscard]] absl::Status CompareForSwap(const PluginFacts& before, const PluginFacts& now, SwapTerms terms);

// What runs instead of the file's command.
struct SwapOverride {
  std::string command;
  std::vector<std::string> arguments;
  std::string file_fingerprint;  // LaunchFingerprint of the file that it overrides

  bool operator==(const SwapOverride&) const = default;
};

struct SwapState {
  std::optional<SwapOverride> serving;
  // A swap was under way; with nothing in it: to the file's own command.
  bool trying = false;
  std::optional<SwapOverride> next;

  bool operator==(const SwapState&) const = default;
};

// The file's configuration with `override` over it, where it is of this file still.
[[nodiscard]] bool OverrideHolds(const SwapOverride& override, const PluginConfig& file,
                                 const PluginPaths& paths);
[[nodiscard]] PluginConfig WithOverride(PluginConfig file, const std::optional<SwapOverride>& override);

[[nodiscard]] std::string SwapStatePath(const std::string& state_dir, std::string_view id);
// An empty one where there is no file. INVALID_ARGUMENT where it is not what WriteSwapState writes.
[[nodiscard]] absl::StatusOr<SwapState> ReadSwapState(const std::string& path);
// Durable. An empty state removes the file.
[[nodiscard]] absl::Status WriteSwapState(const std::string& path, const SwapState& state);

}  // namespace berth
