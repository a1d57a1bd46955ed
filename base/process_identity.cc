#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/file.h"
#include "base/proc_stat.h"
#include "base/process.h"
#include "base/status.h"

namespace berth {
namespace {

using process_internal::ProcStat;
using process_internal::ReadProcStat;

constexpr size_t kProcFileLimit = 64 * size_t{1024};

absl::Status NoProcess(pid_t pid) {
  return absl::NotFoundError(fmt::format("identify process {}: no such process", pid));
}

// Failures to read of a process that is no more come as ENOENT or ESRCH, depending on when it ended.
absl::Status ProcFailure(pid_t pid, const absl::Status& status) {
  const std::optional<int> error = ErrnoOf(status);
  if (error == ENOENT || error == ESRCH) return NoProcess(pid);
  return status;
}

absl::StatusOr<ProcStat> ReadLiving(pid_t pid) {
  const absl::StatusOr<ProcStat> stat = ReadProcStat(pid);
  if (!stat.ok()) return ProcFailure(pid, stat.status());
  if (stat->state == 'Z' || stat->state == 'X') return NoProcess(pid);
  return stat;
}

absl::StatusOr<std::string> ReadExecutable(pid_t pid) {
  const std::string link = fmt::format("/proc/{}/exe", pid);
  std::array<char, 4097> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return ProcFailure(pid, ErrnoStatus(errno, fmt::format("read {}", link)));
  std::string executable(target.data(), static_cast<size_t>(length));
  constexpr std::string_view kDeleted = " (deleted)";
  if (executable.ends_with(kDeleted)) executable.resize(executable.size() - kDeleted.size());
  return executable;
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  ProcessIdentity identity;
  identity.boot_id = BootId();
  if (identity.boot_id.empty()) return absl::UnavailableError("the kernel's boot id cannot be read");
  identity.pid = pid;
  BERTH_ASSIGN_OR_RETURN(const ProcStat before, ReadLiving(pid));
  identity.start_time = before.start_time;
  BERTH_ASSIGN_OR_RETURN(identity.executable, ReadExecutable(pid));
  absl::StatusOr<std::string> cgroup = ReadFile(fmt::format("/proc/{}/cgroup", pid), kProcFileLimit);
  if (!cgroup.ok()) return ProcFailure(pid, cgroup.status());
  identity.cgroup = *std::move(cgroup);
  // All of it was of one process only if that one is still there.
  BERTH_ASSIGN_OR_RETURN(const ProcStat after, ReadLiving(pid));
  if (after.start_time != before.start_time) return NoProcess(pid);
  return identity;
}

absl::StatusOr<uint64_t> StartTimeOf(pid_t pid) {
  const absl::StatusOr<ProcStat> stat = ReadProcStat(pid);
  if (!stat.ok()) return ProcFailure(pid, stat.status());
  return stat->start_time;
}

absl::StatusOr<uid_t> UserOf(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/status", pid);
  const absl::StatusOr<std::string> text = ReadFile(path, kProcFileLimit);
  if (!text.ok()) return ProcFailure(pid, text.status());
  // "Uid:\tREAL\tEFFECTIVE\tSAVED\tFILE SYSTEM"; a name that holds a line's end is shown escaped.
  constexpr std::string_view kLead = "\nUid:\t";
  uid_t user = 0;
  if (const size_t lead = text->find(kLead); lead != std::string::npos) {
    const char* const begin = text->data() + lead + kLead.size();
    if (std::from_chars(begin, text->data() + text->size(), user).ec == std::errc()) return user;
  }
  return absl::InternalError(fmt::format("read {}: not in the form that is known", path));
}

const std::string& BootId() {
  static const std::string boot_id = [] {
    absl::StatusOr<std::string> text = ReadFile("/proc/sys/kernel/random/boot_id", 256);
    if (!text.ok()) {
      SPDLOG_ERROR("{}", text.status().ToString());
      return std::string();
    }
    while (!text->empty() && text->back() == '\n') text->pop_back();
    return *std::move(text);
  }();
  return boot_id;
}

}  // namespace berth
