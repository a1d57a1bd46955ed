#include "mounter/volume_release.h"

#include <dirent.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/process.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "mounter/holder_names.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

// How long the kernel may take to end a file system, and a helper to answer.
constexpr Duration kEndOfFileSystem = std::chrono::seconds(2);
constexpr Duration kLookForUsers = std::chrono::seconds(5);
constexpr size_t kShownPath = 512;
constexpr size_t kCommandLimit = 4096;

std::string Number(dev_t device) { return fmt::format("{}:{}", major(device), minor(device)); }

// What the kernel itself does with a block device, from sysfs: "block device dm-0".
absl::StatusOr<std::vector<std::string>> KernelUsersOf(dev_t device) {
  std::vector<std::string> users;
  const std::string path = fmt::format("/sys/dev/block/{}/holders", Number(device));
  const DirectoryStream above(opendir(path.c_str()));
  if (above == nullptr && errno == ENOENT && access("/sys/dev/block", F_OK) == 0) return users;  // it is gone
  if (above == nullptr) return ErrnoStatus(errno, path);
  while (const dirent* const entry = readdir(above.get())) {
    if (entry->d_name[0] != '.')
      users.push_back(fmt::format("block device {}", Printable(entry->d_name, 64)));
  }
  return users;
}

// Those of one of the objects that were asked for, or of all.
std::vector<MountHolder> HoldersIn(const CensusAnswer& answer, std::optional<size_t> of = std::nullopt) {
  std::vector<MountHolder> holders;
  for (const Hold& hold : answer.holds) {
    if (of.has_value() && hold.object != *of) continue;
    if (holders.size() < kHoldersShown) holders.push_back(HolderOf(hold));
  }
  return holders;
}

void Add(ReleaseCheck* check, const KernelObject& object, std::string why) {
  check->released = false;
  if (check->why.empty()) check->why = std::move(why);
  MergeObjects({object}, &check->objects);
}

void AddHolders(ReleaseCheck* check, const KernelObject& object, const std::vector<MountHolder>& holders) {
  check->holders.insert(check->holders.end(), holders.begin(), holders.end());
  Add(check, object, DescribeUse(holders));
}

// What is mounted beneath `path` in berthd's own namespace: it keeps the mount at `path` from being
// unmounted.
std::vector<MountHolder> MountedInside(const std::string& path) {
  std::vector<MountHolder> holders;
  const absl::Status read = ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    const std::string target = DecodeMountinfo(line.target);
    if (target != path && IsAtOrBeneath(target, path)) {
      holders.push_back({.how = fmt::format("{} {} ({})", kMountedInside, Printable(target, kShownPath),
                                            Printable(line.fs_type, 64))});
    }
    return holders.size() < kHoldersShown;
  });
  if (!read.ok()) SPDLOG_WARN("{}", MessageOf(read));
  return holders;
}

std::string_view What(HoldKind kind) {
  switch (kind) {
    case HoldKind::kMount:
      return "the mount at";
    case HoldKind::kNamespace:
      return kInAnotherNamespace;
    case HoldKind::kOpenFile:
      return "open file";
    case HoldKind::kWorkingDirectory:
      return "working directory";
    case HoldKind::kRootDirectory:
      return "root directory";
    case HoldKind::kMappedFile:
      return "mapped file";
    case HoldKind::kProgram:
      return "program";
    case HoldKind::kOverlay:
      return "the overlay mounted at";
    case HoldKind::kSwap:
      return "the swap file";
    case HoldKind::kLoop:
      return "block device";
  }
  return "";
}

std::string_view Remark(const Hold& hold) {
  if (hold.keeper == "detached") return " on a mount that was detached";
  if (hold.keeper != "possible") return "";
  if (hold.kind == HoldKind::kOverlay) return ", whose upper directory is not found";
  if (hold.kind == HoldKind::kSwap) return ", which is not found";
  return hold.kind == HoldKind::kLoop ? ", which does not answer"
                                      : ", on a mount that is in no mount namespace";
}

}  // namespace

std::string DescribeUse(const std::vector<MountHolder>& holders) {
  return fmt::format("still used by {}", DescribeHolders(holders));
}

