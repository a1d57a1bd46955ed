#include "mounts/census_users.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/loop.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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

#include "base/directory_stream.h"
#include "base/mountinfo_line.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// How long all loop devices may take: what lies behind one may be a file system that does not answer.
constexpr int kLoopMilliseconds = 1000;

template <class Each>
void ForEachLine(std::string_view text, const Each& each) {
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    each(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

dev_t DeviceOf(const struct statx& info) { return makedev(info.stx_dev_major, info.stx_dev_minor); }

// The number after "mnt_id:" in fdinfo; 0 where it is missing.
uint64_t MountInFdinfo(const std::string& text) {
  constexpr std::string_view kLead = "mnt_id:";
  const size_t at = text.find(kLead);
  if (at == std::string::npos) return 0;
  const size_t digits = text.find_first_not_of(" \t", at + kLead.size());
  uint64_t id = 0;
  if (digits != std::string::npos) std::from_chars(text.data() + digits, text.data() + text.size(), id);
  return id;
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

// The values of an overlay's options that name its layers, as they were given: "lowerdir=/a:/b,upperdir=/c".
std::vector<std::string> LayersOf(const std::string& options) {
  std::vector<std::string> layers;
  std::string_view rest = options;
  while (!rest.empty()) {
    const std::string_view option = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), option.size() + 1));
    const size_t equals = option.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = option.substr(0, equals);
    if (key != "upperdir" && key != "workdir" && !key.starts_with("lowerdir") &&
        !key.starts_with("datadir")) {
      continue;
    }
    // Colons separate layers; one that belongs to a path has a backslash before it.
    std::string layer;
    const std::string value = DecodeMountinfo(option.substr(equals + 1));
    for (size_t i = 0; i <= value.size(); ++i) {
      if (i == value.size() ||
          (value[i] == ':' && !key.ends_with('+') && key != "upperdir" && key != "workdir")) {
        if (!layer.empty()) layers.push_back(std::exchange(layer, {}));
      } else if (value[i] == '\\' && i + 1 < value.size()) {
        layer += value[++i];
      } else {
        layer += value[i];
      }
    }
  }
  return layers;
}

struct Loop {
  std::string name;  // "loop0"
  // What its file may be called in our namespace; first as the kernel calls it, which may be so in another
  // one. Empty: too long.
  std::vector<std::string> files;
};

// What is behind a loop device.
struct Behind {
  bool answered = false;
  uint64_t device = 0;   // the file system's
  uint64_t rdevice = 0;  // of a block device its number
  size_t file = 0;       // which of Loop::files leads to it; as many as there are: none does
};

std::string Under(const std::string& directory, const std::string& file) {
  return directory == "/" ? file : directory + file;
}

bool LeadsTo(std::string file, const loop_info64& info) {
  struct stat found{};
  if (stat(file.c_str(), &found) == 0) return found.st_dev == info.lo_device && found.st_ino == info.lo_inode;
  if (!file.ends_with(" (deleted)")) return false;
  file.resize(file.rfind('/') + 1);
  return stat(file.c_str(), &found) == 0 && found.st_dev == info.lo_device;
}

Behind LookBehind(CensusHost& host, const Loop& loop) {
  const UniqueFd fd = host.Open("dev/" + loop.name, O_RDONLY | O_NONBLOCK);
  loop_info64 info{};
  if (!fd.valid() || ioctl(fd.get(), LOOP_GET_STATUS64, &info) != 0) return {};
  Behind behind{.answered = true, .device = info.lo_device, .rdevice = info.lo_rdevice};
  while (behind.file < loop.files.size() && !LeadsTo(loop.files[behind.file], info)) ++behind.file;
  return behind;
}

// In a process of its own, since the file systems behind them may not answer: then it asks for the next one
// in another, with half the patience.
std::vector<Behind> LookBehind(CensusHost& host, const std::vector<Loop>& loops) {
  std::vector<Behind> answers;
  int patience = kLoopMilliseconds;
  while (answers.size() < loops.size()) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      host.NoteError();
      break;
    }
    UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
      for (size_t i = answers.size(); i < loops.size(); ++i) {
        const Behind behind = LookBehind(host, loops[i]);
        if (write(to.get(), &behind, sizeof behind) != sizeof behind) _exit(1);
      }
      _exit(0);
    }
    if (child < 0) {
      host.NoteError();
      break;
    }
    to.Reset();
    pollfd readable{.fd = from.get(), .events = POLLIN, .revents = 0};
    Behind behind;
    while (answers.size() < loops.size() && poll(&readable, 1, patience) == 1 &&
           read(from.get(), &behind, sizeof behind) == sizeof behind) {
      answers.push_back(behind);
    }
    const bool all = answers.size() == loops.size();
    // One that hangs ends with its file system, and is init's then.
    if (!all) kill(child, SIGKILL);
    waitpid(child, nullptr, all ? 0 : WNOHANG);
    if (all) break;
    answers.push_back({});
    patience = std::max(1, patience / 2);
  }
  answers.resize(loops.size());
  return answers;
}

}  // namespace

