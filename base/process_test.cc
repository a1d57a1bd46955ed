#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <future>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Awaitable<absl::Status> Ready(absl::Status status) { co_return status; }

class ProcessTest : public ::testing::Test {
 protected:
  ~ProcessTest() override {
    Run(reaper_.Join());
    // Whatever a test has launched, it has reaped.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  template <class T>
  T Run(Awaitable<T> task) {
    std::future<T> result = asio::co_spawn(loop_, std::move(task), asio::use_future);
    loop_.restart();
    while (result.wait_for(seconds(0)) != std::future_status::ready) {
      if (loop_.run_one_for(seconds(20)) == 0) {
        ADD_FAILURE() << "nothing happened for 20 s";
        abort();
      }
    }
    return result.get();
  }

  absl::StatusOr<std::unique_ptr<Process>> TryLaunch(ProcessSpec spec, Duration timeout = seconds(10)) {
    return Run(Process::Launch(loop_.get_executor(), std::move(spec), Clock::now() + timeout));
  }

  std::unique_ptr<Process> Launch(ProcessSpec spec) {
    absl::StatusOr<std::unique_ptr<Process>> process = TryLaunch(std::move(spec));
    if (!process.ok()) {
      ADD_FAILURE() << process.status();
      abort();
    }
    return *std::move(process);
  }

  static ProcessSpec Shell(const std::string& script) {
    ProcessSpec spec;
    spec.executable = "/bin/sh";
    spec.arguments = {"-c", script};
    return spec;
  }

  // It is what it is from the start, where a shell would first have to become it.
  static ProcessSpec Sleep() {
    ProcessSpec spec;
    spec.executable = "/bin/sleep";
    spec.arguments = {"1000"};
    return spec;
  }

  absl::StatusOr<RunResult> RunShell(const std::string& script, std::string input = "", size_t limit = 4096,
                                     Duration timeout = seconds(10)) {
    return Run(RunProcess(reaper_, Shell(script), std::move(input), limit, Clock::now() + timeout));
  }

  asio::io_context loop_;
  TaskScope reaper_{loop_.get_executor(), "reaper"};
};

TEST_F(ProcessTest, TellsTheExitCode) {
  const std::unique_ptr<Process> process = Launch(Shell("exit 3"));
  const ExitStatus exit = Run(process->Wait());
  EXPECT_TRUE(exit.known);
  EXPECT_EQ(exit.code, 3);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_EQ(exit.Describe(), "exit code 3");
  // Asked again it answers the same.
  EXPECT_EQ(Run(process->Wait()).code, 3);
}

TEST_F(ProcessTest, TellsTheSignal) {
  const std::unique_ptr<Process> process = Launch(Shell("kill -9 $$"));
  const ExitStatus exit = Run(process->Wait());
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_EQ(exit.Describe(), "signal 9 (Killed)");
}

TEST_F(ProcessTest, SignalsReachTheProcessAndNobodyAfterItsEnd) {
  const std::unique_ptr<Process> process = Launch(Sleep());
  ASSERT_TRUE(process->Signal(SIGTERM).ok());
  EXPECT_EQ(Run(process->Wait()).signal, SIGTERM);
  EXPECT_EQ(process->Signal(SIGTERM).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(process->SignalGroup(SIGTERM).code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessTest, GroupSignalReachesTheWholeTree) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // All three processes hold the pipe open.
  ProcessSpec spec = Shell("sleep 1000 & sleep 1000");
  spec.stdout_fd = write_end.get();
  const std::unique_ptr<Process> process = Launch(std::move(spec));
  write_end.Reset();
  ASSERT_TRUE(process->SignalGroup(SIGKILL).ok());
  EXPECT_EQ(Run(process->Wait()).signal, SIGKILL);
  pollfd ended{.fd = read_end.get(), .events = 0, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 10'000), 1) << "a grandchild lives on";
}

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

TEST_F(ProcessTest, WaitCanBeCancelledAndRepeated) {
  const std::unique_ptr<Process> process = Launch(Sleep());
  auto wait = [](Process& waited) -> Awaitable<void> { co_await waited.Wait(); };
  TaskScope scope(loop_.get_executor(), "waiter");
  scope.Spawn("wait", wait(*process));
  Run(scope.Join());
  ASSERT_TRUE(process->Signal(SIGKILL).ok());
  EXPECT_EQ(Run(process->Wait()).signal, SIGKILL);
}

// Asio keeps the place of a closed descriptor for the next one, with the old one's event still on its way:
// the new process then seems to have ended.
TEST_F(ProcessTest, WakeUpWithoutCauseNeitherBlocksNorEndsTheWait) {
  auto one_after_the_other = [](asio::any_io_executor executor, ProcessSpec spec) -> Awaitable<int> {
    int rounds = 0;
    for (; rounds < 10; ++rounds) {
      auto process = co_await Process::Launch(executor, spec, Clock::now() + seconds(10));
      if (!process.ok()) break;
      auto wait = [](Process& waited, bool& ended) -> Awaitable<void> {
        co_await waited.Wait();
        ended = true;
      };
      bool ended = false;
      TaskScope scope(executor, "waiter");
      scope.Spawn("wait", wait(**process, ended));
      co_await SleepUntil(Clock::now() + milliseconds(5));
      if (ended) break;
      if (!(*process)->Signal(SIGKILL).ok()) break;
      co_await scope.WaitEmpty();
      if (!ended) break;
    }
    co_return rounds;
  };
  EXPECT_EQ(Run(one_after_the_other(loop_.get_executor(), Sleep())), 10);
}

TEST_F(ProcessTest, DestroyedProcessLivesOnAndCanBeTakenBack) {
  std::unique_ptr<Process> process = Launch(Sleep());
  const pid_t pid = process->pid();
  process.reset();
  auto adopted = Process::Adopt(loop_.get_executor(), pid);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_TRUE((*adopted)->Signal(SIGTERM).ok());
  const ExitStatus exit = Run((*adopted)->Wait());
  EXPECT_TRUE(exit.known);
  EXPECT_EQ(exit.signal, SIGTERM);
  EXPECT_EQ(Run((*adopted)->Wait()).signal, SIGTERM);
}

TEST_F(ProcessTest, ForeignProcessIsWaitedFor) {
  // The shell reaps its child: as init would, for a plugin whose berthd is gone.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  ProcessSpec spec = Shell("sh -c 'exec sleep 1000' & echo $!; wait");
  spec.stdout_fd = write_end.get();
  const std::unique_ptr<Process> parent = Launch(std::move(spec));
  write_end.Reset();
  char text[32] = {};
  ASSERT_GT(read(read_end.get(), text, sizeof text - 1), 0);
  const pid_t pid = atoi(text);
  auto adopted = Process::Adopt(loop_.get_executor(), pid);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_TRUE((*adopted)->Signal(SIGKILL).ok());
  const ExitStatus exit = Run((*adopted)->Wait());
  if (exit.known) {
    EXPECT_EQ(exit.signal, SIGKILL);
  } else {
    EXPECT_EQ(exit.Describe(), "ended, cause unknown");
  }
  EXPECT_EQ((*adopted)->Signal(SIGKILL).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Run(parent->Wait()).code, 0);
}

TEST_F(ProcessTest, ForeignProcessThatNobodyReapsHasEndedAllTheSame) {
  // Its parent becomes a program that waits for nobody, so that it stays a zombie.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  ProcessSpec spec = Shell("sleep 1000 & echo $!; exec sleep 1000");
  spec.stdout_fd = write_end.get();
  const std::unique_ptr<Process> parent = Launch(std::move(spec));
  write_end.Reset();
  char text[32] = {};
  ASSERT_GT(read(read_end.get(), text, sizeof text - 1), 0);
  auto adopted = Process::Adopt(loop_.get_executor(), atoi(text));
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_TRUE((*adopted)->Signal(SIGTERM).ok());
  const ExitStatus exit = Run((*adopted)->Wait());
  EXPECT_TRUE(exit.known);
  EXPECT_EQ(exit.signal, SIGTERM);
  ASSERT_TRUE(parent->Signal(SIGKILL).ok());
  Run(parent->Wait());
}

TEST_F(ProcessTest, NoProcessToAdoptIsNotFound) {
  const std::unique_ptr<Process> process = Launch(Shell("true"));
  Run(process->Wait());
  EXPECT_EQ(Process::Adopt(loop_.get_executor(), process->pid()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Process::Adopt(loop_.get_executor(), -1).status().code(), absl::StatusCode::kInvalidArgument);
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

TEST_F(ProcessTest, RunKeepsOutputAndErrorsApart) {
  const auto result = RunShell("cat; echo oops >&2; exit 4", "some input");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "some input");
  EXPECT_EQ(result->err, "oops\n");
  EXPECT_EQ(result->exit.code, 4);
}

TEST_F(ProcessTest, RunTakesMoreInputAndOutputThanAPipeHolds) {
  const std::string input(1'000'000, 'x');
  const auto result = RunShell("cat", input, 2'000'000);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, input);
}

TEST_F(ProcessTest, RunCutsOutputAtTheLimitAndReadsOn) {
  const auto result = RunShell("head -c 1000000 /dev/zero; exit 5", "", 100);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out.size(), 100U);
  EXPECT_EQ(result->exit.code, 5);
}

TEST_F(ProcessTest, RunIsNotHeldUpByAGrandchildWithThePipe) {
  const auto result = RunShell("setsid sleep 1000 & echo $!");
  ASSERT_TRUE(result.ok()) << result.status();
  const pid_t grandchild = atoi(result->out.c_str());
  ASSERT_GT(grandchild, 1);
  EXPECT_EQ(kill(grandchild, SIGKILL), 0);
}

TEST_F(ProcessTest, RunIsAbandonedAtItsDeadline) {
  const TimePoint before = Clock::now();
  const auto result =
      RunShell("trap '' TERM; echo begun; sleep 1000; sleep 1000", "", 100, milliseconds(100));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result.status().message()), StartsWith("run /bin/sh: "));
  EXPECT_LT(Clock::now() - before, seconds(10));
  // The reaper collects it: the destructor checks that nothing is left.
  while (reaper_.size() > 0) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
}

