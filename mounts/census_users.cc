#include "mounts/census_users.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/mount_calls.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

dev_t DeviceOf(const struct statx& info) { return makedev(info.stx_dev_major, info.stx_dev_minor); }

// The number after `lead` in fdinfo; 0 where it is missing.
uint64_t NumberInFdinfo(const std::string& text, std::string_view lead, int base) {
  const size_t at = text.find(lead);
  if (at == std::string::npos) return 0;
  const size_t digits = text.find_first_not_of(" \t", at + lead.size());
  uint64_t number = 0;
  if (digits != std::string::npos) {
    std::from_chars(text.data() + digits, text.data() + text.size(), number, base);
  }
  return number;
}

// Whether what fdinfo is about was opened to read alone. What has gone meanwhile was not.
bool ReadsOnly(const std::string& fdinfo) {
  return fdinfo.find("flags:") != std::string::npos &&
         (NumberInFdinfo(fdinfo, "flags:", 8) & O_ACCMODE) == O_RDONLY;
}

// Of a thread's stat: "PID (NAME) STATE PARENT GROUP SESSION TTY TTY_GROUP FLAGS …". The name may hold
// anything.
struct ThreadState {
  bool waits = false;  // in the kernel, and cannot be interrupted
  bool ended = true;
  bool of_kernel = false;  // it has no descriptors, and maps nothing
};

ThreadState StateOf(const std::string& stat) {
  constexpr uint64_t kKernelThread = 0x00200000;
  ThreadState state;
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return state;
  state.waits = stat[name_end + 2] == 'D';
  state.ended = stat[name_end + 2] == 'Z';
  size_t at = name_end + 2;
  for (int field = 0; field < 6 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  uint64_t flags = 0;
  if (at != std::string::npos) std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), flags);
  state.of_kernel = (flags & kKernelThread) != 0;
  return state;
}

bool Shares(pid_t process, pid_t thread, int what) {
  return syscall(SYS_kcmp, process, thread, what, 0, 0) == 0;
}

// A mount that is made later has a larger unique id.
uint64_t NewestMount() {
  constexpr uint64_t kUnknown = ~uint64_t{0};
  const UniqueFd clone(
      static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  struct statx info{};
  const bool told = clone.valid() && statx(clone.get(), "", AT_EMPTY_PATH, kStatxMountIdUnique, &info) == 0 &&
                    (info.stx_mask & kStatxMountIdUnique) != 0;
  return told ? info.stx_mnt_id : kUnknown;
}

// Of what a link in /proc leads to, asked by a child that can be left behind. 0: it has gone, or has ended.
// Unset: it did not answer.
std::optional<int64_t> FileSystemType(const std::string& link) {
  constexpr int kPatienceMs = 300;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    struct statfs info{};
    const int64_t type = statfs(("/" + link).c_str(), &info) == 0 ? static_cast<int64_t>(info.f_type) : 0;
    _exit(write(to.get(), &type, sizeof type) == sizeof type ? 0 : 1);
  }
  to.Reset();
  pollfd readable{.fd = from.get(), .events = POLLIN, .revents = 0};
  int64_t type = 0;
  const bool answered = child > 0 && poll(&readable, 1, kPatienceMs) == 1 &&
                        read(from.get(), &type, sizeof type) == sizeof type;
  if (child > 0 && !answered) kill(child, SIGKILL);
  if (child > 0) waitpid(child, nullptr, answered ? 0 : WNOHANG);
  return answered ? std::optional(type) : std::nullopt;
}

// struct procmap_query and PROCMAP_QUERY of Linux 6.11.
struct MappingQuery {
  uint64_t size = sizeof(MappingQuery);
  uint64_t flags = 0;
  uint64_t address = 0;
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t access = 0;
  uint64_t page_size = 0;
  uint64_t offset = 0;
  uint64_t inode = 0;
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint32_t name_size = 0;
  uint32_t build_id_size = 0;
  uint64_t name = 0;
  uint64_t build_id = 0;
};
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kNextFileMapping = 0x10 | 0x20;  // the one at the address or after it, of a file

