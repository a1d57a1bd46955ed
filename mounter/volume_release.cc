#include "mounter/volume_release.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/status.h"
#include "mounter/holder_names.h"
#include "mounter/mount_holders.h"
#include "mounter/mount_table.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

// How long the kernel may take to end a file system, and a helper to answer.
constexpr Duration kEndOfFileSystem = std::chrono::seconds(2);
constexpr Duration kLookForUsers = std::chrono::seconds(5);
constexpr size_t kShownPath = 512;
constexpr size_t kCommandLimit = 4096;

std::string MountNamespaceOf(std::string_view process) {
  std::array<char, 64> target{};
  const std::string path = fmt::format("/proc/{}/ns/mnt", process);
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length <= 0 ? std::string() : std::string(target.data(), static_cast<size_t>(length));
}

std::string NamespaceUnlessOurs(pid_t pid) {
  const std::string its = MountNamespaceOf(fmt::format("{}", pid));
  return its == MountNamespaceOf("self") ? std::string() : its;
}

MountHolder HolderOf(pid_t pid, std::string how) {
  const auto name = ReadFile(fmt::format("/proc/{}/comm", pid), kCommandLimit);
  std::string command = name.ok() ? *name : std::string();
  if (command.ends_with('\n')) command.pop_back();
  return {.pid = pid, .command = Printable(command, 64), .consumer = "", .how = std::move(how)};
}

// One for each namespace or, in ours, for each mount.
std::vector<MountHolder> HoldersIn(const std::vector<FoundMount>& mounts) {
  std::vector<MountHolder> holders;
  std::set<std::string> named;
  for (const FoundMount& mount : mounts) {
    if (holders.size() == kHoldersShown) break;
    const std::string target = Printable(mount.target, kShownPath);
    if (mount.own_namespace) {
      holders.push_back(
          {.pid = 0, .command = "", .consumer = "", .how = fmt::format("mounted at {}", target)});
    } else if (named.insert(mount.mount_namespace).second) {
      holders.push_back(
          HolderOf(mount.pid, fmt::format("in another mount namespace, mounted at {}", target)));
    }
  }
  return holders;
}

std::string Number(dev_t device) { return fmt::format("{}:{}", major(device), minor(device)); }

// Another volume's, in our tree: it has the same directory of the same file system.
bool IsOthers(const FoundMount& mount, const MountScope& scope) {
  return mount.own_namespace && IsAtOrBeneath(mount.target, scope.tree) &&
         !IsAtOrBeneath(mount.target, scope.volume);
}

// Drivers of file systems without a block device (FUSE, network) often mount at a place of their own, in our
// mount namespace or theirs, and bind that; it may serve several volumes, and is theirs to keep. Others mount
// where they are told to.
bool IsPlugins(const FoundMount& mount, const MountScope& scope) {
  if (mount.mount_namespace == scope.plugin_namespace) return true;
  const bool outside = mount.own_namespace ? !IsAtOrBeneath(mount.target, scope.tree) : mount.follows_outside;
  return mount.object.disk == 0 && outside;
}

// What the kernel itself does with a block device, from sysfs: "device-mapper dm-0", "/dev/loop3".
std::vector<std::string> KernelUsersOf(dev_t device) {
  std::vector<std::string> users;
  const std::string path = fmt::format("/sys/dev/block/{}/holders", Number(device));
  const DirectoryStream above(opendir(path.c_str()));
  if (above == nullptr) return users;
  while (const dirent* const entry = readdir(above.get())) {
    if (entry->d_name[0] != '.')
      users.push_back(fmt::format("block device {}", Printable(entry->d_name, 64)));
  }
  return users;
}

