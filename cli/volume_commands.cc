// volumes, volume show; and the group `volume`.
#include "cli/volume_commands.h"

#include <fmt/format.h>

#include <string>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/session.h"
#include "cli/volume_options.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

struct VolumeListOptions {
  std::string plugin;
  std::string consumer;
  std::string label;
};

absl::Status Volumes(Session& session, const VolumeListOptions& options) {
  v1::ListVolumesRequest request;
  request.set_plugin_id(options.plugin);
  request.set_consumer(options.consumer);
  request.set_label(options.label);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::ListVolumesResponse answer,
                         node.CallForAllPages(&NodeClient::Stub::ListVolumes, request, "list the volumes"));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  const Table table = VolumeTable(answer, std::chrono::system_clock::now());
  if (table.empty()) {
    session.output.Note("no volumes are in use here");
  } else {
    session.output.Show(table);
  }
  return absl::OkStatus();
}

absl::Status Show(Session& session, const VolumeOptions& given) {
  VolumeOptions options = given;
  if (!session.cluster.empty()) {
    if (!options.label.empty()) {
      return UsageError("--label goes without --cluster", "A cluster's volume is named by its name");
    }
    return ShowClusterVolume(session, options.volume);
  }
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  v1::GetVolumeRequest request;
  BERTH_RETURN_IF_ERROR(NameVolume(node, options));
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  BERTH_ASSIGN_OR_RETURN(const v1::Volume volume,
                         node.Call(&NodeClient::Stub::GetVolume, request,
                                   fmt::format("show volume {}", PrintableName(options.volume))));
  if (session.output.json()) {
    session.output.Json(volume);
    return absl::OkStatus();
  }
  const auto now = std::chrono::system_clock::now();
  session.output.Show(VolumeDetails(volume, now));
  if (volume.publications().empty()) return absl::OkStatus();
  session.output.Text("\n");
  session.output.Show(UseTable(volume, now));
  return absl::OkStatus();
}

}  // namespace

void AddVolumeCommands(CLI::App& app, Command& chosen) {
  AddCommand<VolumeListOptions>(
      app, "volumes", "Every volume that this node uses", chosen,
      [](CLI::App& command, VolumeListOptions& options) {
        command.add_option("--plugin", options.plugin, "Only of this plugin")->option_text("ID");
        command.add_option("--consumer", options.consumer, "Only of this consumer")->option_text("NAME");
        command.add_option("--label", options.label, "Only volumes whose label starts with this")
            ->option_text("NAME");
      },
      Volumes);

  CLI::App* group = AddGroup(app, "volume",
                             "One volume: show, explain, list, create, delete, expand, stats, publish, "
                             "unpublish, claim, release, register, deregister, mounts, wait");
  AddCommand<VolumeOptions>(*group, "show",
                            "A volume of this node, or of the cluster (--cluster), and who uses it", chosen,
                            DeclareHeldVolume, Show);
  AddExplain(*group, chosen);
  AddControllerCommands(*group, chosen);
  AddVolumeStats(*group, chosen);
  AddPublish(*group, chosen);
  AddUnpublish(*group, chosen);
  AddClaim(*group, chosen);
  AddClusterVolumes(*group, chosen);
  AddMounts(*group, chosen);
  AddWait(*group, chosen);
  AddExplain(app, chosen);
}

}  // namespace berth::cli
