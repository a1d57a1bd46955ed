// volumes, volume show|create|delete|expand|stats|publish|unpublish.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using Stub = NodeClient::Stub;

std::string StateName(v1::VolumeState state) {
  return v1::VolumeState_IsValid(state) ? v1::VolumeState_Name(state) : "VOLUME_STATE_UNKNOWN";
}

Cell StateCell(v1::VolumeState state, bool uncertain) {
  const std::string name = StateName(state);
  if (uncertain) return {name + " (uncertain)", Tone::kBad};
  if (state == v1::PUBLISHED) return {name, Tone::kGood};
  return {name, state == v1::STAGED ? Tone::kPlain : Tone::kCareful};
}

std::string Shown(const std::string& text) { return text.empty() ? "''" : Printable(text, 200); }

// The consumer, and its name for this use where it has one: "job/data".
std::string Use(const std::string& consumer, const std::string& name) {
  return name.empty() ? Shown(consumer) : fmt::format("{}/{}", Shown(consumer), Shown(name));
}

// What a person should look at: the newest trouble of the volume, or what runs now.
Cell Trouble(const v1::Volume& volume, std::chrono::system_clock::time_point now) {
  if (volume.awaiting_secrets()) {
    return {"waits for secrets: publish again with --secrets-file, or unpublish", Tone::kBad};
  }
  if (!volume.last_error().empty()) {
    return {volume.has_next_retry_at() ? fmt::format("{} (again {})", volume.last_error(),
                                                     FormatRelative(volume.next_retry_at(), now))
                                       : volume.last_error(),
            Tone::kBad};
  }
  return volume.running();
}

struct ListOptions {
  std::string plugin;
  std::string consumer;
};

absl::Status Volumes(Session& session, const ListOptions& options) {
  v1::ListVolumesRequest request;
  request.set_plugin_id(options.plugin);
  request.set_consumer(options.consumer);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::ListVolumesResponse answer,
                         node.Call(&Stub::ListVolumes, request, "list the volumes"));
  if (session.output.json()) {
    session.output.Json(answer);
    return absl::OkStatus();
  }
  const auto now = std::chrono::system_clock::now();
  Table table({"PLUGIN", "VOLUME", "STATE", "CAPABILITY", "CONSUMERS", "NOW"});
  for (const v1::Volume& volume : answer.volumes()) {
    std::vector<std::string> uses;
    for (const v1::Publication& use : volume.publications()) uses.push_back(Use(use.consumer(), use.name()));
    table.Add({volume.plugin_id(), volume.volume_id(), StateCell(volume.state(), volume.uncertain()),
               DescribeCapability(volume.capability()), fmt::format("{}", fmt::join(uses, ", ")),
               Trouble(volume, now)});
  }
  if (table.empty()) {
    session.output.Note("no volumes are held here");
  } else {
    session.output.Show(table);
  }
  return absl::OkStatus();
}

// The plugin and the volume that nearly every command here is about.
struct VolumeOptions {
  std::string plugin;
  std::string volume;
};

void DeclareVolume(CLI::App& command, VolumeOptions& options) {
  command.add_option("--plugin", options.plugin, "The plugin's id")->required()->option_text("ID");
  command.add_option("volume,--volume", options.volume, "The volume's id, as the storage knows it")
      ->required()
      ->option_text("ID");
}

void DeclareSecrets(CLI::App& command, std::string& file) {
  command
      .add_option("--secrets-file", file,
                  "Secrets for the plugin: a JSON object of strings or KEY=VALUE lines; - is standard input")
      ->option_text("FILE");
}

