// What the kernel itself has of a file system or a block device: layers of overlays, swap files, and loop
// devices.
//
// Not to be seen: a file that the kernel serves, and layers of an overlay that were given by a symlink or
// relative to a directory.
//
// Part of a pass of the census, in berth-mount-helper. What is behind loop devices is asked by processes that
// may hang. No shared library.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mounts/census_host.h"
#include "mounts/census_mounts.h"
#include "mounts/census_question.h"

namespace berth {

// The mounts on which what somebody has counts, and the objects for which it does.
using KeptMounts = std::unordered_map<size_t, std::vector<size_t>>;
// May be called again for the same hold.
using HoldReporter = std::function<void(const Hold& hold)>;

class CensusKernelUsers {
 public:
  CensusKernelUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                    const KeptMounts& kept, const HoldReporter& report);

  // Reports what it finds.
  void Look();

 private:
  void LookAtOverlays();
  void LookAtSwap();
  void LookAtLoops();
  void Report(const std::vector<size_t>& objects, const Hold& hold);
  // The objects with a volume that contains `path` of that namespace.
  [[nodiscard]] std::vector<size_t> ObjectsAt(size_t mount_namespace, const std::string& path);

  CensusHost& host_;
  const CensusQuestion& question_;
  CensusMounts& mounts_;
  const KeptMounts& kept_;
  const HoldReporter& report_;
  std::vector<size_t> file_systems_;  // the objects to look for, by kind
  std::vector<size_t> devices_;
};

}  // namespace berth
