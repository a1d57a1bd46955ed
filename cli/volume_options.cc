#include "cli/volume_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
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

void AddVolume(CLI::App& command, VolumeOptions& options, bool or_label) {
  CLI::Option* id = command.add_option("volume,--volume", options.volume, "The volume's id in the storage")
                        ->required(!or_label)
                        ->option_text("ID");
  if (!or_label) return;
  command.add_option("--label", options.label, "The volume with this label, instead of its id")
      ->excludes(id)
      ->option_text("NAME");
}

void AddPlugin(CLI::App& command, VolumeOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id")->required()->option_text("ID");
}

bool IsMeant(const v1::Volume& volume, const VolumeOptions& options) {
  if (!options.plugin.empty() && volume.plugin_id() != options.plugin &&
      volume.driver_name() != options.plugin) {
    return false;
  }
  return options.label.empty() ? volume.volume_id() == options.volume : volume.label() == options.label;
}

}  // namespace

void DeclareVolume(CLI::App& command, VolumeOptions& options) {
  AddPlugin(command, options);
  AddVolume(command, options, /*or_label=*/false);
}

void DeclareVolumeOrLabel(CLI::App& command, VolumeOptions& options) {
  AddPlugin(command, options);
  AddVolume(command, options, /*or_label=*/true);
}

void DeclareHeldVolume(CLI::App& command, VolumeOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id, where several have such a volume")
      ->option_text("ID");
  AddVolume(command, options, /*or_label=*/true);
}

void DeclareSecrets(CLI::App& command, std::string& file) {
  command
      .add_option("--secrets-file", file,
                  "Secrets for the plugin: a JSON object of strings or KEY=VALUE lines; - is standard input")
      ->option_text("FILE");
}

absl::Status NameVolume(NodeClient& node, VolumeOptions& options) {
  const bool by_label = !options.label.empty();
  if (!by_label && options.volume.empty()) {
    return UsageError("no volume is named", "Give its id, or --label NAME");
  }
  if (!by_label && !options.plugin.empty()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListVolumesResponse answer,
      node.CallForAllPages(&Stub::ListVolumes, v1::ListVolumesRequest(), "list the volumes"));
  const std::string named =
      (by_label ? "with the label " : "") + PrintableName(by_label ? options.label : options.volume);
  std::vector<const v1::Volume*> meant;
  std::vector<std::string> others;
  std::string labelled_so;
  for (const v1::Volume& volume : answer.volumes()) {
    if (IsMeant(volume, options)) meant.push_back(&volume);
    others.push_back(by_label ? volume.label() : volume.volume_id());
    if (!by_label && volume.label() == options.volume) labelled_so = volume.volume_id();
  }
  if (meant.empty()) {
    return WithHint(
        absl::NotFoundError(fmt::format("this node has no volume {}{}", named,
                                        DidYouMean(by_label ? options.label : options.volume, others))),
        labelled_so.empty() ? "What it has: berthctl volumes"
                            : fmt::format("It is the label of {}: --label {}", PrintableName(labelled_so),
                                          ShellQuoted(options.volume)));
  }
  if (meant.size() > 1) {
    std::vector<std::string> names;
    for (const v1::Volume* each : meant) names.push_back(NamedInShell(*each));
    return UsageError(fmt::format("this node has {} volumes {}", meant.size(), named),
                      fmt::format("Say which is meant: {}", fmt::join(names, ", or ")));
  }
  options.plugin = meant.front()->plugin_id();
  options.volume = meant.front()->volume_id();
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
