#include "base/process_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include "base/process.h"
#include "base/testing/run_on.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// A shell that leads a session and prints the numbers of what it begins, and this process as the reaper of
// what it leaves behind.
class ProcessTreeTest : public ::testing::Test {
 protected:
  ProcessTreeTest() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~ProcessTreeTest() override {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  // Runs `script`, which prints the numbers of `count` processes, and forgets about the object: only the
  // processes count here.
  void Start(const std::string& script, size_t count) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    ProcessSpec spec;
    spec.executable = "/bin/sh";
    spec.arguments = {"-c", script};
    spec.stdout_fd = write_end.get();
    const auto process = RunOn(loop_, Process::Launch(loop_.get_executor(), std::move(spec),
                                                      Clock::now() + std::chrono::seconds(10)));
    ASSERT_TRUE(process.ok()) << process.status();
    write_end.Reset();
    main_ = (*process)->pid();
    pids_.push_back(main_);
    start_time_ = IdentifyProcess(main_)->start_time;
    std::string text;
    while (static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) < count) {
      char buffer[64];
      const ssize_t size = read(read_end.get(), buffer, sizeof buffer);
      ASSERT_GT(size, 0);
      text.append(buffer, static_cast<size_t>(size));
    }
    std::istringstream in(text);
    for (pid_t pid = 0; in >> pid;) pids_.push_back(pid);
  }

  void EndMain() {
    ASSERT_EQ(kill(main_, SIGKILL), 0);
    ASSERT_EQ(waitpid(main_, nullptr, 0), main_);
  }

  std::vector<pid_t> Tree(std::vector<pid_t> members = {}) {
    const auto tree =
        FindTree({.main = main_, .main_start_time = start_time_, .members = std::move(members)});
    EXPECT_TRUE(tree.ok()) << tree.status();
    std::vector<pid_t> pids;
    for (const TreeProcess& process : *tree) pids.push_back(process.pid());
    return pids;
  }

  std::vector<pid_t> Sorted() const {
    std::vector<pid_t> pids = pids_;
    std::sort(pids.begin(), pids.end());
    return pids;
  }

  asio::io_context loop_;
  pid_t main_ = 0;
  uint64_t start_time_ = 0;
  std::vector<pid_t> pids_;  // of all that were begun
};

TEST_F(ProcessTreeTest, FindsChildrenAndThoseWithASessionOfTheirOwn) {
  Start("sleep 1000 & echo $!; setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' & wait", 3);
  EXPECT_EQ(Tree(), Sorted());
}

TEST_F(ProcessTreeTest, WhatAnEndedMainProcessLeftIsKnownByItsSession) {
  Start("sleep 1000 & echo $!; wait", 1);
  EndMain();
  EXPECT_THAT(Tree(), ElementsAre(pids_[1]));
}

TEST_F(ProcessTreeTest, DaemonThatLeftTheSessionIsFoundAsAMember) {
  Start("setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' & wait", 2);
  EndMain();
  EXPECT_THAT(Tree(), IsEmpty());
  EXPECT_THAT(Tree({pids_[1]}), ElementsAre(std::min(pids_[1], pids_[2]), std::max(pids_[1], pids_[2])));
}

TEST_F(ProcessTreeTest, StrangerWithTheNumberOfTheMainProcessIsNobodys) {
  Start("sleep 1000 & echo $!; wait", 1);
  start_time_ -= 1;
  EXPECT_THAT(Tree(), IsEmpty());
}

TEST_F(ProcessTreeTest, NeitherInitNorTheCallerIsEverFound) {
  Start("exec sleep 1000", 0);
  EXPECT_THAT(Tree({1, getpid()}), Not(Contains(1)));
  EXPECT_THAT(Tree({1, getpid()}), Not(Contains(getpid())));
}

TEST_F(ProcessTreeTest, FoundProcessIsPinned) {
  Start("sleep 1000 & echo $!; wait", 1);
  const auto tree = FindTree({.main = main_, .main_start_time = start_time_, .members = {}});
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(tree->size(), 2U);
  for (const TreeProcess& process : *tree) {
    EXPECT_EQ(process.session(), main_);
    EXPECT_EQ(process.parent(), process.pid() == main_ ? getpid() : main_);
    ASSERT_TRUE(process.Signal(SIGKILL).ok());
    pollfd ended{.fd = process.pidfd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ended, 1, 10'000), 1);
  }
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  for (const TreeProcess& process : *tree) {
    EXPECT_EQ(process.Signal(SIGKILL).code(), absl::StatusCode::kNotFound);
  }
  pids_.clear();
}

TEST_F(ProcessTreeTest, ServerOfAFileSystemIsKnownByItsDevice) {
  if (access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse here";
  Start("sleep 1000 & echo $!; sleep 1000 9<>/dev/fuse & echo $!; wait", 2);
  const pid_t server = pids_[2];
  // The shell's child opens it a moment after its number is printed.
  const TimePoint bound = Clock::now() + std::chrono::seconds(10);
  while (HoldsFuse(server) != FuseUse::kHolds && Clock::now() < bound) poll(nullptr, 0, 5);
  EXPECT_EQ(HoldsFuse(server), FuseUse::kHolds);
  EXPECT_EQ(HoldsFuse(pids_[1]), FuseUse::kNone);
  EXPECT_EQ(HoldsFuse(main_), FuseUse::kNone);
  const auto tree = FindTree({.main = main_, .main_start_time = start_time_, .members = {}});
  ASSERT_TRUE(tree.ok()) << tree.status();
  for (const TreeProcess& process : *tree) {
    EXPECT_EQ(process.fuse(), process.pid() == server ? FuseUse::kHolds : FuseUse::kNone);
  }
}

TEST_F(ProcessTreeTest, ProcessThatIsNoMoreTellsNothing) {
  Start("exec sleep 1000", 0);
  EndMain();
  EXPECT_EQ(HoldsFuse(main_), FuseUse::kUnknown);
}

}  // namespace
}  // namespace berth
