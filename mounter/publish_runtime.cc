// CheckForm: what can be said of a request by looking at nothing else.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/stubs/common.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mounter/publish_check.h"
#include "mounter/root_permissions.h"
#include "mounter/volume_rpcs.h"

namespace berth {
namespace {

using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

constexpr size_t kVolumeIdLimit = 4096;
constexpr size_t kConsumerLimit = 1024;
constexpr size_t kMapLimit = 4096;  // the specification's, keys and values together
constexpr size_t kSecretsLimit = 1 << 20;
constexpr size_t kFsTypeLimit = 128;
constexpr size_t kMountFlagsLimit = 4096;
constexpr size_t kMountGroupLimit = 128;  // the specification's of a string
constexpr size_t kPathLimit = 4095;
constexpr size_t kFileNameLimit = 255;
constexpr size_t kRuntimeFsTypes = 64;

// A name that a consumer's end is waited for by, or that secrets are read from.
bool IsPlainPath(std::string_view path) {
  if (!path.starts_with('/') || path.find('\0') != std::string_view::npos) return false;
  return path != "/.." && path.find("/../") == std::string_view::npos && !path.ends_with("/..");
}

// Collects what is wrong with one request.
class Mistakes {
 public:
  void Add(std::string mistake) { found_.push_back(std::move(mistake)); }
  void AddAll(std::vector<std::string> mistakes) { std::ranges::move(mistakes, std::back_inserter(found_)); }

  void Text(std::string_view what, std::string_view text, size_t limit) {
    if (text.size() > limit) {
      Add(fmt::format("{}: {} bytes, at most {}", what, text.size(), limit));
    } else if (!IsUtf8(text)) {
      Add(fmt::format("{}: not valid UTF-8, as CSI demands: {}", what, Printable(text, 64)));
    }
  }
  // Values are never shown: a context may hold what should not be.
  void Map(std::string_view what, const std::map<std::string, std::string>& map, size_t limit) {
    size_t size = 0;
    bool text = true;
    for (const auto& [key, value] : map) {
      size += key.size() + value.size();
      text = text && IsUtf8(key) && IsUtf8(value);
    }
    if (!text) Add(fmt::format("{}: holds text that is not valid UTF-8", what));
    if (size > limit) Add(fmt::format("{}: {} bytes in all, at most {}", what, size, limit));
  }

