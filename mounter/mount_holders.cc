#include "mounter/mount_holders.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/blocking.h"
#include "base/directory_stream.h"
#include "base/file.h"
#include "base/status.h"
#include "mounter/mount_table.h"
#include "mounter/mountinfo.h"

namespace berth {
namespace {

constexpr size_t kProcesses = 100'000;
constexpr size_t kDescriptorsEach = 65'536;
constexpr size_t kNamespaces = 4096;
constexpr size_t kSmallFile = size_t{64} * 1024;
constexpr size_t kShownPath = 512;

// What a mount namespace has of the file system in question.
struct Table {
  std::vector<std::string> targets;  // where it is mounted
  std::vector<std::string> inner;    // where something else lies on or beneath those
  bool goes_with_ours = false;       // the kernel takes them away together with ours, if nobody uses them
  [[nodiscard]] bool Contains(std::string_view path) const {
    const auto covers = [path](const std::string& target) { return IsAtOrBeneath(path, target); };
    return std::ranges::any_of(targets, covers) && std::ranges::none_of(inner, covers);
  }
};

// Processes of a namespace with the file system that hold nothing open of it: they may have a file mapped.
struct Unasked {
  Table table;
  std::vector<pid_t> processes;
};

// Empty where there is none, or it may not be read. The kernel tells from its own books: nothing hangs.
std::string ReadLink(const std::string& path) {
  std::array<char, 4096> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length <= 0 ? std::string() : std::string(target.data(), static_cast<size_t>(length));
}

MountHolder HolderOf(pid_t pid, std::string how) {
  // Its command line would have to be read from its memory.
  const auto name = ReadFile(fmt::format("/proc/{}/comm", pid), kSmallFile);
  std::string command = name.ok() ? *name : std::string();
  if (command.ends_with('\n')) command.pop_back();
  return {.pid = pid, .command = Printable(command, 64), .consumer = "", .how = std::move(how)};
}

// What was found so far; the helper thread may still be at it when its caller has to leave.
class Found {
 public:
  // False once there are enough.
  bool Add(MountHolder holder) {
    const std::lock_guard lock(mutex_);
    if (holders_.size() < kHoldersShown) holders_.push_back(std::move(holder));
    return holders_.size() < kHoldersShown;
  }
  [[nodiscard]] std::vector<MountHolder> Take() {
    const std::lock_guard lock(mutex_);
    return std::move(holders_);
  }

 private:
  std::mutex mutex_;
  std::vector<MountHolder> holders_;
};

// Calls `each` with every number that is a name in `path`, up to `limit`, until it says false.
template <class Each>
void ForEachNumber(const std::string& path, size_t limit, const Each& each) {
  const DirectoryStream directory(opendir(path.c_str()));
  if (directory == nullptr) return;
  for (size_t count = 0; count < limit;) {
    const dirent* const entry = readdir(directory.get());
    if (entry == nullptr) return;
    const std::string_view name(entry->d_name);
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    ++count;
    if (!each(number)) return;
  }
}

class Scan {
 public:
  Scan(std::string path, dev_t device, TimePoint deadline, Found* found)
      : path_(std::move(path)), deadline_(deadline), found_(found) {
    if (device != 0) devices_.emplace(major(device), minor(device));
  }

  // What only a helper process may ask for is returned.
  absl::StatusOr<std::vector<Unasked>> Run() {
    BERTH_RETURN_IF_ERROR(LookAtOwnTable());
    std::vector<Candidate> candidates;
    ForEachNumber("/proc", kProcesses, [&](pid_t pid) {
      if (auto candidate = LookAtNamespace(pid)) candidates.push_back(*candidate);
      return GoOn();
    });
    for (const auto& [name, pid] : named_) {
      const Candidate candidate{.pid = pid, .table = &tables_.at(name)};
      Tell(candidate,
           fmt::format("in another mount namespace, mounted at {}", Shown(candidate.table->targets.front())));
    }
    std::map<const Table*, std::vector<pid_t>> others;
    for (const Candidate& candidate : candidates) {
      if (!GoOn()) break;
      const std::string how = HowHeldOpen(candidate);
      if (!how.empty()) {
        Tell(candidate, how);
      } else if (!candidate.table->targets.empty()) {
        others[candidate.table].push_back(candidate.pid);
      }
    }
    std::vector<Unasked> unasked;
    if (!GoOn()) return unasked;
    for (auto& [table, processes] : others) {
      unasked.push_back({.table = *table, .processes = std::move(processes)});
    }
    return unasked;
  }

 private:
  struct Candidate {
    pid_t pid = 0;
    const Table* table = nullptr;  // of its namespace
  };
  using Device = std::pair<uint32_t, uint32_t>;

