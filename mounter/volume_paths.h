// Where the volumes of this node lie, and the only code that makes or removes anything there.
//
//   <state_dir>/volumes/                   the tree: a shared mount of its own (mount_tree.h)
//     <hash of plugin and volume id>/      0711
//       identity.json                      0600: whose directory this is, should the journal be lost
//       staging/                           0700: staging_target_path, made here, given to the plugin
//       publish/                           0711
//         <hash of consumer and name>/     0711
//           identity.json                  0600: whose use of the volume it is; not synced, only helpful
//           target                         target_path: made and removed by the plugin
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

// In a volume's directory and in each of its publications'.
inline constexpr std::string_view kIdentityFile = "identity.json";
[[nodiscard]] inline std::string IdentityFileIn(std::string_view directory) {
  return std::string(directory).append("/").append(kIdentityFile);
}

class VolumePaths {
 public:
  // `tree` is the root of the tree, made by MountTree.
  [[nodiscard]] static absl::StatusOr<VolumePaths> Open(const std::string& tree);

  // The names of a volume's and a publication's directory. The volume's is its key in the journal, too.
  [[nodiscard]] static std::string VolumeKey(std::string_view plugin_id, std::string_view volume_id);
  [[nodiscard]] static std::string PublicationComponent(const PublicationKey& key);

  [[nodiscard]] std::string StagingPath(const VolumeRecord& record) const;
  [[nodiscard]] std::string TargetPath(const VolumeRecord& record,
                                       const PublicationRecord& publication) const;

  // Makes everything that a publication needs but its target, and the identity files. What is there already
  // stays, but the publication's identity file, which is written anew. A power cut may take them away until
  // Sync: they are needed once the journal is lost.
  [[nodiscard]] absl::Status Make(const VolumeRecord& record, const PublicationRecord& publication) const;
  // The same where something of it is missing: a plugin or a repair took it away, or berthd was killed
  // before.
  [[nodiscard]] absl::Status Remake(const VolumeRecord& record, const PublicationRecord& publication) const;

  // Makes what was made of a volume durable (by its directory's name), and of one publication if its
  // component is given. OK for what has gone.
  [[nodiscard]] absl::Status Sync(const std::string& volume, const std::string& publication) const;

  [[nodiscard]] absl::StatusOr<PathFacts> LookAtStaging(const VolumeRecord& record) const;
  [[nodiscard]] absl::StatusOr<PathFacts> LookAtTarget(const VolumeRecord& record,
                                                       const PublicationRecord& publication) const;

  // Removes an unpublished publication's directory, with the empty target that a plugin may have left.
  // FAILED_PRECONDITION: something is in it; it was left.
  [[nodiscard]] absl::Status RemovePublication(const VolumeRecord& record,
                                               const PublicationRecord& publication) const;
  // Removes the directories of a volume that has no publication left. FAILED_PRECONDITION: something is in
  // them; it was left, and the identity file beside it.
  [[nodiscard]] absl::Status RemoveVolume(const VolumeRecord& record) const;

  // The directories in the tree, by name: at start compared with the journal.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> List() const;
  // Whose a directory of the tree is, as its identity file says it, and the publications in it: made anew
  // from their own files where they have one, else of the consumer "unknown/<their directory>". States and
  // mounts are left as they begin. NOT_FOUND: there is no such directory. DATA_LOSS: its identity file is
  // missing, cannot be read, or belongs elsewhere. (volume_identity.cc)
  [[nodiscard]] absl::StatusOr<VolumeRecord> ReadIdentity(const std::string& name) const;
  // Writes the identity files of the volume and of those of its publications that are published anew; durable
  // after Sync of each.
  [[nodiscard]] absl::Status WriteIdentities(const VolumeRecord& record) const;
  // Removes a directory of the tree that holds nothing but empty ones of ours. FAILED_PRECONDITION: something
  // is in it; it was left.
  [[nodiscard]] absl::Status RemoveEmptyStranger(const std::string& name) const;
  // What an identity file says, for people: `volume "x" of plugin "y"`, or that there is none.
  [[nodiscard]] std::string DescribeDirectory(const std::string& name) const;

  [[nodiscard]] const std::string& tree() const { return root_.path(); }

 private:
  // Removes a publication's directory that holds nothing but its identity file; any other stays.
  [[nodiscard]] absl::Status RemoveUnused(const std::string& publication) const;
  // Removes what a berthd that was killed has left of identity files that it was writing.
  [[nodiscard]] absl::Status RemoveUnfinished(const std::string& directory) const;
  [[nodiscard]] absl::Status WriteIdentity(const VolumeRecord& record) const;
  [[nodiscard]] absl::Status WritePublicationIdentity(const VolumeRecord& record,
                                                      const PublicationRecord& publication) const;

  explicit VolumePaths(SafeRoot root) : root_(std::move(root)) {}

  SafeRoot root_;
};

// Whether `facts`, of a publication's target, are what it is published as: a mount, or a block device.
[[nodiscard]] bool IsThere(const VolumeRecord& record, const PathFacts& facts);

}  // namespace berth
