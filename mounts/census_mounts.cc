#include "mounts/census_mounts.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/mount_calls.h"
#include "base/mountinfo_line.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

constexpr uint64_t kOverlayMagic = 0x794c7630;
constexpr uint64_t kNsfsMagic = 0x6e736673;
constexpr size_t kIdsAtATime = 512;
constexpr size_t kPropagationDepth = 64;

std::string Failed(const std::string& what) { return what + ": " + std::strerror(errno); }

uint64_t InodeOf(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// `path` without the directory `from`, which it lies in: "/data/x" in "/data" is "/x".
std::optional<std::string> Beneath(const std::string& path, const std::string& from) {
  if (from.empty() || !IsAtOrBeneath(path, from)) return std::nullopt;
  return from == "/" ? path : path.substr(from.size());
}

std::string Join(const std::string& root, const std::string& rest) {
  if (rest.empty() || rest == "/") return root;
  return root == "/" ? rest : root + rest;
}

}  // namespace

uint64_t NamespaceInode(const std::string& link) {
  const size_t open = link.find('[');
  uint64_t inode = 0;
  if (open != std::string::npos) std::from_chars(link.data() + open + 1, link.data() + link.size(), inode);
  return inode;
}

std::string CensusMounts::Read(KernelAs kernel) {
  kernel_ = kernel;
  const bool listed = kernel == KernelAs::kThis && MayListNamespaces(own_fd_);
  std::string incomplete = listed ? ReadFromKernel() : ReadByEntering();
  if (mounts_.size() >= kCensusMounts) incomplete = "there are more mounts than are looked at";
  if (namespaces_.size() >= kCensusNamespaces)
    incomplete = "there are more mount namespaces than are looked at";
  return incomplete;
}

void CensusMounts::Add(const ListedMount& mount) {
  const size_t index = mounts_.size();
  // A mount lies in one namespace.
  if (!by_id_.emplace(mount.id, index).second) return;
  by_old_id_.emplace(mount.old_id, index);
  in_namespace_[mount.mount_namespace].push_back(index);
  if (mount.peer_group != 0 && mount.follows != 0) masters_.emplace(mount.peer_group, mount.follows);
  mounts_.push_back(mount);
}

// --- Linux 6.12 -----------------------------------------------------------------------------------------

// Newer kernels (seen with 6.18) refuse the list in a user namespace and in a pid namespace: EPERM.
bool MayListNamespaces(int own) {
  NamespaceInfo info;
  if (ioctl(own, kNamespaceInfo, &info) != 0) return false;
  const UniqueFd next(ioctl(own, kNextNamespace, &info));
  return next.valid() || errno != EPERM;
}

std::string CensusMounts::ReadFromKernel() {
  const uint64_t own = InodeOf(own_fd_);
  UniqueFd current(fcntl(own_fd_, F_DUPFD_CLOEXEC, 0));
  NamespaceInfo info;
  for (int previous = 0; (previous = ioctl(current.get(), kPreviousNamespace, &info)) >= 0;) {
    current.Reset(previous);
  }
  if (errno != ENOENT) return Failed("list the mount namespaces");
  while (namespaces_.size() < kCensusNamespaces && mounts_.size() < kCensusMounts) {
    if (ioctl(current.get(), kNamespaceInfo, &info) != 0) return Failed("ask for a mount namespace");
    const uint64_t inode = InodeOf(current.get());
    if (inode == own) own_ = namespaces_.size();
    namespaces_.push_back({.id = info.id, .inode = inode});
    std::string failed = ReadNamespace(namespaces_.back());
    if (!failed.empty()) return failed;
    const int next = ioctl(current.get(), kNextNamespace, &info);
    if (next < 0) return errno == ENOENT ? std::string() : Failed("list the mount namespaces");
    current.Reset(next);
  }
  return {};
}

