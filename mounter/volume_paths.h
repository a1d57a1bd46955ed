// Where the volumes of this node lie, and the only code that makes or removes anything there.
//
//   <state_dir>/volumes/                   the tree: a tmpfs, gone after a reboot (mount_tree.h)
//     <hash of plugin and volume id>/      0711
//       staging/                           0700: staging_target_path, made here, given to the plugin
//       publish/                           0711
//         <hash of consumer and name>/     0711
//           target                         target_path: made and removed by the plugin
//   <state_dir>/identities/                0700; on the disk
//     <hash of plugin and volume id>.json  0600: what the volume is, should the journal be lost
//                                          (volume_identity.h)
//
// Ids are any bytes, so they are hashed: with the usual state directory every path stays below the 128 bytes
// that a plugin has to accept. Removal goes one level at a time and takes only empty directories, empty
// regular files at targets, and identity files; what holds data is left and reported.
//
// Blocks on the local disk. Making runs on the journal's writer thread, the rest on the loop; the class
// itself never changes after Open.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/safe_path.h"
#include "mounter/volume_record.h"

namespace berth {

// How many names ListTarget lists.
inline constexpr size_t kTargetLimit = 10'000;
// How many names are listed of a directory of the tree, or of the identity files. More is an error.
inline constexpr size_t kTreeLimit = 1'000'000;

class VolumePaths {
 public:
  // The tree is there, made by SetUpMountTree; the directory of the identity files is made if it is missing.
  [[nodiscard]] static absl::StatusOr<VolumePaths> Open(const std::string& state_dir);
  [[nodiscard]] static std::string TreeIn(const std::string& state_dir) { return state_dir + "/volumes"; }

  // NOT_FOUND: the tree was unmounted, and nothing else lies there. FAILED_PRECONDITION: something else was
  // mounted over it.
  [[nodiscard]] absl::Status CheckTree() const;
  // After SetUpMountTree has mounted one in the place of one that is gone. Any thread may use this meanwhile.
  [[nodiscard]] absl::Status RenewTree() { return root_.Reopen(); }

  // The names of a volume's and a publication's directory. The volume's is its key in the journal, too.
  [[nodiscard]] static std::string VolumeKey(std::string_view plugin_id, std::string_view volume_id);
  [[nodiscard]] static std::string PublicationComponent(const PublicationKey& key);
  // Whether a name could be one of these.
  [[nodiscard]] static bool IsComponent(std::string_view name);

  [[nodiscard]] std::string StagingPath(const VolumeRecord& record) const;
  // Where the mount of its staging lies: at the staging path, or beneath it (FindStagingMount). If something
  // is mounted on the way there, that place.
  [[nodiscard]] std::string StagedPath(const VolumeRecord& record) const;
  [[nodiscard]] std::string TargetPath(const VolumeRecord& record,
                                       const PublicationRecord& publication) const;

  // Makes everything that a publication needs but its target, and writes the volume's identity file. What is
  // there already stays. A power cut may take the identity file away until SyncIdentities.
  [[nodiscard]] absl::Status Make(const VolumeRecord& record, const PublicationRecord& publication) const;
  // Makes the staging directory and the target's parent where they are missing: after a reboot, or because a
  // plugin or a repair took them away. UNAVAILABLE: the tree is not there (CheckTree).
  [[nodiscard]] absl::Status Remake(const VolumeRecord& record, const PublicationRecord& publication) const;
  // The same of the staging directory alone.
  [[nodiscard]] absl::Status RemakeStaging(const VolumeRecord& record) const;

  // What lies at the volume's directory.
  [[nodiscard]] absl::StatusOr<PathFacts> LookAtVolume(const std::string& key) const;
  // The mount at the staging path, or the only one beneath it: some plugins keep files in their staging
  // directory, and mount in it. 0: there is none, or nothing says which of several it is. Reads the mount
  // table if the directory is not empty.
  [[nodiscard]] absl::StatusOr<StagingMount> FindStagingMount(const VolumeRecord& record) const;
  // What lies at StagedPath.
  [[nodiscard]] absl::StatusOr<PathFacts> LookAtStaged(const VolumeRecord& record) const;
  [[nodiscard]] absl::StatusOr<PathFacts> LookAtTarget(const VolumeRecord& record,
                                                       const PublicationRecord& publication) const;

  // The names in the directory at a target that nothing is mounted on. RESOURCE_EXHAUSTED: too many to list.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> ListTarget(
      const VolumeRecord& record, const PublicationRecord& publication) const;
  // Removes the symbolic link that lies at the target, if one does.
  [[nodiscard]] absl::Status RemoveTargetLink(const VolumeRecord& record,
                                              const PublicationRecord& publication) const;

  // Removes an unpublished publication's directory, with the empty target that a plugin may have left, and
  // writes the identity file without it where the volume has others. FAILED_PRECONDITION: something is in it;
  // it was left.
  [[nodiscard]] absl::Status RemovePublication(const VolumeRecord& record,
                                               const PublicationRecord& publication) const;
  // Removes the directories of a volume that has no publication left, and its identity file.
  // FAILED_PRECONDITION: something is in the directories; it was left, and so was the identity file.
  [[nodiscard]] absl::Status RemoveVolume(const VolumeRecord& record) const;

  // The directories in the tree, by name: at start compared with the journal.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> List() const;
  // Removes a directory of the tree that holds nothing but empty ones of ours. FAILED_PRECONDITION: something
  // is in it; it was left.
  [[nodiscard]] absl::Status RemoveEmptyStranger(const std::string& name) const;

  // The volumes that have an identity file, by their journal's keys.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> ListIdentities() const;
  // What a volume's identity file says (ParseIdentity). NOT_FOUND: it has none. DATA_LOSS: it cannot be read,
  // or is another volume's.
  [[nodiscard]] absl::StatusOr<VolumeRecord> ReadIdentity(const std::string& key) const;
  [[nodiscard]] bool HasIdentity(const std::string& key) const;
  // Durable after SyncIdentities.
  [[nodiscard]] absl::Status WriteIdentity(const VolumeRecord& record) const;
  [[nodiscard]] absl::Status RemoveIdentity(const std::string& key) const;
  // Makes the identity files of these volumes durable, as far as they exist, and their names. The first
  // error; the others are made durable nevertheless.
  [[nodiscard]] absl::Status SyncIdentities(const std::vector<std::string>& keys) const;
  // Removes what a berthd that was killed left of identity files that it was writing.
  [[nodiscard]] absl::Status RemoveUnfinishedIdentities() const;
  // What an identity file says, for people: `volume "x" of plugin "y"`, or that the file does not exist.
  [[nodiscard]] std::string DescribeIdentity(const std::string& key) const;

  [[nodiscard]] const std::string& tree() const { return root_.path(); }

 private:
  VolumePaths(SafeRoot root, SafeRoot identities)
      : root_(std::move(root)), identities_(std::move(identities)) {}
  // StagedPath, in the tree.
  [[nodiscard]] std::string Staged(const VolumeRecord& record) const;

  SafeRoot root_;
  SafeRoot identities_;
};

// Whether `facts`, of a publication's target, are what it is published as: a mount, or a block device.
[[nodiscard]] bool IsThere(const VolumeRecord& record, const PathFacts& facts);

// FAILED_PRECONDITION if `facts` of a path show a symbolic link: no plugin is given such a path.
[[nodiscard]] absl::Status SafeToHandOut(const absl::StatusOr<PathFacts>& facts, const std::string& path);

}  // namespace berth
