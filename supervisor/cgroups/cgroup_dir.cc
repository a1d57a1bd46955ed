#include "supervisor/cgroups/cgroup_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <memory>
#include <utility>

#include "base/descriptor_wait.h"
#include "base/directory_stream.h"
#include "base/file.h"
#include "base/mountinfo.h"
#include "base/number_text.h"
#include "base/status.h"

namespace berth {
namespace {

// cgroup.procs of a full group; the other files are far smaller.
constexpr size_t kFileLimit = size_t{4} << 20;
constexpr int kDepthLimit = 16;
constexpr size_t kGroupLimit = 4096;
// Between two rounds of killing one by one, where the kernel has no cgroup.kill.
constexpr Duration kKillRound = std::chrono::milliseconds(5);

// Calls `visit` with each line, without its end.
template <class Visit>
void ForEachLine(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(separators);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(separators), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

absl::StatusOr<std::string> ReadAt(int directory, const char* file, const std::string& path) {
  const UniqueFd fd(openat(directory, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}/{}", path, file));
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, fmt::format("read {}/{}", path, file));
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > kFileLimit) return absl::OutOfRangeError(fmt::format("{}/{} is too long", path, file));
  }
}

void AppendPids(std::string_view text, std::vector<pid_t>* pids) {
  ForEachLine(text, [&](std::string_view line) {
    pid_t pid = 0;
    // 0 stands for a process that this pid namespace does not see.
    if (ParseNumber(line, &pid) && pid > 0) pids->push_back(pid);
  });
}

std::vector<std::string> Subdirectories(int directory) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return names;
  const DirectoryStream stream(fdopendir(copy));
  if (stream == nullptr) {
    close(copy);
    return names;
  }
  while (const dirent* entry = readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != ".." && names.size() < kGroupLimit) {
      names.emplace_back(name);
    }
  }
  return names;
}

// Of a group beneath one that is there: failures mean that it has gone, or that it is threaded and its
// processes are listed above it.
void CollectMembers(int directory, int depth, size_t* groups, std::vector<pid_t>* pids) {
  if (depth > kDepthLimit || ++*groups > kGroupLimit) return;
  for (const std::string& name : Subdirectories(directory)) {
    const UniqueFd child(openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!child.valid()) continue;
    const absl::StatusOr<std::string> text = ReadAt(child.get(), "cgroup.procs", name);
    if (text.ok()) AppendPids(*text, pids);
    CollectMembers(child.get(), depth + 1, groups, pids);
  }
}

bool Beneath(std::string_view path, std::string_view ancestor) {
  return path.starts_with(ancestor) && (path.size() == ancestor.size() || path[ancestor.size()] == '/');
}

}  // namespace

std::optional<std::string> CgroupMount::DirectoryOf(std::string_view path) const {
  if (!path.starts_with('/')) return std::nullopt;
  for (const std::string_view part : Split(path, "/")) {
    if (part == "..") return std::nullopt;
  }
  if (root != "/") {
    if (!Beneath(path, root)) return std::nullopt;
    path.remove_prefix(root.size());
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  return mount_point + std::string(path);
}

std::optional<CgroupMount> FindCgroup2Mount(const std::string& mountinfo) {
  std::optional<CgroupMount> found;
  const absl::Status read = ReadMountinfo(mountinfo, [&found](const MountinfoLine& line) {
    if (line.fs_type != "cgroup2") return true;
    // The whole hierarchy rather than a part of it that is mounted once more.
    const bool whole = line.root == "/";
    if (whole || !found) found = CgroupMount{DecodeMountinfo(line.target), DecodeMountinfo(line.root)};
    return !whole;
  });
  if (!read.ok()) SPDLOG_WARN("look for the cgroup v2 hierarchy: {}", MessageOf(read));
  return found;
}

std::vector<std::string> Cgroup1Controllers(std::string_view proc_cgroup) {
  std::vector<std::string> controllers;
  ForEachLine(proc_cgroup, [&](std::string_view line) {
    const size_t begin = line.find(':');
    const size_t end = begin == std::string_view::npos ? begin : line.find(':', begin + 1);
    if (end == std::string_view::npos) return;
    for (const std::string_view word : Split(line.substr(begin + 1, end - begin - 1), ",")) {
      controllers.emplace_back(word);
    }
  });
  return controllers;
}

std::optional<std::string> Cgroup2Path(std::string_view proc_cgroup) {
  std::optional<std::string> path;
  ForEachLine(proc_cgroup, [&](std::string_view line) {
    constexpr std::string_view kUnified = "0::";
    constexpr std::string_view kDeleted = " (deleted)";
    if (!line.starts_with(kUnified) || path.has_value()) return;
    line.remove_prefix(kUnified.size());
    if (line.ends_with(kDeleted)) line.remove_suffix(kDeleted.size());
    if (line.starts_with('/')) path = std::string(line);
  });
  return path;
}

uint64_t FlatKeyedValue(std::string_view text, std::string_view key) {
  uint64_t value = 0;
  ForEachLine(text, [&](std::string_view line) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') return;
    line.remove_prefix(key.size() + 1);
    uint64_t number = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), number).ec == std::errc()) value = number;
  });
  return value;
}

