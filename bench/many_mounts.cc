#include "bench/many_mounts.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.h"
#include "base/testing/mount_namespace.h"

namespace berth {
namespace {

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, fmt::format("mkdir {}", path));
  return absl::OkStatus();
}

absl::Status MountTmpfs(const std::string& path) {
  BERTH_RETURN_IF_ERROR(MakeDirectory(path));
  if (mount("berth-bench", path.c_str(), "tmpfs", 0, "mode=0755,nr_inodes=0") != 0)
    return ErrnoStatus(errno, fmt::format("mount {}", path));
  return absl::OkStatus();
}

}  // namespace

std::string MountPath(const std::string& directory, int index) {
  return fmt::format("{}/at/{}", directory, index);
}

absl::Status MakeMounts(const std::string& directory, int count) {
  // The source on a mount of its own, apart from the targets' parent.
  BERTH_RETURN_IF_ERROR(MountTmpfs(directory));
  const std::string source = directory + "/source";
  BERTH_RETURN_IF_ERROR(MountTmpfs(source));
  BERTH_RETURN_IF_ERROR(MountTmpfs(directory + "/at"));
  for (int i = 0; i < count; ++i) {
    const std::string path = MountPath(directory, i);
    BERTH_RETURN_IF_ERROR(MakeDirectory(path));
    if (mount(source.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return ErrnoStatus(errno, fmt::format("bind {}", path));
  }
  return absl::OkStatus();
}

int WithMountsMain(const std::string& directory, int count, std::vector<std::string> command) {
  if (!UnshareMounts()) {
    fmt::print(stderr, "a mount namespace: {}\n", strerror(errno));
    return 1;
  }
  if (const absl::Status made = MakeMounts(directory, count); !made.ok()) {
    fmt::print(stderr, "{}\n", MessageOf(made));
    return 1;
  }
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fmt::print(stderr, "{}: {}\n", command.front(), strerror(errno));
  return 1;
}

}  // namespace berth
