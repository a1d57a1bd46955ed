#include "mounter/volume_paths.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/mountinfo.h"
#include "base/status.h"
#include "mounter/volume_identity.h"

namespace berth {
namespace {

constexpr mode_t kTraversable = 0711;
constexpr mode_t kPrivate = 0700;

std::string VolumeDirectory(const VolumeRecord& record) {
  return VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
}
std::string Staging(const VolumeRecord& record) { return VolumeDirectory(record) + "/staging"; }
std::string Publish(const VolumeRecord& record) { return VolumeDirectory(record) + "/publish"; }
std::string PublicationDirectory(const VolumeRecord& record, const PublicationRecord& publication) {
  return fmt::format("{}/{}", Publish(record), publication.component);
}
std::string Target(const VolumeRecord& record, const PublicationRecord& publication) {
  return PublicationDirectory(record, publication) + "/target";
}

constexpr std::string_view kIdentitySuffix = ".json";
// Of a volume with very many publications.
constexpr size_t kIdentityLimit = 64 * 1024 * 1024;

std::string IdentityFile(const std::string& key) { return key + std::string(kIdentitySuffix); }

// The key of the volume of this identity file; empty: it is no identity file.
std::string KeyOfFile(const std::string& name) {
  if (!name.ends_with(kIdentitySuffix)) return {};
  std::string key = name.substr(0, name.size() - kIdentitySuffix.size());
  return VolumePaths::IsComponent(key) ? key : std::string();
}

// Whether it is what a write of an identity file leaves that was cut short before its end (WriteFileSoon).
bool IsUnfinished(const std::string& name) {
  constexpr size_t kRandom = 7;  // a dot, and six random letters
  return name.size() > kRandom && name[name.size() - kRandom] == '.' &&
         !KeyOfFile(name.substr(0, name.size() - kRandom)).empty();
}

// The error is not the fault of the volume that runs the step.
absl::Status AsUnavailable(const absl::Status& status) {
  return status.ok() ? status : absl::UnavailableError(status.message());
}

// Whether a removal was refused because something is in the way, rather than failed.
bool IsInTheWay(const absl::Status& status) { return status.code() == absl::StatusCode::kFailedPrecondition; }

}  // namespace

absl::StatusOr<VolumePaths> VolumePaths::Open(const std::string& state_dir) {
  BERTH_ASSIGN_OR_RETURN(SafeRoot root, SafeRoot::Open(TreeIn(state_dir)));
  const std::string identities = state_dir + "/identities";
  BERTH_RETURN_IF_ERROR(MakeDirectories(identities, kPrivate));
  BERTH_ASSIGN_OR_RETURN(SafeRoot identities_root, SafeRoot::Open(identities));
  return VolumePaths(std::move(root), std::move(identities_root));
}

absl::Status VolumePaths::CheckTree() const {
  BERTH_ASSIGN_OR_RETURN(const bool there, root_.AtItsPath());
  if (there) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(tree()));
  if (!facts.mount_root)
    return absl::NotFoundError(fmt::format("the tree of volumes {} was unmounted", tree()));
  return absl::FailedPreconditionError(
      fmt::format("something else is mounted over the tree of volumes {}: unmount it", tree()));
}

std::string VolumePaths::VolumeKey(std::string_view plugin_id, std::string_view volume_id) {
  return HashComponent({plugin_id, volume_id});
}

std::string VolumePaths::PublicationComponent(const PublicationKey& key) {
  return HashComponent({key.consumer, key.name});
}

bool VolumePaths::IsComponent(std::string_view name) {
  constexpr size_t kDigits = 32;
  return name.size() == kDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string VolumePaths::StagingPath(const VolumeRecord& record) const {
  return root_.Absolute(Staging(record));
}

std::string VolumePaths::StagedPath(const VolumeRecord& record) const {
  return root_.Absolute(Staged(record));
}

std::string VolumePaths::Staged(const VolumeRecord& record) const {
  std::string path = Staging(record);
  for (const auto& part : std::filesystem::path(record.staging_mount_path)) {
    const auto facts = root_.Look(path);
    if (!facts.ok() || facts->mount_root) break;
    path += "/" + part.string();
  }
  return path;
}

std::string VolumePaths::TargetPath(const VolumeRecord& record, const PublicationRecord& publication) const {
  return root_.Absolute(Target(record, publication));
}

absl::Status VolumePaths::Make(const VolumeRecord& record, const PublicationRecord& publication) const {
  BERTH_RETURN_IF_ERROR(AsUnavailable(CheckTree()));
  BERTH_RETURN_IF_ERROR(root_.MakeDirectories(PublicationDirectory(record, publication), kTraversable));
  BERTH_RETURN_IF_ERROR(root_.MakeDirectories(Staging(record), kPrivate));
  return WriteIdentity(record);
}

absl::Status VolumePaths::Remake(const VolumeRecord& record, const PublicationRecord& publication) const {
  BERTH_RETURN_IF_ERROR(AsUnavailable(CheckTree()));
  const std::string directory = PublicationDirectory(record, publication);
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(directory));
  if (!facts.exists || !S_ISDIR(facts.mode)) {
    BERTH_RETURN_IF_ERROR(root_.MakeDirectories(directory, kTraversable));
  }
  return RemakeStaging(record);
}

