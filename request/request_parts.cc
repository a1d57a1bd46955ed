#include "request/request_parts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "request/request_check.h"

namespace berth {
namespace {

using CsiMode = ::csi::v1::VolumeCapability::AccessMode;

static_assert(static_cast<int>(v1::SINGLE_NODE_WRITER) == static_cast<int>(CsiMode::SINGLE_NODE_WRITER) &&
              static_cast<int>(v1::MULTI_NODE_MULTI_WRITER) ==
                  static_cast<int>(CsiMode::MULTI_NODE_MULTI_WRITER) &&
              static_cast<int>(v1::SINGLE_NODE_MULTI_WRITER) ==
                  static_cast<int>(CsiMode::SINGLE_NODE_MULTI_WRITER));

}  // namespace

void Mistakes::Add(std::string_view field, std::string_view what) {
  found_.push_back(fmt::format("{}{}: {}", prefix_, field, what));
}

void Mistakes::Length(std::string_view field, const std::string& value, size_t limit) {
  if (value.size() > limit) {
    Add(field, fmt::format("{} bytes long, at most {} are taken", value.size(), limit));
  }
}

void Mistakes::Required(std::string_view field, const std::string& value, size_t limit) {
  if (value.empty()) Add(field, "must not be empty");
  Length(field, value, limit);
}

void Mistakes::PlainText(std::string_view field, const std::string& value) {
  const bool control = std::any_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
  if (control) Add(field, "must not hold control characters");
}

void Mistakes::AbsolutePath(std::string_view field, const std::string& path) {
  if (!path.starts_with('/')) {
    Add(field, "must be an absolute path");
  } else if ((path + "/").find("/../") != std::string::npos) {
    Add(field, "must not go through ..");
  }
  Length(field, path, RequestLimits::kPath);
  PlainText(field, path);
}

void Mistakes::Map(std::string_view field, const StringMap& map) {
  size_t bytes = 0;
  for (const auto& [key, value] : map) {
    bytes += key.size() + value.size();
    if (key.empty()) Add(field, "a key must not be empty");
  }
  if (map.size() > RequestLimits::kMapEntries) {
    Add(field, fmt::format("{} entries, at most {} are taken", map.size(), RequestLimits::kMapEntries));
  }
  if (bytes > RequestLimits::kMapBytes) {
    Add(field, fmt::format("{} bytes in all, at most {} are taken", bytes, RequestLimits::kMapBytes));
  }
}

void Mistakes::Volume(const std::string& plugin_id, const std::string& volume_id) {
  Required("plugin_id", plugin_id, RequestLimits::kPluginName);
  Required("volume_id", volume_id, RequestLimits::kVolumeId);
}

void Mistakes::Capacity(int64_t required, int64_t limit) {
  if (required < 0) Add("required_bytes", "must not be negative");
  if (limit < 0) Add("limit_bytes", "must not be negative");
  if (limit > 0 && required > limit) Add("limit_bytes", "must not be less than required_bytes");
}

void Mistakes::FsType(std::string_view field, const std::string& fs_type) {
  Length(field, fs_type, RequestLimits::kFsType);
  PlainText(field, fs_type);
}

void Mistakes::CheckFlags(std::string_view field, size_t bytes, bool empty) {
  if (empty) Add(field, "a flag must not be empty");
  if (bytes > RequestLimits::kMountFlags) {
    Add(field, fmt::format("{} bytes in all, at most {} are taken", bytes, RequestLimits::kMountFlags));
  }
}

absl::Status Mistakes::ToStatus() const {
  if (found_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}", fmt::join(found_, "; ")));
}

VolumeUse CheckCapability(const std::string& field, const v1::Capability& capability, Mistakes& mistakes) {
  VolumeUse use;
  if (!v1::AccessMode_IsValid(capability.access_mode())) {
    mistakes.Add(field + ".access_mode", fmt::format("{} is no access mode", int{capability.access_mode()}));
  } else if (capability.access_mode() != v1::ACCESS_MODE_UNKNOWN) {
    use.access_mode = static_cast<CsiMode::Mode>(capability.access_mode());
  }
  if (!v1::AccessType_IsValid(capability.access_type())) {
    mistakes.Add(field + ".access_type", fmt::format("{} is no access type", int{capability.access_type()}));
  }
  if (capability.access_type() == v1::BLOCK) {
    use.access_type = AccessType::kBlock;
    if (!capability.fs_type().empty()) mistakes.Add(field + ".fs_type", "not with BLOCK");
    if (capability.mount_flags_size() > 0) mistakes.Add(field + ".mount_flags", "not with BLOCK");
    if (!capability.volume_mount_group().empty()) {
      mistakes.Add(field + ".volume_mount_group", "not with BLOCK");
    }
  }
  mistakes.FsType(field + ".fs_type", capability.fs_type());
  mistakes.MountFlags(field + ".mount_flags", capability.mount_flags());
  mistakes.Length(field + ".volume_mount_group", capability.volume_mount_group(), RequestLimits::kMountGroup);
  mistakes.PlainText(field + ".volume_mount_group", capability.volume_mount_group());
  use.fs_type = capability.fs_type();
  use.mount_flags = {capability.mount_flags().begin(), capability.mount_flags().end()};
  use.volume_mount_group = capability.volume_mount_group();
  return use;
}

::csi::v1::VolumeCapability ToCsi(const VolumeUse& use) {
  ::csi::v1::VolumeCapability capability;
  capability.mutable_access_mode()->set_mode(use.access_mode);
  if (use.access_type == AccessType::kBlock) {
    capability.mutable_block();
    return capability;
  }
  capability.mutable_mount()->set_fs_type(use.fs_type);
  for (const std::string& flag : use.mount_flags) capability.mutable_mount()->add_mount_flags(flag);
  capability.mutable_mount()->set_volume_mount_group(use.volume_mount_group);
  return capability;
}

}  // namespace berth
