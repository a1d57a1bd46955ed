// What volume a request asks for, and whether a volume can do what is asked of it: decisions only.
//
// Pure; any thread. Volumes, files and mounts are made elsewhere.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/map.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csi/csi.pb.h"
#include "plugins/hostpath/volume_kind.h"

namespace berth::hostpath {

using StringMap = ::google::protobuf::Map<std::string, std::string>;
using Capabilities = ::google::protobuf::RepeatedPtrField<::csi::v1::VolumeCapability>;
using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

// What this machine offers.
struct Machine {
  bool loop_devices = false;
  Kind default_kind =
      Kind::kDirectory;  // of a volume that is to be mounted, unless a parameter says otherwise
};

// The parameters of CreateVolume, parsed.
struct Parameters {
  std::optional<Kind> kind;
  std::string fs_type;
  bool preallocate = false;
  bool direct_io = false;

  // The parameters that matter, in a form that is equal for equal ones. A CO's own keys
  // (csi.storage.k8s.io/…) are left out: they may differ between repeats.
  std::string canonical;
};

// INVALID_ARGUMENT for an unknown key or value; the message lists the right ones.
[[nodiscard]] absl::StatusOr<Parameters> ParseParameters(const StringMap& parameters);

// INVALID_ARGUMENT unless there are none but a CO's own: snapshots have no parameters.
[[nodiscard]] absl::Status CheckSnapshotParameters(const StringMap& parameters);

// What a volume is copied from.
struct Source {
  Kind kind = Kind::kDirectory;
  std::string fs_type;
  int64_t size = 0;
};

struct VolumePlan {
  Kind kind = Kind::kDirectory;
  std::string fs_type;  // empty for a directory, and for a block volume that is never mounted
};

// The kind and file system that satisfy all of `capabilities` (may be none) and `parameters`.
// INVALID_ARGUMENT where none does, in words that say which two things conflict.
[[nodiscard]] absl::StatusOr<VolumePlan> PlanVolume(const Capabilities& capabilities,
                                                    const Parameters& parameters, const Machine& machine,
                                                    const std::optional<Source>& source);

// The smallest volume of this kind, in bytes.
[[nodiscard]] int64_t MinimumSize(Kind kind, std::string_view fs_type);

// The size to make: at least required, the minimum and the source; at most the limit; 1 GiB by default (0,
// unknown, for a directory). OUT_OF_RANGE if that cannot be.
[[nodiscard]] absl::StatusOr<int64_t> ChooseCapacity(const ::csi::v1::CapacityRange& range,
                                                     const VolumePlan& plan,
                                                     const std::optional<Source>& source);

// Whether a volume of `capacity` satisfies `range`.
[[nodiscard]] bool CapacityFits(int64_t capacity, const ::csi::v1::CapacityRange& range);

// Whether such a volume can be used as `capability` says. FAILED_PRECONDITION with the reason if not.
[[nodiscard]] absl::Status SupportsCapability(Kind kind, std::string_view fs_type,
                                              const ::csi::v1::VolumeCapability& capability);

// Whether the mode allows reading only.
[[nodiscard]] bool IsReaderOnly(AccessMode::Mode mode);
// Whether one node may publish a volume in this mode at several targets (CSI, NodePublishVolume, table 2).
[[nodiscard]] bool AllowsSeveralTargets(AccessMode::Mode mode);

// Whether a node that has `own` segments lies in one of `requisite` (or `requisite` is empty).
[[nodiscard]] bool TopologyMatches(
    const std::map<std::string, std::string>& own,
    const ::google::protobuf::RepeatedPtrField<::csi::v1::Topology>& requisite);

// A fingerprint of a capability, for telling whether a repeat asks for the same. Mount flags may be
// sensitive, so that they are not kept themselves.
[[nodiscard]] std::string CapabilityDigest(const ::csi::v1::VolumeCapability& capability);

}  // namespace berth::hostpath