  [[nodiscard]] bool GoOn() const { return !enough_ && Clock::now() < deadline_; }
  static std::string Shown(std::string_view path) { return Printable(path, kShownPath); }

  void Tell(const Candidate& candidate, std::string how) {
    enough_ = !found_->Add(HolderOf(candidate.pid, std::move(how)));
  }

  // Which mounts are meant, by this process's own table.
  absl::Status LookAtOwnTable() {
    own_namespace_ = ReadLink("/proc/self/ns/mnt");
    std::set<uint64_t> parents;
    std::map<uint64_t, uint64_t> groups;  // by mount
    std::set<Device> above;               // what lies beneath the mount point, and so is not the volume's own
    BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
      const std::string target = DecodeMountinfo(line.target);
      const Device device{line.device_major, line.device_minor};
      if (line.peer_group != 0) groups.emplace(line.id, line.peer_group);
      if (target == path_) {
        devices_.insert(device);
        roots_.emplace(line.root);
        ids_.insert(line.id);
        parents.insert(line.parent);
      } else if (IsAtOrBeneath(path_, target)) {
        above.insert(device);
      }
      return true;
    }));
    for (const uint64_t parent : parents) {
      if (const auto group = groups.find(parent); group != groups.end()) groups_.insert(group->second);
    }
    // Of a directory of our own disk that is not mounted any more, the disk says nothing.
    if (ids_.empty())
      std::erase_if(devices_, [&above](const Device& device) { return above.contains(device); });
    Table& own = tables_[Key(own_namespace_, "/")];
    if (!ids_.empty()) {
      own.targets.push_back(path_);
      AddInner("/proc/self/mountinfo", "/", &own);
    }
    return absl::OkStatus();
  }

  // A file system mounted whole is held by each of its directories that is mounted elsewhere; of one
  // directory of a file system that others use too, only that directory counts.
  [[nodiscard]] bool Meant(const MountinfoLine& line) const {
    if (!devices_.contains({line.device_major, line.device_minor})) return false;
    return roots_.empty() || roots_.contains("/") || roots_.contains(line.root);
  }

  static std::string Key(const std::string& mount_namespace, const std::string& root) {
    return mount_namespace + " " + root;
  }
  // As seen from its namespace's root, where the process that shows the table has another.
  static std::string Within(const std::string& root, std::string_view target) {
    const std::string decoded = DecodeMountinfo(target);
    return root == "/" || root.empty() ? decoded : root + (decoded == "/" ? "" : decoded);
  }

  void AddInner(const std::string& mountinfo, const std::string& root, Table* table) {
    const absl::Status read = ReadMountinfo(mountinfo, [&](const MountinfoLine& line) {
      if (ids_.contains(line.id)) return true;
      std::string target = Within(root, line.target);
      const bool inside = std::ranges::any_of(
          table->targets, [&target](const std::string& outer) { return IsAtOrBeneath(target, outer); });
      if (inside && table->inner.size() < kDescriptorsEach) table->inner.push_back(std::move(target));
      return true;
    });
    read.IgnoreError();  // the process has ended
  }

  std::optional<Candidate> LookAtNamespace(pid_t pid) {
    const std::string process = fmt::format("/proc/{}", pid);
    // A kernel thread, or one that has ended.
    if (ReadLink(process + "/exe").empty()) return std::nullopt;
    std::string mount_namespace = ReadLink(process + "/ns/mnt");
    if (mount_namespace.empty()) mount_namespace = fmt::format("of pid {}", pid);
    std::string root = ReadLink(process + "/root");
    if (root.empty()) root = "/";
    const std::string key = Key(mount_namespace, root);
    auto known = tables_.find(key);
    if (known == tables_.end()) {
      if (tables_.size() >= kNamespaces) return std::nullopt;
      known = tables_.try_emplace(key).first;
      ReadTable(process + "/mountinfo", root, mount_namespace == own_namespace_, &known->second);
      const Table& table = known->second;
      const bool keeps = mount_namespace != own_namespace_ && !table.targets.empty() && !table.goes_with_ours;
      if (keeps && named_namespaces_.insert(mount_namespace).second) named_.emplace_back(key, pid);
    }
    return Candidate{.pid = pid, .table = &known->second};
  }

  void ReadTable(const std::string& mountinfo, const std::string& root, bool own, Table* table) {
    std::set<uint64_t> ids;
    std::set<uint64_t> parents;
    const absl::Status read = ReadMountinfo(mountinfo, [&](const MountinfoLine& line) {
      // In our own namespace other mounts of the file system are other uses of it.
      if (own ? !ids_.contains(line.id) : !Meant(line)) return true;
      table->targets.push_back(Within(root, line.target));
      ids.insert(line.id);
      parents.insert(line.parent);
      return true;
    });
    read.IgnoreError();  // the process has ended
    ids_.merge(ids);
    if (table->targets.empty()) return;
    AddInner(mountinfo, root, table);
    if (!own) table->goes_with_ours = AllGoWithOurs(mountinfo, std::move(parents));
  }

  // Whether what is taken away from where our mount lies is taken away from `parents` too.
  [[nodiscard]] bool AllGoWithOurs(const std::string& mountinfo, std::set<uint64_t> parents) const {
    const absl::Status read = ReadMountinfo(mountinfo, [&](const MountinfoLine& line) {
      if (groups_.contains(line.peer_group) || groups_.contains(line.follows)) parents.erase(line.id);
      return !parents.empty();
    });
    return read.ok() && parents.empty();
  }

  // "open file /x", or empty.
  [[nodiscard]] std::string HowHeldOpen(const Candidate& candidate) const {
    const std::string process = fmt::format("/proc/{}", candidate.pid);
    if (!candidate.table->targets.empty()) {
      if (const std::string cwd = ReadLink(process + "/cwd"); candidate.table->Contains(cwd)) {
        return "working directory " + Shown(cwd);
      }
      if (const std::string root = ReadLink(process + "/root"); candidate.table->Contains(root)) {
        return "root directory " + Shown(root);
      }
    }
    std::string how;
    ForEachNumber(process + "/fd", kDescriptorsEach, [&](int fd) {
      const std::string open_file = ReadLink(fmt::format("{}/fd/{}", process, fd));
      if (!open_file.starts_with('/')) return true;
      // A block device that is published has no mount of its own; else the mount tells.
      const std::optional<uint64_t> id = MountOf(fmt::format("{}/fdinfo/{}", process, fd));
      if (open_file != path_ && (!id.has_value() || !ids_.contains(*id))) return true;
      how = "open file " + Shown(open_file);
      return false;
    });
    return how;
  }

  // The number in its line "mnt_id:\t31".
  static std::optional<uint64_t> MountOf(const std::string& fdinfo) {
    const auto text = ReadFile(fdinfo, kSmallFile);
    if (!text.ok()) return std::nullopt;
    constexpr std::string_view kLead = "mnt_id:";
    const size_t place = text->find(kLead);
    if (place == std::string::npos) return std::nullopt;
    const size_t digits = text->find_first_not_of(" \t", place + kLead.size());
    if (digits == std::string::npos) return std::nullopt;
    uint64_t id = 0;
    const auto error = std::from_chars(text->data() + digits, text->data() + text->size(), id).ec;
    return error == std::errc() ? std::optional(id) : std::nullopt;
  }

  std::string path_;
  TimePoint deadline_;
  Found* found_;
  std::string own_namespace_;
  std::set<Device> devices_;
  std::set<std::string, std::less<>> roots_;
  std::set<uint64_t> groups_;            // of what our mounts lie on
  std::set<uint64_t> ids_;               // of the mounts that count, in all namespaces
  std::map<std::string, Table> tables_;  // by namespace and root
  std::set<std::string> named_namespaces_;
  std::vector<std::pair<std::string, pid_t>> named_;  // foreign ones, and a process in each
  bool enough_ = false;
};

}  // namespace

