// volume stats, of one volume or of all that a consumer uses.
#include <fmt/format.h>

#include <string>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_options.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using Stub = NodeClient::Stub;

struct StatsOptions : VolumeOptions {
  std::string consumer;
  bool all = false;
};

absl::Status OfVolume(Session& session, StatsOptions options) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  v1::GetVolumeStatsRequest request;
  BERTH_RETURN_IF_ERROR(NameVolume(node, options));
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  const absl::StatusOr<v1::GetVolumeStatsResponse> stats = node.Call(
      &Stub::GetVolumeStats, request, fmt::format("measure volume {}", PrintableName(options.volume)));
  if (!stats.ok()) return stats.status();
  if (session.output.json()) {
    session.output.Json(*stats);
    return absl::OkStatus();
  }
  Table table({"UNIT", "TOTAL", "USED", "AVAILABLE", "USE"});
  AddUsage(table, stats->usage(), {});
  session.output.Show(table);
  if (stats->has_condition()) {
    const Cell condition = DescribeCondition(stats->condition());
    session.output.Text(
        Toned("condition: " + Printable(condition.text), condition.tone, session.output.colour()) + "\n");
  }
  return absl::OkStatus();
}

absl::Status OfConsumer(Session& session, const StatsOptions& options) {
  v1::GetConsumerStatsRequest request;
  request.set_consumer(options.consumer);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::GetConsumerStatsResponse stats,
      node.Call(&Stub::GetConsumerStats, request,
                options.all ? std::string("measure all volumes")
                            : fmt::format("measure the volumes of {}", PrintableName(options.consumer))));
  if (session.output.json()) {
    session.output.Json(stats);
    return absl::OkStatus();
  }
  Table table({"PLUGIN", "VOLUME", "UNIT", "TOTAL", "USED", "AVAILABLE", "USE"});
  for (const v1::VolumeStats& volume : stats.volumes()) {
    AddUsage(table, volume.usage(), {volume.plugin_id(), volume.volume_id()});
    if (!volume.error().empty()) {
      table.Add({volume.plugin_id(), volume.volume_id(), Cell(volume.error(), Tone::kBad), "", "", "", ""});
    }
  }
  AddUsage(table, stats.total(), {"all", "each counted once"});
  session.output.Show(table);
  for (const v1::VolumeStats& volume : stats.volumes()) {
    if (!volume.has_condition() || !volume.condition().abnormal()) continue;
    const Cell condition = DescribeCondition(volume.condition());
    session.output.Text(Toned(fmt::format("condition of {}: {}", PrintableName(volume.volume_id()),
                                          Printable(condition.text)),
                              condition.tone, session.output.colour()) +
                        "\n");
  }
  return absl::OkStatus();
}

absl::Status Stats(Session& session, const StatsOptions& options) {
  const bool one = !options.volume.empty() || !options.label.empty();
  if (int{one} + int{!options.consumer.empty()} + int{options.all} != 1) {
    return UsageError("name a volume or a consumer, or all",
                      "berthctl volume stats VOLUME, or --consumer NAME, or --all");
  }
  return one ? OfVolume(session, options) : OfConsumer(session, options);
}

}  // namespace

void AddVolumeStats(CLI::App& volume, Command& chosen) {
  AddCommand<StatsOptions>(
      volume, "stats", "Use and condition of a volume that is published here, or of a consumer's volumes",
      chosen,
      [](CLI::App& command, StatsOptions& options) {
        DeclareHeldVolume(command, options);
        command.add_option("--consumer", options.consumer, "Every volume of this consumer, and their sum")
            ->option_text("NAME");
        command.add_flag("--all", options.all, "Every volume that is published on this node, and their sum");
      },
      Stats);
}

}  // namespace berth::cli
