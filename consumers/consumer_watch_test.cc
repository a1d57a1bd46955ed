// Real processes and real cgroups; systemd's units by a peer that speaks D-Bus as it does.
#include "consumers/consumer_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "base/process.h"
#include "base/status.h"
#include "base/testing/fake_systemd.h"
#include "base/testing/loop_runner.h"
#include "base/testing/sleeper.h"

namespace berth {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A group of this test's own; not valid() where none can be made.
class TestCgroup {
 public:
  TestCgroup() {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      if (!std::filesystem::exists(std::string(root) + "/cgroup.controllers")) continue;
      path_ = std::string(root) + "/berth-consumer-test-" + std::to_string(getpid());
      if (mkdir(path_.c_str(), 0755) == 0) return;
    }
    path_.clear();
  }
  ~TestCgroup() { Remove(); }
  TestCgroup(const TestCgroup&) = delete;
  TestCgroup& operator=(const TestCgroup&) = delete;

  [[nodiscard]] bool valid() const { return !path_.empty(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool Add(pid_t pid) const {
    std::ofstream file(path_ + "/cgroup.procs");
    file << pid;
    return file.flush().good();
  }
  void Remove() {
    if (path_.empty()) return;
    rmdir(path_.c_str());
    path_.clear();
  }

 private:
  std::string path_;
};

ConsumerLife OfProcess(pid_t pid) { return ProcessLife(pid); }
ConsumerLife OfCgroup(const std::string& path) { return CgroupLife(path); }
ConsumerLife OfUnit(const std::string& name) { return UnitLife(name); }

class ConsumerWatchTest : public testing::Test {
 protected:
  ~ConsumerWatchTest() override { loop_.RunVoid(watch_.Shutdown()); }

  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(15); }
  absl::StatusOr<ConsumerLife> Identify(const ConsumerLife& asked) {
    return loop_.Run(watch_.Identify(asked, Soon()));
  }
  void Watch(const std::string& id, const ConsumerLife& life) {
    watch_.Watch(id, life, [this, id](std::string why) { ended_.emplace(id, std::move(why)); });
  }
  [[nodiscard]] bool Ends(const std::string& id) {
    return loop_.RunUntil([&] { return ended_.contains(id); });
  }
  // Anything else would have been reported by now.
  void Settle() {
    const Sleeper other;
    Watch("settle", OfProcess(other.pid()));
    other.Kill();
    ASSERT_TRUE(Ends("settle"));
    ended_.erase("settle");
  }

  FakeSystemd systemd_;
  LoopRunner loop_;
  ConsumerWatch watch_{loop_.executor(), {systemd_.address()}};
  std::map<std::string, std::string> ended_;  // why, by id
};

TEST_F(ConsumerWatchTest, ProcessThatEndsIsTold) {
  const Sleeper process;
  const auto life = Identify(OfProcess(process.pid()));
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(life->start_time(), IdentifyProcess(process.pid())->start_time);
  Watch("a", *life);
  Watch("b", *life);
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  process.Kill();
  ASSERT_TRUE(Ends("a"));
  ASSERT_TRUE(Ends("b"));
  EXPECT_EQ(ended_["a"], "process " + std::to_string(process.pid()) + " has ended");
}

TEST_F(ConsumerWatchTest, ProcessThatHasEndedIsToldAtOnceAndNeverFromWithin) {
  Sleeper process;
  const auto life = Identify(OfProcess(process.pid()));
  ASSERT_TRUE(life.ok()) << life.status();
  process.End();
  Watch("a", *life);
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_TRUE(Ends("a"));
  EXPECT_TRUE(absl::IsNotFound(Identify(*life).status()));
}

TEST_F(ConsumerWatchTest, ProcessWhoseFirstThreadHasEndedLivesUntilTheLastOneHas) {
  int end[2] = {-1, -1};
  ASSERT_EQ(pipe2(end, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(end[1]);
    std::thread([fd = end[0]] {
      char byte = 0;
      [[maybe_unused]] const ssize_t told = read(fd, &byte, 1);
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // this thread alone
  }
  close(end[0]);
  // It has no program any more.
  ASSERT_TRUE(loop_.RunUntil([pid] { return absl::IsNotFound(IdentifyProcess(pid).status()); }));
  const auto life = Identify(OfProcess(pid));
  ASSERT_TRUE(life.ok()) << life.status();
  Watch("web", *life);
  EXPECT_FALSE(loop_.Run(watch_.WaitEnded(*life, Clock::now() + std::chrono::milliseconds(50))));
  EXPECT_FALSE(ended_.contains("web"));
  close(end[1]);
  EXPECT_TRUE(Ends("web"));
  waitpid(pid, nullptr, 0);
}

TEST_F(ConsumerWatchTest, StrangerWithTheSameNumberIsNotTheConsumer) {
  const Sleeper stranger;
  ConsumerLife life = OfProcess(stranger.pid());
  life.set_start_time(IdentifyProcess(stranger.pid())->start_time - 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Identify(life).status()));
  Watch("a", life);
  ASSERT_TRUE(Ends("a"));
  EXPECT_THAT(ended_["a"], HasSubstr("given to another"));
}

TEST_F(ConsumerWatchTest, WhatIsNoProcessIsRefusedInWords) {
  pid_t thread = 0;
  std::atomic<bool> stop = false;
  std::atomic<pid_t> tid = 0;
  std::thread other([&] {
    tid = gettid();
    tid.notify_all();
    stop.wait(false);
  });
  tid.wait(0);
  thread = tid;
  EXPECT_TRUE(absl::IsInvalidArgument(Identify(OfProcess(thread)).status()));
  stop = true;
  stop.notify_all();
  other.join();
}

TEST_F(ConsumerWatchTest, WhatIsForgottenIsNotTold) {
  const Sleeper process;
  Watch("a", OfProcess(process.pid()));
  Watch("b", OfProcess(process.pid()));
  watch_.Forget("a");
  watch_.Forget("unknown");
  process.Kill();
  ASSERT_TRUE(Ends("b"));
  Settle();
  EXPECT_FALSE(ended_.contains("a"));
}

TEST_F(ConsumerWatchTest, ConsumerThatIsWatchedAnewIsToldOnce) {
  const Sleeper first;
  const Sleeper second;
  Watch("a", OfProcess(first.pid()));
  Watch("a", OfProcess(second.pid()));
  first.Kill();
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  second.Kill();
  ASSERT_TRUE(Ends("a"));
  EXPECT_THAT(ended_["a"], HasSubstr(std::to_string(second.pid())));
}

TEST_F(ConsumerWatchTest, WaitsForAnEnd) {
  const Sleeper process;
  const TimePoint soon = Clock::now() + std::chrono::milliseconds(50);
  EXPECT_FALSE(loop_.Run(watch_.WaitEnded(OfProcess(process.pid()), soon)));
  const auto waiting = loop_.Start(watch_.WaitEnded(OfProcess(process.pid()), Soon()));
  Settle();
  EXPECT_FALSE(waiting->has_value());
  process.Kill();
  EXPECT_TRUE(loop_.RunUntil([&] { return waiting->has_value(); }));
  EXPECT_EQ(*waiting, true);
  EXPECT_TRUE(loop_.Run(watch_.WaitEnded({}, soon))) << "of one without a life";
}

TEST_F(ConsumerWatchTest, CgroupWithoutProcessesHasEnded) {
  TestCgroup group;
  if (!group.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  EXPECT_THAT(std::string(MessageOf(Identify(OfCgroup(group.path())).status())),
              HasSubstr("no process is in"));
  const Sleeper process;
  ASSERT_TRUE(group.Add(process.pid()));
  const auto life = Identify(OfCgroup(group.path() + "//."));
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(life->cgroup(), group.path());
  Watch("a", *life);
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  process.Kill();
  ASSERT_TRUE(Ends("a"));
  EXPECT_EQ(ended_["a"], "cgroup " + group.path() + " has no process any more");
  Watch("b", *life);
  EXPECT_TRUE(Ends("b")) << "it had ended already";
}

TEST_F(ConsumerWatchTest, CgroupThatIsGoneHasEnded) {
  TestCgroup group;
  if (!group.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  const ConsumerLife life = OfCgroup(group.path());
  Sleeper process;
  ASSERT_TRUE(group.Add(process.pid()));
  Watch("a", life);
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  process.End();
  group.Remove();
  EXPECT_TRUE(Ends("a"));
  EXPECT_TRUE(absl::IsNotFound(Identify(life).status()));
  Watch("b", life);
  EXPECT_TRUE(Ends("b"));
}

TEST_F(ConsumerWatchTest, DirectoryThatIsNoCgroupIsRefusedInWords) {
  const absl::Status no_group = Identify(OfCgroup("/tmp")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(no_group));
  EXPECT_THAT(std::string(MessageOf(no_group)), HasSubstr("not a directory of the cgroup v2"));
}

TEST_F(ConsumerWatchTest, UnitThatIsInactiveHasEnded) {
  systemd_.SetUnit("web.service", "active");
  const auto life = Identify(OfUnit("web.service"));
  ASSERT_TRUE(life.ok()) << life.status();
  Watch("a", *life);
  Settle();
  systemd_.SetUnit("web.service", "inactive", true);
  Settle();
  EXPECT_THAT(ended_, IsEmpty()) << "it is being restarted";
  systemd_.SetUnit("web.service", "inactive");
  ASSERT_TRUE(Ends("a"));
  EXPECT_EQ(ended_["a"], "unit web.service is inactive");
  EXPECT_TRUE(absl::IsFailedPrecondition(Identify(*life).status()));
}

TEST_F(ConsumerWatchTest, UnitsThatCannotBeWatchedAreRefusedInWords) {
  EXPECT_TRUE(absl::IsNotFound(Identify(OfUnit("web.service")).status()));
}

}  // namespace
}  // namespace berth
