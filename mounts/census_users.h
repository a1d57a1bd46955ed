// What keeps a file system or a block device besides mounts: what the threads of all processes have open,
// mapped, or for their working or root directory; and what the kernel itself has (census_kernel_users.h).
//
// A thread may have a table of descriptors of its own, and outlive its process's first thread: each is looked
// at, unless it shares with the first. Not to be seen: a descriptor in flight on a socket, a file registered
// with io_uring, and processes that the kernel does not let us read.
//
// Runs in berth-mount-helper. Asks no file system: a descriptor's mount is in fdinfo, a directory's comes
// with its handle. Only on kernels before 6.12, of detached mounts, and of what may be a block device it asks
// statx(2) for what the kernel has cached. Reading what a process has mapped waits for a process that changes
// its mappings: those that wait in the kernel come last.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mounts/census_host.h"
#include "mounts/census_kernel_users.h"
#include "mounts/census_mounts.h"
#include "mounts/census_question.h"

namespace berth {

class CensusUsers {
 public:
  // A part of a file that a process has mapped.
  struct Mapping {
    dev_t device = 0;  // as stat(2) shows it
    uint64_t inode = 0;
    uint64_t from = 0;
    uint64_t to = 0;
    std::string path = {};  // empty: not asked for
  };

  CensusUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts, KeptMounts kept,
              HoldReporter report);

  // Reports what it finds. Empty, or why something may be missing.
  [[nodiscard]] std::string Look();

 private:
  [[nodiscard]] std::string LookAtProcesses();
  [[nodiscard]] bool IsHelper(const std::string& process);
  // `thread`: its directory in /proc.
  void LookAtDescriptors(pid_t pid, const std::string& thread);
  void LookAtDirectories(pid_t pid, const std::string& thread);
  void LookAtMaps(pid_t pid, pid_t thread);
  void LookAtMapping(pid_t pid, pid_t thread, const Mapping& mapping);
  // The objects that something of a process holds, and what is to be said of its mount (Hold::keeper).
  struct Found {
    std::vector<size_t> objects;
    std::string keeper = {};
  };
  // A hold of each of the objects.
  void Report(const Found& found, const Hold& hold);
  // `mount`: unset if it is in no namespace.
  [[nodiscard]] Found OnMount(std::optional<size_t> mount, const std::string& link);
  [[nodiscard]] Found ByPath(const std::string& process, const Mapping& mapping);
  [[nodiscard]] std::string PathOf(const std::string& process, const std::string& link,
                                   const Mapping& mapping);
  [[nodiscard]] Found OfDetached(const std::string& link);
  // What may lie beneath the file systems of mounts that are in no namespace, by device.
  enum class Beneath {
    kNothing,  // the file system is all there is to it
    kBtrfs,    // another subvolume of one
    kAnything,
  };
  [[nodiscard]] Beneath BeneathUnlisted(dev_t device, const std::string& link);
  [[nodiscard]] std::vector<size_t> ObjectsOfDevice(const std::string& link);

  CensusHost& host_;
  const CensusQuestion& question_;
  CensusMounts& mounts_;
  KeptMounts kept_;
  HoldReporter report_;
  std::set<uint64_t> recorded_;
  std::optional<struct statx> self_;              // the program of this process
  std::vector<size_t> file_systems_;              // the objects to look for, by kind
  std::map<dev_t, std::vector<size_t>> devices_;  // also of partitions
  NamespaceProcesses processes_;
  std::set<dev_t> listed_;          // the devices of all mounts
  uint64_t newest_ = ~uint64_t{0};  // no mount that was listed has a larger unique id
  std::map<dev_t, Beneath> unlisted_;
  // Files that are no block devices, by device and inode.
  std::set<std::pair<uint64_t, uint64_t>> no_devices_;
};

}  // namespace berth