void ShowVolume(const Output& output, const v1::Volume& volume) {
  const auto now = std::chrono::system_clock::now();
  Table table;
  table.Add({"plugin", volume.plugin_id()});
  table.Add({"volume", volume.volume_id()});
  table.Add({"state", StateCell(volume.state(), volume.uncertain())});
  table.Add({"capability", DescribeCapability(volume.capability())});
  if (!volume.capability().mount_flags().empty()) {
    table.Add({"mount flags", fmt::format("{}", fmt::join(volume.capability().mount_flags(), ","))});
  }
  table.Add({"staged at", volume.staging_path()});
  if (!volume.running().empty()) {
    table.Add({"running", volume.has_running_since()
                              ? fmt::format("{}, began {}", volume.running(),
                                            FormatRelative(volume.running_since(), now))
                              : volume.running()});
  }
  if (volume.awaiting_secrets()) {
    table.Add({"waits for", Cell("secrets: publish again with --secrets-file, or unpublish", Tone::kBad)});
  }
  if (!volume.last_error().empty()) table.Add({"last error", Cell(volume.last_error(), Tone::kBad)});
  if (volume.has_next_retry_at()) table.Add({"next try", FormatRelative(volume.next_retry_at(), now)});
  output.Show(table);
  if (volume.publications().empty()) return;

  Table uses({"CONSUMER", "NAME", "STATE", "ACCESS", "SINCE", "TARGET", "ERROR"});
  for (const v1::Publication& use : volume.publications()) {
    uses.Add({use.consumer(), use.name(), StateCell(use.state(), use.uncertain()),
              use.readonly() ? "read-only" : "read-write",
              use.has_published_at() ? FormatRelative(use.published_at(), now) : "", use.target_path(),
              Cell(use.last_error(), Tone::kBad)});
  }
  output.Text("\n");
  output.Show(uses);
}

// The plugin that holds `volume_id` here, for those who do not name it.
absl::StatusOr<std::string> HolderOf(NodeClient& node, const std::string& volume_id) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListVolumesResponse answer,
                         node.Call(&Stub::ListVolumes, v1::ListVolumesRequest(), "list the volumes"));
  std::vector<std::string> holders;
  std::vector<std::string> others;
  for (const v1::Volume& volume : answer.volumes()) {
    (volume.volume_id() == volume_id ? holders : others)
        .push_back(volume.volume_id() == volume_id ? volume.plugin_id() : volume.volume_id());
  }
  if (holders.size() == 1) return holders.front();
  if (holders.empty()) {
    return WithHint(absl::NotFoundError(fmt::format("this node holds no volume {}{}", Shown(volume_id),
                                                    DidYouMean(volume_id, others))),
                    "What it holds: berthctl volumes");
  }
  return UsageError(
      fmt::format("plugins {} hold a volume {} each", fmt::join(holders, " and "), Shown(volume_id)),
      "Say which is meant: --plugin ID");
}

absl::Status Show(Session& session, const VolumeOptions& options) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  v1::GetVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  if (options.plugin.empty()) {
    BERTH_ASSIGN_OR_RETURN(*request.mutable_plugin_id(), HolderOf(node, options.volume));
  }
  BERTH_ASSIGN_OR_RETURN(
      const v1::Volume volume,
      node.Call(&Stub::GetVolume, request, fmt::format("show volume {}", Shown(options.volume))));
  if (session.output.json()) {
    session.output.Json(volume);
  } else {
    ShowVolume(session.output, volume);
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
    return node.Call(&Stub::CreateVolume, request, fmt::format("create volume {}", Shown(options.name)));
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
    return node.Call(&Stub::DeleteVolume, request, fmt::format("delete volume {}", Shown(options.volume)));
  }();
  if (!deleted.ok()) return deleted.status();
  if (session.output.json()) {
    session.output.Json(*deleted);
  } else {
    session.output.Text(fmt::format("deleted {}\n", Shown(options.volume)));
  }
  return absl::OkStatus();
}

absl::Status Expand(Session& session, const ChangeOptions& options) {
  v1::ExpandVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  BERTH_ASSIGN_OR_RETURN(const Sizes sizes, MakeSizes(options.sizes));
  request.set_required_bytes(sizes.required);
  request.set_limit_bytes(sizes.limit);
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const absl::StatusOr<v1::ExpandVolumeResponse> expanded = [&] {
    const Progress progress(session.output, "ExpandVolume",
                            [&] { return node.RunningStep(options.plugin, options.volume); });
    return node.Call(&Stub::ExpandVolume, request, fmt::format("expand volume {}", Shown(options.volume)));
  }();
  if (!expanded.ok()) return expanded.status();
  if (session.output.json()) {
    session.output.Json(*expanded);
    return absl::OkStatus();
  }
  std::string line = fmt::format("{}: {}", Shown(options.volume), FormatSize(expanded->capacity_bytes()));
  if (expanded->node_expanded()) line += ", on the node too";
  if (expanded->node_expansion_pending()) line += "; the node's part follows when it is published here";
  session.output.Text(line + "\n");
  return absl::OkStatus();
}