CensusUsers::CensusUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                         std::unordered_map<size_t, std::vector<size_t>> kept, Reporter report)
    : host_(host),
      question_(question),
      mounts_(mounts),
      kept_(std::move(kept)),
      report_(std::move(report)),
      recorded_(question.recorded.begin(), question.recorded.end()) {
  for (size_t i = 0; i < question.objects.size(); ++i) {
    if (!question.objects[i].users) continue;
    (question.objects[i].block_device ? devices_ : file_systems_).push_back(i);
  }
}

std::string CensusUsers::Look() {
  if (file_systems_.empty() && devices_.empty()) return {};
  LookAtOverlays();
  LookAtSwap();
  LookAtLoops();
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
    if (pid == getpid()) return true;
    const std::string process = "proc/" + std::to_string(pid);
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
  for (const auto& processes : {single, threaded, waiting}) {
    for (const auto& [pid, thread] : processes) LookAtMaps(pid, thread);
  }
  return {};
}

void CensusUsers::LookAtDirectories(pid_t pid, const std::string& thread) {
  if (file_systems_.empty()) return;
  for (const auto& [name, kind] :
       {std::pair("/cwd", HoldKind::kWorkingDirectory), std::pair("/root", HoldKind::kRootDirectory)}) {
    const auto id = host_.MountId(thread + name, mounts_.unique_ids());
    if (!id.has_value()) continue;
    const Found found = OnMount(mounts_.ById(*id), thread + name);
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
    Report({.objects = ObjectsOfDevice(link)}, open_file);
    if (file_systems_.empty()) return true;
    const uint64_t id = MountInFdinfo(host_.Start(thread + "/fdinfo/" + std::to_string(fd)));
    if (id != 0) Report(OnMount(mounts_.ByOldId(id), link), open_file);
    return true;
  });
}

void CensusUsers::Report(const Found& found, const Hold& hold) {
  for (const size_t object : found.objects) {
    Hold one = hold;
    one.object = object;
    if (found.detached) one.keeper = "detached";
    report_(one);
  }
}

CensusUsers::Found CensusUsers::OnMount(std::optional<size_t> mount, const std::string& link) {
  if (!mount.has_value()) return {.objects = ObjectsOfDetached(link), .detached = true};
  const auto kept = kept_.find(*mount);
  return {.objects = kept == kept_.end() ? std::vector<size_t>{} : kept->second};
}

// A mount that is in no namespace: a file is open on it since before `umount --lazy`, or it was cloned. Which
// directory of its file system it shows cannot be asked.
std::vector<size_t> CensusUsers::ObjectsOfDetached(const std::string& link) {
  std::vector<size_t> objects;
  const auto info = host_.Cached(link, mounts_.unique_ids());
  if (!info.has_value()) return objects;
  const dev_t device = DeviceOf(*info);
  for (const size_t i : file_systems_) {
    const CensusObject& object = question_.objects[i];
    if (device != object.device && device != object.inode_device) continue;
    const bool ours = std::ranges::find(object.ours, info->stx_mnt_id) != object.ours.end();
    const bool before = mounts_.unique_ids() && info->stx_mnt_id < object.before;
    if (ours || (!before && !recorded_.contains(info->stx_mnt_id))) objects.push_back(i);
  }
  return objects;
}

