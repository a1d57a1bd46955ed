#include "mounter/volume_paths.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/status.h"

namespace berth {
namespace {

constexpr mode_t kTraversable = 0711;
constexpr mode_t kPrivate = 0700;
constexpr size_t kTreeLimit = 1'000'000;

std::string VolumeDirectory(const VolumeRecord& record) {
  return VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
}
std::string Staging(const VolumeRecord& record) { return VolumeDirectory(record) + "/staging"; }
std::string Publish(const VolumeRecord& record) { return VolumeDirectory(record) + "/publish"; }
std::string Identity(const VolumeRecord& record) { return IdentityFileIn(VolumeDirectory(record)); }
std::string PublicationDirectory(const VolumeRecord& record, const PublicationRecord& publication) {
  return fmt::format("{}/{}", Publish(record), publication.component);
}
std::string Target(const VolumeRecord& record, const PublicationRecord& publication) {
  return PublicationDirectory(record, publication) + "/target";
}

// Whether it is what a write of the identity file leaves that was cut short before its end (WriteFileAtomic).
bool IsUnfinished(std::string_view name) {
  constexpr size_t kRandom = 6;
  const std::string lead = std::string(kIdentityFile) + ".";
  return name.starts_with(lead) && name.size() == lead.size() + kRandom;
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
  BERTH_RETURN_IF_ERROR(WritePublicationIdentity(record, publication));
  return identity.exists ? absl::OkStatus() : WriteIdentity(record);
}

absl::Status VolumePaths::Sync(const std::string& volume, const std::string& publication) const {
  std::vector<std::string> paths = {IdentityFileIn(volume), volume + "/publish", volume, ""};
  if (!publication.empty()) {
    const std::string directory = fmt::format("{}/publish/{}", volume, publication);
    paths.insert(paths.begin(), {IdentityFileIn(directory), directory});
  }
  for (const std::string& path : paths) {
    const absl::Status synced = root_.Sync(path);
    if (!synced.ok() && !absl::IsNotFound(synced)) return synced;
  }
  return absl::OkStatus();
}

absl::Status VolumePaths::Remake(const VolumeRecord& record, const PublicationRecord& publication) const {
  const std::string directory = PublicationDirectory(record, publication);
  for (const std::string& path : {Staging(record), directory}) {
    BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(path));
    if (!facts.exists || !S_ISDIR(facts.mode)) return Make(record, publication);
  }
  for (const std::string& path : {Identity(record), IdentityFileIn(directory)}) {
    BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(path));
    if (!facts.exists) return Make(record, publication);
  }
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
  const std::string directory = PublicationDirectory(record, publication);
  BERTH_RETURN_IF_ERROR(RemoveUnfinished(directory));
  BERTH_RETURN_IF_ERROR(root_.RemoveFile(IdentityFileIn(directory), /*must_be_empty=*/false));
  const absl::Status removed = root_.RemoveEmptyDirectory(directory);
  // What is in the way keeps its name.
  if (IsInTheWay(removed)) {
    [[maybe_unused]] const absl::Status written = WritePublicationIdentity(record, publication);
  }
  return removed;
}

absl::Status VolumePaths::RemoveUnused(const std::string& publication) const {
  BERTH_RETURN_IF_ERROR(RemoveUnfinished(publication));
  const auto names = root_.List(publication, 2);
  const bool ours =
      names.ok() && (names->empty() || *names == std::vector<std::string>{std::string(kIdentityFile)});
  if (!ours) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(root_.RemoveFile(IdentityFileIn(publication), /*must_be_empty=*/false));
  const absl::Status removed = root_.RemoveEmptyDirectory(publication);
  return IsInTheWay(removed) ? absl::OkStatus() : removed;
}

absl::Status VolumePaths::RemoveVolume(const VolumeRecord& record) const {
  absl::Status left;
  // Those of publications that were never begun, and so never undone.
  const auto never_begun = root_.List(Publish(record), kTreeLimit);
  for (const std::string& name : never_begun.ok() ? *never_begun : std::vector<std::string>()) {
    BERTH_RETURN_IF_ERROR(RemoveUnused(fmt::format("{}/{}", Publish(record), name)));
  }
  for (const std::string& directory : {Staging(record), Publish(record)}) {
    const absl::Status status = root_.RemoveEmptyDirectory(directory);
    if (!status.ok() && !IsInTheWay(status)) return status;
    if (!status.ok()) left = status;
  }
  if (!left.ok()) return left;
  BERTH_RETURN_IF_ERROR(RemoveUnfinished(VolumeDirectory(record)));
  BERTH_RETURN_IF_ERROR(root_.RemoveFile(Identity(record), /*must_be_empty=*/false));
  return root_.RemoveEmptyDirectory(VolumeDirectory(record));
}

absl::Status VolumePaths::RemoveUnfinished(const std::string& directory) const {
  const auto names = root_.List(directory, kTreeLimit);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (!IsUnfinished(name)) continue;
    BERTH_RETURN_IF_ERROR(root_.RemoveFile(fmt::format("{}/{}", directory, name), /*must_be_empty=*/false));
  }
  return absl::OkStatus();
}

absl::Status VolumePaths::RemoveEmptyStranger(const std::string& name) const {
  BERTH_RETURN_IF_ERROR(RemoveUnfinished(name));
  for (const char* part : {"/staging", "/publish", ""}) {
    BERTH_RETURN_IF_ERROR(root_.RemoveEmptyDirectory(name + part));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> VolumePaths::List() const { return root_.List("", kTreeLimit); }

bool IsThere(const VolumeRecord& record, const PathFacts& facts) {
  if (record.use.access_type == AccessType::kBlock) return facts.exists && S_ISBLK(facts.mode);
  return facts.mount_root;
}

}  // namespace berth