MountHolder HolderOf(const Hold& hold) {
  MountHolder holder{.pid = hold.pid};
  if (hold.pid != 0) {
    // Its command line would have to be read from its memory.
    const auto name = ReadFile(fmt::format("/proc/{}/comm", hold.pid), kCommandLimit);
    std::string command = name.ok() ? *name : std::string();
    if (command.ends_with('\n')) command.pop_back();
    holder.command = Printable(command, 64);
    if (const auto user = UserOf(hold.pid); user.ok()) holder.uid = *user;
  }
  const std::string where = Printable(hold.where, kShownPath);
  holder.how = fmt::format("{} {}{}", What(hold.kind), where, Remark(hold));
  if (hold.kind == HoldKind::kNamespace && hold.pid == 0) {
    holder.how = fmt::format("a mount namespace without a process ({}), mounted at {}",
                             Printable(hold.keeper, kShownPath), where);
  }
  return holder;
}

absl::StatusOr<CensusQuestion> VolumeRelease::Question(const VolumeRecord& record,
                                                       const std::vector<KernelObject>& objects,
                                                       bool staged) const {
  const std::string key = VolumePaths::VolumeKey(record.plugin_id, record.volume_id);
  CensusQuestion question;
  std::vector<uint64_t> ours = record.Mounts();
  if (staged) {
    // That it goes on in spite of the users of these was decided when they were detached.
    const std::vector<uint64_t>& detached = record.detached_mounts;
    std::erase_if(ours,
                  [&detached](uint64_t id) { return std::ranges::find(detached, id) != detached.end(); });
  }
  for (const KernelObject& object : objects) {
    question.objects.push_back({.block_device = object.block_device,
                                .device = object.device,
                                .inode_device = object.inode_device,
                                .root = object.root,
                                .fs_type = object.fs_type,
                                .source = SourceNamesDirectory(object.fs_type) ? object.source : "",
                                .source_fingerprint = object.source_fingerprint,
                                .ours = ours,
                                .directory = fmt::format("{}/{}", tree_, key),
                                .staged = staged,
                                .before = record.earlier_mounts.below,
                                .earlier = record.earlier_mounts.fingerprints,
                                .users = !object.IsWholeDisk()});
    if (!staged) continue;
    // What a plugin has mounted for itself while it staged is its own, as long as the volume is staged. Of a
    // rebuilt record only the staging mount is known.
    CensusObject& asked = question.objects.back();
    asked.before =
        std::max({record.earlier_mounts.below, record.staged_mounts.below, record.staging_mount_id});
    asked.earlier.insert(asked.earlier.end(), record.staged_mounts.fingerprints.begin(),
                         record.staged_mounts.fingerprints.end());
  }
  if (!record.mounts_unknown && !record.objects.empty()) return question;
  BERTH_ASSIGN_OR_RETURN(const std::vector<KernelObject> tree, ObjectsAt(tree_, tree_));
  if (tree.empty()) return absl::UnavailableError(fmt::format("{}: nothing is mounted there", tree_));
  question.objects.push_back({.place = true,
                              .device = tree[0].device,
                              .root = fmt::format("{}/{}", tree[0].root == "/" ? "" : tree[0].root, key),
                              .ours = ours,
                              .directory = fmt::format("{}/{}", tree_, key),
                              .staged = staged});
  return question;
}

Awaitable<CensusAnswer> VolumeRelease::Ask(absl::StatusOr<CensusQuestion> question, TimePoint deadline) {
  if (!question.ok()) co_return CensusAnswer{.incomplete = std::string(MessageOf(question.status()))};
  if (question->objects.empty()) co_return CensusAnswer{.incomplete = ""};
  co_return co_await census_.Take(*std::move(question), deadline);
}

Awaitable<absl::StatusOr<std::vector<MountHolder>>> VolumeRelease::HoldersBeforeUnstage(VolumeRecord record,
                                                                                        TimePoint deadline) {
  std::vector<KernelObject> objects;
  std::ranges::copy_if(record.objects, std::back_inserter(objects),
                       [](const KernelObject& object) { return !object.block_device && object.device != 0; });
  const CensusAnswer answer = co_await Ask(Question(record, objects, /*staged=*/true), deadline);
  std::vector<MountHolder> holders = HoldersIn(answer);
  if (holders.empty() && !answer.incomplete.empty()) {
    co_return absl::UnavailableError(fmt::format(
        "it is not known who uses the volume, so it stays staged: {}", Printable(answer.incomplete)));
  }
  NameConsumers(record, &holders);
  co_return holders;
}