// Loop devices with the block device as their backing file: the kernel counts those in no other list.
std::vector<std::string> LoopsOn(dev_t device) {
  std::vector<std::string> loops;
  const auto event = ReadFile(fmt::format("/sys/dev/block/{}/uevent", Number(device)), kCommandLimit);
  const DirectoryStream blocks(opendir("/sys/block"));
  if (!event.ok() || blocks == nullptr) return loops;
  constexpr std::string_view kLead = "DEVNAME=";
  const size_t at = event->find(kLead);
  if (at == std::string::npos) return loops;
  const size_t begin = at + kLead.size();
  const std::string path = "/dev/" + event->substr(begin, event->find('\n', begin) - begin);
  while (const dirent* const entry = readdir(blocks.get())) {
    if (!std::string_view(entry->d_name).starts_with("loop")) continue;
    auto backing = ReadFile(fmt::format("/sys/block/{}/loop/backing_file", entry->d_name), kCommandLimit);
    if (!backing.ok()) continue;
    if (backing->ends_with('\n')) backing->pop_back();
    // The name by which it was opened: that of the device, or of a bind of it.
    const auto facts =
        backing->starts_with("/dev/") ? LookAt(*backing) : absl::StatusOr<PathFacts>(PathFacts{});
    if (*backing == path || (facts.ok() && facts->special == device)) {
      loops.push_back(fmt::format("block device {}", entry->d_name));
    }
  }
  return loops;
}

void Add(ReleaseCheck* check, const KernelObject& object, std::string why) {
  if (check->why.empty()) check->why = std::move(why);
  MergeObjects({object}, &check->objects);
}

void AddHolders(ReleaseCheck* check, const KernelObject& object, const std::vector<MountHolder>& holders) {
  check->holders.insert(check->holders.end(), holders.begin(), holders.end());
  Add(check, object, DescribeUse(holders));
}

}  // namespace

std::string DescribeUse(const std::vector<MountHolder>& holders) {
  return fmt::format("still used by {}", DescribeHolders(holders));
}

std::vector<FoundMount> SortRemaining(const FoundMounts& found, const MountScope& scope) {
  std::vector<FoundMount> remaining;
  for (const FoundMount& mount : found.mounts) {
    // A copy that receives our unmounts goes with ours: what is left of them are copies of other volumes'
    // mounts.
    if (!mount.follows_tree && !IsOthers(mount, scope) && !IsPlugins(mount, scope))
      remaining.push_back(mount);
  }
  return remaining;
}

std::vector<FoundMount> SortBlockingUnstage(const FoundMounts& found, const MountScope& scope) {
  std::vector<FoundMount> blocking = SortRemaining(found, scope);
  // What the unstage itself takes away.
  std::erase_if(blocking, [&scope](const FoundMount& mount) {
    return mount.own_namespace && IsAtOrBeneath(mount.target, scope.volume);
  });
  return blocking;
}

MountScope VolumeRelease::ScopeOf(const VolumeRecord& record, pid_t plugin_pid) const {
  return {.tree = tree_,
          .volume = fmt::format("{}/{}", tree_, VolumePaths::VolumeKey(record.plugin_id, record.volume_id)),
          .plugin_namespace = plugin_pid != 0 ? NamespaceUnlessOurs(plugin_pid) : ""};
}

Awaitable<absl::StatusOr<std::vector<MountHolder>>> VolumeRelease::HoldersOutside(VolumeRecord record,
                                                                                  pid_t plugin_pid,
                                                                                  TimePoint deadline) {
  if (record.objects.empty()) co_return std::vector<MountHolder>{};
  const auto found = co_await namespaces_.Find(record.objects, deadline);
  if (!found.ok()) {
    co_return absl::UnavailableError(
        fmt::format("it is not known who uses the volume in other mount namespaces, so it stays staged: {}",
                    MessageOf(found.status())));
  }
  std::vector<MountHolder> holders = HoldersIn(SortBlockingUnstage(*found, ScopeOf(record, plugin_pid)));
  NameConsumers(record, &holders);
  co_return holders;
}

Awaitable<ReleaseCheck> VolumeRelease::CheckReleased(VolumeRecord record, pid_t plugin_pid,
                                                     TimePoint deadline) {
  ReleaseCheck check;
  std::vector<KernelObject> left;
  std::ranges::copy_if(record.objects, std::back_inserter(left),
                       [](const KernelObject& object) { return !DiskIsGone(object); });
  if (left.empty()) {
    check.released = true;
    co_return check;
  }
  const auto found = co_await namespaces_.Find(left, deadline);
  if (!found.ok()) {
    check.why =
        fmt::format("it is not known whether the kernel has released it: {}", MessageOf(found.status()));
    check.objects = std::move(left);
    co_return check;
  }
  const MountScope scope = ScopeOf(record, plugin_pid);
  for (const KernelObject& object : left) {
    if (object.device == 0) {
      Add(&check, object,
          "an earlier use of it may live on, and it is not known through which device: it counts as in use "
          "until the "
          "machine is restarted");
    } else if (object.block_device) {
      co_await CheckDevice(object, deadline, &check);
    } else {
      co_await CheckFileSystem(object, *found, scope, record.detached_mounts, deadline, &check);
    }
  }
  NameConsumers(record, &check.holders);
  check.released = check.objects.empty();
  co_return check;
}

