#include "base/process_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/process_launch.h"
#include "base/status.h"

namespace berth::process_internal {
namespace {

// Every capability that a kernel can have by the width of its sets.
constexpr int kCapabilities = 64;

bool Has(uint64_t set, int capability) { return ((set >> static_cast<unsigned>(capability)) & 1U) != 0; }

[[noreturn]] void Fail(const ChildPlan& plan, LaunchStep step, int detail = 0) {
  const ChildError report{step, errno, detail};
  [[maybe_unused]] const ssize_t told = write(plan.error_pipe, &report, sizeof report);
  _exit(127);
}

void PassGate(const ChildPlan& plan) {
  if (plan.gate_read < 0) return;
  close(plan.gate_write);
  char go = 0;
  ssize_t count = 0;
  do {
    count = read(plan.gate_read, &go, 1);
  } while (count < 0 && errno == EINTR);
  if (count != 1) _exit(127);  // the parent refused, or is no more
}

void SetOomScore(const ChildPlan& plan) {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  const size_t length = strlen(plan.oom_score_adjust);
  const bool set = fd >= 0 && write(fd, plan.oom_score_adjust, length) == static_cast<ssize_t>(length);
  if (!set && plan.oom_score_required) Fail(plan, LaunchStep::kOomScore);
  if (fd >= 0) close(fd);
}

void LimitBoundingSet(const ChildPlan& plan) {
  if (!plan.drop_from_bounding_set) return;
  for (int capability = 0; capability < kCapabilities; ++capability) {
    // Beyond the kernel's last one it is an error to ask.
    if (Has(plan.bounding_set, capability) || prctl(PR_CAPBSET_READ, capability, 0, 0, 0) != 1) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) Fail(plan, LaunchStep::kBoundingSet, capability);
  }
}

// The raw system calls: the C library's would have every thread of the parent follow, which are not here.
void ChangeUser(const ChildPlan& plan) {
  if (!plan.change_user) return;
  if (syscall(SYS_setgroups, plan.group_count, plan.groups) != 0) Fail(plan, LaunchStep::kGroups);
  if (syscall(SYS_setresgid, plan.gid, plan.gid, plan.gid) != 0) Fail(plan, LaunchStep::kGroup);
  if (plan.ambient != 0 && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) Fail(plan, LaunchStep::kCapabilities);
  if (syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) Fail(plan, LaunchStep::kUser);
}

// Root regains at execve what is inheritable, whatever the bounding set says: so that is set in any case.
void SetCapabilities(const ChildPlan& plan) {
  if (!plan.drop_from_bounding_set && !plan.change_user && plan.ambient == 0) return;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[2] = {};
  if (syscall(SYS_capget, &header, sets) != 0) Fail(plan, LaunchStep::kCapabilities);
  const bool only_ambient = plan.change_user && plan.uid != 0;
  for (unsigned half = 0; half < 2; ++half) {
    const auto ambient = static_cast<uint32_t>(plan.ambient >> (32 * half));
    const auto bound = static_cast<uint32_t>(plan.bounding_set >> (32 * half));
    uint32_t permitted = sets[half].permitted;
    if (plan.drop_from_bounding_set) permitted &= bound;
    if (only_ambient) permitted = 0;
    sets[half] = {.effective = permitted | ambient, .permitted = permitted | ambient, .inheritable = ambient};
  }
  if (syscall(SYS_capset, &header, sets) != 0) Fail(plan, LaunchStep::kCapabilities);
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) Fail(plan, LaunchStep::kCapabilities);
  for (int capability = 0; capability < kCapabilities; ++capability) {
    if (!Has(plan.ambient, capability)) continue;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) != 0) {
      Fail(plan, LaunchStep::kAmbient, capability);
    }
  }
}

// In place of execve, with its errors.
[[noreturn]] void TryExecutable(const ChildPlan& plan) {
  struct stat info{};
  if (stat(plan.executable, &info) != 0) Fail(plan, LaunchStep::kExecute);
  if (!S_ISREG(info.st_mode)) {
    errno = EACCES;
    Fail(plan, LaunchStep::kExecute);
  }
  if (access(plan.executable, X_OK) != 0) Fail(plan, LaunchStep::kExecute);
  _exit(0);
}

std::string LimitName(int resource) {
  constexpr const char* kNames[] = {"CPU",      "FSIZE",  "DATA",    "STACK", "CORE",  "RSS",
                                    "NPROC",    "NOFILE", "MEMLOCK", "AS",    "LOCKS", "SIGPENDING",
                                    "MSGQUEUE", "NICE",   "RTPRIO",  "RTTIME"};
  if (resource < 0 || static_cast<size_t>(resource) >= std::size(kNames)) return fmt::format("{}", resource);
  return fmt::format("RLIMIT_{}", kNames[resource]);
}