Awaitable<absl::StatusOr<std::vector<MountHolder>>> VolumeRelease::HoldersAt(VolumeRecord record,
                                                                             std::string path,
                                                                             TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(path));
  BERTH_CO_ASSIGN_OR_RETURN(const std::vector<KernelObject> objects, ObjectsAt(path, tree_));
  if (objects.empty()) co_return std::vector<MountHolder>{};
  BERTH_CO_ASSIGN_OR_RETURN(CensusQuestion question, Question(record, objects, /*staged=*/true));
  for (CensusObject& object : question.objects) {
    object.users = !object.place;
    object.ours.push_back(facts.mount_id);
  }
  std::vector<MountHolder> holders = MountedInside(path);
  const CensusAnswer answer = co_await Ask(std::move(question), deadline);
  std::ranges::move(HoldersIn(answer), std::back_inserter(holders));
  if (holders.empty() && !answer.incomplete.empty())
    co_return absl::UnavailableError(Printable(answer.incomplete));
  co_return holders;
}

namespace {

// Those of the volume's objects that the kernel can be asked about, and has not lost.
std::vector<KernelObject> ObjectsLeft(const VolumeRecord& record, ReleaseCheck* check) {
  std::vector<KernelObject> left;
  for (const KernelObject& object : record.objects) {
    if (DiskIsGone(object)) continue;
    if (object.device != 0) {
      left.push_back(object);
      continue;
    }
    Add(check, object,
        "an earlier use of it may not have ended, and it is not known through which device: it counts as in "
        "use until the machine is restarted");
  }
  return left;
}

// What is mounted in the volume's directory is no object that is known.
void AddDirectory(const std::vector<MountHolder>& holders, std::string_view unknown, ReleaseCheck* check) {
  std::string why = DescribeUse(holders);
  if (holders.empty()) why = fmt::format("it is not known what is mounted of it: {}", Printable(unknown));
  check->holders.insert(check->holders.end(), holders.begin(), holders.end());
  if (holders.empty() && unknown.empty()) return;
  check->released = false;
  if (check->why.empty()) check->why = std::move(why);
}

}  // namespace

Awaitable<ReleaseCheck> VolumeRelease::CheckReleased(VolumeRecord record, TimePoint deadline) {
  ReleaseCheck check;
  const std::vector<KernelObject> left = ObjectsLeft(record, &check);
  auto question = Question(record, left, /*staged=*/false);
  const bool asks_directory = !question.ok() || question->objects.size() > left.size();
  const CensusAnswer answer = co_await Ask(std::move(question), deadline);
  for (size_t i = 0; i < left.size(); ++i) {
    const std::vector<MountHolder> holders = HoldersIn(answer, i);
    if (!holders.empty()) {
      AddHolders(&check, left[i], holders);
    } else if (!answer.incomplete.empty()) {
      Add(&check, left[i],
          fmt::format("it is not known whether the kernel has released it: {}",
                      Printable(answer.incomplete)));
    } else if (left[i].block_device) {
      co_await CheckDevice(record, left[i], deadline, &check);
    } else {
      const bool elsewhere = std::ranges::count(answer.elsewhere, i) > 0;
      co_await CheckFileSystem(record, left[i], elsewhere, deadline, &check);
    }
  }
  if (asks_directory) AddDirectory(HoldersIn(answer, left.size()), answer.incomplete, &check);
  NameConsumers(record, &check.holders);
  co_return check;
}

