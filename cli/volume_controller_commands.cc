// volume list|create|delete|expand: what the plugin's controller does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/values.h"
#include "cli/volume_commands.h"
#include "cli/volume_options.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using Stub = NodeClient::Stub;

struct StorageListOptions {
  std::string plugin;
  std::string name_space;
};

absl::Status ListStorage(Session& session, const StorageListOptions& options) {
  if (!session.cluster.empty()) return ListClusterVolumes(session, options.name_space, options.plugin);
  if (options.plugin.empty()) return UsageError("--plugin is required");
  if (!options.name_space.empty()) return UsageError("--namespace is of a cluster: --cluster ADDRESS");
  v1::ListStorageVolumesRequest request;
  request.set_plugin_id(options.plugin);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const absl::StatusOr<v1::ListStorageVolumesResponse> listed = [&] {
    const Progress progress(session.output, "ListVolumes");
    return node.CallForAllPages(&Stub::ListStorageVolumes, request,
                                fmt::format("list the volumes of plugin {}", PrintableName(options.plugin)));
  }();
  if (!listed.ok()) return listed.status();
  if (session.output.json()) {
    session.output.Json(*listed);
    return absl::OkStatus();
  }
  Table table({"VOLUME", "SIZE", "USED HERE", "ATTACHED TO", "CONDITION"});
  for (const v1::StorageVolume& volume : listed->volumes()) {
    Cell condition = "";
    if (volume.has_condition()) condition = DescribeCondition(volume.condition());
    table.Add({volume.volume_id(), volume.capacity_bytes() == 0 ? "" : FormatSize(volume.capacity_bytes()),
               volume.used_here() ? "yes" : "no",
               fmt::format("{}", fmt::join(volume.published_node_ids(), ", ")), condition});
  }
  if (table.empty()) {
    session.output.Note(fmt::format("plugin {} has no volumes", PrintableName(options.plugin)));
  } else {
    session.output.Show(table);
  }
  return absl::OkStatus();
}

struct SizeOptions {
  std::string size;
  std::string limit;
};

// Both are 0 where not given.
struct Sizes {
  int64_t required = 0;
  int64_t limit = 0;
};

absl::StatusOr<Sizes> MakeSizes(const SizeOptions& options) {
  Sizes sizes;
  if (!options.size.empty()) {
    BERTH_ASSIGN_OR_RETURN(sizes.required, ParseSize(options.size));
  }
  if (!options.limit.empty()) {
    BERTH_ASSIGN_OR_RETURN(sizes.limit, ParseSize(options.limit));
    if (sizes.limit < sizes.required) {
      return UsageError(fmt::format("--limit {} is below --size {}", options.limit, options.size));
    }
  }
  return sizes;
}

CLI::Option* DeclareSizes(CLI::App& command, SizeOptions& options) {
  CLI::Option* size =
      command.add_option("--size", options.size, fmt::format("At least so large: {}", kSizeHelp))
          ->option_text("SIZE");
  command.add_option("--limit", options.limit, "At most so large")->option_text("SIZE");
  return size;
}

struct CreateOptions {
  std::string plugin;
  std::string name;
  SizeOptions sizes;
  CapabilityOptions capability;
  std::vector<std::string> parameters;
  std::string secrets_file;
  std::string from_snapshot;
  std::string from_volume;
};

void DeclareCreate(CLI::App& command, CreateOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id")->required()->option_text("ID");
  command.add_option("name,--name", options.name, "Its name: the same name gives the same volume again")
      ->required()
      ->option_text("NAME");
  DeclareSizes(command, options.sizes);
  DeclareCapability(command, options.capability);
  AddRepeated(command, "--parameter", options.parameters, "KEY=VALUE", "A parameter of the plugin's own");
  DeclareSecrets(command, options.secrets_file);
  CLI::Option* snapshot =
      command.add_option("--from-snapshot", options.from_snapshot, "Fill it from this snapshot")
          ->option_text("ID");
  command.add_option("--from-volume", options.from_volume, "Fill it from this volume")
      ->option_text("ID")
      ->excludes(snapshot);
  command.footer(
      "Prints the volume's id; with -o json also its size and volume_context, which a publish wants as "
      "--context.\n"
      "  berthctl volume create --plugin hostpath --size 64MiB --fs ext4 scratch");
}