absl::Status Stats(Session& session, const VolumeOptions& options) {
  v1::GetVolumeStatsRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(
      const v1::GetVolumeStatsResponse stats,
      node.Call(&Stub::GetVolumeStats, request, fmt::format("measure volume {}", Shown(options.volume))));
  if (session.output.json()) {
    session.output.Json(stats);
    return absl::OkStatus();
  }
  Table table({"UNIT", "TOTAL", "USED", "AVAILABLE", "USE"});
  for (const v1::VolumeUsage& usage : stats.usage()) {
    const auto number = [&](int64_t value) {
      return usage.unit() == "BYTES" ? FormatSize(value) : fmt::to_string(value);
    };
    const double share = usage.total() > 0
                             ? 100.0 * static_cast<double>(usage.used()) / static_cast<double>(usage.total())
                             : 0;
    table.Add({usage.unit(), number(usage.total()), number(usage.used()), number(usage.available()),
               usage.total() > 0 ? fmt::format("{:.0f}%", share) : ""});
  }
  session.output.Show(table);
  if (stats.has_condition()) {
    const bool bad = stats.condition().abnormal();
    session.output.Text(Toned(fmt::format("condition: {}{}{}", bad ? "abnormal" : "normal",
                                          stats.condition().message().empty() ? "" : ", ",
                                          Printable(stats.condition().message())),
                              bad ? Tone::kBad : Tone::kPlain, session.output.colour()) +
                        "\n");
  }
  return absl::OkStatus();
}

struct PublishOptions : VolumeOptions {
  std::string consumer;
  std::string name;
  CapabilityOptions capability;
  bool readonly = false;
  std::vector<std::string> context;
  std::vector<std::string> publish_context;
  bool attached = false;
  std::string secrets_file;
};

void DeclarePublish(CLI::App& command, PublishOptions& options) {
  DeclareVolume(command, options);
  command.add_option("--consumer", options.consumer, "Who uses it: a job, a unit, a container")
      ->required()
      ->option_text("NAME");
  command.add_option("--name", options.name, "Tells several uses by one consumer apart")->option_text("NAME");
  DeclareCapability(command, options.capability);
  command.add_flag("--readonly", options.readonly, "Read only for this consumer");
  AddRepeated(command, "--context", options.context, "KEY=VALUE", "The volume_context that the create gave");
  AddRepeated(command, "--publish-context", options.publish_context, "KEY=VALUE",
              "The publish_context that attaching the volume to this node gave");
  command.add_flag("--attached", options.attached, "It is attached, and that gave an empty publish_context");
  DeclareSecrets(command, options.secrets_file);
  command.footer(
      "Prints the path at which the volume is, and only that. Repeat it freely: the same request confirms.\n"
      "  target=$(berthctl volume publish --plugin hostpath --volume v1 --consumer job-7 --fs ext4)");
}

absl::Status Publish(Session& session, const PublishOptions& options) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  request.set_consumer(options.consumer);
  request.set_name(options.name);
  BERTH_ASSIGN_OR_RETURN(*request.mutable_capability(), MakeCapability(options.capability));
  request.set_readonly(options.readonly);
  BERTH_ASSIGN_OR_RETURN(const auto context, ParsePairs(options.context, "--context"));
  request.mutable_volume_context()->insert(context.begin(), context.end());
  BERTH_ASSIGN_OR_RETURN(const auto attachment, ParsePairs(options.publish_context, "--publish-context"));
  if (options.attached || !attachment.empty()) {
    request.mutable_publish_context()->mutable_values()->insert(attachment.begin(), attachment.end());
  }
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());

  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const absl::StatusOr<v1::PublishVolumeResponse> published = [&] {
    const Progress progress(session.output, "PublishVolume",
                            [&] { return node.RunningStep(options.plugin, options.volume); });
    return node.Call(
        &Stub::PublishVolume, request,
        fmt::format("publish {} for {}", Shown(options.volume), Use(options.consumer, options.name)));
  }();
  if (!published.ok()) return published.status();
  if (session.output.json()) {
    session.output.Json(*published);
  } else {
    session.output.Value(published->target_path());
  }
  return absl::OkStatus();
}

