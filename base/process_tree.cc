#include "base/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "base/directory_stream.h"
#include "base/number_text.h"
#include "base/proc_stat.h"
#include "base/status.h"

namespace berth {
namespace {

using process_internal::ProcStat;
using process_internal::ReadProcStat;

// More descriptors than that are not looked through: whether such a process serves is then not known.
constexpr int kMostDescriptors = 65'536;

std::optional<pid_t> ParsePid(std::string_view text) {
  pid_t pid = 0;
  if (!ParseNumber(text, &pid) || pid <= 0) return std::nullopt;
  return pid;
}

absl::StatusOr<std::map<pid_t, ProcStat>> ReadAll() {
  const DirectoryStream proc(opendir("/proc"));
  if (!proc) return ErrnoStatus(errno, "read /proc");
  std::map<pid_t, ProcStat> all;
  errno = 0;
  while (const dirent* entry = readdir(proc.get())) {
    const std::optional<pid_t> pid = ParsePid(entry->d_name);
    if (!pid.has_value()) continue;
    const absl::StatusOr<ProcStat> stat = ReadProcStat(*pid);
    // One that has ended since; of one that cannot be read nothing can be said either.
    if (stat.ok() && stat->state != 'Z' && stat->state != 'X') all.emplace(*pid, *stat);
    errno = 0;
  }
  if (errno != 0) return ErrnoStatus(errno, "read /proc");
  return all;
}

// Whether a descriptor's name is the device's, which a container may have elsewhere.
bool IsFuseDevice(std::string_view target) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (target.ends_with(kDeleted)) target.remove_suffix(kDeleted.size());
  return target == "/fuse" || target.ends_with("/dev/fuse");
}

}  // namespace

class TreeFinder {
 public:
  TreeFinder(const TreeQuery& query, std::map<pid_t, ProcStat> all) : query_(query), all_(std::move(all)) {}

  std::vector<TreeProcess> Find() {
    const auto main = all_.find(query_.main);
    // Its number is another's now: so is a session of that number.
    const bool taken = main != all_.end() && main->second.start_time != query_.main_start_time;
    if (query_.main > 0 && !taken) {
      for (const auto& [pid, stat] : all_) {
        const bool member = pid == query_.main || stat.session == query_.main;
        if (member && stat.start_time >= query_.main_start_time) Add(pid);
      }
    }
    for (const pid_t pid : query_.members) {
      if (all_.contains(pid)) Add(pid);
    }
    std::vector<TreeProcess> tree;
    for (const pid_t pid : found_) {
      if (std::optional<TreeProcess> process = Pin(pid)) tree.push_back(*std::move(process));
    }
    return tree;
  }

 private:
  void Add(pid_t first) {
    std::vector<pid_t> next{first};
    while (!next.empty()) {
      const pid_t pid = next.back();
      next.pop_back();
      if (pid == 1 || pid == getpid() || !found_.insert(pid).second) continue;
      const uint64_t since = all_.at(pid).start_time;
      for (const auto& [child, stat] : all_) {
        // A child is younger than its parent: else the number had another owner when it was read.
        if (stat.parent == pid && stat.start_time >= since) next.push_back(child);
      }
    }
  }

  std::optional<TreeProcess> Pin(pid_t pid) const {
    TreeProcess process;
    process.pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process.pidfd_.valid()) return std::nullopt;
    const absl::StatusOr<ProcStat> now = ReadProcStat(pid);
    const ProcStat& before = all_.at(pid);
    if (!now.ok() || now->state == 'Z' || now->start_time != before.start_time) return std::nullopt;
    process.pid_ = pid;
    process.parent_ = now->parent;
    process.session_ = now->session;
    process.start_time_ = now->start_time;
    process.name_ = now->name;
    process.fuse_ = HoldsFuse(pid);
    return process;
  }

  const TreeQuery& query_;
  const std::map<pid_t, ProcStat> all_;
  std::set<pid_t> found_;
};

absl::Status TreeProcess::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  const std::string what = fmt::format("send signal {} to process {}", signal, pid_);
  return errno == ESRCH ? absl::NotFoundError(what + ": it has ended") : ErrnoStatus(errno, what);
}

absl::StatusOr<std::vector<TreeProcess>> FindTree(const TreeQuery& query) {
  BERTH_ASSIGN_OR_RETURN(auto all, ReadAll());
  return TreeFinder(query, std::move(all)).Find();
}

FuseUse HoldsFuse(pid_t pid) {
  const DirectoryStream descriptors(opendir(fmt::format("/proc/{}/fd", pid).c_str()));
  if (!descriptors) return FuseUse::kUnknown;
  int count = 0;
  errno = 0;
  while (const dirent* entry = readdir(descriptors.get())) {
    if (++count > kMostDescriptors) return FuseUse::kUnknown;
    // The name alone is read: what it names may lie on a file system that does not answer.
    std::array<char, 4096> target{};
    const ssize_t length = readlinkat(dirfd(descriptors.get()), entry->d_name, target.data(), target.size());
    if (length > 0 && IsFuseDevice({target.data(), static_cast<size_t>(length)})) return FuseUse::kHolds;
    if (length < 0 && errno == EACCES) return FuseUse::kUnknown;
    errno = 0;
  }
  return errno == 0 ? FuseUse::kNone : FuseUse::kUnknown;
}

}  // namespace berth