absl::Status Create(Session& session, const CreateOptions& options) {
  v1::CreateVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_name(options.name);
  BERTH_ASSIGN_OR_RETURN(const Sizes sizes, MakeSizes(options.sizes));
  request.set_required_bytes(sizes.required);
  request.set_limit_bytes(sizes.limit);
  BERTH_ASSIGN_OR_RETURN(*request.add_capabilities(), MakeCapability(options.capability));
  BERTH_ASSIGN_OR_RETURN(const auto parameters, ParsePairs(options.parameters, "--parameter"));
  request.mutable_parameters()->insert(parameters.begin(), parameters.end());
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  request.set_source_snapshot_id(options.from_snapshot);
  request.set_source_volume_id(options.from_volume);

  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const absl::StatusOr<v1::CreateVolumeResponse> created = [&] {
    const Progress progress(session.output, "CreateVolume");
    return node.Call(&Stub::CreateVolume, request,
                     fmt::format("create volume {}", PrintableName(options.name)));
  }();
  if (!created.ok()) return created.status();
  if (session.output.json()) {
    session.output.Json(*created);
    return absl::OkStatus();
  }
  session.output.Value(created->volume_id());
  if (session.output.stderr_is_terminal() && !created->volume_context().empty()) {
    std::string context;
    for (const auto& [key, value] : created->volume_context())
      context += fmt::format(" --context {}={}", key, value);
    session.output.Note(fmt::format("publish it with{}", context));
  }
  return absl::OkStatus();
}

struct ChangeOptions : VolumeOptions {
  SizeOptions sizes;
  std::string secrets_file;
};

absl::Status Delete(Session& session, const ChangeOptions& options) {
  v1::DeleteVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const absl::StatusOr<v1::DeleteVolumeResponse> deleted = [&] {
    const Progress progress(session.output, "DeleteVolume");
    return node.Call(&Stub::DeleteVolume, request,
                     fmt::format("delete volume {}", PrintableName(options.volume)));
  }();
  if (!deleted.ok()) return Advised(node, options, deleted.status());
  if (session.output.json()) {
    session.output.Json(*deleted);
  } else {
    // OK also means that it was not there.
    session.output.Text(fmt::format("deleted: {} has no volume {}\n", PrintableName(options.plugin),
                                    PrintableName(options.volume)));
  }
  return absl::OkStatus();
}

absl::Status Expand(Session& session, const ChangeOptions& given) {
  ChangeOptions options = given;
  v1::ExpandVolumeRequest request;
  BERTH_ASSIGN_OR_RETURN(const Sizes sizes, MakeSizes(options.sizes));
  request.set_required_bytes(sizes.required);
  request.set_limit_bytes(sizes.limit);
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_RETURN_IF_ERROR(NameVolume(node, options));
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  const absl::StatusOr<v1::ExpandVolumeResponse> expanded = [&] {
    const Progress progress(session.output, "ExpandVolume",
                            [&] { return node.RunningStep(options.plugin, options.volume); });
    return node.Call(&Stub::ExpandVolume, request,
                     fmt::format("expand volume {}", PrintableName(options.volume)));
  }();
  if (!expanded.ok()) return Advised(node, options, expanded.status());
  if (session.output.json()) {
    session.output.Json(*expanded);
    return absl::OkStatus();
  }
  std::string line =
      fmt::format("{}: {}", PrintableName(options.volume), FormatSize(expanded->capacity_bytes()));
  if (expanded->node_expanded()) line += ", on the node too";
  if (expanded->node_expansion_noted()) {
    line +=
        "; the node's part is done once it is published here; where it is on another node, repeat this there";
  } else if (expanded->node_expansion_pending()) {
    line += "; the node's part is still to be done: repeat this where it is published";
  }
  session.output.Text(line + "\n");
  return absl::OkStatus();
}

}  // namespace

void AddControllerCommands(CLI::App& volume, Command& chosen) {
  AddCommand<StorageListOptions>(
      volume, "list", "All volumes of a plugin's storage, used or not; those of the cluster (--cluster)",
      chosen,
      [](CLI::App& command, StorageListOptions& options) {
        command.add_option("--plugin", options.plugin, "The plugin's id; of a cluster: only of this driver")
            ->option_text("ID");
        command.add_option("--namespace", options.name_space, "Of a cluster: only of this namespace")
            ->option_text("NAME");
        command.footer(
            "For the volumes that this node uses: berthctl volumes. -o json also shows each volume_context.");
      },
      ListStorage);
  AddCommand<CreateOptions>(volume, "create", "Create a volume through the plugin's controller", chosen,
                            DeclareCreate, Create);
  AddCommand<ChangeOptions>(
      volume, "delete", "Delete a volume, and the data in it, through the plugin's controller", chosen,
      [](CLI::App& command, ChangeOptions& options) {
        DeclareVolume(command, options);
        DeclareSecrets(command, options.secrets_file);
      },
      Delete);
  AddCommand<ChangeOptions>(
      volume, "expand", "Make a volume larger", chosen,
      [](CLI::App& command, ChangeOptions& options) {
        DeclareVolumeOrLabel(command, options);
        DeclareSizes(command, options.sizes)->required();
        DeclareSecrets(command, options.secrets_file);
      },
      Expand);
}

}  // namespace berth::cli
