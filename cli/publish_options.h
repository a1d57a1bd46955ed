// What `berthctl volume publish` is asked: a volume file, and options that take the place of what it says.
//
// Its command's thread only.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "berth/v1/node.pb.h"
#include "cli/capability_options.h"
#include "cli/session.h"
#include "cli/volume_options.h"

namespace berth::cli {

// Empty, or unset: not given, so that the file decides.
struct PublishOptions : VolumeOptions {
  std::string file;
  std::string consumer;
  std::string name;
  std::string label;
  CapabilityOptions capability;
  std::string mount_group;
  std::string use_fs;
  std::vector<std::string> use_mount_flags;  // {""}: none at all
  std::optional<bool> readonly;
  std::optional<bool> ephemeral;
  std::string owner;
  std::string group;
  std::string mode;
  std::optional<bool> recursive;
  std::string selinux_label;
  std::optional<int64_t> pid;
  std::string cgroup;
  std::string unit;
  std::optional<bool> remount;
  std::string secrets_file;
  std::string secrets_reference;
  std::vector<std::string> context;
  std::vector<std::string> publish_context;
  std::vector<std::string> consumer_labels;
  bool attached = false;
  std::string runtime;
};

// In groups, as --help shows them.
void DeclarePublish(CLI::App& command, PublishOptions& options);

// What the volume file says; nothing where `file` is empty. "-": standard input. UsageError where it is
// wrong, after each of its mistakes was shown.
[[nodiscard]] absl::StatusOr<v1::PublishVolumeRequest> ReadFileOption(const Session& session,
                                                                      const std::string& file);

// `request`, which a file gave, with what `options` say in its place: an option as a whole, contexts key by
// key. The secrets of --secrets-file are the caller's to add. UsageError where something is wrong, and where
// neither says plugin, volume and consumer. Looks names of owners up.
[[nodiscard]] absl::StatusOr<v1::PublishVolumeRequest> WithOptions(v1::PublishVolumeRequest request,
                                                                   const PublishOptions& options);

// "file:/path" or "credential:name". Pure.
[[nodiscard]] absl::StatusOr<v1::SecretsReference> ParseSecretsReference(const std::string& text);

}  // namespace berth::cli
