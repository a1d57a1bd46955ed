// File systems in images: checking, making, growing, freezing.
//
// The rule that nothing here breaks: an image that may hold data is never formatted. Blocks; any thread.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "plugins/hostpath/volume_kind.h"

namespace berth::hostpath {

// What an image holds.
struct ImageContent {
  bool blank = false;     // not one byte in it but zeros
  std::string signature;  // what libblkid finds: ext4, xfs, LVM2_member, a partition table; or empty
};
[[nodiscard]] absl::StatusOr<ImageContent> LookIntoImage(const std::string& image);

// What is to be done with an image before it is mounted as `fs_type`.
enum class FormatStep {
  kMount,   // it holds the file system
  kAdopt,   // it holds the file system, though nothing says that we made it: remember, then mount
  kFormat,  // it is ours and empty
};
// Pure. FAILED_PRECONDITION if the image holds something else, which then stays as it is.
//
// `state` kFormatting means that mkfs was cut off. In a volume of kind image no user can have written since
// (it is only ever handed out mounted), so that it is made again; a block volume may have been used raw in
// the meantime, so that only a blank one is formatted.
[[nodiscard]] absl::StatusOr<FormatStep> DecideFormat(Kind kind, FormatState state,
                                                      const ImageContent& content, std::string_view fs_type);

// Makes a file system in the image file, over whatever is there.
[[nodiscard]] absl::Status MakeFileSystem(const std::string& image, std::string_view fs_type);

// Lets the mounted file system at `mount_point`, on `device`, take up the whole of its device. It must be
// mounted writable. Growing what has already grown is OK. FAILED_PRECONDITION where this process may not
// (GrowsWhileMounted).
[[nodiscard]] absl::Status GrowFileSystem(std::string_view fs_type, const std::string& device,
                                          const std::string& mount_point);

// Whether this process may grow a mounted file system of this type: for ext4 the kernel wants
// CAP_SYS_RESOURCE, which a container may lack.
[[nodiscard]] bool GrowsWhileMounted(std::string_view fs_type);

// Lets an ext4 in an image that is in use nowhere take up the whole of the image; checks it first, and
// replays its journal.
[[nodiscard]] absl::Status GrowUnmountedExt4(const std::string& image);

// Holds a mounted file system still: everything written before is in its image, and writers wait.
class FrozenFileSystem {
 public:
  [[nodiscard]] static absl::StatusOr<FrozenFileSystem> Freeze(const std::string& mount_point);
  FrozenFileSystem(FrozenFileSystem&&) = default;
  FrozenFileSystem& operator=(FrozenFileSystem&&) = delete;
  ~FrozenFileSystem();

 private:
  explicit FrozenFileSystem(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Ends a freeze that a crash left behind. Nothing happens to a file system that is not frozen.
void Thaw(const std::string& mount_point);

}  // namespace berth::hostpath
