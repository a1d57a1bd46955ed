#include "plugins/hostpath/volume_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/safe_path.h"
#include "base/status.h"

namespace berth::hostpath {
namespace {

constexpr int64_t kDefaultSize = kGiB;
// A journal in an ext4 of 4 KiB blocks needs 8 MiB; mkfs.xfs refuses anything below 300 MiB.
constexpr int64_t kMinimumExt4 = 16 * kMiB;
constexpr int64_t kMinimumXfs = 300 * kMiB;

constexpr std::string_view kKnownParameters =
    "kind (directory, image or block), fsType (ext4 or xfs), preallocate (true or false), directIO (true or "
    "false)";

// What the sidecars of Kubernetes add of their own accord; it concerns no volume.
bool IsForeignKey(std::string_view key) { return key.starts_with("csi.storage.k8s.io/"); }

bool IsFileSystem(std::string_view name) { return name == "ext4" || name == "xfs"; }

absl::StatusOr<bool> ParseBool(std::string_view key, std::string_view value) {
  if (value == "true") return true;
  if (value == "false") return false;
  return absl::InvalidArgumentError(
      fmt::format("parameters: {} must be true or false, not \"{}\"", key, Printable(value, 64)));
}

int64_t RoundUp(int64_t bytes) {
  if (bytes > std::numeric_limits<int64_t>::max() - kSizeGranule) return bytes;
  return (bytes + kSizeGranule - 1) / kSizeGranule * kSizeGranule;
}

absl::Status CheckKindIsPossible(Kind kind, const Machine& machine) {
  if (kind == Kind::kDirectory || machine.loop_devices) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "a volume of kind {} needs loop devices, which this process may not use (/dev/loop-control cannot "
      "be opened); volumes of kind directory work here",
      KindName(kind)));
}

}  // namespace

absl::StatusOr<Parameters> ParseParameters(const StringMap& parameters) {
  Parameters parsed;
  const std::map<std::string, std::string> sorted(parameters.begin(), parameters.end());
  for (const auto& [key, value] : sorted) {
    if (IsForeignKey(key)) continue;
    if (key == "kind") {
      parsed.kind = ParseKind(value);
      if (!parsed.kind) {
        return absl::InvalidArgumentError(fmt::format(
            "parameters: kind must be directory, image or block, not \"{}\"", Printable(value, 64)));
      }
    } else if (key == "fsType" || key == "fs_type") {
      if (!IsFileSystem(value)) {
        return absl::InvalidArgumentError(
            fmt::format("parameters: {} must be ext4 or xfs, not \"{}\"", key, Printable(value, 64)));
      }
      if (!parsed.fs_type.empty() && parsed.fs_type != value) {
        return absl::InvalidArgumentError("parameters: fsType and fs_type differ");
      }
      parsed.fs_type = value;
    } else if (key == "preallocate") {
      BERTH_ASSIGN_OR_RETURN(parsed.preallocate, ParseBool(key, value));
    } else if (key == "directIO") {
      BERTH_ASSIGN_OR_RETURN(parsed.direct_io, ParseBool(key, value));
    } else {
      return absl::InvalidArgumentError(
          fmt::format("parameters: \"{}\" is not known; known are {}", Printable(key, 64), kKnownParameters));
    }
  }
  parsed.canonical =
      fmt::format("kind={} fsType={} preallocate={} directIO={}", parsed.kind ? KindName(*parsed.kind) : "",
                  parsed.fs_type, parsed.preallocate, parsed.direct_io);
  return parsed;
}

absl::Status CheckSnapshotParameters(const StringMap& parameters) {
  for (const auto& [key, value] : parameters) {
    if (IsForeignKey(key)) continue;
    return absl::InvalidArgumentError(
        fmt::format("parameters: \"{}\" is not known; snapshots have no parameters", Printable(key, 64)));
  }
  return absl::OkStatus();
}

namespace {

// The file system that parameters and capabilities ask for; empty: none of them names one.
absl::StatusOr<std::string> FileSystemOf(const Capabilities& capabilities, const Parameters& parameters) {
  std::string fs_type = parameters.fs_type;
  for (const auto& capability : capabilities) {
    const std::string& wanted = capability.mount().fs_type();
    if (wanted.empty()) continue;
    if (!IsFileSystem(wanted)) {
      return absl::InvalidArgumentError(fmt::format(
          "volume_capabilities: fs_type \"{}\" is not known; ext4 and xfs are", Printable(wanted, 64)));
    }
    if (!fs_type.empty() && fs_type != wanted) {
      return absl::InvalidArgumentError(
          fmt::format("the file systems {} and {} are both asked for", fs_type, wanted));
    }
    fs_type = wanted;
  }
  return fs_type;
}

Kind ChooseKind(const Parameters& parameters, const std::optional<Source>& source, bool block,
                const std::string& fs_type, const Machine& machine) {
  if (parameters.kind) return *parameters.kind;
  if (source) return source->kind;
  if (block) return Kind::kBlock;
  return fs_type.empty() ? machine.default_kind : Kind::kImage;
}

}  // namespace