struct UnpublishOptions : VolumeOptions {
  std::string consumer;
  std::string name;
  bool all = false;
};

void DeclareUnpublish(CLI::App& command, UnpublishOptions& options) {
  DeclareVolume(command, options);
  command.add_option("--consumer", options.consumer, "Whose use ends")->required()->option_text("NAME");
  CLI::Option* name =
      command.add_option("--name", options.name, "The use of that name; without, the one that has none")
          ->option_text("NAME");
  command.add_flag("--all", options.all, "Every use by this consumer")->excludes(name);
}

absl::Status Unpublish(Session& session, const UnpublishOptions& options) {
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  request.set_consumer(options.consumer);
  request.set_name(options.name);
  request.set_all_names(options.all);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const std::string use = Use(options.consumer, options.name);
  const absl::StatusOr<v1::UnpublishVolumeResponse> answer = [&] {
    const Progress progress(session.output, "UnpublishVolume",
                            [&] { return node.RunningStep(options.plugin, options.volume); });
    return node.Call(&Stub::UnpublishVolume, request,
                     fmt::format("unpublish {} of {}", Shown(options.volume), use));
  }();
  if (!answer.ok()) return answer.status();
  if (session.output.json()) {
    session.output.Json(*answer);
  } else if (answer->was_published()) {
    session.output.Text(fmt::format("unpublished {} of {}\n", Shown(options.volume), use));
  } else {
    session.output.Text(fmt::format("{} was not published for {}\n", Shown(options.volume), use));
  }
  return absl::OkStatus();
}

}  // namespace

void AddVolumeCommands(CLI::App& app, Command& chosen) {
  AddCommand<ListOptions>(
      app, "volumes", "Every volume that this node holds", chosen,
      [](CLI::App& command, ListOptions& options) {
        command.add_option("--plugin", options.plugin, "Only those of this plugin")->option_text("ID");
        command.add_option("--consumer", options.consumer, "Only those of this consumer")
            ->option_text("NAME");
      },
      Volumes);

  CLI::App* group =
      AddGroup(app, "volume", "One volume: show, create, delete, expand, stats, publish, unpublish");
  AddCommand<VolumeOptions>(
      *group, "show", "What this node holds of a volume, and for whom", chosen,
      [](CLI::App& command, VolumeOptions& options) {
        command.add_option("--plugin", options.plugin, "The plugin's id, where several hold such a volume")
            ->option_text("ID");
        command.add_option("volume,--volume", options.volume, "The volume's id")
            ->required()
            ->option_text("ID");
      },
      Show);
  AddCommand<CreateOptions>(*group, "create", "Create a volume through the plugin's controller", chosen,
                            DeclareCreate, Create);
  AddCommand<ChangeOptions>(
      *group, "delete", "Delete a volume, and the data in it, through the plugin's controller", chosen,
      [](CLI::App& command, ChangeOptions& options) {
        DeclareVolume(command, options);
        DeclareSecrets(command, options.secrets_file);
      },
      Delete);
  AddCommand<ChangeOptions>(
      *group, "expand", "Make a volume larger", chosen,
      [](CLI::App& command, ChangeOptions& options) {
        DeclareVolume(command, options);
        DeclareSizes(command, options.sizes)->required();
        DeclareSecrets(command, options.secrets_file);
      },
      Expand);
  AddCommand<VolumeOptions>(*group, "stats", "Use and condition of a volume that is published here", chosen,
                            DeclareVolume, Stats);
  AddCommand<PublishOptions>(*group, "publish", "Make a volume usable here for one consumer", chosen,
                             DeclarePublish, Publish);
  AddCommand<UnpublishOptions>(*group, "unpublish", "End a consumer's use of a volume", chosen,
                               DeclareUnpublish, Unpublish);
}

}  // namespace berth::cli