// A line of maps: "FROM-TO PERMISSIONS OFFSET MAJOR:MINOR INODE   /path".
std::optional<CensusUsers::Mapping> ParseMapping(std::string_view line) {
  CensusUsers::Mapping mapping;
  const size_t slash = line.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  unsigned long from = 0;
  unsigned long to = 0;
  unsigned major_number = 0;
  unsigned minor_number = 0;
  unsigned long inode = 0;
  const std::string numbers(line.substr(0, slash));
  if (std::sscanf(numbers.c_str(), "%lx-%lx %*s %*x %x:%x %lu", &from, &to, &major_number, &minor_number,
                  &inode) != 5) {
    return std::nullopt;
  }
  return CensusUsers::Mapping{.device = makedev(major_number, minor_number),
                              .inode = inode,
                              .from = from,
                              .to = to,
                              .path = std::string(line.substr(slash))};
}

}  // namespace

CensusUsers::CensusUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                         KeptMounts kept, HoldReporter report)
    : host_(host),
      question_(question),
      mounts_(mounts),
      kept_(std::move(kept)),
      report_(std::move(report)),
      recorded_(question.recorded.begin(), question.recorded.end()),
      self_(host.Cached("proc/self/exe", false)) {
  for (size_t i = 0; i < question.objects.size(); ++i) {
    if (!question.objects[i].users) continue;
    const CensusObject& object = question.objects[i];
    if (!object.block_device) file_systems_.push_back(i);
    if (!object.block_device) continue;
    for (const dev_t device : host.PartsOf(object.device)) devices_[device].push_back(i);
  }
}

std::string CensusUsers::Look() {
  if (file_systems_.empty() && devices_.empty()) return {};
  for (const ListedMount& mount : mounts_.mounts()) listed_.insert(mount.device);
  if (mounts_.unique_ids()) newest_ = NewestMount();
  return LookAtProcesses();
}

// --- processes ---

std::string CensusUsers::LookAtProcesses() {
  size_t threads = 0;
  // By a thread that is alive. Those that may keep us waiting come last.
  std::vector<std::pair<pid_t, pid_t>> single;
  std::vector<std::pair<pid_t, pid_t>> threaded;
  std::vector<std::pair<pid_t, pid_t>> waiting;
  const bool listed = host_.ForEachNumber("proc", [&](pid_t pid) {
    const std::string process = "proc/" + std::to_string(pid);
    if (pid == getpid() || IsHelper(process)) return true;
    const ThreadState state = StateOf(host_.Start(process + "/stat"));
    if (state.of_kernel) return true;
    pid_t alive = state.ended ? 0 : pid;
    size_t count = 0;
    host_.ForEachNumber(process + "/task", [&](pid_t thread) {
      const bool first = thread == pid;
      if (alive == 0 && !first) alive = thread;
      const std::string path = process + "/task/" + std::to_string(thread);
      if (first || !Shares(pid, thread, KCMP_FILES)) LookAtDescriptors(pid, path);
      if (first || !Shares(pid, thread, KCMP_FS)) LookAtDirectories(pid, path);
      return ++count + threads < kCensusThreads;
    });
    threads += count;
    if (alive != 0) (state.waits ? waiting : count > 1 ? threaded : single).emplace_back(pid, alive);
    return threads < kCensusThreads;
  });
  if (!listed) return "the processes could not be listed";
  if (threads >= kCensusThreads) return "there are more threads than are looked at";
  CensusKernelUsers(host_, question_, mounts_, kept_, processes_, report_).Look();
  for (const auto& processes : {single, threaded, waiting}) {
    for (const auto& [pid, thread] : processes) LookAtMaps(pid, thread);
  }
  return {};
}

// Another of berthd's helpers, of this berthd or of another one: what it has open it has only to ask. Others
// may run the same program, and have what they like.
bool CensusUsers::IsHelper(const std::string& process) {
  const auto program = host_.Cached(process + "/exe", false);
  if (!program.has_value() || !self_.has_value()) return false;
  if (program->stx_ino != self_->stx_ino || DeviceOf(*program) != DeviceOf(*self_)) return false;
  // "Uid: REAL EFFECTIVE SAVED OF_FILES". The owner of its directory in /proc says less: whoever runs it, it
  // is root's.
  const std::string status = host_.Start(process + "/status");
  const std::string ours = "\nUid:\t" + std::to_string(getuid()) + "\t" + std::to_string(geteuid()) + "\t";
  return status.find(ours) != std::string::npos;
}

