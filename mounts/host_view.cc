#include "mounts/host_view.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/open_at2.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr std::string_view kPrefix = ".berth-host-view.";

// Of the pid namespace that the kernel itself begins with.
constexpr std::string_view kInitialPidNamespace = "pid:[4026531836]";

// What a check left behind that was killed in the middle.
void SweepUp(const std::string& directory) {
  const DirectoryStream entries(opendir(directory.c_str()));
  if (entries == nullptr) return;
  std::vector<std::string> left;
  while (const dirent* const entry = readdir(entries.get())) {
    if (std::string_view(entry->d_name).starts_with(kPrefix)) left.emplace_back(entry->d_name);
  }
  for (const std::string& name : left) {
    const std::string path = fmt::format("{}/{}", directory, name);
    umount2(path.c_str(), UMOUNT_NOFOLLOW);
    rmdir(path.c_str());
  }
}

// A directory with a mount that has a unique name as its source. Removed with this.
class Token {
 public:
  static absl::StatusOr<std::unique_ptr<Token>> Mount(const std::string& directory) {
    std::array<unsigned char, 16> random{};
    if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
      return ErrnoStatus(errno, "getrandom");
    }
    std::string source = "berth-";
    for (const unsigned char byte : random) source += fmt::format("{:02x}", byte);
    std::string path = fmt::format("{}/{}XXXXXX", directory, kPrefix);
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, fmt::format("make {}", path));
    if (mount(source.c_str(), path.c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "size=4k,nr_inodes=2,mode=0700") != 0) {
      const int error = errno;
      rmdir(path.c_str());
      return ErrnoStatus(error, fmt::format("mount a tmpfs at {}", path));
    }
    struct stat info{};
    const bool known = stat(path.c_str(), &info) == 0;
    return std::unique_ptr<Token>(new Token(std::move(path), std::move(source), known ? info.st_dev : 0));
  }
  ~Token() {
    Unmount().IgnoreError();
    rmdir(path_.c_str());
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  absl::Status Unmount() {
    if (!mounted_) return absl::OkStatus();
    if (umount2(path_.c_str(), UMOUNT_NOFOLLOW) != 0) return ErrnoStatus(errno, "umount " + path_);
    mounted_ = false;
    return absl::OkStatus();
  }

  // Whether PID 1 sees it. Its whole table is read where it does not see it at the same path: that may be
  // another there.
  [[nodiscard]] absl::StatusOr<bool> SeenByHost() {
    if (LiesThere()) {
      at_same_path_ = true;
      return true;
    }
    if (at_same_path_) return false;
    bool seen = false;
    BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/1/mountinfo", [this, &seen](const MountinfoLine& line) {
      seen = line.source == source_;
      return !seen;
    }));
    return seen;
  }

 private:
  Token(std::string path, std::string source, dev_t device)
      : path_(std::move(path)), source_(std::move(source)), device_(device) {}

  // By the device number, which no other file system has meanwhile. A symbolic link leads there where it
  // leads PID 1.
  [[nodiscard]] bool LiesThere() const {
    const UniqueFd root(open("/proc/1/root", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root.valid()) return false;
    const UniqueFd there =
        OpenAt2(root.get(), path_.c_str(), O_PATH | O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    struct stat info{};
    return there.valid() && fstat(there.get(), &info) == 0 && info.st_dev == device_;
  }

  std::string path_;
  std::string source_;
  dev_t device_;
  bool mounted_ = true;
  bool at_same_path_ = false;  // PID 1 has seen it there
};

bool InPidNamespaceOfItsOwn() {
  std::array<char, 64> link{};
  const ssize_t length = readlink("/proc/self/ns/pid", link.data(), link.size());
  return length > 0 && std::string_view(link.data(), static_cast<size_t>(length)) != kInitialPidNamespace;
}

}  // namespace

absl::Status CheckSeenByHost(const std::string& directory) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory, 0711));
  SweepUp(directory);
  BERTH_ASSIGN_OR_RETURN(const auto token, Token::Mount(directory));
  BERTH_ASSIGN_OR_RETURN(const bool seen, token->SeenByHost());
  BERTH_RETURN_IF_ERROR(token->Unmount());
  if (!seen) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: what is mounted here is not seen by the host, so that no consumer would find its volumes: this "
        "process is in a mount namespace of its own, or the file system there is mounted private. Of a "
        "systemd "
        "unit take away PrivateTmp=, PrivateMounts=, PrivateDevices=, ProtectSystem=, ProtectHome=, "
        "ReadWritePaths=, ReadOnlyPaths=, InaccessiblePaths=, BindPaths=, TemporaryFileSystem=, "
        "RootDirectory= "
        "and their like; in a container, bind the directory with shared propagation (rshared); on the host, "
        "\"findmnt -o TARGET,PROPAGATION\" shows what is private, and \"mount --make-rshared /\" makes it "
        "shared",
        directory));
  }
  BERTH_ASSIGN_OR_RETURN(const bool stays, token->SeenByHost());
  if (stays) {
    return absl::FailedPreconditionError(
        fmt::format("{}: what is unmounted here stays mounted on the host: the mounts there are made of "
                    "copies that do not "
                    "follow (\"findmnt -o TARGET,PROPAGATION\" shows which are private)",
                    directory));
  }
  if (InPidNamespaceOfItsOwn()) {
    SPDLOG_WARN(
        "{}: seen by PID 1 of a pid namespace of its own, a container's; whether the host beyond sees it, "
        "and who uses volumes there, is not known",
        directory);
  }
  return absl::OkStatus();
}

}  // namespace berth