absl::Status VolumePaths::RemakeStaging(const VolumeRecord& record) const {
  const std::string staging = Staging(record);
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(staging));
  if (facts.exists && S_ISDIR(facts.mode)) return absl::OkStatus();
  // With the mode of each: what lies above the staging directory is to be traversed.
  BERTH_RETURN_IF_ERROR(root_.MakeDirectories(VolumeDirectory(record), kTraversable));
  return root_.MakeDirectories(staging, kPrivate);
}

absl::StatusOr<PathFacts> VolumePaths::LookAtVolume(const std::string& key) const { return root_.Look(key); }

absl::StatusOr<StagingMount> VolumePaths::FindStagingMount(const VolumeRecord& record) const {
  const std::string staging = Staging(record);
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, root_.Look(staging));
  if (facts.mount_root) return StagingMount{.mount_id = facts.mount_id};
  if (!facts.exists || !S_ISDIR(facts.mode)) return StagingMount{};
  // Most have nothing in there: then the mount table is not read.
  const auto names = root_.List(staging, /*limit=*/1);
  if (names.ok() && names->empty()) return StagingMount{};

  const std::string directory = root_.Absolute(staging) + "/";
  std::string found;
  bool several = false;
  BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    std::string target = DecodeMountinfo(line.target);
    if (!target.starts_with(directory)) return true;
    several = !found.empty() && !IsAtOrBeneath(target, found);
    if (found.empty()) found = std::move(target);
    return !several;
  }));
  if (found.empty() || several) return StagingMount{};
  std::string path = found.substr(directory.size());
  BERTH_ASSIGN_OR_RETURN(const PathFacts mounted, root_.Look(fmt::format("{}/{}", staging, path)));
  if (!mounted.mount_root) return StagingMount{};
  return StagingMount{.path = std::move(path), .mount_id = mounted.mount_id};
}

absl::StatusOr<PathFacts> VolumePaths::LookAtStaged(const VolumeRecord& record) const {
  return root_.Look(Staged(record));
}

absl::StatusOr<PathFacts> VolumePaths::LookAtTarget(const VolumeRecord& record,
                                                    const PublicationRecord& publication) const {
  return root_.Look(Target(record, publication));
}

absl::Status VolumePaths::RemoveTargetLink(const VolumeRecord& record,
                                           const PublicationRecord& publication) const {
  return root_.RemoveLink(Target(record, publication));
}

absl::StatusOr<std::vector<std::string>> VolumePaths::ListTarget(const VolumeRecord& record,
                                                                 const PublicationRecord& publication) const {
  const auto facts = LookAtTarget(record, publication);
  if (!facts.ok()) return facts.status();
  if (!facts->exists) return std::vector<std::string>{};
  return root_.List(Target(record, publication), kTargetLimit);
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
  BERTH_RETURN_IF_ERROR(root_.RemoveEmptyDirectory(PublicationDirectory(record, publication)));
  // One that is to be published again stays known, and the last one goes with the volume.
  VolumeRecord rest = record;
  std::erase_if(rest.publications, [&publication](const PublicationRecord& p) {
    return p.key == publication.key && !publication.remount_after_undo;
  });
  if (rest.publications.empty() || rest.publications.size() == record.publications.size()) {
    return absl::OkStatus();
  }
  // On a full disk, say. That must not keep the volume here; a doctor finds it.
  const absl::Status written = WriteIdentity(rest);
  if (!written.ok()) SPDLOG_WARN("{}", MessageOf(written));
  return absl::OkStatus();
}