Awaitable<absl::StatusOr<std::vector<MountHolder>>> HoldersOf(MountHelper& helper, std::string path,
                                                              dev_t device, TimePoint deadline) {
  const auto found = std::make_shared<Found>();
  auto scan = [path, device, deadline, found] { return Scan(path, device, deadline, found.get()).Run(); };
  auto unasked =
      co_await RunBlocking(fmt::format("look for the holders of {}", path), std::move(scan), deadline);
  std::vector<MountHolder> holders = found->Take();
  absl::Status status = unasked.status();
  if (!unasked.ok()) unasked.emplace();
  for (const Unasked& each : *unasked) {
    std::vector<MountHelper::MappedFile> files;
    const absl::Status asked =
        co_await helper.MappedFiles(each.processes, each.table.targets, deadline, &files);
    if (!asked.ok()) status = asked;
    std::set<pid_t> told;
    for (const auto& [pid, file] : files) {
      if (holders.size() >= kHoldersShown) co_return holders;
      if (!each.table.Contains(file) || !told.insert(pid).second) continue;
      const bool program = ReadLink(fmt::format("/proc/{}/exe", pid)) == file;
      holders.push_back(HolderOf(
          pid, fmt::format("{} {}", program ? "program" : "mapped file", Printable(file, kShownPath))));
    }
  }
  if (holders.empty() && !status.ok()) co_return status;
  co_return holders;
}

}  // namespace berth
