#include "cli/publish_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/runtimes.h"
#include "cli/values.h"
#include "spec/permission_text.h"
#include "spec/volume_spec.h"

namespace berth::cli {
namespace {

constexpr const char* kPublishFooter =
    R"(Prints the path at which the volume is, and only that. Repeat it freely: the same request confirms.
A switch that the file sets is taken back so: --readonly=false.
  target=$(berthctl volume publish --plugin hostpath --volume v1 --consumer job-7 --fs ext4)
  berthctl volume publish --file volume.toml --consumer job-7 --unit job-7.service
How a container mounts it then: berthctl volume mounts job-7 --format podman)";

// A person reads a list of mistakes line by line; the error that follows counts them.
absl::Status BrokenFile(const Session& session, const std::string& file, const absl::Status& status) {
  constexpr std::string_view kHint = "Every key with its meaning: man berth-volume.toml";
  std::vector<std::string> lines;
  for (std::string_view rest = MessageOf(status); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (lines.size() == 1) return UsageError(lines.front(), kHint);
  if (session.output.json()) return UsageError(fmt::format("{}", fmt::join(lines, "; ")), kHint);
  for (const std::string& line : lines) session.output.Note(line);
  return UsageError(fmt::format("{}: {} mistakes; nothing was asked", Printable(file, 200), lines.size()),
                    kHint);
}

// A switch that may be left to the file. CLI11 would take an optional for a counter, and set it to 0.
CLI::Option* AddSwitch(CLI::App& command, const std::string& name, std::optional<bool>& value,
                       const std::string& description) {
  return command.add_flag(name, description)->check([&value](const std::string& text) {
    if (text != "true" && text != "false") return fmt::format("is true or false, not '{}'", text);
    value = text == "true";
    return std::string();
  });
}

void DeclareWhat(CLI::App& command, PublishOptions& options) {
  constexpr const char* kGroup = "The volume and its consumer";
  command
      .add_option(
          "--file", options.file,
          "A volume file, berth-volume.toml(5); - is standard input. Options take the place of what it says")
      ->option_text("FILE")
      ->group(kGroup);
  command.add_option("--plugin", options.plugin, "The plugin's id")->option_text("ID")->group(kGroup);
  command.add_option("volume,--volume", options.volume, "The volume's id, as the storage knows it")
      ->option_text("ID")
      ->group(kGroup);
  command.add_option("--consumer", options.consumer, "Who uses it: a job, a unit, a container")
      ->option_text("NAME")
      ->group(kGroup);
  AddRepeated(command, "--consumer-label", options.consumer_labels, "KEY=VALUE",
              "What the consumer is, for plugins that read Kubernetes' pod.name, pod.uid and the like")
      ->group(kGroup);
  command
      .add_option("--label", options.label,
                  "Your own name of the volume; commands take it in place of the id")
      ->option_text("NAME")
      ->group(kGroup);
  command.add_option("--name", options.name, "Distinguishes several uses by one consumer")
      ->option_text("NAME")
      ->group(kGroup);
}

void DeclareHow(CLI::App& command, PublishOptions& options) {
  constexpr const char* kGroup = "How it is used";
  DeclareCapability(command, options.capability);
  for (const char* name : {"--access", "--fs", "--block", "--mount-flag"})
    command.get_option(name)->group(kGroup);
  command
      .add_option("--mount-group", options.mount_group,
                  "The group that is to own the files, where the plugin can do that")
      ->option_text("GROUP")
      ->group(kGroup);
  command.add_option("--use-fs", options.use_fs, "The file system of this use, instead of the volume's")
      ->option_text("TYPE")
      ->group(kGroup);
  AddRepeated(command, "--use-mount-flag", options.use_mount_flags, "FLAG",
              "A mount option of this use, instead of all of the volume's; \"\" for none")
      ->group(kGroup);
  AddSwitch(command, "--readonly", options.readonly, "Read only for this consumer")->group(kGroup);
  AddSwitch(command, "--ephemeral", options.ephemeral,
            "An inline volume: made now, as --context says, and DELETED with its data when it is unpublished")
      ->group(kGroup);
}

void DeclarePermissions(CLI::App& command, PublishOptions& options) {
  constexpr const char* kGroup = "The root of its file system, set once";
  command.add_option("--owner", options.owner, "A user's name or number")->option_text("USER")->group(kGroup);
  command.add_option("--group", options.group, "A group's name or number")
      ->option_text("GROUP")
      ->group(kGroup);
  command.add_option("--mode", options.mode, "Its mode, octal: 0750")->option_text("MODE")->group(kGroup);
  AddSwitch(command, "--recursive", options.recursive,
            "Owner and group of everything beneath, too; this may take long")
      ->group(kGroup);
  command.add_option("--selinux-label", options.selinux_label, "Its SELinux label")
      ->option_text("LABEL")
      ->group(kGroup);
}

void DeclareLife(CLI::App& command, PublishOptions& options) {
  constexpr const char* kGroup = "How long it is used; without: until it is unpublished";
  CLI::Option* pid = command.add_option("--pid", options.pid, "Until this process has ended")
                         ->option_text("PID")
                         ->group(kGroup);
  CLI::Option* cgroup =
      command.add_option("--cgroup", options.cgroup, "Until no process is left in this cgroup")
          ->option_text("DIRECTORY")
          ->excludes(pid)
          ->group(kGroup);
  command.add_option("--unit", options.unit, "Until this systemd unit has ended")
      ->option_text("UNIT")
      ->excludes(pid)
      ->excludes(cgroup)
      ->group(kGroup);
  AddSwitch(command, "--remount", options.remount,
            "Mount it again of itself when its mount is lost, and after a reboot. Only where no other node "
            "may have the volume by then")
      ->group(kGroup);
}

void DeclareSecretsAndContext(CLI::App& command, PublishOptions& options) {
  constexpr const char* kSecrets = "Secrets for the plugin";
  DeclareSecrets(command, options.secrets_file);
  CLI::Option* file = command.get_option("--secrets-file")->group(kSecrets);
  command
      .add_option("--secrets-reference", options.secrets_reference,
                  "Where berthd reads them itself, whenever it needs them: file:/path or credential:NAME")
      ->option_text("WHERE")
      ->excludes(file)
      ->group(kSecrets);
  constexpr const char* kContext = "What the controller said";
  AddRepeated(command, "--context", options.context, "KEY=VALUE", "The volume_context that the create gave")
      ->group(kContext);
  AddRepeated(command, "--publish-context", options.publish_context, "KEY=VALUE",
              "The publish_context that attaching the volume to this node gave")
      ->group(kContext);
  command.add_flag("--attached", options.attached, "It is attached, and that gave an empty publish_context")
      ->group(kContext);
}

void DeclareRuntime(CLI::App& command, PublishOptions& options) {
  constexpr const char* kGroup = "What the consumer's runtime can use; without: everything";
  command
      .add_option("--runtime", options.runtime,
                  fmt::format("One of {}, or a [[runtime]] of berthd.toml", kRuntimeKinds))
      ->option_text("KIND")
      ->group(kGroup);
}

absl::Status SetCapability(const PublishOptions& options, v1::Capability& capability) {
  BERTH_ASSIGN_OR_RETURN(const v1::Capability given, MakeCapability(options.capability));
  if (given.access_mode() != v1::ACCESS_MODE_UNKNOWN) capability.set_access_mode(given.access_mode());
  if (options.capability.block) {
    // The file's keys about a file system do not apply.
    capability.set_access_type(v1::BLOCK);
    capability.clear_fs_type();
    capability.clear_mount_flags();
    capability.clear_volume_mount_group();
  }
  if (!given.fs_type().empty()) {
    capability.set_access_type(v1::MOUNT);
    capability.set_fs_type(given.fs_type());
  }
  if (!given.mount_flags().empty()) *capability.mutable_mount_flags() = given.mount_flags();
  if (!options.mount_group.empty()) capability.set_volume_mount_group(options.mount_group);
  const bool block = capability.access_type() == v1::BLOCK;
  if (block && (!capability.mount_flags().empty() || !capability.volume_mount_group().empty())) {
    return UsageError("--mount-flag and --mount-group go with a file system, not with a block device");
  }
  return absl::OkStatus();
}

absl::Status Wrong(std::string_view option, const absl::Status& status) {
  return UsageError(fmt::format("{}: {}", option, MessageOf(status)));
}

absl::Status SetMountOptions(const PublishOptions& options, v1::PublishVolumeRequest& request) {
  if (options.capability.block) request.clear_mount_options();
  if (options.use_fs.empty() && options.use_mount_flags.empty()) return absl::OkStatus();
  if (request.capability().access_type() == v1::BLOCK) {
    return UsageError("--use-fs and --use-mount-flag need a file system, not a block device");
  }
  v1::MountOptions& mount = *request.mutable_mount_options();
  if (!options.use_fs.empty()) mount.set_fs_type(options.use_fs);
  if (options.use_mount_flags.empty()) return absl::OkStatus();
  mount.mutable_mount_flags()->clear_values();
  for (const std::string& flag : options.use_mount_flags) {
    if (!flag.empty()) mount.mutable_mount_flags()->add_values(flag);
  }
  return absl::OkStatus();
}

absl::Status SetPermissions(const PublishOptions& options, v1::PublishVolumeRequest& request) {
  v1::RootPermissions permissions = request.permissions();
  if (!options.owner.empty()) {
    const absl::StatusOr<uint32_t> owner = UserId(options.owner);
    if (!owner.ok()) return Wrong("--owner", owner.status());
    permissions.set_owner(*owner);
  }
  if (!options.group.empty()) {
    const absl::StatusOr<uint32_t> group = GroupId(options.group);
    if (!group.ok()) return Wrong("--group", group.status());
    permissions.set_group(*group);
  }
  if (!options.mode.empty()) {
    const absl::StatusOr<uint32_t> mode = ParseMode(options.mode);
    if (!mode.ok()) return Wrong("--mode", mode.status());
    permissions.set_mode(*mode);
  }
  if (options.recursive.has_value()) permissions.set_recursive(*options.recursive);
  if (!options.selinux_label.empty()) permissions.set_selinux_label(options.selinux_label);
  if (permissions.recursive() && !permissions.has_owner() && !permissions.has_group()) {
    return UsageError("--recursive needs --owner or --group");
  }
  const bool any = permissions.has_owner() || permissions.has_group() || permissions.has_mode() ||
                   !permissions.selinux_label().empty();
  if (any && request.capability().access_type() == v1::BLOCK) {
    return UsageError(
        "--owner, --group, --mode and --selinux-label go with a file system, not with a block device");
  }
  if (any && request.readonly()) {
    return UsageError(
        "--owner, --group, --mode and --selinux-label do not go with --readonly: nothing can be set there");
  }
  if (any) *request.mutable_permissions() = permissions;
  return absl::OkStatus();
}

void SetLife(const PublishOptions& options, v1::PublishVolumeRequest& request) {
  if (options.pid.has_value()) request.mutable_life()->set_pid(*options.pid);
  if (!options.cgroup.empty()) request.mutable_life()->set_cgroup(options.cgroup);
  if (!options.unit.empty()) request.mutable_life()->set_unit(options.unit);
}

absl::Status SetContexts(const PublishOptions& options, v1::PublishVolumeRequest& request) {
  BERTH_ASSIGN_OR_RETURN(const auto context, ParsePairs(options.context, "--context"));
  for (const auto& [key, value] : context) (*request.mutable_volume_context())[key] = value;
  BERTH_ASSIGN_OR_RETURN(const auto labels, ParsePairs(options.consumer_labels, "--consumer-label"));
  for (const auto& [key, value] : labels) (*request.mutable_consumer_labels())[key] = value;
  BERTH_ASSIGN_OR_RETURN(const auto attachment, ParsePairs(options.publish_context, "--publish-context"));
  if (options.attached) request.mutable_publish_context();
  for (const auto& [key, value] : attachment)
    (*request.mutable_publish_context()->mutable_values())[key] = value;
  return absl::OkStatus();
}

absl::Status CheckComplete(const v1::PublishVolumeRequest& request) {
  for (const auto& [value, name] :
       {std::pair<const std::string&, std::string_view>(request.plugin_id(), "plugin"),
        {request.volume_id(), "volume"},
        {request.consumer(), "consumer"}}) {
    if (value.empty()) {
      return UsageError(
          fmt::format("--{} is missing, and no file says it", name),
          fmt::format("Say --{}, or give a volume file with {} = \"...\": --file FILE", name, name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::PublishVolumeRequest> ReadFileOption(const Session& session, const std::string& file) {
  if (file.empty()) return v1::PublishVolumeRequest();
  absl::StatusOr<v1::PublishVolumeRequest> request = v1::PublishVolumeRequest();
  if (file == "-") {
    BERTH_ASSIGN_OR_RETURN(const std::string text, ReadInput(file, "--file"));
    request = ParseVolumeSpec("standard input", text);
  } else {
    request = ReadVolumeSpec(file);
  }
  if (!request.ok()) return BrokenFile(session, file, request.status());
  return request;
}

void DeclarePublish(CLI::App& command, PublishOptions& options) {
  DeclareWhat(command, options);
  DeclareHow(command, options);
  DeclarePermissions(command, options);
  DeclareLife(command, options);
  DeclareSecretsAndContext(command, options);
  DeclareRuntime(command, options);
  command.footer(kPublishFooter);
}

absl::StatusOr<v1::SecretsReference> ParseSecretsReference(const std::string& text) {
  constexpr std::string_view kFile = "file:";
  constexpr std::string_view kCredential = "credential:";
  v1::SecretsReference reference;
  if (text.starts_with(kFile) && text.substr(kFile.size()).starts_with('/')) {
    reference.set_file(text.substr(kFile.size()));
    return reference;
  }
  const std::string name = text.starts_with(kCredential) ? text.substr(kCredential.size()) : "";
  if (!name.empty() && name.find('/') == std::string::npos) {
    reference.set_credential(name);
    return reference;
  }
  return UsageError(fmt::format("--secrets-reference '{}': it must be file:/absolute/path or credential:NAME",
                                Printable(text, 200)),
                    "The file, or the credential of berthd.service, is read by berthd");
}

absl::StatusOr<v1::PublishVolumeRequest> WithOptions(v1::PublishVolumeRequest request,
                                                     const PublishOptions& options) {
  if (!options.plugin.empty()) request.set_plugin_id(options.plugin);
  if (!options.volume.empty()) request.set_volume_id(options.volume);
  if (!options.consumer.empty()) request.set_consumer(options.consumer);
  if (!options.name.empty()) request.set_name(options.name);
  if (!options.label.empty()) request.set_label(options.label);
  BERTH_RETURN_IF_ERROR(CheckComplete(request));
  BERTH_RETURN_IF_ERROR(SetCapability(options, *request.mutable_capability()));
  BERTH_RETURN_IF_ERROR(SetMountOptions(options, request));
  if (options.readonly.has_value()) request.set_readonly(*options.readonly);
  if (options.ephemeral.has_value()) request.set_ephemeral(*options.ephemeral);
  BERTH_RETURN_IF_ERROR(SetPermissions(options, request));
  SetLife(options, request);
  if (options.remount.has_value()) request.set_remount(*options.remount);
  if (!options.secrets_file.empty()) request.clear_secrets_reference();
  if (!options.secrets_reference.empty()) {
    BERTH_ASSIGN_OR_RETURN(*request.mutable_secrets_reference(),
                           ParseSecretsReference(options.secrets_reference));
  }
  BERTH_RETURN_IF_ERROR(SetContexts(options, request));
  if (!options.runtime.empty()) *request.mutable_runtime() = AbilityOf(options.runtime);
  return request;
}

}  // namespace berth::cli
