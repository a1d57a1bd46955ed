// What the kernel itself has of a file system or a block device: layers of overlays, swap files, and loop
// devices.
//
// Of overlays and swap files the kernel shows paths alone: those that were given to mount(2), and the swap
// file's. Those that may be written to are looked up in our mount namespace, and in the one where the overlay
// was mounted. An overlay whose upper directory is not found at all (its path is relative, or leads nowhere
// by now) counts for every volume that is older, since it may write to it. (Before Linux 6.8 it is not known
// which one is older: there it does not count.) A swap file whose path leads nowhere counts for every volume.
//
// Not to be seen: a file that the kernel serves; lower layers, from which an overlay only reads.
//
// Part of a pass of the census, in berth-mount-helper. A file system may not answer, so this is asked in
// processes that may hang; all that do may take two seconds, or the census is incomplete. No shared
// library.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.h"
#include "mounts/census_host.h"
#include "mounts/census_mounts.h"
#include "mounts/census_question.h"

namespace berth {

// By mount: the objects of which every user of the mount is a user.
using KeptMounts = std::unordered_map<size_t, std::vector<size_t>>;
// May be called again for the same hold.
using HoldReporter = std::function<void(const Hold& hold)>;

// A process of each mount namespace that has its root directory.
using NamespaceProcesses = std::map<size_t, pid_t>;

class CensusKernelUsers {
 public:
  CensusKernelUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                    const KeptMounts& kept, const NamespaceProcesses& processes, const HoldReporter& report);

  // Reports what it finds.
  void Look();

 private:
  struct Named;
  struct Loop;
  // What is known so far. It counts, if no other answer follows.
  using Teller = std::function<void(const std::vector<size_t>& objects)>;
  using Question = std::function<std::vector<size_t>(size_t index, const Teller& tell)>;

  void LookAtNames();
  void LookAtLoops();
  void Report(std::vector<size_t> objects, const Hold& hold);
  // For each index the objects that are held. `answers`: those that are if it cannot be asked.
  [[nodiscard]] std::vector<std::vector<size_t>> AskEach(std::vector<std::vector<size_t>> answers,
                                                         const Question& ask);
  void Answer(int to, const std::vector<size_t>& objects, bool done) const;

  [[nodiscard]] std::vector<size_t> ObjectsOf(const Named& named, const Teller& tell);
  [[nodiscard]] std::vector<size_t> ObjectsOf(const Loop& loop, const Teller& tell);
  [[nodiscard]] std::vector<size_t> OfServers() const;
  // Whether an overlay was mounted before the object's volume was there; false: that is not known.
  [[nodiscard]] bool WasBefore(size_t object, const Named& named) const;
  [[nodiscard]] std::vector<size_t> OlderThan(const Named& named) const;
  // Where a name leads, here or where the overlay is mounted; false: nowhere that is known.
  struct Led {
    std::vector<size_t> objects;
    bool leads = false;
  };
  [[nodiscard]] Led Follow(const Named& named, const std::string& name);
  [[nodiscard]] UniqueFd RootOf(size_t mount_namespace);

  // The objects with a volume that contains what is open, or `path` of a namespace, or of the namespace of a
  // mount on which it lies.
  [[nodiscard]] std::vector<size_t> ObjectsAt(int fd);
  [[nodiscard]] std::vector<size_t> ObjectsAt(size_t mount_namespace, const std::string& path);
  [[nodiscard]] bool IsAnothers(size_t object, const std::string& path) const;
  [[nodiscard]] std::vector<size_t> ObjectsOn(std::optional<size_t> mount, const std::string& path);
  CensusHost& host_;
  const CensusQuestion& question_;
  CensusMounts& mounts_;
  const KeptMounts& kept_;
  const NamespaceProcesses& processes_;
  const HoldReporter& report_;
  std::vector<size_t> file_systems_;              // the objects to look for, by kind
  std::map<dev_t, std::vector<size_t>> devices_;  // also of partitions
};

}  // namespace berth
