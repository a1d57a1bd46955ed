#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/status.h"
#include "base/testing/process_testing.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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
  EXPECT_EQ(poll(&ended, 1, 10'000), 1) << "a grandchild is left";
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
  // The shell reaps its child: as init would, for a plugin after its berthd ended.
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
  // Its parent becomes a program that does not wait for children, so that it stays a zombie.
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