std::string CensusMounts::ReadNamespace(const ListedNamespace& listed) {
  std::array<uint64_t, kIdsAtATime> ids{};
  MountRequest list{.mount_id = kListmountRoot, .namespace_id = listed.id};
  StatmountAnswer<1> answer;
  while (mounts_.size() < kCensusMounts) {
    const long count = Listmount(list, ids.data(), ids.size());
    // ENOENT: its last mount has gone.
    if (count < 0) return errno == ENOENT ? std::string() : Failed("list the mounts of a namespace");
    for (long i = 0; i < count; ++i) {
      const uint64_t id = ids.at(static_cast<size_t>(i));
      if (Statmount({.mount_id = id,
                     .parameter = kStatmountSuperblock | kStatmountMount,
                     .namespace_id = listed.id},
                    &answer) != 0) {
        if (errno == ENOENT) continue;  // it has gone
        return Failed("ask for a mount");
      }
      Add({.id = id,
           .parent = answer.fixed.parent_id,
           .old_id = answer.fixed.old_mount_id,
           .mount_namespace = namespaces_.size() - 1,
           .device = makedev(answer.fixed.device_major, answer.fixed.device_minor),
           .peer_group = answer.fixed.peer_group,
           .follows = answer.fixed.master,
           .overlay = answer.fixed.magic == kOverlayMagic,
           .nsfs = answer.fixed.magic == kNsfsMagic});
    }
    if (count < static_cast<long>(ids.size())) return {};
    list.parameter = ids.back();
  }
  return {};
}

const MountText& CensusMounts::Text(size_t mount) {
  const auto [known, fresh] = texts_.try_emplace(mount);
  const uint64_t mount_namespace = namespaces_[mounts_[mount].mount_namespace].id;
  if (!fresh || mount_namespace == 0) return known->second;
  auto& answer = *text_answer_;
  MountRequest request{.mount_id = mounts_[mount].id,
                       .parameter = kStatmountRoot | kStatmountMountPoint | kStatmountFsType |
                                    kStatmountFsSubtype | kStatmountSource | kStatmountOptions,
                       .namespace_id = mount_namespace};
  long result = Statmount(request, &answer);
  const bool too_long = result != 0 && errno == EOVERFLOW;
  if (too_long) {
    request.parameter &= ~kStatmountOptions;
    result = Statmount(request, &answer);
  }
  if (result != 0) {
    if (errno != ENOENT) unknown_ = Failed("ask what a mount shows");
    return known->second;
  }
  known->second = {.root = answer.Text(kStatmountRoot, answer.fixed.root),
                   .target = answer.Text(kStatmountMountPoint, answer.fixed.mount_point),
                   .fs_type = answer.Text(kStatmountFsType, answer.fixed.fs_type),
                   .source = answer.Text(kStatmountSource, answer.fixed.source),
                   .options = too_long ? std::string() : answer.Text(kStatmountOptions, answer.fixed.options),
                   .options_unknown = too_long};
  const std::string subtype = answer.Text(kStatmountFsSubtype, answer.fixed.fs_subtype);
  if (!subtype.empty()) known->second.fs_type += "." + subtype;
  return known->second;
}

// --- before -----------------------------------------------------------------------------------------------

std::string CensusMounts::ReadByEntering() {
  std::set<uint64_t> entered;
  std::string failed = Enter(own_fd_, /*own=*/true, &entered);
  std::set<pid_t> unreadable;
  size_t threads = 0;
  const bool listed = host_.ForEachNumber("proc", [&](pid_t pid) {
    const std::string threads_of = "proc/" + std::to_string(pid) + "/task";
    host_.ForEachNumber(threads_of, [&](pid_t thread) {
      const std::string link = threads_of + "/" + std::to_string(thread) + "/ns/mnt";
      const std::string name = host_.Link(link);
      if (name.empty() && (errno == EACCES || errno == EPERM)) unreadable.insert(pid);
      if (!name.empty() && !entered.contains(NamespaceInode(name))) {
        const UniqueFd fd = host_.Open(link);
        if (fd.valid() && failed.empty()) failed = Enter(fd.get(), false, &entered);
      }
      return ++threads < kCensusThreads && failed.empty();
    });
    return threads < kCensusThreads && failed.empty();
  });
  if (!listed) return Failed("list the processes");
  if (threads >= kCensusThreads) return "there are more threads than are looked at";
  // If a namespace may not be read, the table shows the mounts below root directories in it. Known ones are
  // not added again.
  for (const pid_t pid : unreadable) {
    namespaces_.push_back({});
    std::vector<size_t> ignored;
    // That it cannot be read, either, is the limit of what can be known of it.
    [[maybe_unused]] const std::string unread = ReadMountinfo("proc/" + std::to_string(pid) + "/mountinfo",
                                                              namespaces_.size() - 1, nullptr, &ignored);
  }
  // From here on the names are read in our own namespace. A process without the right to enter namespaces is
  // in it still.
  if (setns(own_fd_, CLONE_NEWNS) != 0 && failed.empty() &&
      NamespaceInode(host_.Link("proc/thread-self/ns/mnt")) != InodeOf(own_fd_)) {
    failed = Failed("return to its own mount namespace");
  }
  return failed;
}

