// volume register and deregister; volume list and volume show of a cluster.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/cluster_view.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/publish_options.h"
#include "cli/session.h"
#include "cli/values.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

struct RegisterOptions {
  std::string volume;
  std::string driver;
  std::string external_id;
  std::string file;
  std::vector<std::string> access;
  CapabilityOptions capability;
  std::vector<std::string> context;
};

constexpr const char* kRegisterFooter =
    R"(The storage must have the volume already: a plugin of the driver is asked. Nothing in it is touched.
  berthctl --cluster unix:/run/berth-scheduler/scheduler.sock volume register prod/db --driver nfs.example
  berthctl volume register prod/db --file db.toml       # plugin, volume, access_mode, …: berth-volume.toml(5))";

// What a volume file says of the volume itself; the rest is of one use.
absl::StatusOr<v1::VolumeSpec> FromFile(const v1::PublishVolumeRequest& file) {
  v1::VolumeSpec spec;
  spec.set_driver(file.plugin_id());
  spec.set_external_id(file.volume_id());
  const v1::Capability& capability = file.capability();
  if (capability.access_mode() != v1::ACCESS_MODE_UNKNOWN) spec.add_access_modes(capability.access_mode());
  spec.set_access_type(capability.access_type());
  spec.set_fs_type(capability.fs_type());
  *spec.mutable_mount_flags() = capability.mount_flags();
  spec.set_volume_mount_group(capability.volume_mount_group());
  *spec.mutable_volume_context() = file.volume_context();
  v1::PublishVolumeRequest rest = file;
  rest.clear_plugin_id();
  rest.clear_volume_id();
  rest.clear_capability();
  rest.clear_volume_context();
  if (rest.ByteSizeLong() == 0) return spec;
  return UsageError(
      "the file says something of one use: consumer, readonly, secrets and the like belong to a claim",
      "Of a volume itself: plugin, volume, access_mode, access_type, fs_type, mount_flags, "
      "volume_mount_group, context");
}

absl::StatusOr<v1::VolumeSpec> MakeSpec(const Session& session, const RegisterOptions& options) {
  BERTH_ASSIGN_OR_RETURN(const v1::PublishVolumeRequest file, ReadFileOption(session, options.file));
  BERTH_ASSIGN_OR_RETURN(v1::VolumeSpec spec, FromFile(file));
  BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(options.volume));
  spec.set_namespace_(name.name_space);
  spec.set_id(name.id);
  if (!options.driver.empty()) spec.set_driver(options.driver);
  if (!options.external_id.empty()) spec.set_external_id(options.external_id);
  if (spec.driver().empty()) return UsageError("--driver is missing: the driver that has the volume");
  if (!options.access.empty()) spec.clear_access_modes();
  for (const std::string& access : options.access) {
    BERTH_ASSIGN_OR_RETURN(const int mode, ParseEnum(access, v1::AccessMode_descriptor(), "--access"));
    spec.add_access_modes(static_cast<v1::AccessMode>(mode));
  }
  BERTH_ASSIGN_OR_RETURN(const v1::Capability capability, MakeCapability(options.capability));
  if (options.capability.block) spec.set_access_type(v1::BLOCK);
  if (!capability.fs_type().empty()) spec.set_fs_type(capability.fs_type());
  if (!capability.mount_flags().empty()) *spec.mutable_mount_flags() = capability.mount_flags();
  BERTH_ASSIGN_OR_RETURN(const auto context, ParsePairs(options.context, "--context"));
  for (const auto& [key, value] : context) (*spec.mutable_volume_context())[key] = value;
  return spec;
}

absl::Status Register(Session& session, const RegisterOptions& options) {
  v1::RegisterVolumeRequest request;
  BERTH_ASSIGN_OR_RETURN(*request.mutable_volume(), MakeSpec(session, options));
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  const std::string doing = fmt::format("register {}", PrintableName(options.volume));
  const absl::StatusOr<v1::RegisterVolumeResponse> answer = [&] {
    const Progress progress(session.output, doing);
    return cluster.Call(&ClusterClient::Stub::RegisterVolume, request, doing);
  }();
  if (!answer.ok()) return answer.status();
  if (session.output.json()) {
    session.output.Json(*answer);
  } else {
    session.output.Text(ClusterLine(answer->cluster_id()));
    session.output.Show(ClusterVolumeDetails(answer->volume()));
  }
  return absl::OkStatus();
}

