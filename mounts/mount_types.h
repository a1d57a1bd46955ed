// What is said of mounts, as values: where one is made, what the kernel shows of it, who uses it.
//
// Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace berth {

// Where a published file system is mounted a second time, for people and programs that know it by a path of
// their own. Empty: nowhere.
struct PublishedPath {
  std::string path;   // absolute, without symlinks, outside of the tree
  bool suid = false;  // set-user-id bits count there
  bool dev = false;   // device nodes count there

  bool operator==(const PublishedPath&) const = default;
};

// A mount as mountinfo shows it.
struct KernelMount {
  std::string target;
  std::string source;
  std::string fs_type;
  std::string options;
  uint64_t id = 0;  // 0: not asked, for it lies inside another file system
};

// Who has a volume, or keeps a mount busy.
struct MountHolder {
  int64_t pid = 0;  // 0: no process, but what `how` says
  std::string command = {};
  std::optional<uint32_t> uid = {};  // the process's real user; unset: not known
  std::string consumer = {};         // of this node's publications, where the process is one's
  std::string how = {};  // "open file /x", "in another mount namespace, mounted at /x", "what is mounted
                         // inside it: /x (ext4)"
};

}  // namespace berth
