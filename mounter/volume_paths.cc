#include "mounter/volume_paths.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>

#include "base/status.h"
#include "mounter/journal.pb.h"

namespace berth {
namespace {

constexpr mode_t kTraversable = 0711;
constexpr mode_t kPrivate = 0700;
constexpr size_t kIdentityLimit = 64 * 1024;

std::string VolumeDirectory(const VolumeRecord& record) {
  return VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
}
std::string Staging(const VolumeRecord& record) { return VolumeDirectory(record) + "/staging"; }
std::string Publish(const VolumeRecord& record) { return VolumeDirectory(record) + "/publish"; }
std::string Identity(const VolumeRecord& record) { return VolumeDirectory(record) + "/identity.json"; }
std::string PublicationDirectory(const VolumeRecord& record, const PublicationRecord& publication) {
  return fmt::format("{}/{}", Publish(record), publication.component);
}
std::string Target(const VolumeRecord& record, const PublicationRecord& publication) {
  return PublicationDirectory(record, publication) + "/target";
}

// The record's identifying part as JSON. No context, no mount flags: they may tell what only root should
// know for longer than the volume is here.
absl::StatusOr<std::string> IdentityText(const VolumeRecord& record) {
  journal::v1::Volume identity;
  identity.set_plugin_id(record.plugin_id);
  identity.set_volume_id(record.volume_id);
  identity.set_driver_name(record.driver_name);
  identity.set_stages(record.stages);
  identity.mutable_capability()->set_access_mode(record.use.access_mode);
  identity.mutable_capability()->set_block(record.use.access_type == AccessType::kBlock);
  identity.mutable_capability()->set_fs_type(record.use.fs_type);
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(identity, &text, options);
  if (!status.ok()) return absl::InternalError(fmt::format("write an identity file: {}", status.ToString()));
  return text;
}

// Whether a removal was refused because something is in the way, rather than failed.
bool IsInTheWay(const absl::Status& status) { return status.code() == absl::StatusCode::kFailedPrecondition; }

}  // namespace

absl::StatusOr<VolumePaths> VolumePaths::Open(const std::string& tree) {
  BERTH_ASSIGN_OR_RETURN(SafeRoot root, SafeRoot::Open(tree));
  return VolumePaths(std::move(root));
}

std::string VolumePaths::VolumeKey(std::string_view plugin_id, std::string_view volume_id) {
  return HashComponent({plugin_id, volume_id});
}

std::string VolumePaths::PublicationComponent(const PublicationKey& key) {
  return HashComponent({key.consumer, key.name});
}

std::string VolumePaths::StagingPath(const VolumeRecord& record) const {
  return root_.Absolute(Staging(record));
}

std::string VolumePaths::TargetPath(const VolumeRecord& record, const PublicationRecord& publication) const {
  return root_.Absolute(Target(record, publication));
}

absl::Status VolumePaths::Make(const VolumeRecord& record, const PublicationRecord& publication) const {
  BERTH_ASSIGN_OR_RETURN(const PathFacts identity, root_.Look(Identity(record)));
  BERTH_RETURN_IF_ERROR(root_.MakeDirectories(PublicationDirectory(record, publication), kTraversable));
  BERTH_RETURN_IF_ERROR(root_.MakeDirectories(Staging(record), kPrivate));
  if (identity.exists) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const std::string text, IdentityText(record));
  BERTH_RETURN_IF_ERROR(root_.WriteFile(Identity(record), text, 0600));
  // The volume's directory itself is an entry of the tree.
  if (fsync(root_.fd()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", root_.path()));
  return absl::OkStatus();
}

absl::StatusOr<PathFacts> VolumePaths::LookAtStaging(const VolumeRecord& record) const {
  return root_.Look(Staging(record));
}

absl::StatusOr<PathFacts> VolumePaths::LookAtTarget(const VolumeRecord& record,
                                                    const PublicationRecord& publication) const {
  return root_.Look(Target(record, publication));
}

absl::Status VolumePaths::RemovePublication(const VolumeRecord& record,
                                            const PublicationRecord& publication) const {
  const std::string target = Target(record, publication);
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(target));
  if (facts.exists && S_ISDIR(facts.mode)) {
    BERTH_RETURN_IF_ERROR(root_.RemoveEmptyDirectory(target));
  } else if (facts.exists) {
    if (record.use.access_type != AccessType::kBlock) {
      return absl::FailedPreconditionError(
          fmt::format("{}: a file where a directory was expected; left as it is", root_.Absolute(target)));
    }
    BERTH_RETURN_IF_ERROR(root_.RemoveFile(target, /*must_be_empty=*/true));
  }
  return root_.RemoveEmptyDirectory(PublicationDirectory(record, publication));
}

absl::Status VolumePaths::RemoveVolume(const VolumeRecord& record) const {
  absl::Status left;
  for (const std::string& directory : {Staging(record), Publish(record)}) {
    const absl::Status status = root_.RemoveEmptyDirectory(directory);
    if (!status.ok() && !IsInTheWay(status)) return status;
    if (!status.ok()) left = status;
  }
  if (!left.ok()) return left;
  BERTH_RETURN_IF_ERROR(root_.RemoveFile(Identity(record), /*must_be_empty=*/false));
  return root_.RemoveEmptyDirectory(VolumeDirectory(record));
}

absl::StatusOr<std::vector<std::string>> VolumePaths::List() const {
  // A descriptor of its own: reading a directory moves its offset.
  UniqueFd fd(openat(root_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", root_.path()));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(fdopendir(fd.get()), closedir);
  if (directory == nullptr) return ErrnoStatus(errno, fmt::format("read {}", root_.path()));
  [[maybe_unused]] const int taken = fd.Release();
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

std::string VolumePaths::DescribeDirectory(const std::string& name) const {
  const auto text = root_.ReadFile(name + "/identity.json", kIdentityLimit);
  if (!text.ok()) return "no identity file";
  journal::v1::Volume identity;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(*text, &identity, options).ok()) {
    return "an identity file that cannot be read";
  }
  return fmt::format("volume {} of plugin {}", Printable(identity.volume_id(), 256),
                     Printable(identity.plugin_id(), 128));
}

}  // namespace berth