Awaitable<void> VolumeRelease::CheckFileSystem(VolumeRecord record, KernelObject object, bool elsewhere,
                                               TimePoint deadline, ReleaseCheck* check) {
  if (!elsewhere) {
    const TimePoint until = std::min(deadline, Clock::now() + kEndOfFileSystem);
    const auto alive = co_await helper_.SuperblockIsAlive(object.device, object.disk, until);
    if (alive.ok() && !*alive) {
      if (object.disk != 0) co_await CheckWriters(record, object, deadline, check);
      co_return;
    }
    if (absl::IsUnimplemented(alive.status())) co_return;  // no mount of it is left: more cannot be known
  } else if (!object.IsWholeDisk()) {
    co_return;  // its users were looked for
  }
  // The superblock does not prove that it is free, so look for its users.
  auto question = Question(record, {object}, /*staged=*/false);
  if (question.ok()) question->objects[0].users = true;
  const CensusAnswer answer =
      co_await Ask(std::move(question), std::min(deadline, Clock::now() + kLookForUsers));
  if (const auto holders = HoldersIn(answer); !holders.empty()) {
    AddHolders(check, object, holders);
    co_return;
  }
  if (elsewhere) {
    if (!answer.incomplete.empty())
      Add(check, object, fmt::format("it is not known who uses it: {}", Printable(answer.incomplete)));
    co_return;
  }
  Add(check, object,
      fmt::format("the kernel still has its file system ({}, device {}), though nothing of it is mounted: a "
                  "process may use it through a mount that was detached, or not all of its data is written",
                  Printable(object.fs_type, 64), Number(object.device)));
}

Awaitable<void> VolumeRelease::CheckWriters(VolumeRecord record, KernelObject object, TimePoint deadline,
                                            ReleaseCheck* check) {
  // Its driver may leave the disk attached: nobody may be able to write to it.
  const KernelObject disk{.block_device = true,
                          .device = object.disk,
                          .disk = object.disk,
                          .disk_sequence = object.disk_sequence};
  if (DiskIsGone(object)) co_return;
  auto question = Question(record, {disk}, /*staged=*/false);
  if (question.ok()) question->objects[0].writers = true;
  const CensusAnswer answer = co_await Ask(std::move(question), deadline);
  if (DiskIsGone(object)) co_return;
  if (const auto holders = HoldersIn(answer); !holders.empty()) {
    AddHolders(check, object, holders);
  } else if (!answer.incomplete.empty()) {
    Add(check, object,
        fmt::format("it is not known who can write to its disk: {}", Printable(answer.incomplete)));
  }
}

Awaitable<void> VolumeRelease::CheckDevice(VolumeRecord record, KernelObject object, TimePoint deadline,
                                           ReleaseCheck* check) {
  const std::string device = fmt::format("block device {}", Number(object.device));
  const auto users = KernelUsersOf(object.device);
  if (!users.ok() || !users->empty()) {
    Add(check, object,
        users.ok() ? fmt::format("{} is still used by {}", device, fmt::join(*users, ", "))
                   : fmt::format("it is not known who uses {}: {}", device, MessageOf(users.status())));
    co_return;
  }
  const auto claimed =
      co_await helper_.DeviceIsClaimed(object.device, std::min(deadline, Clock::now() + kLookForUsers));
  if (claimed.ok() && !*claimed) {
    co_await CheckQuiet(std::move(record), std::move(object), deadline, check);
    co_return;
  }
  Add(check, object,
      claimed.ok() ? fmt::format("{} is still mounted, swap, or part of another device", device)
                   : fmt::format("it is not known who uses {}: {}", device, MessageOf(claimed.status())));
}

Awaitable<void> VolumeRelease::CheckQuiet(VolumeRecord record, KernelObject object, TimePoint deadline,
                                          ReleaseCheck* check) {
  // What a process wrote, the kernel writes later, also after the process has ended.
  const absl::Status flushed = co_await helper_.Flush(object.device, object.disk_sequence, deadline);
  if (!flushed.ok()) {
    Add(check, object,
        fmt::format("what was written to block device {} is not on its disk yet, as far as is known: {}",
                    Number(object.device), MessageOf(flushed)));
    co_return;
  }
  // Somebody may have opened it since.
  const CensusAnswer answer = co_await Ask(Question(record, {object}, /*staged=*/false), deadline);
  if (const auto holders = HoldersIn(answer, 0); !holders.empty()) {
    AddHolders(check, object, holders);
  } else if (!answer.incomplete.empty()) {
    Add(check, object, fmt::format("it is not known who uses it: {}", Printable(answer.incomplete)));
  }
}

}  // namespace berth