std::vector<std::string> CgroupWords(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view word : Split(text, " \n")) words.emplace_back(word);
  return words;
}

absl::StatusOr<CgroupDir> CgroupDir::Open(std::string path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return CgroupDir(std::move(path), std::move(fd));
}

absl::StatusOr<std::string> CgroupDir::Read(const char* file) const { return ReadAt(fd_.get(), file, path_); }

absl::Status CgroupDir::Write(const char* file, std::string_view value) const {
  const std::string what = fmt::format("write \"{}\" to {}/{}", value, path_, file);
  const UniqueFd fd(openat(fd_.get(), file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, what);
  return WriteAll(fd.get(), value, what);
}

absl::StatusOr<UniqueFd> CgroupDir::OpenFile(const char* file) const {
  UniqueFd fd(openat(fd_.get(), file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}/{}", path_, file));
  return fd;
}

bool CgroupDir::Lock() const { return flock(fd_.get(), LOCK_EX | LOCK_NB) == 0; }

uint64_t CgroupDir::Id() const {
  struct stat info{};
  return fstat(fd_.get(), &info) == 0 ? info.st_ino : 0;
}

bool CgroupDir::StillThere() const {
  struct stat here{};
  struct stat there{};
  return fstat(fd_.get(), &here) == 0 && stat(path_.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

absl::StatusOr<bool> CgroupDir::Populated() const {
  const absl::StatusOr<std::string> events = Read("cgroup.events");
  if (absl::IsNotFound(events.status())) return false;
  if (!events.ok()) return events.status();
  return FlatKeyedValue(*events, "populated") != 0;
}

absl::StatusOr<std::vector<pid_t>> CgroupDir::Members() const {
  std::vector<pid_t> pids;
  const absl::StatusOr<std::string> text = Read("cgroup.procs");
  if (absl::IsNotFound(text.status())) return pids;
  if (!text.ok()) return text.status();
  AppendPids(*text, &pids);
  size_t groups = 0;
  CollectMembers(fd_.get(), 0, &groups, &pids);
  return pids;
}

absl::Status CgroupDir::KillOneByOne() const {
  BERTH_ASSIGN_OR_RETURN(const std::vector<pid_t> members, Members());
  for (const pid_t pid : members) {
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) continue;
    // The number may be another's by now; listed again while the descriptor pins it, it is not.
    BERTH_ASSIGN_OR_RETURN(const std::vector<pid_t> again, Members());
    if (std::find(again.begin(), again.end(), pid) == again.end()) continue;
    syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  }
  return absl::OkStatus();
}

Awaitable<absl::Status> CgroupDir::KillAll(TimePoint deadline) const {
  const absl::Status killed = Write("cgroup.kill", "1");
  // Kernels before 5.14 have no such file: then it is one by one, round after round, for they may fork.
  const bool one_by_one = !killed.ok() && StillThere();
  absl::StatusOr<UniqueFd> events = OpenFile("cgroup.events");
  if (absl::IsNotFound(events.status())) co_return absl::OkStatus();
  if (!events.ok()) co_return events.status();
  asio::posix::stream_descriptor changed(co_await asio::this_coro::executor, events->Release());
  while (true) {
    // Read through the descriptor that is waited on: the kernel reports changes since its last reading.
    std::array<char, 256> text{};
    const ssize_t count = pread(changed.native_handle(), text.data(), text.size(), 0);
    if (count < 0) co_return errno == ENODEV ? absl::OkStatus() : ErrnoStatus(errno, "read " + path_);
    if (FlatKeyedValue({text.data(), static_cast<size_t>(count)}, "populated") == 0)
      co_return absl::OkStatus();
    if (Clock::now() >= deadline) break;
    if (one_by_one) BERTH_CO_RETURN_IF_ERROR(KillOneByOne());
    const TimePoint until = one_by_one ? std::min(deadline, Clock::now() + kKillRound) : deadline;
    [[maybe_unused]] const bool rang =
        co_await WaitDescriptor(changed, asio::posix::stream_descriptor::wait_error, until);
  }
  const absl::StatusOr<std::vector<pid_t>> left = Members();
  co_return absl::DeadlineExceededError(
      fmt::format("end all processes in {}: {} killed, but not ended in time", path_,
                  left.ok() ? fmt::format("{} of them", left->size()) : "some"));
}

}  // namespace berth
