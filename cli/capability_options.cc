#include "cli/capability_options.h"

#include <fmt/format.h>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"

namespace berth::cli {

CLI::Option* AddRepeated(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& value_name, const std::string& description) {
  return command.add_option(name, values, description)
      ->allow_extra_args(false)
      ->option_text(value_name + " ...");
}

void DeclareCapability(CLI::App& command, CapabilityOptions& options) {
  command
      .add_option("--access", options.access,
                  "Access mode, one of CSI's: single-node-multi-writer (the default: any number of consumers "
                  "on this node), single-node-writer, single-node-reader-only, multi-node-reader-only, …")
      ->option_text("MODE");
  DeclareFileSystem(command, options);
}

void DeclareFileSystem(CLI::App& command, CapabilityOptions& options) {
  CLI::Option* fs =
      command.add_option("--fs", options.fs, "A mounted file system of this type (ext4, xfs, …)")
          ->option_text("TYPE");
  command.add_flag("--block", options.block, "A block device, not a file system")->excludes(fs);
  AddRepeated(command, "--mount-flag", options.mount_flags, "FLAG", "A mount option, such as noatime");
}

absl::StatusOr<v1::Capability> MakeCapability(const CapabilityOptions& options) {
  v1::Capability capability;
  if (!options.access.empty()) {
    BERTH_ASSIGN_OR_RETURN(const int mode,
                           ParseEnum(options.access, v1::AccessMode_descriptor(), "--access"));
    capability.set_access_mode(static_cast<v1::AccessMode>(mode));
  }
  if (options.block && !options.mount_flags.empty()) {
    return UsageError("--mount-flag goes with a file system, not with --block");
  }
  capability.set_access_type(options.block ? v1::BLOCK : v1::MOUNT);
  capability.set_fs_type(options.fs);
  for (const std::string& flag : options.mount_flags) capability.add_mount_flags(flag);
  return capability;
}

std::string DescribeCapability(const v1::Capability& capability) {
  const v1::AccessMode mode = capability.access_mode();
  std::string text = v1::AccessMode_IsValid(mode) && mode != v1::ACCESS_MODE_UNKNOWN
                         ? v1::AccessMode_Name(mode)
                         : "SINGLE_NODE_MULTI_WRITER";
  if (capability.access_type() == v1::BLOCK) return text + " block";
  text += ' ';
  text += capability.fs_type().empty() ? "mount" : capability.fs_type();
  return text;
}

}  // namespace berth::cli
