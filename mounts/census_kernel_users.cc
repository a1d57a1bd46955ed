#include "mounts/census_kernel_users.h"

#include <linux/loop.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/directory_stream.h"
#include "base/mountinfo_line.h"
#include "base/open_at2.h"
#include "base/unique_fd.h"
#include "mounts/device_node.h"

namespace berth {
namespace {

// What lies behind a name may be a file system that answers late, or not at all. So long may all that do, and
// one this part of what is left.
constexpr std::chrono::milliseconds kPatience{2000};
constexpr int kPartOfPatience = 4;
constexpr std::chrono::milliseconds kLeastPatience{10};
// So long each may take without being counted.
constexpr std::chrono::milliseconds kQuick{20};
// So long one may run, on a busy machine.
constexpr std::chrono::milliseconds kMostRunning{5000};

// Added to an object that something may have: it cannot be found out.
constexpr size_t kMaybe = size_t{1} << 63;

// The directories of an overlay that may be written to, as they were given to mount(2):
// "lowerdir=/a:/b,upperdir=/c". From the others it only reads.
std::vector<std::string> WrittenLayersOf(const MountText& overlay) {
  if (overlay.options_unknown) return {""};  // which leads nowhere
  std::vector<std::string> layers;
  std::string_view rest = overlay.options;
  while (!rest.empty()) {
    const std::string_view option = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), option.size() + 1));
    const size_t equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    if (equals == std::string_view::npos || (key != "upperdir" && key != "workdir")) continue;
    const std::string value = DecodeMountinfo(option.substr(equals + 1));
    std::string name;
    for (size_t i = 0; i < value.size(); ++i) {
      if (value[i] == '\\' && i + 1 < value.size()) ++i;
      name += value[i];
    }
    layers.push_back(std::move(name));
  }
  return layers;
}

bool LeadsTo(std::string file, const loop_info64& info) {
  struct stat found{};
  if (file.empty()) return false;
  if (stat(file.c_str(), &found) == 0) return found.st_dev == info.lo_device && found.st_ino == info.lo_inode;
  if (!file.ends_with(" (deleted)")) return false;
  file.resize(file.rfind('/') + 1);
  return stat(file.c_str(), &found) == 0 && found.st_dev == info.lo_device;
}

// Neither follows a name out of `root`, nor opens what is there for more than to ask where it is.
UniqueFd OpenIn(int root, const std::string& path, int flags = 0) {
  return OpenAt2(root, path.c_str(), O_PATH | flags, RESOLVE_IN_ROOT);
}

// Of a path to something that is gone: the same without its symlinks, as far as they still exist.
std::string WhereItLed(int root, std::string path) {
  constexpr int kLinks = 40;  // as many as the kernel follows
  size_t end = 0;
  for (int links = 0; links < kLinks && end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    const UniqueFd fd = OpenIn(root, part, O_NOFOLLOW);
    if (!fd.valid()) break;
    std::array<char, PATH_MAX> link{};
    const ssize_t size = readlinkat(fd.get(), "", link.data(), link.size());
    if (size <= 0) continue;  // no symlink
    const std::string rest = end == std::string::npos ? std::string() : path.substr(end);
    const std::string directory = link[0] == '/' ? "/" : part.substr(0, part.rfind('/') + 1);
    path = directory + std::string(link.data(), static_cast<size_t>(size)) + rest;
    end = 0;
    ++links;
  }
  return std::filesystem::path(path).lexically_normal();
}

// What keeps a child from answering.
enum class Kept {
  kWaiting,  // something that it waits for, such as a file system's answer
  kRunning,  // it has not finished yet, or wants for the processor
  kEnded,    // it was ended, or stopped
};

Kept KeptBy(CensusHost& host, pid_t child) {
  siginfo_t info{};
  constexpr int kLook = WEXITED | WSTOPPED | WNOHANG | WNOWAIT;
  if (waitid(P_PID, static_cast<id_t>(child), &info, kLook) != 0 || info.si_pid != 0) return Kept::kEnded;
  // Its number is another one in the /proc of another pid namespace.
  if (host.Link("proc/self") != std::to_string(getpid())) return Kept::kWaiting;
  const std::string stat = host.Start("proc/" + std::to_string(child) + "/stat");
  const size_t name_end = stat.rfind(')');
  const bool running =
      name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] == 'R';
  return running ? Kept::kRunning : Kept::kWaiting;
}

