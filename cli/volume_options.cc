#include "cli/volume_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <set>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/quoting.h"
#include "cli/values.h"
#include "cli/volume_condition.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using Stub = NodeClient::Stub;

CLI::Option* AddVolume(CLI::App& command, VolumeOptions& options) {
  return command.add_option("volume,--volume", options.volume, "The volume's id in the storage")
      ->required()
      ->option_text("ID");
}

}  // namespace

void DeclareVolume(CLI::App& command, VolumeOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id")->required()->option_text("ID");
  AddVolume(command, options);
}

void DeclareHeldVolume(CLI::App& command, VolumeOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id, where several have such a volume")
      ->option_text("ID");
  AddVolume(command, options)->description("The volume's id in the storage, or its label");
}

void DeclareSecrets(CLI::App& command, std::string& file) {
  command
      .add_option("--secrets-file", file,
                  "Secrets for the plugin: a JSON object of strings or KEY=VALUE lines; - is standard input")
      ->option_text("FILE");
}

absl::StatusOr<std::string> HolderOf(NodeClient& node, const std::string& volume_id) {
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListVolumesResponse answer,
      node.CallForAllPages(&Stub::ListVolumes, v1::ListVolumesRequest(), "list the volumes"));
  std::vector<std::string> holders;
  std::set<std::string> labelled;  // of one plugin's several the node says which they are
  std::vector<std::string> others;
  for (const v1::Volume& volume : answer.volumes()) {
    if (volume.volume_id() == volume_id) {
      holders.push_back(volume.plugin_id());
    } else {
      others.push_back(volume.volume_id());
      if (!volume.label().empty()) others.push_back(volume.label());
      if (volume.label() == volume_id) labelled.insert(volume.plugin_id());
    }
  }
  if (holders.empty()) holders.assign(labelled.begin(), labelled.end());
  if (holders.size() == 1) return holders.front();
  if (holders.empty()) {
    return WithHint(absl::NotFoundError(fmt::format("this node has no volume {}{}", PrintableName(volume_id),
                                                    DidYouMean(volume_id, others))),
                    "What it has: berthctl volumes");
  }
  return UsageError(
      fmt::format("plugins {} have a volume {} each", fmt::join(holders, " and "), PrintableName(volume_id)),
      "Say which is meant: --plugin ID");
}

absl::Status NameVolume(NodeClient& node, const VolumeOptions& options, std::string* plugin_id) {
  *plugin_id = options.plugin;
  if (!options.plugin.empty()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(*plugin_id, HolderOf(node, options.volume));
  return absl::OkStatus();
}

absl::Status Advised(NodeClient& node, const VolumeOptions& options, absl::Status failure) {
  const bool about_its_state = absl::IsUnavailable(failure) || absl::IsAborted(failure) ||
                               absl::IsFailedPrecondition(failure) || absl::IsAlreadyExists(failure) ||
                               absl::IsDeadlineExceeded(failure);
  if (!about_its_state || !IsAnswer(failure)) return failure;
  const std::optional<v1::Volume> volume = node.PeekVolume(options.plugin, options.volume);
  if (!volume.has_value()) return failure;
  const std::vector<Condition> conditions = ConditionsOf(*volume, std::chrono::system_clock::now());
  // Of one that is merely failing the message has said as much.
  const bool failing = !conditions.empty() && conditions.front().word == "failing";
  if (!failing && !conditions.empty() && !volume->advice().empty()) {
    return WithHint(std::move(failure), Printable(fmt::format("{}: {}. {}", conditions.front().word,
                                                              conditions.front().text, volume->advice())));
  }
  if (absl::IsDeadlineExceeded(failure)) return failure;
  return WithHint(std::move(failure),
                  fmt::format("Who uses it, what runs and what comes next: berthctl volume explain {}",
                              NamedInShell(*volume)));
}

}  // namespace berth::cli
