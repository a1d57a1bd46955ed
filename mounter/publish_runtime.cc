// What the consumer's runtime can use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/status.h"
#include "mounter/publish_check.h"

namespace berth {
namespace {

std::string NameOf(const RuntimeAbility& runtime) {
  return runtime.name().empty() ? "the consumer's runtime"
                                : fmt::format("\"{}\"", Printable(runtime.name(), 128));
}

std::string FileSystemsOf(const RuntimeAbility& runtime) {
  return Printable(fmt::format("{}", fmt::join(runtime.fs_types(), ", ")), 256);
}

// "fuse.sshfs" and "fuse" count as the same: not every kernel shows the subtype.
bool SameFileSystem(std::string_view listed, std::string_view shown) {
  if (listed == shown || (listed == "nfs" && shown == "nfs4")) return true;
  const std::string_view listed_base = listed.substr(0, listed.find('.'));
  const std::string_view shown_base = shown.substr(0, shown.find('.'));
  return listed_base == shown_base && (listed_base == listed || shown_base == shown);
}

bool Listed(const RuntimeAbility& runtime, std::string_view fs_type) {
  return std::ranges::any_of(runtime.fs_types(),
                             [fs_type](const std::string& type) { return SameFileSystem(type, fs_type); });
}

}  // namespace

absl::Status CheckRuntime(const PublishRequest& request) {
  if (!request.runtime) return absl::OkStatus();
  const RuntimeAbility& runtime = *request.runtime;
  const std::string who = NameOf(runtime);
  if (request.use.access_type == AccessType::kBlock && !runtime.block()) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use block devices: ask for the volume mounted, with a file system", who));
  }
  if (request.use.access_type == AccessType::kMount && !runtime.mount()) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use mounted volumes: ask for the volume as a block device", who));
  }
  if (request.readonly && !runtime.readonly()) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot keep a volume read-only: publish it writable, or use another runtime", who));
  }
  const std::string& fs_type = request.use.fs_type;
  if (!fs_type.empty() && !runtime.fs_types().empty() && !Listed(runtime, fs_type)) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use a volume with file system {}, only with {}", who, Printable(fs_type, 64),
                    FileSystemsOf(runtime)));
  }
  return absl::OkStatus();
}

bool LeavesFileSystemOpen(const PublishRequest& request) {
  return request.runtime && !request.runtime->fs_types().empty() && request.use.fs_type.empty() &&
         request.use.access_type == AccessType::kMount;
}

absl::Status CheckFileSystem(const PublishRequest& request, std::string_view fs_type) {
  if (!LeavesFileSystemOpen(request)) return absl::OkStatus();
  const RuntimeAbility& runtime = *request.runtime;
  if (Listed(runtime, fs_type)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("plugin {} has mounted a file system of type {}, which {} cannot use, only {}: ask for one "
                  "of these (--fs), or use another runtime",
                  request.plugin_id, Printable(fs_type, 64), NameOf(runtime), FileSystemsOf(runtime)));
}

}  // namespace berth