std::vector<size_t> CensusUsers::ObjectsOfDevice(const std::string& link) {
  std::vector<size_t> objects;
  if (devices_.empty()) return objects;
  const auto info = host_.Cached(link, mounts_.unique_ids());
  if (!info.has_value() || !S_ISBLK(info->stx_mode)) return objects;
  const dev_t device = makedev(info->stx_rdev_major, info->stx_rdev_minor);
  for (const size_t i : devices_) {
    if (question_.objects[i].device == device) objects.push_back(i);
  }
  return objects;
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
  const bool of_file_system = std::ranges::any_of(file_systems_, [&](size_t i) {
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
    found.detached = on.detached;
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

// --- the kernel's own users ---

std::vector<size_t> CensusUsers::ObjectsAt(size_t mount_namespace, const std::string& path) {
  std::vector<size_t> objects;
  if (!path.starts_with('/')) return objects;
  const auto mount = mounts_.MountAt(mount_namespace, path);
  for (const size_t i : file_systems_) {
    const CensusObject& object = question_.objects[i];
    bool inside = !object.directory.empty() && IsAtOrBeneath(path, object.directory);
    if (!inside && mount.has_value()) {
      const auto kept = kept_.find(*mount);
      inside = kept != kept_.end() && std::ranges::find(kept->second, i) != kept->second.end();
    }
    if (inside) objects.push_back(i);
  }
  return objects;
}

void CensusUsers::LookAtOverlays() {
  for (size_t i = 0; i < mounts_.mounts().size(); ++i) {
    if (!mounts_.mounts()[i].overlay) continue;
    const Hold overlay{.kind = HoldKind::kOverlay, .where = mounts_.Text(i).target};
    for (const std::string& layer : LayersOf(mounts_.Text(i).options)) {
      Report({.objects = ObjectsAt(mounts_.mounts()[i].mount_namespace, layer)}, overlay);
    }
  }
}

void CensusUsers::LookAtSwap() {
  // "FILE TYPE SIZE USED PRIORITY"; the first line names the columns.
  ForEachLine(host_.Text("proc/swaps"), [&](std::string_view line) {
    if (!line.starts_with('/')) return;
    const std::string file = DecodeMountinfo(line.substr(0, line.find_first_of(" \t")));
    Report({.objects = ObjectsAt(mounts_.own(), file)}, {.kind = HoldKind::kSwap, .where = file});
  });
}

void CensusUsers::LookAtLoops() {
  std::vector<Loop> loops;
  const DirectoryStream blocks(fdopendir(host_.Open("sys/block", O_RDONLY | O_DIRECTORY).Release()));
  while (const dirent* const entry = blocks == nullptr ? nullptr : readdir(blocks.get())) {
    const std::string name(entry->d_name);
    if (!name.starts_with("loop")) continue;
    const std::string backing_file = "sys/block/" + name + "/loop/backing_file";
    if (!host_.Exists(backing_file)) continue;
    std::string file = host_.Text(backing_file);
    if (file.ends_with('\n')) file.pop_back();
    loops.push_back({.name = name, .files = {std::move(file)}});
  }
  const std::vector<Behind> behind = LookBehind(host_, loops);
  const auto is_behind = [&](size_t loop, size_t object) {
    return behind[loop].answered && behind[loop].device == question_.objects[object].inode_device;
  };
  // A name that does not lead to its file here belongs to another namespace, or to a mount that has gone. If
  // that mount showed the object, the file has this name in the object's directory. The object is free of the
  // device only if our namespace shows that directory and the file is not there.
  std::vector<std::vector<size_t>> objects(loops.size());
  for (const size_t object : file_systems_) {
    std::vector<size_t> strange;
    std::vector<Loop> inside;
    for (size_t i = 0; i < loops.size(); ++i) {
      if (!is_behind(i, object) || behind[i].file < loops[i].files.size()) continue;
      const std::string& file = loops[i].files[0];
      const CensusObject& asked = question_.objects[object];
      std::set<std::string> names;
      if (!file.empty()) names = mounts_.PathsTo(asked.device, Under(asked.root, file));
      strange.push_back(i);
      inside.push_back({.name = loops[i].name, .files = {names.begin(), names.end()}});
    }
    const std::vector<Behind> found = LookBehind(host_, inside);
    for (size_t i = 0; i < strange.size(); ++i) {
      const bool tried = found[i].answered && !inside[i].files.empty();
      if (!tried || found[i].file < inside[i].files.size()) objects[strange[i]].push_back(object);
    }
  }
  for (size_t i = 0; i < loops.size(); ++i) {
    for (const size_t object : devices_) {
      const bool there = behind[i].rdevice == question_.objects[object].device;
      if (behind[i].answered && there) objects[i].push_back(object);
    }
    for (const size_t object : ObjectsAt(mounts_.own(), loops[i].files[0])) objects[i].push_back(object);
    Report({.objects = std::move(objects[i])}, {.kind = HoldKind::kLoop, .where = loops[i].name});
  }
}

}  // namespace berth