void CensusUsers::LookAtDirectories(pid_t pid, const std::string& thread) {
  if (file_systems_.empty()) return;
  for (const auto& [name, kind] :
       {std::pair("/cwd", HoldKind::kWorkingDirectory), std::pair("/root", HoldKind::kRootDirectory)}) {
    const auto id = host_.MountId(thread + name, mounts_.unique_ids());
    if (!id.has_value()) continue;
    const auto mount = mounts_.ById(*id);
    if (kind == HoldKind::kRootDirectory && mount.has_value()) {
      const size_t mount_namespace = mounts_.mounts()[*mount].mount_namespace;
      if (!processes_.contains(mount_namespace) && host_.Link(thread + name) == "/")
        processes_.emplace(mount_namespace, pid);
    }
    const Found found = OnMount(mount, thread + name);
    if (found.objects.empty()) continue;
    Report(found, {.kind = kind, .pid = pid, .where = host_.Name(thread + name)});
  }
}

void CensusUsers::LookAtDescriptors(pid_t pid, const std::string& thread) {
  host_.ForEachNumber(thread + "/fd", [&](int fd) {
    const std::string link = thread + "/fd/" + std::to_string(fd);
    const std::string path = host_.Name(link);
    if (!path.starts_with('/') && path != kNameTooLong) return true;  // a pipe, a socket
    const Hold open_file{.kind = HoldKind::kOpenFile, .pid = pid, .where = path};
    const std::string fdinfo = thread + "/fdinfo/" + std::to_string(fd);
    std::vector<size_t> devices = ObjectsOfDevice(link);
    const auto writers = [this](size_t i) { return question_.objects[i].writers; };
    if (std::ranges::any_of(devices, writers) && ReadsOnly(host_.Start(fdinfo)))
      std::erase_if(devices, writers);
    Report({.objects = std::move(devices)}, open_file);
    if (file_systems_.empty()) return true;
    const uint64_t id = NumberInFdinfo(host_.Start(fdinfo), "mnt_id:", 10);
    if (id != 0) Report(OnMount(mounts_.ByOldId(id), link), open_file);
    return true;
  });
}

void CensusUsers::Report(const Found& found, const Hold& hold) {
  for (const size_t object : found.objects) {
    Hold one = hold;
    one.object = object;
    if (!found.keeper.empty()) one.keeper = found.keeper;
    report_(one);
  }
}

CensusUsers::Found CensusUsers::OnMount(std::optional<size_t> mount, const std::string& link) {
  if (!mount.has_value()) return OfDetached(link);
  const auto kept = kept_.find(*mount);
  return {.objects = kept == kept_.end() ? std::vector<size_t>{} : kept->second};
}

// A mount that is in no namespace: a file is open on it since before `umount --lazy`, or it was cloned. Which
// directory of its file system it shows cannot be asked. If no other mount shows that file system, what lies
// beneath it, such as the layers of an overlay, cannot be asked either: it may be any volume's that is older.
CensusUsers::Found CensusUsers::OfDetached(const std::string& link) {
  Found found;
  const auto info = host_.Cached(link, mounts_.unique_ids());
  if (!info.has_value()) return found;
  const dev_t device = DeviceOf(*info);
  // What was mounted since the mounts were listed, for a new container perhaps, is another pass's.
  const bool known = listed_.contains(device) || info->stx_mnt_id > newest_;
  const auto beneath = known ? Beneath::kNothing : BeneathUnlisted(device, link);
  bool certain = false;
  for (const size_t i : file_systems_) {
    const CensusObject& object = question_.objects[i];
    const bool its_own = device == object.device || device == object.inode_device;
    const bool may_be =
        beneath == Beneath::kAnything || (beneath == Beneath::kBtrfs && object.fs_type == "btrfs");
    if (!its_own && !may_be) continue;
    const bool ours = std::ranges::find(object.ours, info->stx_mnt_id) != object.ours.end();
    const bool before = mounts_.unique_ids() && info->stx_mnt_id < object.before;
    if (!ours && (before || recorded_.contains(info->stx_mnt_id))) continue;
    found.objects.push_back(i);
    certain = certain || its_own;
  }
  found.keeper = certain ? "detached" : "possible";
  return found;
}

CensusUsers::Beneath CensusUsers::BeneathUnlisted(dev_t device, const std::string& link) {
  if (const auto known = unlisted_.find(device); known != unlisted_.end()) return known->second;
  // One that does not answer may be anything.
  const auto type = FileSystemType(link);
  if (type == 0) return Beneath::kNothing;
  Beneath beneath = Beneath::kNothing;
  if (type == BTRFS_SUPER_MAGIC) beneath = Beneath::kBtrfs;
  if (!type.has_value() || type == OVERLAYFS_SUPER_MAGIC || type == ECRYPTFS_SUPER_MAGIC)
    beneath = Beneath::kAnything;
  unlisted_.emplace(device, beneath);
  return beneath;
}

