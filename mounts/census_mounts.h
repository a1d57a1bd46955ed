// All mounts of all mount namespaces of the node, at one moment.
//
//   Linux 6.12 and later   the kernel lists the namespaces, also those without a process, and their mounts
//   before, or where the   the namespace of each thread, and each that an nsfs mount shows, is entered,
//   kernel does not let    and its /proc/self/mountinfo read. One that only an open file keeps is not seen;
//   us list them           neither is one outside of berthd's pid namespace, if it has one of its own
//
// The second way is berth-mount-helper's alone: it leaves the process in another mount namespace, and a
// process with other threads may not go there. Touches no file system but /proc, and in the second way the
// paths of nsfs mounts. No library but the standard one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mount_calls.h"
#include "base/mountinfo_line.h"
#include "mounts/census_host.h"
#include "mounts/census_question.h"

namespace berth {

// More is reported as incomplete.
inline constexpr size_t kCensusNamespaces = 16'384;
inline constexpr size_t kCensusMounts = 1'000'000;
inline constexpr size_t kCensusThreads = 1'000'000;

struct ListedMount {
  uint64_t id = 0;  // unique, where the kernel has such ids; else `old_id`
  uint64_t parent = 0;
  uint64_t old_id = 0;  // as fdinfo has it
  size_t mount_namespace = 0;
  dev_t device = 0;
  uint64_t peer_group = 0;
  uint64_t follows = 0;
  bool overlay = false;
  bool nsfs = false;  // a file that keeps a namespace
};

struct MountText {
  std::string root;
  std::string target;  // as its namespace's root shows it; empty if it cannot be reached from there
  std::string fs_type;
  std::string source;  // empty if the kernel does not give it (6.12)
  std::string options;
  bool options_unknown = false;  // they are too long
};

struct ListedNamespace {
  uint64_t id = 0;  // 0: not known
  uint64_t inode = 0;
};

// Whether the first way is possible. `own`: a descriptor of our mount namespace.
[[nodiscard]] bool MayListNamespaces(int own);

class CensusMounts {
 public:
  // `own_namespace`: a descriptor of our mount namespace. This process may be in another one by now.
  CensusMounts(CensusHost& host, int own_namespace) : host_(host), own_fd_(own_namespace) {}

  // Reads all. Empty, or why some may be missing. Once.
  [[nodiscard]] std::string Read(KernelAs kernel);

  // What could not be asked since. Empty: nothing.
  [[nodiscard]] const std::string& unknown() const { return unknown_; }
  [[nodiscard]] const std::vector<ListedMount>& mounts() const { return mounts_; }
  [[nodiscard]] const std::vector<ListedNamespace>& namespaces() const { return namespaces_; }
  // The index of our own namespace.
  [[nodiscard]] size_t own() const { return own_; }
  [[nodiscard]] bool unique_ids() const { return unique_ids_; }
  // Empty texts if the mount has gone meanwhile.
  [[nodiscard]] const MountText& Text(size_t mount);
  [[nodiscard]] std::optional<size_t> ById(uint64_t id) const;
  [[nodiscard]] std::optional<size_t> ByOldId(uint64_t id) const;

  // On which directory a mount lies, as a path in the file system beneath it. Empty: not known.
  [[nodiscard]] std::string DirectoryOf(size_t mount);

  // What a path of a mount's namespace, which lies on it, is called in its file system. Empty: not known.
  [[nodiscard]] std::string InFileSystem(size_t mount, const std::string& path);

  // An unmount reaches other namespaces by propagation: what lies on a member or a follower of this peer
  // group, at this directory of its file system, goes with it. Unset: it reaches none.
  using Propagation = std::pair<uint64_t, std::string>;
  [[nodiscard]] std::optional<Propagation> UnmountOf(size_t mount);
  // Whether one of these unmounts takes `mount` away, too.
  [[nodiscard]] bool GoesWith(size_t mount, const std::set<Propagation>& unmounts);

  // On which mount `path` lies, as the root of that namespace shows it.
  [[nodiscard]] std::optional<size_t> MountAt(size_t mount_namespace, const std::string& path);
  // What `rest`, a path in the object's directory, may be called in our namespace. Empty: the directory
  // itself. Other mounts may lie above it.
  [[nodiscard]] std::set<std::string> PathsTo(const CensusObject& object, const std::string& rest);

 private:
  [[nodiscard]] std::string ReadFromKernel();
  [[nodiscard]] std::string ReadNamespace(const ListedNamespace& listed);
  [[nodiscard]] std::string ReadByEntering();
  [[nodiscard]] std::string Enter(int fd, bool own, std::set<uint64_t>* entered);
  // `unique`: what mountinfo's ids are called otherwise. None: only mounts that are not known yet are added.
  [[nodiscard]] std::string ReadMountinfo(const std::string& path, size_t mount_namespace,
                                          const std::unordered_map<uint64_t, uint64_t>* unique,
                                          std::vector<size_t>* nsfs);
  void Add(const ListedMount& mount);

  CensusHost& host_;
  int own_fd_;
  KernelAs kernel_ = KernelAs::kThis;
  bool unique_ids_ = true;
  std::string unknown_;
  std::vector<ListedMount> mounts_;
  std::vector<ListedNamespace> namespaces_;
  size_t own_ = kCensusNamespaces;  // none yet
  std::unordered_map<size_t, MountText> texts_;
  // Paths and options may be long: too long for a stack.
  using TextAnswer = StatmountAnswer<size_t{64} * 1024>;
  std::unique_ptr<TextAnswer> text_answer_ = std::make_unique_for_overwrite<TextAnswer>();
  std::unordered_map<uint64_t, size_t> by_id_;
  std::unordered_map<uint64_t, size_t> by_old_id_;
  std::unordered_map<uint64_t, uint64_t> masters_;  // of peer groups that follow another one
  std::unordered_map<size_t, std::vector<size_t>> in_namespace_;
};

// The number in a link such as "mnt:[4026531841]"; 0 for other texts.
[[nodiscard]] uint64_t NamespaceInode(const std::string& link);
}  // namespace berth