TEST_F(ProcessTest, RunReportsAFailedLaunch) {
  ProcessSpec spec;
  spec.executable = "/nonexistent/helper";
  const auto result = Run(RunProcess(reaper_, spec, "", 10, Clock::now() + seconds(10)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessTest, CancelledRunKillsWhatItRan) {
  auto run = [](TaskScope& reaper, ProcessSpec spec) -> Awaitable<void> {
    const auto result = co_await RunProcess(reaper, std::move(spec), "", 10, Clock::now() + seconds(100));
    ADD_FAILURE() << "it was not cancelled: " << result.status();
  };
  TaskScope scope(loop_.get_executor(), "caller");
  scope.Spawn("run", run(reaper_, Sleep()));
  loop_.restart();
  while (reaper_.size() < 3) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
  Run(scope.Join());
  loop_.restart();
  while (reaper_.size() > 0) ASSERT_GT(loop_.run_one_for(seconds(20)), 0U);
}

TEST_F(ProcessTest, IdentityTellsProcessesApart) {
  const std::unique_ptr<Process> process = Launch(Sleep());
  const absl::StatusOr<ProcessIdentity> identity = IdentifyProcess(process->pid());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->pid, process->pid());
  EXPECT_EQ(identity->boot_id.size(), 36U);
  EXPECT_FALSE(identity->cgroup.empty());
  EXPECT_GT(identity->start_time, 0U);
  EXPECT_EQ(*IdentifyProcess(process->pid()), *identity);
  EXPECT_NE(*IdentifyProcess(getpid()), *identity);
  ASSERT_TRUE(process->Signal(SIGKILL).ok());
  Run(process->Wait());
  EXPECT_EQ(IdentifyProcess(process->pid()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ProcessTest, IdentityIsNotFooledByACommandName) {
  // The kernel puts the file's name between the parentheses of /proc/pid/stat.
  const std::string link = fmt::format("/tmp/x) Z {} (y", getpid() % 1000);
  unlink(link.c_str());
  ASSERT_EQ(symlink("/bin/sleep", link.c_str()), 0);
  ProcessSpec spec;
  spec.executable = link;
  spec.arguments = {"1000"};
  const std::unique_ptr<Process> process = Launch(std::move(spec));
  const std::unique_ptr<Process> plain = Launch(Sleep());
  const auto odd = IdentifyProcess(process->pid());
  const auto reference = IdentifyProcess(plain->pid());
  ASSERT_TRUE(odd.ok()) << odd.status();
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(odd->executable, reference->executable);
  // Both were started a moment ago, and clock ticks are 10 ms.
  EXPECT_LE(odd->start_time, reference->start_time);
  EXPECT_LT(reference->start_time - odd->start_time, 1000U);
  unlink(link.c_str());
  for (Process* each : {process.get(), plain.get()}) {
    ASSERT_TRUE(each->Signal(SIGKILL).ok());
    Run(each->Wait());
  }
}

TEST_F(ProcessTest, ZombieHasNoIdentity) {
  const std::unique_ptr<Process> process = Launch(Shell("exit 0"));
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process->pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(IdentifyProcess(process->pid()).status().code(), absl::StatusCode::kNotFound);
  Run(process->Wait());
}

TEST_F(ProcessTest, ReplacedExecutableKeepsItsPath) {
  const std::string copy = fmt::format("/tmp/berth-process-test-sleep-{}", getpid());
  std::filesystem::copy_file("/bin/sleep", copy, std::filesystem::copy_options::overwrite_existing);
  ProcessSpec spec;
  spec.executable = copy;
  spec.arguments = {"1000"};
  const std::unique_ptr<Process> process = Launch(std::move(spec));
  ASSERT_EQ(unlink(copy.c_str()), 0);
  const auto identity = IdentifyProcess(process->pid());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->executable, copy);
  ASSERT_TRUE(process->Signal(SIGKILL).ok());
  Run(process->Wait());
}

}  // namespace
}  // namespace berth
