#include "mounts/census_kernel_users.h"

#include <linux/loop.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <set>
#include <utility>

#include "base/directory_stream.h"
#include "base/mountinfo_line.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// How long all loop devices may take: what lies behind one may be a file system that does not answer.
constexpr int kLoopMilliseconds = 1000;

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

CensusKernelUsers::CensusKernelUsers(CensusHost& host, const CensusQuestion& question, CensusMounts& mounts,
                                     const KeptMounts& kept, const HoldReporter& report)
    : host_(host), question_(question), mounts_(mounts), kept_(kept), report_(report) {
  for (size_t i = 0; i < question.objects.size(); ++i) {
    if (!question.objects[i].users) continue;
    (question.objects[i].block_device ? devices_ : file_systems_).push_back(i);
  }
}

void CensusKernelUsers::Look() {
  LookAtOverlays();
  LookAtSwap();
  LookAtLoops();
}

void CensusKernelUsers::Report(const std::vector<size_t>& objects, const Hold& hold) {
  for (const size_t object : objects) {
    Hold one = hold;
    one.object = object;
    report_(one);
  }
}

std::vector<size_t> CensusKernelUsers::ObjectsAt(size_t mount_namespace, const std::string& path) {
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

void CensusKernelUsers::LookAtOverlays() {
  for (size_t i = 0; i < mounts_.mounts().size(); ++i) {
    if (!mounts_.mounts()[i].overlay) continue;
    const Hold overlay{.kind = HoldKind::kOverlay, .where = mounts_.Text(i).target};
    for (const std::string& layer : LayersOf(mounts_.Text(i).options)) {
      Report(ObjectsAt(mounts_.mounts()[i].mount_namespace, layer), overlay);
    }
  }
}

void CensusKernelUsers::LookAtSwap() {
  // "FILE TYPE SIZE USED PRIORITY"; the first line names the columns.
  ForEachLine(host_.Text("proc/swaps"), [&](std::string_view line) {
    if (!line.starts_with('/')) return;
    const std::string file = DecodeMountinfo(line.substr(0, line.find_first_of(" \t")));
    Report(ObjectsAt(mounts_.own(), file), {.kind = HoldKind::kSwap, .where = file});
  });
}

void CensusKernelUsers::LookAtLoops() {
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
    Report(objects[i], {.kind = HoldKind::kLoop, .where = loops[i].name});
  }
}

}  // namespace berth
