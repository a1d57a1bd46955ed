// What a census is asked and what it answers, and both as bytes (CBOR): berthd puts the question on the
// standard input of `berth-mount-helper census`, and reads its output (census.h).
//
// An answer is written in parts, as they are found: a helper that is killed leaves the first ones. The last
// one alone says that nothing was missed, or why something may have been.
//
// No shared library. Pure; any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// How many holds of one object are reported, and how much of the names in one; more changes nothing.
inline constexpr size_t kHoldsPerObject = 64;
inline constexpr size_t kHoldNameBytes = 1024;

// As which kernel the census is taken, for tests; an older one can do less than this one.
enum class KernelAs {
  kThis,
  kBefore6_12,  // no list of namespaces: the mount tables in /proc are read
  kBefore6_8,   // and no unique ids of mounts
};

// A file system or a directory of one, or a block device: who has it?
struct CensusObject {
  // A block device. Then `device` is its own number, and the fields of file systems are not used.
  bool block_device = false;
  // What lies *on* a directory counts, whatever it is: `device` and `root` say which directory.
  bool place = false;
  dev_t device = 0;        // the file system's, as mountinfo shows it
  dev_t inode_device = 0;  // as stat(2) shows it: of a btrfs subvolume another one
  std::string root;        // the directory of the file system that counts
  std::string fs_type;
  std::string source;  // of a network file system: the server's directory that counts. Else empty
  // Of others without a block device: KernelObject::source_fingerprint.
  uint64_t source_fingerprint = 0;

  // The mounts that are the volume's own, by their ids (PathFacts::mount_id), also detached ones.
  std::vector<uint64_t> ours;
  // The volume's directory in the tree.
  std::string directory;
  // The volume's own mounts are still in place: `ours`, and what else is mounted in `directory` in our
  // namespace. They are no holds, but what processes have on them is. If not, they are holds as any other
  // mount.
  bool staged = false;
  // Mounts with a smaller id are not the volume's: they are no holds. 0: not known.
  uint64_t before = 0;
  // Kernels before 6.8 have no such ids. There, of the mounts in our namespace, those with these fingerprints
  // (MountFingerprint) are not.
  std::vector<uint64_t> earlier;
  // Looks at what processes have open or mapped, at overlays, swap and loop devices, too. Of a block device
  // also at its partitions.
  bool users = false;
  // Of a block device: only what may write to it counts.
  bool writers = false;

  bool operator==(const CensusObject&) const = default;
};

struct CensusQuestion {
  std::vector<CensusObject> objects;
  // Recorded mounts of all volumes: those that are not the object's own, and copies that receive their
  // unmounts, are no holds. Census adds them.
  std::vector<uint64_t> recorded;
  KernelAs kernel = KernelAs::kThis;

  bool operator==(const CensusQuestion&) const = default;
};

enum class HoldKind {
  kMount,             // mounted at `where` in our mount namespace
  kNamespace,         // mounted at `where` in another one
  kOpenFile,          // an open file or directory
  kWorkingDirectory,  // a thread's
  kRootDirectory,     // a thread's
  kMappedFile,
  kProgram,  // a mapped file that the process runs
  kOverlay,  // a layer of the overlay mounted at `where`
  kSwap,     // the swap file `where`
  kLoop,     // behind the loop device `where`
};

struct Hold {
  size_t object = 0;  // of the question
  HoldKind kind = HoldKind::kMount;
  // Of a namespace: the process in it with the lowest number. 0: no process is in it.
  pid_t pid = 0;
  std::string where = {};
  // Of a namespace without a process: what keeps it, as far as that is known. Of what a process has:
  // "detached" if it lies on a mount that is in no namespace. Of an overlay, a swap file, a loop device and
  // an open file: "possible" if it cannot be found out what it has.
  std::string keeper = {};

  bool operator==(const Hold&) const = default;
};

struct CensusAnswer {
  std::vector<Hold> holds;
  // The objects with a device number that is mounted elsewhere: another directory of the same file system, or
  // another file system, which has the number now.
  std::vector<size_t> elsewhere;
  // Why something may have been missed; empty: nothing was.
  std::string incomplete = "it was not finished";

  // The next part of it.
  void Add(const CensusAnswer& part);

  bool operator==(const CensusAnswer&) const = default;
};

[[nodiscard]] std::string EncodeQuestion(const CensusQuestion& question);
// Unset if it is no question.
[[nodiscard]] std::optional<CensusQuestion> DecodeQuestion(std::string_view bytes);

// A part of an answer.
[[nodiscard]] std::string EncodeAnswer(const CensusAnswer& part);
// Reads the parts of an answer about `objects` objects. It ends at bytes that are no part; the answer is
// incomplete then.
[[nodiscard]] CensusAnswer DecodeAnswer(std::string_view bytes, size_t objects);

}  // namespace berth