Awaitable<void> VolumeRelease::CheckFileSystem(KernelObject object, FoundMounts found, MountScope scope,
                                               std::vector<uint64_t> detached_mounts, TimePoint deadline,
                                               ReleaseCheck* check) {
  std::vector<FoundMount> mounts = SortRemaining(found, scope);
  std::erase_if(mounts, [&object](const FoundMount& mount) { return mount.object != object; });
  if (!mounts.empty()) {
    AddHolders(check, object, HoldersIn(mounts));
    co_return;
  }
  // Whether our own detached mounts are in use: only processes can tell.
  const TimePoint users_until = std::min(deadline, Clock::now() + kLookForUsers);
  if (!detached_mounts.empty()) {
    const auto users = co_await helper_.Users(std::move(detached_mounts), {}, users_until);
    std::vector<MountHolder> holders;
    for (const pid_t pid : users.ok() ? *users : std::vector<pid_t>{}) {
      holders.push_back(HolderOf(pid, "files on a mount that was detached"));
    }
    if (!holders.empty()) {
      AddHolders(check, object, holders);
      co_return;
    }
    if (!users.ok()) {
      Add(check, object, fmt::format("it is not known who uses it: {}", MessageOf(users.status())));
      co_return;
    }
  }
  if (found.reused.contains(object.device) || found.mounted_elsewhere.contains(object.device)) co_return;
  const bool shared = std::ranges::any_of(
      found.mounts, [&object](const FoundMount& mount) { return mount.object.device == object.device; });
  // Every mount of it that was found is another volume's.
  if (shared) co_return;
  const TimePoint until = std::min(deadline, Clock::now() + kEndOfFileSystem);
  const auto alive = co_await helper_.SuperblockIsAlive(object.device, until);
  if (alive.ok() && !*alive) co_return;
  if (absl::IsUnimplemented(alive.status())) {
    // No mount of it is left. A disk's file system shows whether it lives; of others nothing more can be
    // known.
    if (object.disk == 0) co_return;
    const auto claimed = co_await helper_.DeviceIsClaimed(object.disk, until);
    if (claimed.ok() && !*claimed) co_return;
  }
  Add(check, object,
      fmt::format("the kernel still has its file system ({}, device {}), though nothing of it is mounted: a "
                  "process may "
                  "use it through a mount that was detached, or not all of its data is written",
                  Printable(object.fs_type, 64), Number(object.device)));
}

Awaitable<void> VolumeRelease::CheckDevice(KernelObject object, TimePoint deadline, ReleaseCheck* check) {
  const std::string device = fmt::format("block device {}", Number(object.device));
  std::vector<std::string> users = KernelUsersOf(object.device);
  std::ranges::move(LoopsOn(object.device), std::back_inserter(users));
  if (!users.empty()) {
    Add(check, object, fmt::format("{} is still used by {}", device, fmt::join(users, ", ")));
    co_return;
  }
  const auto open =
      co_await helper_.Users({}, {object.device}, std::min(deadline, Clock::now() + kLookForUsers));
  if (open.ok() && !open->empty()) {
    std::vector<MountHolder> holders;
    for (const pid_t pid : *open) holders.push_back(HolderOf(pid, "has its block device open"));
    AddHolders(check, object, holders);
    co_return;
  }
  const auto claimed =
      co_await helper_.DeviceIsClaimed(object.device, std::min(deadline, Clock::now() + kLookForUsers));
  if (open.ok() && claimed.ok() && !*claimed) co_return;
  if (claimed.ok() && *claimed) {
    Add(check, object, fmt::format("{} is still mounted, swap, or part of another device", device));
    co_return;
  }
  Add(check, object,
      fmt::format("it is not known who uses {}: {}", device,
                  MessageOf(open.ok() ? claimed.status() : open.status())));
}

}  // namespace berth