absl::StatusOr<VolumePlan> PlanVolume(const Capabilities& capabilities, const Parameters& parameters,
                                      const Machine& machine, const std::optional<Source>& source) {
  std::string fs_type;
  BERTH_ASSIGN_OR_RETURN(fs_type, FileSystemOf(capabilities, parameters));
  const bool block =
      std::ranges::any_of(capabilities, [](const auto& capability) { return capability.has_block(); });
  const bool mount =
      std::ranges::any_of(capabilities, [](const auto& capability) { return capability.has_mount(); });
  VolumePlan plan;
  plan.kind = ChooseKind(parameters, source, block, fs_type, machine);
  if (source && plan.kind != source->kind) {
    return absl::InvalidArgumentError(
        fmt::format("the source is of kind {} and cannot become a volume of kind {}", KindName(source->kind),
                    KindName(plan.kind)));
  }
  BERTH_RETURN_IF_ERROR(CheckKindIsPossible(plan.kind, machine));

  switch (plan.kind) {
    case Kind::kDirectory:
      if (!fs_type.empty()) {
        return absl::InvalidArgumentError(fmt::format(
            "a volume of kind directory has no file system of its own, but {} is asked for", fs_type));
      }
      if (parameters.preallocate || parameters.direct_io) {
        return absl::InvalidArgumentError("a volume of kind directory has neither preallocate nor directIO");
      }
      break;
    case Kind::kImage:
      plan.fs_type = fs_type;
      if (plan.fs_type.empty()) plan.fs_type = source ? source->fs_type : "ext4";
      break;
    case Kind::kBlock:
      plan.fs_type = fs_type;
      if (plan.fs_type.empty() && source) plan.fs_type = source->fs_type;
      if (plan.fs_type.empty() && mount) plan.fs_type = "ext4";
      break;
  }
  if (source && !source->fs_type.empty() && plan.fs_type != source->fs_type) {
    return absl::InvalidArgumentError(
        fmt::format("the source holds {}, but {} is asked for", source->fs_type, plan.fs_type));
  }
  for (const auto& capability : capabilities) {
    if (const absl::Status status = SupportsCapability(plan.kind, plan.fs_type, capability); !status.ok()) {
      return absl::InvalidArgumentError(status.message());
    }
  }
  return plan;
}

int64_t MinimumSize(Kind kind, std::string_view fs_type) {
  if (kind == Kind::kDirectory) return 0;
  if (fs_type == "ext4") return kMinimumExt4;
  if (fs_type == "xfs") return kMinimumXfs;
  return kSizeGranule;
}

absl::StatusOr<int64_t> ChooseCapacity(const ::csi::v1::CapacityRange& range, const VolumePlan& plan,
                                       const std::optional<Source>& source) {
  const int64_t limit = range.limit_bytes() == 0 ? std::numeric_limits<int64_t>::max() : range.limit_bytes();
  const int64_t required = range.required_bytes();
  // A directory's size is only remembered: it is what was asked for, to the byte.
  if (plan.kind == Kind::kDirectory) {
    int64_t size = required;
    if (source && size == 0) size = std::min(source->size, limit);
    if (source && size < source->size) {
      return absl::OutOfRangeError(
          fmt::format("the source has {} bytes, more than the {} asked for", source->size, size));
    }
    return size;
  }
  const int64_t minimum = MinimumSize(plan.kind, plan.fs_type);
  int64_t size = required;
  if (size == 0) size = source ? source->size : std::min(kDefaultSize, limit / kSizeGranule * kSizeGranule);
  if (source && size < source->size) {
    return absl::OutOfRangeError(
        fmt::format("the source has {} bytes, more than the {} asked for", source->size, size));
  }
  size = RoundUp(std::max(size, minimum));
  if (size > limit) {
    return absl::OutOfRangeError(fmt::format(
        "limit_bytes {} is too small: sizes are multiples of {} bytes, this kind's smallest is {}, and this "
        "volume would have {}",
        limit, kSizeGranule, minimum, size));
  }
  return size;
}

bool CapacityFits(int64_t capacity, const ::csi::v1::CapacityRange& range) {
  if (capacity < range.required_bytes()) return false;
  return range.limit_bytes() == 0 || capacity <= range.limit_bytes();
}

absl::Status SupportsCapability(Kind kind, std::string_view fs_type,
                                const ::csi::v1::VolumeCapability& capability) {
  if (capability.has_block()) {
    if (kind == Kind::kBlock) return absl::OkStatus();
    return absl::FailedPreconditionError(
        fmt::format("a volume of kind {} cannot be used as a block device", KindName(kind)));
  }
  const std::string& wanted = capability.mount().fs_type();
  if (kind == Kind::kBlock && fs_type.empty()) {
    return absl::FailedPreconditionError(
        "this block volume cannot be mounted: it was created without a mount capability");
  }
  if (wanted.empty() || wanted == fs_type) return absl::OkStatus();
  if (kind == Kind::kDirectory) {
    return absl::FailedPreconditionError(fmt::format(
        "a volume of kind directory has no file system of its own, so it is not {}", Printable(wanted, 64)));
  }
  return absl::FailedPreconditionError(
      fmt::format("this volume is {}, not {}", fs_type, Printable(wanted, 64)));
}

bool IsReaderOnly(AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_READER_ONLY || mode == AccessMode::MULTI_NODE_READER_ONLY;
}

bool AllowsSeveralTargets(AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_MULTI_WRITER || mode == AccessMode::MULTI_NODE_READER_ONLY ||
         mode == AccessMode::MULTI_NODE_SINGLE_WRITER || mode == AccessMode::MULTI_NODE_MULTI_WRITER;
}

bool TopologyMatches(const std::map<std::string, std::string>& own,
                     const ::google::protobuf::RepeatedPtrField<::csi::v1::Topology>& requisite) {
  if (requisite.empty()) return true;
  return std::any_of(requisite.begin(), requisite.end(), [&](const ::csi::v1::Topology& topology) {
    return std::all_of(topology.segments().begin(), topology.segments().end(), [&](const auto& segment) {
      const auto found = own.find(segment.first);
      return found != own.end() && found->second == segment.second;
    });
  });
}

std::string CapabilityDigest(const ::csi::v1::VolumeCapability& capability) {
  // No field of a capability is a map, so that equal capabilities serialize equally.
  return HashComponent({capability.SerializeAsString()});
}

}  // namespace berth::hostpath
