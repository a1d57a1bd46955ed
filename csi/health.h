// What plugins say is wrong with their volumes and their storage: CSI 1.13's NodeGetVolumeHealth and
// NodeGetStorageHealth, and the VolumeCondition of earlier versions. It is for people: berthd does nothing
// because of it.
//
// Plain values; any thread. Texts are the plugin's, made printable and cut; the first 8 statuses count.
#pragma once

#include <string>
#include <vector>

#include "csi/csi.pb.h"

namespace berth {

struct HealthStatus {
  // CSI's name: "DEGRADED", "STORAGE_UNREACHABLE". In decimal if our copy of the proto does not know it.
  std::string type;
  std::string reason;      // for programs, the plugin's own
  std::string message;     // for people
  std::string capability;  // of storage: the volumes concerned, "mount, MULTI_NODE_MULTI_WRITER"; empty: all

  bool operator==(const HealthStatus&) const = default;
};

// Whether something is wrong with a volume.
struct ConditionView {
  bool abnormal = false;
  std::string message;                 // printable
  std::vector<HealthStatus> statuses;  // of CSI 1.13

  bool operator==(const ConditionView&) const = default;
};

[[nodiscard]] ConditionView ReadHealth(const ::csi::v1::VolumeHealth& health);
[[nodiscard]] ConditionView ReadHealth(const ::csi::v1::VolumeCondition& condition);
[[nodiscard]] std::vector<HealthStatus> ReadHealth(const ::csi::v1::NodeGetStorageHealthResponse& health);

// "DEGRADED (DiskFailed): one of two disks is gone; DATA_LOSS", for people.
[[nodiscard]] std::string Describe(const std::vector<HealthStatus>& statuses);

// Whether a program would see a difference: another type, reason or capability. Messages may change each
// time.
[[nodiscard]] bool SameKind(const std::vector<HealthStatus>& one, const std::vector<HealthStatus>& other);

}  // namespace berth