// What a child says about a question: the objects that are held, as far as it knows.
struct Reply {
  bool done = false;
  std::array<char, 200> missed{};  // why something was
  size_t objects = 0;              // so many follow, each a size_t
};

bool ReadAll(int fd, void* to, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t got = read(fd, static_cast<char*>(to) + at, size - at);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

struct CensusKernelUsers::Named {
  Hold hold;
  std::vector<std::string> names;
  std::vector<size_t> mounts;  // of an overlay
};

struct CensusKernelUsers::Loop {
  std::string name;  // "loop0"
  dev_t device = 0;
  std::string file;  // as the kernel calls it, which may be so in another namespace. Empty: too long
};

CensusKernelUsers::CensusKernelUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                                     const KeptMounts& kept, const NamespaceProcesses& processes,
                                     const HoldReporter& report)
    : host_(host), question_(question), mounts_(mounts), kept_(kept), processes_(processes), report_(report) {
  for (size_t i = 0; i < question.objects.size(); ++i) {
    if (!question.objects[i].users) continue;
    const CensusObject& object = question.objects[i];
    if (!object.block_device) file_systems_.push_back(i);
    if (!object.block_device) continue;
    for (const dev_t device : host.PartsOf(object.device)) devices_[device].push_back(i);
  }
}

void CensusKernelUsers::Look() {
  LookAtNames();
  LookAtLoops();
}

void CensusKernelUsers::Report(std::vector<size_t> objects, const Hold& hold) {
  std::ranges::sort(objects);  // what is certain comes first
  for (const size_t object : objects) {
    Hold one = hold;
    one.object = object & ~kMaybe;
    if ((object & kMaybe) != 0) one.keeper = "possible";
    report_(one);
  }
}

// In a process of its own: if it hangs, the next question goes to another one.
std::vector<std::vector<size_t>> CensusKernelUsers::AskEach(std::vector<std::vector<size_t>> answers,
                                                            const Question& ask) {
  using std::chrono::steady_clock;
  const size_t count = answers.size();
  auto left = steady_clock::duration(kPatience);
  for (size_t next = 0; next < count; ++next) {
    if (left < kLeastPatience) {
      host_.Miss("too many file systems do not answer, or late");
      break;
    }
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      host_.NoteError("ask a file system");
      break;
    }
    UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
      for (size_t i = next; i < count; ++i) {
        Answer(to.get(), ask(i, [&](const auto& objects) { Answer(to.get(), objects, false); }), true);
      }
      _exit(0);
    }
    if (child < 0) {
      host_.NoteError("ask a file system");
      break;
    }
    to.Reset();
    pollfd readable{.fd = from.get(), .events = POLLIN, .revents = 0};
    auto begun = steady_clock::now();
    const auto give_up = begun + kMostRunning;
    Reply reply;
    bool ended = false;
    while (next < count) {
      const auto wait =
          std::chrono::ceil<std::chrono::milliseconds>(begun + left / kPartOfPatience - steady_clock::now());
      if (poll(&readable, 1, std::max(0, static_cast<int>(wait.count()))) != 1) {
        if (KeptBy(host_, child) != Kept::kRunning || steady_clock::now() >= give_up) break;
        begun += kQuick;  // what it runs for does not count
        poll(&readable, 1, static_cast<int>(kQuick.count()));
        continue;
      }
      // Its end of the pipe is closed before it counts as ended.
      ended = !ReadAll(from.get(), &reply, sizeof reply);
      if (ended) break;
      std::vector<size_t> objects(reply.objects);
      ended = !ReadAll(from.get(), objects.data(), reply.objects * sizeof(size_t));
      if (ended) break;
      answers[next] = std::move(objects);
      if (reply.missed[0] != '\0') host_.Miss(reply.missed.data());
      if (!reply.done) continue;
      ++next;
      const auto took = steady_clock::now() - begun;
      left -= std::max(took - kQuick, steady_clock::duration::zero());
      begun = steady_clock::now();
    }
    left -= steady_clock::now() - begun;
    // One that hangs ends with its file system, and is init's then. One that was ended or stopped by others
    // has not been kept by a file system, whose name would say what it may have.
    const Kept kept = next < count ? KeptBy(host_, child) : Kept::kWaiting;
    if (ended || kept == Kept::kEnded) host_.Miss("a process of the search was ended, or stopped");
    if (!ended && kept == Kept::kRunning) host_.Miss("a process of the search got no time");
    if (next < count) kill(child, SIGKILL);
    waitpid(child, nullptr, next < count ? WNOHANG : 0);
  }
  return answers;
}