  [[nodiscard]] absl::Status ToStatus() const {
    if (found_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{}", fmt::join(found_, "; ")));
  }

 private:
  std::vector<std::string> found_;
};

void CheckNames(const std::string& plugin_id, const std::string& volume_id, const std::string& consumer,
                const std::string& name, Mistakes& mistakes) {
  if (plugin_id.empty()) mistakes.Add("plugin_id: empty; name the plugin");
  if (volume_id.empty()) mistakes.Add("volume_id: empty; give the storage's own id of the volume");
  if (consumer.empty()) mistakes.Add("consumer: empty; name who uses the volume");
  mistakes.Text("plugin_id", plugin_id, kConsumerLimit);
  mistakes.Text("volume_id", volume_id, kVolumeIdLimit);
  mistakes.Text("consumer", consumer, kConsumerLimit);
  mistakes.Text("name", name, kConsumerLimit);
}

bool OnOneNode(AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_WRITER || mode == AccessMode::SINGLE_NODE_READER_ONLY ||
         mode == AccessMode::SINGLE_NODE_SINGLE_WRITER || mode == AccessMode::SINGLE_NODE_MULTI_WRITER;
}

void CheckUse(const VolumeUse& use, bool readonly, Mistakes& mistakes) {
  if (use.access_mode == AccessMode::UNKNOWN || !AccessMode::Mode_IsValid(use.access_mode)) {
    mistakes.Add("access mode: unknown");
  } else if (ReadsOnly(use.access_mode) && !readonly) {
    mistakes.Add(fmt::format("access mode {} allows reading only: ask for readonly too",
                             AccessMode::Mode_Name(use.access_mode)));
  }
  if (use.access_type == AccessType::kBlock) {
    if (!use.fs_type.empty()) {
      mistakes.Add("fs_type: a block volume has no file system; leave it out, or ask for mount access");
    }
    if (!use.mount_flags.empty()) {
      mistakes.Add("mount flags: a block volume is not mounted; leave them out, or ask for mount access");
    }
    if (!use.volume_mount_group.empty()) {
      mistakes.Add(
          "volume_mount_group: a block volume is not mounted; leave it out, or ask for mount access");
    }
  }
  mistakes.Text("fs_type", use.fs_type, kFsTypeLimit);
  mistakes.Text("volume_mount_group", use.volume_mount_group, kMountGroupLimit);
  size_t size = 0;
  bool text = true;
  for (const std::string& flag : use.mount_flags) {
    size += flag.size();
    text = text && IsUtf8(flag);
  }
  if (!text) mistakes.Add("mount flags: not valid UTF-8");
  if (size > kMountFlagsLimit) {
    mistakes.Add(fmt::format("mount flags: {} bytes in all, at most {}", size, kMountFlagsLimit));
  }
}

void CheckPermissions(const PublishRequest& request, Mistakes& mistakes) {
  if (!Wanted(request.permissions)) return;
  if (request.use.access_type == AccessType::kBlock) {
    mistakes.Add("permissions: they are those of a file system's root; a block volume has none");
  }
  if (request.readonly) mistakes.Add("permissions: they cannot be set through a read-only mount");
  if (request.permissions.group && !request.use.volume_mount_group.empty()) {
    mistakes.Add("group: volume_mount_group says already whose the files are; ask for one of the two");
  }
  mistakes.AddAll(MistakesIn(request.permissions));
}

void CheckEphemeral(const PublishRequest& request, Mistakes& mistakes) {
  const auto word = request.volume_context.find(std::string(kEphemeralKey));
  const bool says = word != request.volume_context.end() && word->second == "true";
  if (!request.ephemeral) {
    if (says) {
      mistakes.Add(fmt::format("volume_context: {} is for the node to set; ask for an ephemeral volume",
                               kEphemeralKey));
    }
    return;
  }
  if (word != request.volume_context.end() && !says) {
    mistakes.Add(fmt::format("volume_context: {} contradicts that the volume is ephemeral", kEphemeralKey));
  }
  if (request.use.access_type == AccessType::kBlock) {
    mistakes.Add("ephemeral: such a volume is mounted; ask for mount access");
  }
  if (AccessMode::Mode_IsValid(request.use.access_mode) && !OnOneNode(request.use.access_mode)) {
    mistakes.Add(fmt::format("ephemeral: such a volume is on this node alone; access mode {} is for several",
                             AccessMode::Mode_Name(request.use.access_mode)));
  }
  if (request.publish_context) {
    mistakes.Add("publish_context: an ephemeral volume is made by its publish, so nothing can be attached");
  }
}

void CheckLife(const ConsumerLife& life, Mistakes& mistakes) {
  switch (life.kind) {
    case ConsumerLife::Kind::kUnknown:
      return;
    case ConsumerLife::Kind::kProcess:
      if (life.pid <= 0 || life.pid > INT32_MAX) {
        mistakes.Add(fmt::format("life: {} is no process's number", life.pid));
      }
      return;
    case ConsumerLife::Kind::kCgroup:
      if (life.name.size() > kPathLimit || !IsPlainPath(life.name)) {
        mistakes.Add(fmt::format("life: a cgroup's directory is an absolute path, without ..: {}",
                                 Printable(life.name, 128)));
      }
      return;
    case ConsumerLife::Kind::kUnit: {
      const bool named = !life.name.empty() && life.name.size() <= kFileNameLimit &&
                         life.name.find_first_of(std::string_view("/\0", 2)) == std::string::npos &&
                         life.name.find('.') != std::string::npos;
      if (!named) {
        mistakes.Add(
            fmt::format("life: a unit has a name such as web.service: {}", Printable(life.name, 128)));
      }
      return;
    }
  }
}

void CheckSecrets(const PublishRequest& request, Mistakes& mistakes) {
  mistakes.Map("secrets", request.secrets, kSecretsLimit);
  const SecretsReference& reference = request.secrets_reference;
  if (reference.kind == SecretsReference::Kind::kNone) return;
  if (!request.secrets.empty()) {
    mistakes.Add("secrets_reference: the secrets are given already; give them, or say where they are");
  }
  if (reference.kind == SecretsReference::Kind::kFile) {
    if (reference.name.size() > kPathLimit || !IsPlainPath(reference.name)) {
      mistakes.Add("secrets_reference: a file is named by its absolute path, without ..");
    }
    return;
  }
  const bool named = !reference.name.empty() && reference.name.size() <= kFileNameLimit &&
                     reference.name.find_first_of(std::string_view("/\0", 2)) == std::string::npos &&
                     reference.name != "." && reference.name != "..";
  if (!named) mistakes.Add("secrets_reference: a credential has the name of a file, without a slash");
}

void CheckRuntime(const RuntimeAbility& runtime, Mistakes& mistakes) {
  mistakes.Text("runtime name", runtime.name, kConsumerLimit);
  if (!runtime.mount && !runtime.block) {
    mistakes.Add("runtime: it can use neither mounted volumes nor block devices, so none at all");
  }
  if (runtime.fs_types.size() > kRuntimeFsTypes) {
    mistakes.Add(fmt::format("runtime: {} fs types, at most {}", runtime.fs_types.size(), kRuntimeFsTypes));
  }
  const bool text = std::ranges::all_of(runtime.fs_types, [](const std::string& type) {
    return !type.empty() && type.size() <= kFsTypeLimit && IsUtf8(type);
  });
  if (!text) mistakes.Add(fmt::format("runtime: an fs type is text of 1 to {} bytes", kFsTypeLimit));
}

std::string NameOf(const RuntimeAbility& runtime) {
  return runtime.name.empty() ? "the consumer's runtime"
                              : fmt::format("\"{}\"", Printable(runtime.name, 128));
}

std::string FileSystemsOf(const RuntimeAbility& runtime) {
  return Printable(fmt::format("{}", fmt::join(runtime.fs_types, ", ")), 256);
}

// "fuse.sshfs" and "fuse" are the same as far as is told: not every kernel tells the subtype.
bool SameFileSystem(std::string_view listed, std::string_view shown) {
  if (listed == shown || (listed == "nfs" && shown == "nfs4")) return true;
  const std::string_view listed_base = listed.substr(0, listed.find('.'));
  const std::string_view shown_base = shown.substr(0, shown.find('.'));
  return listed_base == shown_base && (listed_base == listed || shown_base == shown);
}

bool Listed(const RuntimeAbility& runtime, std::string_view fs_type) {
  return std::ranges::any_of(runtime.fs_types,
                             [fs_type](const std::string& type) { return SameFileSystem(type, fs_type); });
}

// In people's words, and before anything is done: what the runtime cannot use it will not get.
absl::Status RuntimeCanUse(const PublishRequest& request) {
  if (!request.runtime) return absl::OkStatus();
  const RuntimeAbility& runtime = *request.runtime;
  const std::string who = NameOf(runtime);
  if (request.use.access_type == AccessType::kBlock && !runtime.block) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use block devices: ask for the volume mounted, with a file system", who));
  }
  if (request.use.access_type == AccessType::kMount && !runtime.mount) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use mounted volumes: ask for the volume as a block device", who));
  }
  if (request.readonly && !runtime.readonly) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot keep a volume read-only: publish it writable, or use another runtime", who));
  }
  const std::string& fs_type = request.use.fs_type;
  if (!fs_type.empty() && !runtime.fs_types.empty() && !Listed(runtime, fs_type)) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot use a volume with file system {}, only with {}", who, Printable(fs_type, 64),
                    FileSystemsOf(runtime)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckForm(const PublishRequest& request) {
  Mistakes mistakes;
  CheckNames(request.plugin_id, request.volume_id, request.consumer, request.name, mistakes);
  CheckUse(request.use, request.readonly, mistakes);
  mistakes.Map("volume_context", request.volume_context, kMapLimit);
  if (request.publish_context) mistakes.Map("publish_context", *request.publish_context, kMapLimit);
  CheckSecrets(request, mistakes);
  CheckEphemeral(request, mistakes);
  CheckPermissions(request, mistakes);
  CheckLife(request.life, mistakes);
  if (request.runtime) CheckRuntime(*request.runtime, mistakes);
  BERTH_RETURN_IF_ERROR(mistakes.ToStatus());
  return RuntimeCanUse(request);
}

bool LeavesFileSystemOpen(const PublishRequest& request) {
  return request.runtime && !request.runtime->fs_types.empty() && request.use.fs_type.empty() &&
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

absl::Status CheckForm(const UnpublishRequest& request) {
  Mistakes mistakes;
  CheckNames(request.plugin_id, request.volume_id, request.consumer, request.name, mistakes);
  return mistakes.ToStatus();
}

}  // namespace berth
