#include "plugins/hostpath/filesystem.h"

#include <blkid/blkid.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/status.h"
#include "plugins/hostpath/command.h"

namespace berth::hostpath {
namespace {

// mkfs on a slow disk writes journals and inode tables; growing moves block groups about.
constexpr auto kPatience = std::chrono::minutes(15);

// Whether every byte of the file is zero. Holes are skipped, so that this is quick for a sparse file, and it
// ends at the first byte that is not zero.
absl::StatusOr<bool> IsAllZero(int fd, const std::string& path) {
  std::vector<char> buffer(1 << 20);
  off_t position = 0;
  while (true) {
    const off_t data = lseek(fd, position, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return true;
    if (data < 0) return ErrnoStatus(errno, fmt::format("seek in {}", path));
    const off_t hole = lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return ErrnoStatus(errno, fmt::format("seek in {}", path));
    for (position = data; position < hole;) {
      const auto wanted =
          static_cast<size_t>(std::min<off_t>(hole - position, static_cast<off_t>(buffer.size())));
      const ssize_t count = pread(fd, buffer.data(), wanted, position);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
      if (count == 0) return true;
      if (std::any_of(buffer.begin(), buffer.begin() + count, [](char byte) { return byte != 0; }))
        return false;
      position += count;
    }
  }
}

absl::StatusOr<std::string> FindSignature(int fd, const std::string& path) {
  const std::unique_ptr<std::remove_pointer_t<blkid_probe>, void (*)(blkid_probe)> probe(blkid_new_probe(),
                                                                                         blkid_free_probe);
  if (probe == nullptr || blkid_probe_set_device(probe.get(), fd, 0, 0) != 0) {
    return absl::InternalError(fmt::format("probe {}: libblkid cannot read it", path));
  }
  blkid_probe_enable_superblocks(probe.get(), 1);
  blkid_probe_set_superblocks_flags(probe.get(), BLKID_SUBLKS_TYPE);
  blkid_probe_enable_partitions(probe.get(), 1);
  const int result = blkid_do_safeprobe(probe.get());
  if (result == 1) return std::string();
  if (result == -2) return std::string("several file systems at once");
  if (result < 0) return absl::InternalError(fmt::format("probe {}: libblkid failed", path));
  for (const char* tag : {"TYPE", "PTTYPE"}) {
    const char* value = nullptr;
    if (blkid_probe_lookup_value(probe.get(), tag, &value, nullptr) == 0) return std::string(value);
  }
  return std::string("something that libblkid cannot name");
}

}  // namespace

absl::StatusOr<ImageContent> LookIntoImage(const std::string& image) {
  const UniqueFd fd(open(image.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", image));
  ImageContent content;
  BERTH_ASSIGN_OR_RETURN(content.blank, IsAllZero(fd.get(), image));
  if (content.blank) return content;
  BERTH_ASSIGN_OR_RETURN(content.signature, FindSignature(fd.get(), image));
  return content;
}

absl::StatusOr<FormatStep> DecideFormat(Kind kind, FormatState state, const ImageContent& content,
                                        std::string_view fs_type) {
  switch (state) {
    case FormatState::kFormatted:
      return FormatStep::kMount;
    case FormatState::kFormatting:
      if (kind == Kind::kImage || content.blank) return FormatStep::kFormat;
      break;
    case FormatState::kNone:
      if (content.blank) return FormatStep::kFormat;
      break;
  }
  if (content.signature == fs_type) return FormatStep::kAdopt;
  return absl::FailedPreconditionError(
      fmt::format("the volume is to be mounted as {}, but holds {}; it is not formatted over", fs_type,
                  content.signature.empty() ? "data without a known signature" : content.signature));
}

absl::Status MakeFileSystem(const std::string& image, std::string_view fs_type) {
  if (fs_type == "ext4") {
    // Blocks of 4 KiB, so that a small volume can grow large; nothing reserved for root, so that the
    // capacity is the user's; no discard, which would undo a preallocation (the image is zero anyway).
    return RunCommand("mkfs.ext4", {"-q", "-F", "-b", "4096", "-m", "0", "-E", "nodiscard", image},
                      kPatience);
  }
  if (fs_type == "xfs") return RunCommand("mkfs.xfs", {"-q", "-f", "-K", image}, kPatience);
  return absl::InternalError(fmt::format("no way to make a file system {}", fs_type));
}

bool GrowsWhileMounted(std::string_view fs_type) {
  if (fs_type != "ext4") return true;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_SYS_RESOURCE)].effective & CAP_TO_MASK(CAP_SYS_RESOURCE)) != 0;
}

absl::Status GrowFileSystem(std::string_view fs_type, const std::string& device,
                            const std::string& mount_point) {
  if (!GrowsWhileMounted(fs_type)) {
    return absl::FailedPreconditionError(fmt::format(
        "growing {} while it is mounted needs CAP_SYS_RESOURCE, which this process has not; it will be "
        "grown at the next NodeStageVolume",
        fs_type));
  }
  if (fs_type == "ext4") return RunCommand("resize2fs", {device}, kPatience);
  if (fs_type == "xfs") return RunCommand("xfs_growfs", {mount_point}, kPatience);
  return absl::InternalError(fmt::format("no way to grow a file system {}", fs_type));
}

absl::Status GrowUnmountedExt4(const std::string& image) {
  // Exit code 1 says that something was put right, as a journal that was replayed is.
  BERTH_RETURN_IF_ERROR(RunCommand("e2fsck", {"-f", "-p", image}, kPatience, /*highest_good_code=*/1));
  return RunCommand("resize2fs", {image}, kPatience);
}

absl::StatusOr<FrozenFileSystem> FrozenFileSystem::Freeze(const std::string& mount_point) {
  UniqueFd fd(open(mount_point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", mount_point));
  if (ioctl(fd.get(), FIFREEZE, 0) != 0) return ErrnoStatus(errno, fmt::format("freeze {}", mount_point));
  return FrozenFileSystem(std::move(fd));
}

FrozenFileSystem::~FrozenFileSystem() {
  if (fd_.valid() && ioctl(fd_.get(), FITHAW, 0) != 0) {
    SPDLOG_ERROR("a file system could not be thawed: {}", ErrnoStatus(errno, "FITHAW").ToString());
  }
}

void Thaw(const std::string& mount_point) {
  const UniqueFd fd(open(mount_point.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL says that it is not frozen.
  if (fd.valid() && ioctl(fd.get(), FITHAW, 0) == 0)
    SPDLOG_WARN("thawed {}, frozen by an earlier run", mount_point);
}

}  // namespace berth::hostpath
