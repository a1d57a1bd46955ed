// One cgroup v2 directory, and what /proc says about where such directories are.
//
// Any thread, one at a time. The files are the kernel's own memory: reading them does not block. What they
// say of a group that has been removed meanwhile is NOT_FOUND. The parsers take any text.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "base/unique_fd.h"

namespace berth {

// Where a cgroup v2 hierarchy is mounted.
struct CgroupMount {
  std::string mount_point;
  std::string root;  // the group that is seen at the mount point, "/" but in containers

  // The directory of the group that /proc/<pid>/cgroup calls `path`; nullopt where it is not beneath the
  // mount.
  [[nodiscard]] std::optional<std::string> DirectoryOf(std::string_view path) const;
};

// `mountinfo`: the path of the table, /proc/self/mountinfo. Reads it only as far as needed; unset also if it
// cannot be read, which is logged.
[[nodiscard]] std::optional<CgroupMount> FindCgroup2Mount(const std::string& mountinfo);
// Of the text of /proc/<pid>/cgroup: the controllers that cgroup v1 hierarchies have: "memory", "pids", …
[[nodiscard]] std::vector<std::string> Cgroup1Controllers(std::string_view proc_cgroup);
// Of the same text: the group in the v2 hierarchy.
[[nodiscard]] std::optional<std::string> Cgroup2Path(std::string_view proc_cgroup);
// Of files such as memory.events ("oom_kill 1\n…"); 0 where the key is missing.
[[nodiscard]] uint64_t FlatKeyedValue(std::string_view text, std::string_view key);
// "cpu memory pids" as words.
[[nodiscard]] std::vector<std::string> CgroupWords(std::string_view text);

class CgroupDir {
 public:
  // NOT_FOUND if it does not exist.
  [[nodiscard]] static absl::StatusOr<CgroupDir> Open(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  [[nodiscard]] absl::StatusOr<std::string> Read(const char* file) const;
  [[nodiscard]] absl::Status Write(const char* file, std::string_view value) const;
  // For waiting on a file such as cgroup.events; read-only.
  [[nodiscard]] absl::StatusOr<UniqueFd> OpenFile(const char* file) const;

  // Held as long as this object: says to other berthds that the directory is in use. False: it is another's.
  [[nodiscard]] bool Lock() const;
  // The kernel's number of the group, not reused before the next boot. 0: not known.
  [[nodiscard]] uint64_t Id() const;
  // Whether the path still leads here.
  [[nodiscard]] bool StillThere() const;
  // Whether a process is in it or beneath it; false of one that was removed.
  [[nodiscard]] absl::StatusOr<bool> Populated() const;
  // Of it and of groups beneath it.
  [[nodiscard]] absl::StatusOr<std::vector<pid_t>> Members() const;

  // Ends every process in it and beneath it, those that are being forked too, and waits until none is left.
  // DEADLINE_EXCEEDED: some do not end.
  [[nodiscard]] Awaitable<absl::Status> KillAll(TimePoint deadline) const;

 private:
  CgroupDir(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  [[nodiscard]] absl::Status KillOneByOne() const;

  std::string path_;
  UniqueFd fd_;
};

}  // namespace berth
