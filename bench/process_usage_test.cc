#include "bench/process_usage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace berth {
namespace {

constexpr size_t kEightMiB = size_t{8} << 20;

TEST(ProcessUsageTest, SeesMemoryThatIsTouchedAndGivenBack) {
  const auto before = ReadPrivateMemory(getpid());
  ASSERT_TRUE(before.ok()) << before.status();
  void* memory = mmap(nullptr, kEightMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  memset(memory, 1, kEightMiB);
  const auto during = ReadPrivateMemory(getpid());
  munmap(memory, kEightMiB);
  const auto after = ReadPrivateMemory(getpid());
  ASSERT_TRUE(during.ok() && after.ok());
  // What else the process keeps may shrink meanwhile.
  constexpr size_t kSlack = size_t{1} << 20;
  EXPECT_GE(during->dirty + kSlack - before->dirty, kEightMiB);
  EXPECT_GE(during->dirty + kSlack - after->dirty, kEightMiB);
}

TEST(ProcessUsageTest, ThePeakIsRememberedUntilItIsReset) {
  ASSERT_TRUE(ResetPeak(getpid()).ok());
  const auto before = PeakResident(getpid());
  void* memory = mmap(nullptr, kEightMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  memset(memory, 1, kEightMiB);
  munmap(memory, kEightMiB);
  const auto after = PeakResident(getpid());
  ASSERT_TRUE(ResetPeak(getpid()).ok());
  const auto reset = PeakResident(getpid());
  ASSERT_TRUE(before.ok() && after.ok() && reset.ok());
  // The kernel counts resident pages a few at a time.
  constexpr double kSlack = 1 << 20;
  EXPECT_GE(*after - *before, static_cast<double>(kEightMiB) - kSlack);
  EXPECT_GE(*after - *reset, static_cast<double>(kEightMiB) - kSlack);
}

TEST(ProcessUsageTest, CpuTimeGrowsWithWorkAlone) {
  auto child = Child::Start({"/bin/cat"}, -1, -1);
  ASSERT_TRUE(child.ok());
  const auto before = CpuTime(getpid());
  ASSERT_TRUE(before.ok());
  while (*CpuTime(getpid()) - *before < 0.05) {
  }
  EXPECT_GE(*CpuTime(getpid()) - *before, 0.05);
  EXPECT_FALSE(CpuTime(-5).ok());
}

TEST(ProcessUsageTest, NoticesAProcessThatEndsWhileItIsMeasured) {
  const auto child = Child::Start({"/bin/true"}, -1, -1);
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(absl::IsUnavailable(LetRun(child->pid(), std::chrono::seconds(20))));
}

TEST(ProcessUsageTest, LetsRunForAsLongAsItIsTold) {
  const TimePoint began = Clock::now();
  EXPECT_TRUE(LetRun(getpid(), std::chrono::milliseconds(20)).ok());
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(20));
}

TEST(ChildTest, TellsHowItEnded) {
  auto child = Child::Start({"/bin/false"}, -1, -1);
  ASSERT_TRUE(child.ok());
  const auto status = child->Wait(std::chrono::seconds(20));
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(WEXITSTATUS(*status), 1);
}

TEST(ChildTest, IsGoneWithItsObject) {
  pid_t pid = -1;
  {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const auto child = Child::Start({"/bin/cat"}, ends[0], -1);
    ASSERT_TRUE(child.ok());
    pid = child->pid();
    EXPECT_EQ(kill(pid, 0), 0);
    close(ends[0]);
    close(ends[1]);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

}  // namespace
}  // namespace berth