absl::Status VolumePaths::RemoveVolume(const VolumeRecord& record) const {
  absl::Status left = root_.RemoveEmptyDirectory(Publish(record));
  if (IsInTheWay(left)) {
    // Files of publications that were never begun, and so never undone.
    const auto never_begun = root_.List(Publish(record), kTreeLimit);
    for (const std::string& name : never_begun.ok() ? *never_begun : std::vector<std::string>()) {
      const absl::Status removed = root_.RemoveEmptyDirectory(fmt::format("{}/{}", Publish(record), name));
      if (!removed.ok() && !IsInTheWay(removed)) return removed;
    }
    left = root_.RemoveEmptyDirectory(Publish(record));
  }
  if (!left.ok() && !IsInTheWay(left)) return left;
  const absl::Status staging = root_.RemoveEmptyDirectory(Staging(record));
  if (!staging.ok() && !IsInTheWay(staging)) return staging;
  if (left.ok()) left = staging;
  if (!left.ok()) return left;
  BERTH_RETURN_IF_ERROR(root_.RemoveEmptyDirectory(VolumeDirectory(record)));
  return RemoveIdentity(VolumeDirectory(record));
}

absl::Status VolumePaths::RemoveEmptyStranger(const std::string& name) const {
  for (const char* part : {"/staging", "/publish", ""}) {
    BERTH_RETURN_IF_ERROR(root_.RemoveEmptyDirectory(name + part));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> VolumePaths::List() const { return root_.List("", kTreeLimit); }

absl::StatusOr<std::vector<std::string>> VolumePaths::ListIdentities() const {
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> names, identities_.List("", kTreeLimit));
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    if (std::string key = KeyOfFile(name); !key.empty()) keys.push_back(std::move(key));
  }
  return keys;
}

absl::StatusOr<VolumeRecord> VolumePaths::ReadIdentity(const std::string& key) const {
  const std::string path = identities_.Absolute(IdentityFile(Printable(key)));
  const auto text = identities_.ReadFile(IdentityFile(key), kIdentityLimit);
  if (absl::IsNotFound(text.status())) return absl::NotFoundError(fmt::format("{}: not there", path));
  if (!text.ok()) return absl::DataLossError(fmt::format("{}: {}", path, MessageOf(text.status())));
  BERTH_ASSIGN_OR_RETURN(VolumeRecord record, ParseIdentity(*text, path));
  if (VolumeKey(record.plugin_id, record.volume_id) != key) {
    return absl::DataLossError(fmt::format("{}: is another volume's", path));
  }
  return record;
}

bool VolumePaths::HasIdentity(const std::string& key) const {
  const auto facts = identities_.Look(IdentityFile(key));
  return facts.ok() && facts->exists;
}

absl::Status VolumePaths::WriteIdentity(const VolumeRecord& record) const {
  BERTH_ASSIGN_OR_RETURN(const std::string text, IdentityText(record));
  return identities_.WriteFile(IdentityFile(VolumeDirectory(record)), text, 0600);
}

absl::Status VolumePaths::RemoveIdentity(const std::string& key) const {
  return identities_.RemoveFile(IdentityFile(key), /*must_be_empty=*/false);
}

absl::Status VolumePaths::SyncIdentities(const std::vector<std::string>& keys) const {
  absl::Status status;
  const auto sync = [this, &status](const std::string& path) {
    const absl::Status synced = identities_.Sync(path);
    if (!absl::IsNotFound(synced)) status.Update(synced);
  };
  for (const std::string& key : keys) sync(IdentityFile(key));
  sync("");
  return status;
}

absl::Status VolumePaths::RemoveUnfinishedIdentities() const {
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> names, identities_.List("", kTreeLimit));
  for (const std::string& name : names) {
    if (!IsUnfinished(name)) continue;
    BERTH_RETURN_IF_ERROR(identities_.RemoveFile(name, /*must_be_empty=*/false));
  }
  return absl::OkStatus();
}

std::string VolumePaths::DescribeIdentity(const std::string& key) const {
  const auto identity = ReadIdentity(key);
  if (absl::IsNotFound(identity.status())) return "no identity file";
  if (!identity.ok()) return "an identity file that cannot be read";
  return fmt::format("volume {} of plugin {}", Printable(identity->volume_id, 256),
                     Printable(identity->plugin_id, 128));
}

bool IsThere(const VolumeRecord& record, const PathFacts& facts) {
  if (record.use.access_type == AccessType::kBlock) return facts.exists && S_ISBLK(facts.mode);
  return facts.mount_root;
}

absl::Status SafeToHandOut(const absl::StatusOr<PathFacts>& facts, const std::string& path) {
  if (!facts.ok()) return facts.status();
  if (!S_ISLNK(facts->mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: a symbolic link is there, which would lead the plugin elsewhere; remove it", path));
}

}  // namespace berth
