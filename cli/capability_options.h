// How a volume is to be used, as options of the command line: --access, --fs or --block, --mount-flag.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "berth/v1/node.pb.h"

namespace berth::cli {

struct CapabilityOptions {
  std::string access;
  std::string fs;
  bool block = false;
  std::vector<std::string> mount_flags;
};

// Options that may be given several times, one value each.
CLI::Option* AddRepeated(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& value_name, const std::string& description);

void DeclareCapability(CLI::App& command, CapabilityOptions& options);
// All but --access.
void DeclareFileSystem(CLI::App& command, CapabilityOptions& options);

// UsageError for an unknown mode, and for what goes with a file system only. Pure.
[[nodiscard]] absl::StatusOr<::berth::v1::Capability> MakeCapability(const CapabilityOptions& options);

// "SINGLE_NODE_WRITER ext4", for columns. Pure.
[[nodiscard]] std::string DescribeCapability(const ::berth::v1::Capability& capability);

}  // namespace berth::cli