void CensusKernelUsers::Answer(int to, const std::vector<size_t>& objects, bool done) const {
  Reply reply{.done = done, .objects = objects.size()};
  const std::string& missed = host_.missed().empty() ? mounts_.unknown() : host_.missed();
  missed.copy(reply.missed.data(), reply.missed.size() - 1);
  std::string bytes(reinterpret_cast<const char*>(&reply), sizeof reply);
  bytes.append(reinterpret_cast<const char*>(objects.data()), objects.size() * sizeof objects[0]);
  if (write(to, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) _exit(1);
}

// --- overlays and swap files ---

void CensusKernelUsers::LookAtNames() {
  std::vector<Named> named;
  std::map<dev_t, std::vector<size_t>> overlays;
  for (size_t i = 0; i < mounts_.mounts().size(); ++i) {
    if (mounts_.mounts()[i].overlay) overlays[mounts_.mounts()[i].device].push_back(i);
  }
  for (auto& [device, mounts] : overlays) {
    // For people: where we see it, or else a process that does.
    const auto here = std::ranges::find_if(
        mounts, [this](size_t mount) { return mounts_.mounts()[mount].mount_namespace == mounts_.own(); });
    const size_t shown = here == mounts.end() ? mounts[0] : *here;
    const auto process = processes_.find(mounts_.mounts()[shown].mount_namespace);
    const bool named_by_process = here == mounts.end() && process != processes_.end();
    // The others are copies of the first one. Where ids are used again, it is not known which one that is.
    if (mounts_.unique_ids()) {
      mounts = {
          *std::ranges::min_element(mounts, {}, [this](size_t mount) { return mounts_.mounts()[mount].id; })};
    }
    named.push_back({.hold = {.kind = HoldKind::kOverlay,
                              .pid = named_by_process ? process->second : 0,
                              .where = mounts_.Text(shown).target},
                     .names = WrittenLayersOf(mounts_.Text(shown)),
                     .mounts = std::move(mounts)});
  }
  // "FILE TYPE SIZE USED PRIORITY"; the first line names the columns.
  std::string failed;
  const std::string swaps = host_.Text("proc/swaps", &failed);
  if (!failed.empty()) host_.Miss(failed);
  ForEachLine(swaps, [&](std::string_view line) {
    const size_t name_end = std::min(line.find_first_of(" \t"), line.size());
    const size_t type = std::min(line.find_first_not_of(" \t", name_end), line.size());
    if (!line.starts_with('/') || !line.substr(type).starts_with("file")) return;
    const std::string file = DecodeMountinfo(line.substr(0, name_end));
    named.push_back({.hold = {.kind = HoldKind::kSwap, .where = file}, .names = {file}});
  });
  if (file_systems_.empty()) return;
  std::vector<std::vector<size_t>> possible;
  std::ranges::transform(named, std::back_inserter(possible),
                         [this](const Named& one) { return OlderThan(one); });
  const auto objects =
      AskEach(std::move(possible), [&](size_t i, const Teller& tell) { return ObjectsOf(named[i], tell); });
  for (size_t i = 0; i < named.size(); ++i) Report(objects[i], named[i].hold);
}

bool CensusKernelUsers::WasBefore(size_t object, const Named& named) const {
  return std::ranges::any_of(named.mounts, [&](size_t mount) {
    return mounts_.mounts()[mount].id < question_.objects[object].before;
  });
}

// Those that an overlay may write to whose upper directory is not found, or in which a swap file may be.
std::vector<size_t> CensusKernelUsers::OlderThan(const Named& named) const {
  std::vector<size_t> objects;
  const bool overlay = !named.mounts.empty();
  if (named.names.empty() || (overlay && !mounts_.unique_ids())) return objects;
  for (const size_t object : file_systems_) {
    if (!WasBefore(object, named)) objects.push_back(object | kMaybe);
  }
  return objects;
}

std::vector<size_t> CensusKernelUsers::ObjectsOf(const Named& named, const Teller& tell) {
  const std::vector<size_t> possible = OlderThan(named);
  std::set<size_t> objects;
  for (const std::string& name : named.names) {
    Led led = Follow(named, name);
    // It had another name, in a namespace that has gone, or before a directory was renamed; or it is relative
    // to a directory that is not known.
    if (!led.leads) {
      std::ranges::copy_if(possible, std::back_inserter(led.objects),
                           [&](size_t object) { return !IsAnothers(object & ~kMaybe, name); });
    }
    objects.insert(led.objects.begin(), led.objects.end());
    std::vector<size_t> so_far = possible;
    std::ranges::copy(objects, std::back_inserter(so_far));
    tell(so_far);
  }
  return {objects.begin(), objects.end()};
}

CensusKernelUsers::Led CensusKernelUsers::Follow(const Named& named, const std::string& name) {
  Led led;
  if (!name.starts_with('/')) return led;
  const auto add = [&led](const std::vector<size_t>& more) {
    led.objects.insert(led.objects.end(), more.begin(), more.end());
  };
  std::set<size_t> namespaces{mounts_.own()};
  for (const size_t mount : named.mounts) namespaces.insert(mounts_.mounts()[mount].mount_namespace);
  // Another mount may lie above the volume's by now.
  add(ObjectsOn(std::nullopt, name));
  for (const size_t mount_namespace : namespaces) {
    const UniqueFd root = RootOf(mount_namespace);
    const UniqueFd fd = OpenIn(root.get(), name);
    if (fd.valid()) {
      led.leads = true;
      add(ObjectsAt(fd.get()));
      continue;
    }
    // The volume's mount has gone, or is in a namespace without a process.
    add(ObjectsAt(mount_namespace, name));
    add(ObjectsAt(mount_namespace, WhereItLed(root.get(), name)));
  }
  led.leads = led.leads || !led.objects.empty();
  return led;
}

UniqueFd CensusKernelUsers::RootOf(size_t mount_namespace) {
  const auto process = processes_.find(mount_namespace);
  if (process == processes_.end()) return {};
  return host_.Open("proc/" + std::to_string(process->second) + "/root", O_PATH | O_DIRECTORY);
}

std::vector<size_t> CensusKernelUsers::ObjectsAt(int fd) {
  const std::string link = "proc/self/fd/" + std::to_string(fd);
  const auto id = host_.MountId(link, mounts_.unique_ids());
  const auto mount = id.has_value() ? mounts_.ById(*id) : std::nullopt;
  const std::string path = host_.Link(link);
  if (!path.empty()) return ObjectsOn(mount, path);
  // It is too long: somewhere on that file system.
  std::vector<size_t> objects;
  for (const size_t i : file_systems_) {
    const bool on_it = mount.has_value() && mounts_.mounts()[*mount].device == question_.objects[i].device;
    if (on_it) objects.push_back(i | kMaybe);
  }
  return objects;
}

std::vector<size_t> CensusKernelUsers::ObjectsAt(size_t mount_namespace, const std::string& path) {
  if (!path.starts_with('/')) return {};
  return ObjectsOn(mounts_.MountAt(mount_namespace, path), path);
}

std::vector<size_t> CensusKernelUsers::ObjectsOn(std::optional<size_t> mount, const std::string& path) {
  std::vector<size_t> objects;
  const auto kept = mount.has_value() ? kept_.find(*mount) : kept_.end();
  for (const size_t i : file_systems_) {
    const CensusObject& object = question_.objects[i];
    const bool inside =
        (!object.directory.empty() && IsAtOrBeneath(path, object.directory)) ||
        (kept != kept_.end() && std::ranges::find(kept->second, i) != kept->second.end()) ||
        (mount.has_value() && object.source.empty() && mounts_.mounts()[*mount].device == object.device &&
         mounts_.Text(*mount).fs_type == object.fs_type &&
         IsAtOrBeneath(mounts_.InFileSystem(*mount, path), object.root));
    if (inside) objects.push_back(i);
  }
  return objects;
}

// What is called as something in the tree is in no other volume.
bool CensusKernelUsers::IsAnothers(size_t object, const std::string& path) const {
  const std::string& directory = question_.objects[object].directory;
  const std::string tree = directory.substr(0, directory.rfind('/'));
  return !tree.empty() && IsAtOrBeneath(path, tree) && !IsAtOrBeneath(path, directory);
}

// --- loop devices ---

void CensusKernelUsers::LookAtLoops() {
  std::vector<Loop> loops;
  const DirectoryStream blocks(fdopendir(host_.Open("sys/block", O_RDONLY | O_DIRECTORY).Release()));
  if (blocks == nullptr) host_.Miss("the block devices could not be listed");
  while (const dirent* const entry = blocks == nullptr ? nullptr : readdir(blocks.get())) {
    const std::string name(entry->d_name);
    if (!name.starts_with("loop")) continue;
    const std::string directory = "sys/block/" + name;
    if (!host_.Exists(directory + "/loop/backing_file")) continue;
    std::string file = host_.Text(directory + "/loop/backing_file");
    if (file.ends_with('\n')) file.pop_back();
    loops.push_back({.name = name, .device = host_.DeviceIn(directory + "/dev"), .file = std::move(file)});
  }
  // Of one whose file system does not answer the kernel does not say which one it is.
  auto objects = AskEach(std::vector(loops.size(), OfServers()),
                         [&](size_t i, const Teller& tell) { return ObjectsOf(loops[i], tell); });
  for (size_t i = 0; i < loops.size(); ++i) {
    std::ranges::copy(ObjectsAt(mounts_.own(), loops[i].file), std::back_inserter(objects[i]));
    Report(objects[i], {.kind = HoldKind::kLoop, .where = loops[i].name});
  }
}

// Those with a server, which may be the file system that does not answer.
std::vector<size_t> CensusKernelUsers::OfServers() const {
  std::vector<size_t> possible;
  for (const size_t object : file_systems_) {
    if (CanDie(question_.objects[object].fs_type)) possible.push_back(object | kMaybe);
  }
  return possible;
}

std::vector<size_t> CensusKernelUsers::ObjectsOf(const Loop& loop, const Teller& tell) {
  std::vector<size_t> objects;
  loop_info64 info{};
  const UniqueFd fd = OpenBlockDevice(loop.device);
  const bool asked = fd.valid() && ioctl(fd.get(), LOOP_GET_STATUS64, &info) == 0;
  // ENXIO: it has been detached meanwhile.
  if (!asked && (errno == ENXIO || errno == ENODEV)) return objects;
  if (!fd.valid()) host_.Miss(loop.name + " could not be asked: " + std::strerror(errno));
  // Its file's file system has failed.
  if (!asked) return OfServers();
  const auto is_of = [&](size_t i) { return question_.objects[i].inode_device == info.lo_device; };
  if (const auto found = devices_.find(info.lo_rdevice); found != devices_.end()) objects = found->second;
  std::ranges::copy_if(file_systems_, std::back_inserter(objects), is_of);
  tell(objects);
  // If the path that sysfs shows leads to the file, LookAtLoops finds the volume by it.
  const bool here = LeadsTo(loop.file, info);
  // If not, the path is one of another namespace, or of a mount that is gone. If that mount showed the
  // volume's directory, the file has this path in it. So the device does not have the volume only if our
  // namespace shows that directory, and the file is not there.
  std::erase_if(objects, [&](size_t i) {
    const CensusObject& object = question_.objects[i];
    if (object.block_device || here) return !object.block_device;
    std::set<std::string> names;
    if (!loop.file.empty()) names = mounts_.PathsTo(object, loop.file);
    return !names.empty() &&
           std::ranges::none_of(names, [&](const std::string& name) { return LeadsTo(name, info); });
  });
  return objects;
}

}  // namespace berth