// "become user 993".
std::string StepName(const ChildError& report, const ProcessSpec& spec) {
  switch (report.step) {
    case LaunchStep::kSession:
      return "make a session";
    case LaunchStep::kDescriptors:
      return "set up descriptors";
    case LaunchStep::kDirectory:
      return fmt::format("enter {}", spec.working_directory);
    case LaunchStep::kResourceLimit:
      return fmt::format("set {}", LimitName(report.detail));
    case LaunchStep::kOomScore:
      return fmt::format("set oom_score_adj to {}", spec.oom_score_adjust.value_or(0));
    case LaunchStep::kBoundingSet:
      return fmt::format("take capability {} from the bounding set", report.detail);
    case LaunchStep::kGroups:
      return "set supplementary groups";
    case LaunchStep::kGroup:
      return fmt::format("become group {}", spec.user.value_or(ProcessUser{}).gid);
    case LaunchStep::kUser:
      return fmt::format("become user {}", spec.user.value_or(ProcessUser{}).uid);
    case LaunchStep::kCapabilities:
      return "set capabilities";
    case LaunchStep::kAmbient:
      return fmt::format("make capability {} ambient", report.detail);
    case LaunchStep::kNoNewPrivileges:
      return "forbid new privileges";
    case LaunchStep::kExecute:
    case LaunchStep::kInterpreter:
      return "execute";
  }
  return "unknown step";
}

}  // namespace

void RunChild(const ChildPlan& plan) {
  if (plan.new_session && setsid() < 0) Fail(plan, LaunchStep::kSession);

  // CLONE_CLEAR_SIGHAND resets handlers, but what the parent ignores would stay ignored.
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);

  PassGate(plan);

  for (int target = 0; target < 3; ++target) {
    if (dup2(plan.stdio[target], target) < 0) Fail(plan, LaunchStep::kDescriptors);
  }
  // At once, not by execve: one that hangs there would keep the parent's locks and sockets.
  const auto pipe = static_cast<unsigned>(plan.error_pipe);
  if ((pipe > 3 && syscall(SYS_close_range, 3U, pipe - 1, 0U) < 0) ||
      syscall(SYS_close_range, pipe + 1, ~0U, 0U) < 0) {
    Fail(plan, LaunchStep::kDescriptors);
  }

  umask(plan.umask);
  if (chdir(plan.directory) != 0) Fail(plan, LaunchStep::kDirectory);
  for (size_t i = 0; i < plan.limit_count; ++i) {
    const ResourceLimit& limit = plan.limits[i];
    const struct rlimit64 value{.rlim_cur = limit.soft, .rlim_max = limit.hard};
    if (syscall(SYS_prlimit64, 0, limit.resource, &value, nullptr) != 0) {
      Fail(plan, LaunchStep::kResourceLimit, limit.resource);
    }
  }
  SetOomScore(plan);
  LimitBoundingSet(plan);
  ChangeUser(plan);
  SetCapabilities(plan);
  if (plan.no_new_privileges && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    Fail(plan, LaunchStep::kNoNewPrivileges);
  }

  if (plan.try_only) TryExecutable(plan);

  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.executable, plan.argv, plan.envp);
  // The kernel says ENOENT of the program's interpreter too. Asked here, where it may hang.
  const int error = errno;
  const bool there = error == ENOENT && access(plan.executable, F_OK) == 0;
  errno = error;
  Fail(plan, there ? LaunchStep::kInterpreter : LaunchStep::kExecute);
}

absl::Status StepStatus(const ChildError& report, const ProcessSpec& spec) {
  if (report.step == LaunchStep::kInterpreter) {
    return absl::NotFoundError(
        fmt::format("execute {}: its interpreter (the program after \"#!\", or the dynamic linker) does not "
                    "exist",
                    spec.executable));
  }
  if (report.step == LaunchStep::kExecute) {
    if (report.error == ENOEXEC) {
      return absl::FailedPreconditionError(
          fmt::format("execute {}: neither a program for this machine nor a script that begins with \"#!\"",
                      spec.executable));
    }
    return LaunchStatus(report.error, fmt::format("execute {}", spec.executable));
  }
  return LaunchStatus(report.error, fmt::format("launch {}: {}", spec.executable, StepName(report, spec)));
}

}  // namespace berth::process_internal
