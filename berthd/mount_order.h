// When the machine is shut down, systemd must stop berthd before it unmounts what berthd has mounted: berthd
// releases the volumes then, and a volume that systemd has unmounted before is released without its plugin.
//
// systemd makes a unit for every mount that it sees, and stops units in the reverse of their order at start.
// So the mount units of the tree are ordered before berthd's service, by a drop-in for each unit with a name
// that begins with the tree's. An order alone starts nothing, and delays nothing that is not being started
// itself. The package has the drop-ins for /var/lib/berth/volumes. For another tree berthd writes them to
// /run/systemd/system when it starts.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

struct DropIn {
  std::string path;  // beneath the directory of units
  std::string content;

  bool operator==(const DropIn&) const = default;
};

// The drop-ins for the mount unit of `tree`, an absolute path, and for the units of all mounts below it.
[[nodiscard]] std::vector<DropIn> MountDropIns(const std::string& tree, const std::string& service);

// Writes them beneath `unit_dir`. True: something is other than it was. Blocking.
[[nodiscard]] absl::StatusOr<bool> WriteDropIns(const std::string& unit_dir,
                                                const std::vector<DropIn>& drop_ins);

// Where systemd runs berthd as a service and the package has no drop-ins for the tree of `state_dir`: writes
// them, and lets systemd read them for what is mounted there already. Before the tree is mounted.
[[nodiscard]] Awaitable<absl::Status> OrderMountUnits(std::string state_dir, TimePoint deadline);

}  // namespace berth