std::string CensusMounts::Enter(int fd, bool own, std::set<uint64_t>* entered) {
  const uint64_t inode = InodeOf(fd);
  if (!entered->insert(inode).second || namespaces_.size() >= kCensusNamespaces) return {};
  if (setns(fd, CLONE_NEWNS) != 0 && !own) {
    // Another user's, and this is not root: the kernel's list leaves it out, too.
    return errno == EPERM ? std::string() : Failed("enter a mount namespace");
  }
  // What older numbers are called where mounts have unique ones.
  std::unordered_map<uint64_t, uint64_t> unique;
  std::array<uint64_t, kIdsAtATime> ids{};
  MountRequest list{.size = kRequestWithoutNamespace, .mount_id = kListmountRoot};
  StatmountAnswer<1> answer;
  for (long count = 0;
       kernel_ != KernelAs::kBefore6_8 && (count = Listmount(list, ids.data(), ids.size())) > 0;) {
    for (long i = 0; i < count; ++i) {
      const uint64_t id = ids.at(static_cast<size_t>(i));
      const MountRequest one{.size = kRequestWithoutNamespace, .mount_id = id, .parameter = kStatmountMount};
      if (Statmount(one, &answer) == 0) unique.emplace(answer.fixed.old_mount_id, id);
    }
    list.parameter = ids.at(static_cast<size_t>(count) - 1);
  }
  if (own) unique_ids_ = !unique.empty();
  if (own) own_ = namespaces_.size();
  namespaces_.push_back({.id = 0, .inode = inode});
  std::vector<size_t> nsfs;
  std::string failed = ReadMountinfo("proc/thread-self/mountinfo", namespaces_.size() - 1, &unique, &nsfs);
  for (const size_t mount : nsfs) {
    if (!failed.empty()) break;
    const std::string target = Text(mount).target;
    const uint64_t kept = NamespaceInode(Text(mount).root);
    if (!Text(mount).root.starts_with("mnt:") || entered->contains(kept)) continue;
    // It may be mounted over; then another name of it has to do.
    if (setns(fd, CLONE_NEWNS) != 0 && !own) return Failed("enter a mount namespace");
    const UniqueFd place(open(target.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!place.valid()) host_.NoteError(target);
    if (!place.valid() || InodeOf(place.get()) != kept) continue;
    const UniqueFd inner = host_.Open("proc/thread-self/fd/" + std::to_string(place.get()));
    if (inner.valid()) failed = Enter(inner.get(), false, entered);
  }
  return failed;
}

std::string CensusMounts::ReadMountinfo(const std::string& path, size_t mount_namespace,
                                        const std::unordered_map<uint64_t, uint64_t>* unique,
                                        std::vector<size_t>* nsfs) {
  std::string failed;
  const std::string text = host_.Text(path, &failed);
  if (!failed.empty()) return failed;
  // A mount with an unknown unique id must not count as an old or a recorded one.
  constexpr uint64_t kUnknownId = uint64_t{1} << 63;
  const auto id_of = [this, unique](uint64_t old) {
    if (!unique_ids_) return old;
    const bool known = unique != nullptr && unique->contains(old);
    return known ? unique->at(old) : kUnknownId | old;
  };
  std::string_view rest = text;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const auto line = ParseMountinfoLine(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (!line.has_value()) {
      unknown_ = path + ": a line cannot be read";
      continue;
    }
    if (unique == nullptr && by_old_id_.contains(line->id)) continue;
    const size_t before = mounts_.size();
    Add({.id = id_of(line->id),
         .parent = id_of(line->parent),
         .old_id = line->id,
         .mount_namespace = mount_namespace,
         .device = makedev(line->device_major, line->device_minor),
         .peer_group = line->peer_group,
         .follows = line->follows,
         .overlay = line->fs_type == "overlay",
         .nsfs = line->fs_type == "nsfs"});
    if (mounts_.size() == before) continue;
    texts_[before] = {.root = DecodeMountinfo(line->root),
                      .target = DecodeMountinfo(line->target),
                      .fs_type = std::string(line->fs_type),
                      .source = DecodeMountinfo(line->source),
                      .options = std::string(line->options),
                      .options_unknown = false};
    if (mounts_.back().nsfs) nsfs->push_back(before);
    if (mounts_.size() >= kCensusMounts) break;
  }
  return {};
}

// --- what the tables say --------------------------------------------------------------------------------

std::optional<size_t> CensusMounts::ById(uint64_t id) const {
  const auto known = by_id_.find(id);
  return known == by_id_.end() ? std::nullopt : std::optional(known->second);
}

std::optional<size_t> CensusMounts::ByOldId(uint64_t id) const {
  const auto known = by_old_id_.find(id);
  return known == by_old_id_.end() ? std::nullopt : std::optional(known->second);
}

// Of the mount beneath `mount`, the directory on which it lies, as a path in that file system. Empty: not
// known.
std::string CensusMounts::DirectoryOf(size_t mount) {
  const auto parent = ById(mounts_[mount].parent);
  if (!parent.has_value()) return {};
  return InFileSystem(*parent, Text(mount).target);
}

std::string CensusMounts::InFileSystem(size_t mount, const std::string& path) {
  const auto rest = Beneath(path, Text(mount).target);
  return rest.has_value() ? Join(Text(mount).root, *rest) : std::string();
}

std::optional<CensusMounts::Propagation> CensusMounts::UnmountOf(size_t mount) {
  const auto beneath = ById(mounts_[mount].parent);
  if (!beneath.has_value() || mounts_[*beneath].peer_group == 0) return std::nullopt;
  std::string directory = DirectoryOf(mount);
  if (directory.empty()) return std::nullopt;
  return Propagation(mounts_[*beneath].peer_group, std::move(directory));
}

bool CensusMounts::GoesWith(size_t mount, const std::set<Propagation>& unmounts) {
  const auto beneath = ById(mounts_[mount].parent);
  if (unmounts.empty() || !beneath.has_value()) return false;
  const std::string directory = DirectoryOf(mount);
  if (directory.empty()) return false;
  uint64_t group = mounts_[*beneath].peer_group;
  if (group != 0 && unmounts.contains({group, directory})) return true;
  group = mounts_[*beneath].follows;
  for (size_t depth = 0; group != 0 && depth < kPropagationDepth; ++depth) {
    if (unmounts.contains({group, directory})) return true;
    const auto next = masters_.find(group);
    group = next == masters_.end() ? 0 : next->second;
  }
  return false;
}

std::optional<size_t> CensusMounts::MountAt(size_t mount_namespace, const std::string& path) {
  std::optional<size_t> best;
  for (const size_t mount : in_namespace_[mount_namespace]) {
    const std::string& target = Text(mount).target;
    if (target.empty() || !IsAtOrBeneath(path, target)) continue;
    // Of two at the same place, the one that lies on the other.
    const bool deeper = !best.has_value() || target.size() > Text(*best).target.size() ||
                        (target == Text(*best).target && mounts_[mount].parent == mounts_[*best].id);
    if (deeper) best = mount;
  }
  return best;
}

std::set<std::string> CensusMounts::PathsTo(const CensusObject& object, const std::string& rest) {
  std::set<std::string> paths;
  const std::string path = Join(object.root, rest);
  for (const size_t mount : in_namespace_[own_]) {
    if (mounts_[mount].device != object.device || Text(mount).target.empty()) continue;
    if (const auto inside = Beneath(path, Text(mount).root)) paths.insert(Join(Text(mount).target, *inside));
  }
  return paths;
}

}  // namespace berth
