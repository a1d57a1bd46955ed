#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/file.h"
#include "base/process.h"
#include "base/status.h"
#include "base/testing/mount_namespace.h"
#include "base/testing/process_testing.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ProcessTest, MissingExecutableIsNotFound) {
  ProcessSpec spec;
  spec.executable = "/nonexistent/plugin";
  const auto process = TryLaunch(spec);
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()),
              HasSubstr("execute /nonexistent/plugin: No such file"));
}

TEST_F(ProcessTest, FileThatIsNotExecutableIsPermissionDenied) {
  ProcessSpec spec;
  spec.executable = "/etc/passwd";
  EXPECT_EQ(TryLaunch(spec).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ProcessTest, MissingInterpreterAndUnknownFormatAreNamed) {
  const std::string script = fmt::format("/tmp/berth-process-test-{}", getpid());
  ASSERT_TRUE(WriteFileAtomic(script, "#!/nonexistent/interpreter\n", 0755).ok());
  ProcessSpec spec;
  spec.executable = script;
  absl::Status status = TryLaunch(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("interpreter"));

  ASSERT_TRUE(WriteFileAtomic(script, "just text\n", 0755).ok());
  status = TryLaunch(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("neither a program"));
  unlink(script.c_str());
}

TEST_F(ProcessTest, TryingSaysWhatALaunchWouldAndRunsNothing) {
  const std::string program = fmt::format("/tmp/berth-process-test-{}", getpid());
  const std::string ran = program + "-ran";
  ASSERT_TRUE(WriteFileAtomic(program, fmt::format("#!/bin/sh\necho > {}\n", ran), 0700).ok());
  const auto attempt = [&](const std::string& executable, std::optional<ProcessUser> user = std::nullopt) {
    ProcessSpec spec;
    spec.executable = executable;
    spec.user = std::move(user);
    return Run(Process::Try(std::move(spec), Clock::now() + seconds(10)));
  };
  EXPECT_EQ(attempt(program), absl::OkStatus());
  EXPECT_NE(access(ran.c_str(), F_OK), 0);
  EXPECT_EQ(MessageOf(attempt("/nonexistent/plugin")),
            "execute /nonexistent/plugin: No such file or directory");
  EXPECT_EQ(MessageOf(attempt("/etc/passwd")), "execute /etc/passwd: Permission denied");
  EXPECT_EQ(MessageOf(attempt("/etc")), "execute /etc: Permission denied");
  EXPECT_TRUE(absl::IsInvalidArgument(attempt("sh")));
  if (geteuid() == 0) {
    EXPECT_TRUE(absl::IsPermissionDenied(attempt(program, ProcessUser{.uid = 65111, .gid = 65111})));
  }
  unlink(program.c_str());
}

TEST_F(ProcessTest, MissingWorkingDirectoryIsNamed) {
  ProcessSpec spec = Shell("true");
  spec.working_directory = "/nonexistent";
  const absl::Status status = TryLaunch(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("enter /nonexistent"));
}

TEST_F(ProcessTest, RelativeExecutableIsRefused) {
  ProcessSpec spec;
  spec.executable = "sh";
  EXPECT_EQ(TryLaunch(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ProcessTest, ChildInheritsNoDescriptor) {
  // Open in the parent without close-on-exec, as a careless library would leave it.
  const UniqueFd careless(open("/dev/null", O_RDONLY));
  ASSERT_TRUE(careless.valid());
  const absl::StatusOr<RunResult> result =
      RunShell("for fd in /proc/self/fd/*; do test -e $fd && echo ${fd##*/}; done");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "0\n1\n2\n");
}

TEST_F(ProcessTest, EnvironmentIsExactlyTheGivenOne) {
  ProcessSpec spec;
  spec.executable = "/usr/bin/env";
  spec.environment = {"A=1", "EMPTY=", "SPACE=a b"};
  const auto result = Run(RunProcess(reaper_, spec, "", 4096, Clock::now() + seconds(10)));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "A=1\nEMPTY=\nSPACE=a b\n");
}

TEST_F(ProcessTest, ChildHasCleanSignalsUmaskDirectoryAndSession) {
  // A signal that is ignored or blocked here must be neither in the child.
  struct sigaction ignore{};
  struct sigaction before{};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(sigaction(SIGPIPE, &ignore, &before), 0);
  ProcessSpec spec =
      Shell("grep -E 'Sig(Blk|Ign)' /proc/self/status; umask; pwd; cut -d' ' -f6 /proc/self/stat; echo $$");
  spec.working_directory = "/usr";
  spec.umask = 0027;
  const auto result = Run(RunProcess(reaper_, spec, "", 4096, Clock::now() + seconds(10)));
  sigaction(SIGPIPE, &before, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<std::string> lines;
  for (size_t at = 0; at < result->out.size();) {
    const size_t end = result->out.find('\n', at);
    lines.push_back(result->out.substr(at, end - at));
    at = end + 1;
  }
  ASSERT_EQ(lines.size(), 6U) << result->out;
  EXPECT_EQ(lines[0], "SigBlk:\t0000000000000000");
  EXPECT_EQ(lines[1], "SigIgn:\t0000000000000000");
  EXPECT_EQ(lines[2], "0027");
  EXPECT_EQ(lines[3], "/usr");
  EXPECT_EQ(lines[4], lines[5]) << "it does not lead its session";
}

TEST_F(ProcessTest, BeforeExecSeesTheProcessBeforeTheProgramRuns) {
  const std::string ran = fmt::format("/tmp/berth-process-test-ran-{}", getpid());
  ProcessSpec spec = Shell("echo > " + ran);
  std::string executable_at_gate;
  pid_t pid_at_gate = 0;
  spec.before_exec = [&](pid_t pid) {
    pid_at_gate = pid;
    const absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(pid);
    if (identity.ok()) executable_at_gate = identity->executable;
    return Ready(absl::OkStatus());
  };
  const std::unique_ptr<Process> process = Launch(std::move(spec));
  EXPECT_EQ(process->pid(), pid_at_gate);
  EXPECT_EQ(executable_at_gate, std::filesystem::read_symlink("/proc/self/exe"));
  EXPECT_EQ(Run(process->Wait()).code, 0);
  EXPECT_EQ(unlink(ran.c_str()), 0);
}

TEST_F(ProcessTest, RefusedBeforeExecNeverRunsTheProgram) {
  const std::string ran = fmt::format("/tmp/berth-process-test-ran-{}", getpid());
  ProcessSpec spec = Shell("echo > " + ran);
  spec.before_exec = [](pid_t) { return Ready(absl::ResourceExhaustedError("no room for the record")); };
  const absl::Status status = TryLaunch(std::move(spec)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no room for the record"));
  EXPECT_NE(access(ran.c_str(), F_OK), 0);
}

TEST_F(ProcessTest, ProgramNeverRunsWhenItsLauncherDiesAtTheGate) {
  const std::string ran = fmt::format("/tmp/berth-process-test-ran-{}", getpid());
  int ends[2];
  ASSERT_EQ(pipe2(ends, 0), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t launcher = fork();
  if (launcher == 0) {
    ProcessSpec spec = Shell("echo > " + ran);
    spec.before_exec = [](pid_t) {
      kill(getpid(), SIGKILL);
      return Ready(absl::OkStatus());
    };
    [[maybe_unused]] const auto never = TryLaunch(std::move(spec));
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  // The gated child holds the pipe until it has ended.
  write_end.Reset();
  pollfd ended{.fd = read_end.get(), .events = 0, .revents = 0};
  ASSERT_EQ(poll(&ended, 1, 10'000), 1) << "the child waits for ever";
  EXPECT_NE(access(ran.c_str(), F_OK), 0);
}

// --- What a launch gives the program, and takes from it: as root, with all capabilities -----------------

class LaunchSettingsTest : public ProcessTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root may give these things away";
  }

  // The fields of /proc/self/status in a child so launched, by name.
  std::map<std::string, std::string> Status(ProcessSpec spec) {
    spec.executable = "/bin/cat";
    spec.arguments = {"/proc/self/status"};
    const auto result = Run(RunProcess(reaper_, std::move(spec), "", 16'384, Clock::now() + seconds(10)));
    EXPECT_TRUE(result.ok()) << result.status();
    std::map<std::string, std::string> fields;
    if (!result.ok()) return fields;
    std::istringstream in(result->out);
    for (std::string line; std::getline(in, line);) {
      const size_t colon = line.find(":\t");
      if (colon != std::string::npos) fields[line.substr(0, colon)] = line.substr(colon + 2);
    }
    return fields;
  }

  static uint64_t Set(const std::string& hexadecimal) { return std::stoull(hexadecimal, nullptr, 16); }
};

constexpr uint64_t kNetBind = uint64_t{1} << CAP_NET_BIND_SERVICE;
constexpr uint64_t kChown = uint64_t{1} << CAP_CHOWN;

TEST_F(LaunchSettingsTest, AnotherUserHasItsGroupsAndNoCapabilities) {
  ProcessSpec spec;
  spec.user = ProcessUser{.uid = 993, .gid = 994, .groups = {7, 8}};
  auto status = Status(spec);
  EXPECT_EQ(status["Uid"], "993\t993\t993\t993");
  EXPECT_EQ(status["Gid"], "994\t994\t994\t994");
  EXPECT_THAT(status["Groups"], StartsWith("7 8"));
  EXPECT_EQ(Set(status["CapPrm"]), 0U);
  EXPECT_EQ(Set(status["CapEff"]), 0U);
  EXPECT_EQ(Set(status["CapInh"]), 0U);
}

TEST_F(LaunchSettingsTest, AmbientCapabilitiesAreAllThatAnotherUserHas) {
  ProcessSpec spec;
  spec.user = ProcessUser{.uid = 993, .gid = 994, .groups = {}};
  spec.ambient_capabilities = kNetBind;
  auto status = Status(spec);
  EXPECT_EQ(Set(status["CapAmb"]), kNetBind);
  EXPECT_EQ(Set(status["CapPrm"]), kNetBind);
  EXPECT_EQ(Set(status["CapEff"]), kNetBind);
}

TEST_F(LaunchSettingsTest, RootKeepsOnlyTheBoundingSet) {
  ProcessSpec spec;
  spec.capability_bounding_set = kNetBind | kChown;
  auto status = Status(spec);
  EXPECT_EQ(status["Uid"], "0\t0\t0\t0");
  EXPECT_EQ(Set(status["CapBnd"]), kNetBind | kChown);
  EXPECT_EQ(Set(status["CapPrm"]), kNetBind | kChown);
  EXPECT_EQ(Set(status["CapEff"]), kNetBind | kChown);
}

TEST_F(LaunchSettingsTest, NoNewPrivilegesOnlyWhereAsked) {
  EXPECT_EQ(Status({})["NoNewPrivs"], "0");
  ProcessSpec spec;
  spec.no_new_privileges = true;
  EXPECT_EQ(Status(spec)["NoNewPrivs"], "1");
}

TEST_F(LaunchSettingsTest, LimitsAndOomScoreAreTheProgramsOwn) {
  // Of ours nothing is handed down.
  ASSERT_TRUE(WriteAll(UniqueFd(open("/proc/self/oom_score_adj", O_WRONLY)).get(), "300", "").ok());
  ProcessSpec spec = Shell("ulimit -Sn; ulimit -Hn; ulimit -c; cat /proc/self/oom_score_adj");
  spec.resource_limits = {{.resource = RLIMIT_NOFILE, .soft = 100, .hard = 200},
                          {.resource = RLIMIT_CORE, .soft = 0, .hard = RLIM_INFINITY}};
  auto result = Run(RunProcess(reaper_, spec, "", 4096, Clock::now() + seconds(10)));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "100\n200\n0\n0\n");
  spec.oom_score_adjust = 500;
  result = Run(RunProcess(reaper_, spec, "", 4096, Clock::now() + seconds(10)));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "100\n200\n0\n500\n");
  ASSERT_TRUE(WriteAll(UniqueFd(open("/proc/self/oom_score_adj", O_WRONLY)).get(), "0", "").ok());
}

// Each step that the kernel refuses is named, and the program does not run.
TEST_F(LaunchSettingsTest, RefusedStepIsNamed) {
  const auto message = [this](ProcessSpec spec) {
    spec.executable = "/bin/true";
    return std::string(TryLaunch(std::move(spec)).status().message());
  };
  ProcessSpec limit;
  limit.resource_limits = {{.resource = RLIMIT_NOFILE, .soft = 2, .hard = 1}};
  EXPECT_EQ(message(limit), "launch /bin/true: set RLIMIT_NOFILE: Invalid argument");
  ProcessSpec score;
  score.oom_score_adjust = 5000;
  EXPECT_EQ(message(score), "launch /bin/true: set oom_score_adj to 5000: Invalid argument");
  ProcessSpec user;
  user.user = ProcessUser{.uid = ~uid_t{0} - 1, .gid = 0, .groups = std::vector<gid_t>(100'000, 1)};
  EXPECT_EQ(message(user), "launch /bin/true: set supplementary groups: Invalid argument");
  ProcessSpec unbounded;
  unbounded.capability_bounding_set = 0;
  unbounded.ambient_capabilities = kChown;
  EXPECT_THAT(message(unbounded), StartsWith("launch /bin/true: set capabilities: "));
  // Not a cgroup: any other directory.
  const UniqueFd tmp(open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC));
  ProcessSpec cgroup;
  cgroup.cgroup_fd = tmp.get();
  EXPECT_THAT(message(cgroup), StartsWith("launch /bin/true: clone into its cgroup: "));
}

TEST_F(LaunchSettingsTest, UnprivilegedLauncherIsToldWhatItMayNot) {
  // In a process of its own: one that is forked lacks the threads of earlier tests, and seems to leak what
  // they hold.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto as_nobody = [this] {
    if (setresuid(65534, 65534, 65534) != 0) return std::string("setresuid");
    ProcessSpec spec;
    spec.executable = "/bin/true";
    spec.user = ProcessUser{.uid = 993, .gid = 994, .groups = {}};
    return std::string(TryLaunch(std::move(spec)).status().message());
  };
  EXPECT_EXIT(
      {
        const std::string message = as_nobody();
        fmt::print(stderr, "{}", message);
        exit(3);
      },
      ::testing::ExitedWithCode(3), "launch /bin/true: set supplementary groups: Operation not permitted");
}

// --- Launches that do not come to their end ---------------------------------------------------------------

// A program on a file system whose server does not answer: a FUSE mount without a server, in a mount
// namespace of the test's own. Its execution hangs in the kernel.
class DeadFileSystem {
 public:
  DeadFileSystem() {
    device_ = UniqueFd(open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!device_.valid() || !UnshareMounts()) return;
    path_ = fmt::format("/tmp/berth-process-test-dead-{}", getpid());
    if (mkdir(path_.c_str(), 0700) != 0) return;
    const std::string options = fmt::format("fd={},rootmode=40000,user_id=0,group_id=0", device_.get());
    mounted_ = mount("dead", path_.c_str(), "fuse", 0, options.c_str()) == 0;
  }
  ~DeadFileSystem() {
    if (mounted_) umount2(path_.c_str(), MNT_FORCE | MNT_DETACH);
    device_.Reset();
    rmdir(path_.c_str());
  }
  DeadFileSystem(const DeadFileSystem&) = delete;
  DeadFileSystem& operator=(const DeadFileSystem&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UniqueFd device_;
  std::string path_;
  bool mounted_ = false;
};

// All children have ended and been reaped, soon: those left behind are reaped on another thread.
void ExpectNoChildLeft() {
  const TimePoint bound = Clock::now() + seconds(10);
  const auto left = [] {
    siginfo_t info{};
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
  };
  while (left() && Clock::now() < bound) poll(nullptr, 0, 5);
  EXPECT_FALSE(left());
}

TEST_F(LaunchSettingsTest, DeadFileSystemHoldsUpNobodyAndIsLeftAtTheDeadline) {
  const DeadFileSystem dead;
  if (!dead.mounted()) GTEST_SKIP() << "no FUSE file system can be mounted here";
  int ticks = 0;
  auto tick = [](int* count) -> Awaitable<void> {
    while (true) {
      co_await SleepUntil(Clock::now() + milliseconds(10));
      ++*count;
    }
  };
  TaskScope scope(loop_.get_executor(), "ticks");
  scope.Spawn("tick", tick(&ticks));
  ProcessSpec program;
  program.executable = dead.path() + "/plugin";
  absl::Status status = TryLaunch(program, milliseconds(300)).status();
  EXPECT_EQ(status, absl::DeadlineExceededError(fmt::format(
                        "launch {}: the program could not be executed in time", program.executable)));
  EXPECT_GE(ticks, 10) << "the loop stood still";
  status = Run(Process::Try(program, Clock::now() + milliseconds(300)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  ProcessSpec directory = Shell("true");
  directory.working_directory = dead.path() + "/directory";
  status = TryLaunch(directory, milliseconds(300)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  Run(scope.Join());
  ExpectNoChildLeft();
}

TEST_F(LaunchSettingsTest, LaunchCancelledInTheMiddleLeavesNothing) {
  const DeadFileSystem dead;
  if (!dead.mounted()) GTEST_SKIP() << "no FUSE file system can be mounted here";
  auto launch = [](asio::any_io_executor executor, ProcessSpec spec) -> Awaitable<void> {
    const auto process = co_await Process::Launch(executor, std::move(spec), TimePoint::max());
    ADD_FAILURE() << "it was not cancelled: " << process.status();
  };
  ProcessSpec spec;
  spec.executable = dead.path() + "/plugin";
  TaskScope scope(loop_.get_executor(), "caller");
  scope.Spawn("launch", launch(loop_.get_executor(), std::move(spec)));
  loop_.restart();
  loop_.run_for(milliseconds(100));
  ASSERT_EQ(scope.size(), 1U);
  Run(scope.Join());
  ExpectNoChildLeft();
}

TEST_F(ProcessTest, LaunchCancelledAtItsGateNeverRunsTheProgram) {
  const std::string ran = fmt::format("/tmp/berth-process-test-ran-{}", getpid());
  auto wait = []() -> Awaitable<absl::Status> {
    co_await SleepUntil(Clock::now() + seconds(100));
    co_return absl::OkStatus();
  };
  auto launch = [](asio::any_io_executor executor, ProcessSpec spec) -> Awaitable<void> {
    const auto process = co_await Process::Launch(executor, std::move(spec), TimePoint::max());
    ADD_FAILURE() << "it was not cancelled: " << process.status();
  };
  pid_t at_gate = 0;
  ProcessSpec spec = Shell("echo > " + ran);
  spec.before_exec = [&](pid_t pid) {
    at_gate = pid;
    return wait();
  };
  TaskScope scope(loop_.get_executor(), "caller");
  scope.Spawn("launch", launch(loop_.get_executor(), std::move(spec)));
  loop_.restart();
  while (at_gate == 0) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
  Run(scope.Join());
  ExpectNoChildLeft();
  EXPECT_NE(access(ran.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace berth
