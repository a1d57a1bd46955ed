#include "mounter/mount_namespaces.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/blocking.h"
#include "base/directory_stream.h"
#include "base/status.h"
#include "mounter/mount_table.h"
#include "mounter/mountinfo.h"

namespace berth {
namespace {

constexpr Duration kScanWithin = std::chrono::seconds(30);
constexpr size_t kPeerLinks = 1'000'000;
constexpr size_t kPropagationDepth = 64;

// A link in /proc; empty with errno set where it cannot be read.
std::string ReadProcLink(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length <= 0 ? std::string() : std::string(target.data(), static_cast<size_t>(length));
}

bool HasEnded(int error) { return error == ENOENT || error == ESRCH; }

// How a mount propagates: see MountinfoLine.
struct Propagation {
  uint64_t peer_group = 0;
  uint64_t follows = 0;
};

class NamespaceScan {
 public:
  NamespaceScan(const std::vector<KernelObject>& objects, const std::string& tree, TimePoint deadline)
      : tree_(tree), deadline_(deadline) {
    for (const KernelObject& object : objects) {
      if (!object.block_device) objects_[object.device].push_back(&object);
    }
  }

  absl::StatusOr<FoundMounts> Run() {
    own_namespace_ = ReadProcLink("/proc/self/ns/mnt");
    BERTH_RETURN_IF_ERROR(ReadTable(getpid(), own_namespace_, ReadProcLink("/proc/self/root")));
    const DirectoryStream processes(opendir("/proc"));
    if (processes == nullptr) return ErrnoStatus(errno, "open /proc");
    size_t count = 0;
    while (const dirent* const entry = readdir(processes.get())) {
      const std::string_view name(entry->d_name);
      pid_t pid = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
      if (error != std::errc() || end != name.data() + name.size()) continue;
      if (++count > kScannedProcesses) {
        return absl::ResourceExhaustedError("there are more processes than are looked at");
      }
      if (Clock::now() >= deadline_) return absl::DeadlineExceededError("not done in time");
      BERTH_RETURN_IF_ERROR(Visit(pid));
    }
    SetFollows();
    return std::move(found_);
  }

 private:
  absl::Status Visit(pid_t pid) {
    const std::string process = fmt::format("/proc/{}", pid);
    std::string mount_namespace = ReadProcLink(process + "/ns/mnt");
    if (mount_namespace.empty()) {
      if (HasEnded(errno)) return absl::OkStatus();
      // Its table may be readable all the same.
      mount_namespace = fmt::format("of pid {}", pid);
    }
    // A table shows what can be reached from the process's root directory.
    std::string root = ReadProcLink(process + "/root");
    if (root.empty()) {
      if (HasEnded(errno)) return absl::OkStatus();
      root = "/";
    }
    return ReadTable(pid, mount_namespace, root);
  }

  absl::Status ReadTable(pid_t pid, const std::string& mount_namespace, const std::string& root) {
    if (tables_.contains({mount_namespace, root})) return absl::OkStatus();
    if (tables_.size() >= kScannedNamespaces) {
      return absl::ResourceExhaustedError("there are more mount namespaces than are looked at");
    }
    const std::string mountinfo = fmt::format("/proc/{}/mountinfo", pid);
    const size_t before = found_.mounts.size();
    const bool own = mount_namespace == own_namespace_;
    std::vector<uint64_t> parents;  // of those found, the ids of the mounts beneath them
    const absl::Status read = ReadMountinfo(mountinfo, [&](const MountinfoLine& line) {
      NotePropagation(line, own);
      const size_t known = found_.mounts.size();
      NoteMount(line);
      for (size_t i = known; i < found_.mounts.size(); ++i) {
        found_.mounts[i].pid = pid;
        found_.mounts[i].mount_namespace = mount_namespace;
        found_.mounts[i].own_namespace = own;
        parents.push_back(line.parent);
      }
      return found_.mounts.size() < kFoundMounts;
    });
    if (found_.mounts.size() >= kFoundMounts) {
      return absl::ResourceExhaustedError("there are more mounts of it than are looked at");
    }
    // A process that ends meanwhile has no table (EINVAL): whoever else is in its namespace shows it.
    const std::optional<int> error = ErrnoOf(read);
    if (!read.ok() && (HasEnded(error.value_or(0)) || error == EINVAL)) {
      found_.mounts.resize(before);
      return absl::OkStatus();
    }
    BERTH_RETURN_IF_ERROR(read);
    tables_.emplace(mount_namespace, root);
    if (!parents.empty()) ReadParents(mountinfo, parents);
    return absl::OkStatus();
  }

  void NotePropagation(const MountinfoLine& line, bool own) {
    if (line.peer_group == 0) return;
    if (line.follows != 0 && masters_.size() < kPeerLinks) masters_.emplace(line.peer_group, line.follows);
    if (own && DecodeMountinfo(line.target) == tree_) tree_groups_.insert(line.peer_group);
  }

  void NoteMount(const MountinfoLine& line) {
    const dev_t device = makedev(line.device_major, line.device_minor);
    const auto objects = objects_.find(device);
    if (objects == objects_.end()) return;
    const std::string root = DecodeMountinfo(line.root);
    const std::string source = DecodeMountinfo(line.source);
    const MountLine mount{.device = device, .root = root, .fs_type = line.fs_type, .source = source};
    for (const KernelObject* const object : objects->second) {
      switch (Match(*object, mount)) {
        case MountMatch::kSubtree:
          found_.mounts.push_back({.object = *object, .target = DecodeMountinfo(line.target)});
          break;
        case MountMatch::kSibling:
          found_.mounted_elsewhere.insert(device);
          break;
        case MountMatch::kReused:
          found_.reused.insert(device);
          break;
        case MountMatch::kOther:
          break;
      }
    }
  }