std::vector<size_t> CensusUsers::ObjectsOfDevice(const std::string& link) {
  std::vector<size_t> objects;
  if (devices_.empty()) return objects;
  const auto info = host_.Cached(link, mounts_.unique_ids());
  if (!info.has_value() || !S_ISBLK(info->stx_mode)) return objects;
  const dev_t device = makedev(info->stx_rdev_major, info->stx_rdev_minor);
  const auto found = devices_.find(device);
  return found == devices_.end() ? objects : found->second;
}

void CensusUsers::LookAtMaps(pid_t pid, pid_t thread) {
  const std::string path = "proc/" + std::to_string(thread) + "/maps";
  const UniqueFd maps = host_.Open(path);
  if (!maps.valid()) return;
  // Linux 6.11 gives what is mapped without its path, which costs the most.
  MappingQuery query{.flags = kNextFileMapping};
  while (question_.kernel == KernelAs::kThis && ioctl(maps.get(), kQueryMapping, &query) == 0) {
    LookAtMapping(pid, thread,
                  {.device = makedev(query.device_major, query.device_minor),
                   .inode = query.inode,
                   .from = query.from,
                   .to = query.to});
    query.address = query.to;
  }
  // ENOENT: that was the last, or it has ended.
  if (question_.kernel == KernelAs::kThis && (errno == ENOENT || errno == ESRCH)) return;
  ForEachLine(host_.Text(path), [&](std::string_view line) {
    if (const auto mapping = ParseMapping(line)) LookAtMapping(pid, thread, *mapping);
  });
}

// Each mapping is asked for its mount: the same file may be mapped through another one, too.
void CensusUsers::LookAtMapping(pid_t pid, pid_t thread, const Mapping& mapping) {
  const auto unlisted = unlisted_.find(mapping.device);
  const bool harmless = listed_.contains(mapping.device) ||
                        (unlisted != unlisted_.end() && unlisted->second == Beneath::kNothing);
  const bool of_file_system = !harmless || std::ranges::any_of(file_systems_, [&](size_t i) {
    return mapping.device == question_.objects[i].device ||
           mapping.device == question_.objects[i].inode_device;
  });
  const bool may_be_device = !devices_.empty() && !no_devices_.contains({mapping.device, mapping.inode});
  if (!of_file_system && !may_be_device) return;
  std::array<char, 64> range{};
  std::snprintf(range.data(), range.size(), "/map_files/%lx-%lx", mapping.from, mapping.to);
  const std::string process = "proc/" + std::to_string(thread);
  const std::string link = process + range.data();
  Found found;
  if (may_be_device) {
    found.objects = ObjectsOfDevice(link);
    if (found.objects.empty()) no_devices_.emplace(mapping.device, mapping.inode);
  }
  if (of_file_system) {
    const auto id = host_.MountId(link, mounts_.unique_ids());
    const Found on = id.has_value() ? OnMount(mounts_.ById(*id), link) : ByPath(process, mapping);
    found.objects.insert(found.objects.end(), on.objects.begin(), on.objects.end());
    found.keeper = on.keeper;
  }
  if (found.objects.empty()) return;
  const std::string file = PathOf(process, link, mapping);
  const bool program = host_.Link(process + "/exe") == file;
  Report(found, {.kind = program ? HoldKind::kProgram : HoldKind::kMappedFile, .pid = pid, .where = file});
}

// Without the right to ask for the mapping's mount, its path is all there is.
CensusUsers::Found CensusUsers::ByPath(const std::string& process, const Mapping& mapping) {
  Found found;
  const std::string file = PathOf(process, "", mapping);
  for (const auto& [kept, objects] : kept_) {
    const std::string& target = mounts_.Text(kept).target;
    if (target.empty() || mounts_.mounts()[kept].device != mapping.device || !IsAtOrBeneath(file, target))
      continue;
    found.objects.insert(found.objects.end(), objects.begin(), objects.end());
  }
  return found;
}

std::string CensusUsers::PathOf(const std::string& process, const std::string& link, const Mapping& mapping) {
  std::string file = mapping.path;
  if (file.empty() && !link.empty()) file = host_.Name(link);
  if (!file.empty()) return file;
  ForEachLine(host_.Text(process + "/maps"), [&](std::string_view line) {
    const auto listed = ParseMapping(line);
    if (listed && listed->from == mapping.from) file = listed->path;
  });
  return file;
}

}  // namespace berth