struct NamedOptions {
  std::string volume;
};

absl::Status Deregister(Session& session, const NamedOptions& options) {
  BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(options.volume));
  v1::DeregisterVolumeRequest request;
  request.set_namespace_(name.name_space);
  request.set_id(name.id);
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  BERTH_ASSIGN_OR_RETURN(const v1::DeregisterVolumeResponse answer,
                         cluster.Call(&ClusterClient::Stub::DeregisterVolume, request,
                                      fmt::format("deregister {}", PrintableName(options.volume))));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  if (!answer.was_registered()) session.output.Note("it was not registered");
  return absl::OkStatus();
}

}  // namespace

absl::Status ListClusterVolumes(Session& session, const std::string& name_space, const std::string& driver) {
  v1::ListClusterVolumesRequest request;
  request.set_namespace_(name_space);
  request.set_driver(driver);
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  BERTH_ASSIGN_OR_RETURN(
      const v1::ListClusterVolumesResponse all,
      cluster.CallForAllPages(&ClusterClient::Stub::ListVolumes, request, "list the volumes"));
  if (session.output.json()) {
    session.output.Json(all);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(all.cluster_id()));
  if (all.volumes().empty()) {
    session.output.Note("no volumes: berthctl volume register NAMESPACE/ID --driver DRIVER");
  } else {
    session.output.Show(ClusterVolumeTable(all));
  }
  return absl::OkStatus();
}

absl::Status ShowClusterVolume(Session& session, const std::string& volume) {
  BERTH_ASSIGN_OR_RETURN(const ClusterVolumeName name, ParseClusterVolume(volume));
  v1::GetClusterVolumeRequest request;
  request.set_namespace_(name.name_space);
  request.set_id(name.id);
  BERTH_ASSIGN_OR_RETURN(ClusterClient cluster, session.ConnectCluster());
  BERTH_ASSIGN_OR_RETURN(const v1::GetClusterVolumeResponse answer,
                         cluster.Call(&ClusterClient::Stub::GetVolume, request,
                                      fmt::format("show volume {}", PrintableName(volume))));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  session.output.Text(ClusterLine(answer.cluster_id()));
  session.output.Show(ClusterVolumeDetails(answer.volume()));
  if (answer.claims().empty()) return absl::OkStatus();
  session.output.Text("\n");
  session.output.Show(ClaimTable(answer.claims()));
  return absl::OkStatus();
}

void AddClusterVolumes(CLI::App& volume, Command& chosen) {
  AddCommand<RegisterOptions>(
      volume, "register", "Give a volume of the storage a name in the cluster (--cluster)", chosen,
      [](CLI::App& command, RegisterOptions& options) {
        command.add_option("volume", options.volume, "Its name")->required()->option_text("NAMESPACE/ID");
        command.add_option("--driver", options.driver, "The driver that has it: berthctl plugin list")
            ->option_text("NAME");
        command.add_option("--external-id", options.external_id, "The storage's own id, if it is not ID")
            ->option_text("ID");
        command
            .add_option("--file", options.file, "A volume file (man berth-volume.toml); -: standard input")
            ->option_text("FILE");
        AddRepeated(command, "--access", options.access, "MODE",
                    "An access mode in which it may be claimed; the first is the default");
        DeclareFileSystem(command, options.capability);
        AddRepeated(command, "--context", options.context, "KEY=VALUE", "Of its volume_context");
        command.footer(kRegisterFooter);
      },
      Register);
  AddCommand<NamedOptions>(
      volume, "deregister", "Forget a volume of the cluster (--cluster); the storage keeps it", chosen,
      [](CLI::App& command, NamedOptions& options) {
        command.add_option("volume", options.volume, "Its name")->required()->option_text("NAMESPACE/ID");
      },
      Deregister);
}

}  // namespace berth::cli