  // How the mounts beneath those that were found last propagate. Not known: they do not follow.
  void ReadParents(const std::string& mountinfo, const std::vector<uint64_t>& parents) {
    std::map<uint64_t, Propagation> wanted;
    for (const uint64_t parent : parents) wanted.try_emplace(parent);
    const absl::Status read = ReadMountinfo(mountinfo, [&](const MountinfoLine& line) {
      const auto parent = wanted.find(line.id);
      if (parent != wanted.end()) parent->second = {.peer_group = line.peer_group, .follows = line.follows};
      return true;
    });
    read.IgnoreError();
    for (const uint64_t parent : parents) beneath_.push_back(wanted.at(parent));
  }

  void SetFollows() {
    // Of each mount in our own namespace, by its path: in which peer groups its unmount happens.
    std::map<std::string, std::set<uint64_t>> inside;
    std::map<std::string, std::set<uint64_t>> outside;
    for (size_t i = 0; i < found_.mounts.size(); ++i) {
      const FoundMount& mount = found_.mounts[i];
      if (!mount.own_namespace || beneath_[i].peer_group == 0) continue;
      auto& paths = IsAtOrBeneath(mount.target, tree_) ? inside : outside;
      paths[mount.target].insert(beneath_[i].peer_group);
    }
    for (size_t i = 0; i < found_.mounts.size(); ++i) {
      FoundMount& mount = found_.mounts[i];
      if (mount.own_namespace) continue;
      // What lies on a mount in the tree, not on the tree itself, follows by its path.
      mount.follows_tree =
          Receives(beneath_[i], tree_groups_) || FollowsPath(inside, mount.target, beneath_[i]);
      mount.follows_outside = FollowsPath(outside, mount.target, beneath_[i]);
    }
  }

  [[nodiscard]] bool FollowsPath(const std::map<std::string, std::set<uint64_t>>& paths,
                                 const std::string& target, const Propagation& beneath) const {
    const auto same = paths.find(target);
    return same != paths.end() && Receives(beneath, same->second);
  }

  // Whether an unmount in one of `groups` reaches a mount that lies on one that propagates like this,
  // directly or through other groups.
  [[nodiscard]] bool Receives(const Propagation& beneath, const std::set<uint64_t>& groups) const {
    if (groups.contains(beneath.peer_group)) return true;
    uint64_t group = beneath.follows;
    for (size_t depth = 0; group != 0 && depth < kPropagationDepth; ++depth) {
      if (groups.contains(group)) return true;
      const auto next = masters_.find(group);
      group = next == masters_.end() ? 0 : next->second;
    }
    return false;
  }

  const std::string& tree_;
  TimePoint deadline_;
  std::string own_namespace_;
  std::map<dev_t, std::vector<const KernelObject*>> objects_;
  std::set<uint64_t> tree_groups_;                        // of the tree itself
  std::map<uint64_t, uint64_t> masters_;                  // of peer groups that follow another one: that one
  std::set<std::pair<std::string, std::string>> tables_;  // by namespace and root directory
  FoundMounts found_;
  std::vector<Propagation> beneath_;  // of each mount in found_: of the mount that it lies on
};

}  // namespace

absl::StatusOr<FoundMounts> ScanMountNamespaces(const std::vector<KernelObject>& objects,
                                                const std::string& tree, TimePoint deadline) {
  return NamespaceScan(objects, tree, deadline).Run();
}

struct MountNamespaces::Query {
  std::vector<KernelObject> objects;
  bool done = false;
  absl::StatusOr<FoundMounts> result = absl::UnknownError("not scanned");
};

MountNamespaces::MountNamespaces(const asio::any_io_executor& executor, TaskScope& scope, std::string tree)
    : scope_(scope), tree_(std::move(tree)), answered_(executor) {}

MountNamespaces::~MountNamespaces() = default;

Awaitable<absl::StatusOr<FoundMounts>> MountNamespaces::Find(std::vector<KernelObject> objects,
                                                             TimePoint deadline) {
  const auto query = std::make_shared<Query>();
  query->objects = std::move(objects);
  waiting_.push_back(query);
  if (!running_) {
    running_ = true;
    scope_.Spawn("scan mount namespaces", Run());
  }
  if (!co_await answered_.WaitUntil([query] { return query->done; }, deadline)) {
    std::erase(waiting_, query);
    co_return absl::DeadlineExceededError("scan mount namespaces: not done in time");
  }
  co_return std::move(query->result);
}

Awaitable<void> MountNamespaces::Run() {
  struct Stopped {
    bool* running;
    ~Stopped() { *running = false; }
  } stopped{&running_};
  while (!waiting_.empty()) {
    const auto queries = std::exchange(waiting_, {});
    std::vector<KernelObject> objects;
    for (const auto& query : queries) MergeObjects(query->objects, &objects);
    ++scans_;
    const TimePoint deadline = Clock::now() + kScanWithin;
    auto scan = [objects, tree = tree_, deadline] { return ScanMountNamespaces(objects, tree, deadline); };
    const absl::StatusOr<FoundMounts> found =
        co_await RunBlocking("scan mount namespaces", std::move(scan), deadline);
    for (const auto& query : queries) {
      query->done = true;
      query->result = found;
      if (!found.ok()) continue;
      std::erase_if(query->result->mounts, [&query](const FoundMount& mount) {
        return std::ranges::find(query->objects, mount.object) == query->objects.end();
      });
    }
    answered_.NotifyAll();
  }
}

}  // namespace berth
