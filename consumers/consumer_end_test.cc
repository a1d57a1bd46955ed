// Real processes and real cgroups; systemd's units by a peer that speaks D-Bus as it does.
#include "consumers/consumer_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/process.h"
#include "base/status.h"
#include "base/testing/fake_systemd.h"
#include "base/testing/loop_runner.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A process that has taken its place before the constructor returns: one that ends when it is asked to, or
// only when it is killed.
class Victim {
 public:
  explicit Victim(bool stubborn = false, const std::string& cgroup = "") {
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (stubborn) std::signal(SIGTERM, SIG_IGN);
      if (!cgroup.empty()) std::ofstream(cgroup + "/cgroup.procs") << getpid();
      [[maybe_unused]] const ssize_t told = write(ready[1], "r", 1);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Victim() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] ConsumerLife life() const { return ProcessLife(pid_, IdentifyProcess(pid_)->start_time); }
  // The signal that it was ended by; 0: it runs. Not reaped.
  [[nodiscard]] int ended_by() const {
    siginfo_t info{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == 0 ? 0 : info.si_status;
  }

 private:
  pid_t pid_ = -1;
};

// A group of this test's own, with one beneath it; not valid() where none can be made.
class GroupOfTwo {
 public:
  explicit GroupOfTwo(const std::string& inner = "inner") {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      if (!std::filesystem::exists(std::string(root) + "/cgroup.controllers")) continue;
      root_ = root;
      path_ = root_ + "/berth-end-test-" + std::to_string(getpid());
      inner_ = path_ + "/" + inner;
      if (mkdir(path_.c_str(), 0755) == 0 && mkdir(inner_.c_str(), 0755) == 0) return;
    }
    path_.clear();
  }
  ~GroupOfTwo() {
    if (!valid()) return;
    rmdir(inner_.c_str());
    rmdir(path_.c_str());
  }
  GroupOfTwo(const GroupOfTwo&) = delete;
  GroupOfTwo& operator=(const GroupOfTwo&) = delete;

  [[nodiscard]] bool valid() const { return !path_.empty(); }
  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& inner() const { return inner_; }
  [[nodiscard]] ConsumerLife life() const { return CgroupLife(path_); }

 private:
  std::string root_;
  std::string path_;
  std::string inner_;
};

bool Move(pid_t pid, const std::string& group) {
  std::ofstream file(group + "/cgroup.procs");
  file << pid;
  return file.flush().good();
}

// The directory of the group that this process is in.
std::string OwnGroup(const std::string& root) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return root + line.substr(3);
  }
  return root;
}

ConsumerLife Unit(const std::string& name) { return UnitLife(name); }

class ConsumerEndTest : public testing::Test {
 protected:
  ~ConsumerEndTest() override { loop_.RunVoid(watch_.Shutdown()); }

  absl::Status End(const ConsumerLife& life, Duration grace = seconds(10), Duration within = seconds(15)) {
    const ConsumerEnd end(watch_, {.grace = grace}, {systemd_.address()});
    return loop_.Run(end.End(life, Clock::now() + within));
  }

  FakeSystemd systemd_;
  LoopRunner loop_;
  ConsumerWatch watch_{loop_.executor(), {systemd_.address()}};
};

TEST_F(ConsumerEndTest, AProcessIsAskedAndThenKilled) {
  const Victim polite;
  EXPECT_EQ(End(polite.life()), absl::OkStatus());
  EXPECT_EQ(polite.ended_by(), SIGTERM);
  const Victim stubborn(/*stubborn=*/true);
  const ConsumerLife life = stubborn.life();
  EXPECT_EQ(End(life, milliseconds(20)), absl::OkStatus());
  EXPECT_EQ(stubborn.ended_by(), SIGKILL);
  EXPECT_EQ(End(life), absl::OkStatus()) << "it has ended already";
}

TEST_F(ConsumerEndTest, AStrangerWithTheSameNumberLives) {
  const Victim stranger;
  ConsumerLife life = stranger.life();
  life.set_start_time(life.start_time() - 1);
  EXPECT_EQ(End(life), absl::OkStatus()) << "the consumer has ended";
  EXPECT_EQ(stranger.ended_by(), 0);
  life.set_start_time(0);
  EXPECT_TRUE(absl::IsInvalidArgument(End(life)));
  EXPECT_EQ(stranger.ended_by(), 0);
}

TEST_F(ConsumerEndTest, WhatTheNodeLivesByIsNeverEnded) {
  for (const pid_t pid : {pid_t{1}, getpid()}) {
    const ConsumerLife life = ProcessLife(pid, 1);
    const absl::Status refused = End(life);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(MessageOf(refused)), HasSubstr("never ended"));
  }
  EXPECT_EQ(End({}), absl::OkStatus()) << "there is nothing to end";
}

TEST_F(ConsumerEndTest, ACgroupIsEndedWithAllThatIsBeneathIt) {
  const GroupOfTwo group;
  if (!group.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  {
    const Victim outer(false, group.path());
    const Victim inner(false, group.inner());
    EXPECT_EQ(End(group.life()), absl::OkStatus());
    EXPECT_EQ(outer.ended_by(), SIGTERM);
    EXPECT_EQ(inner.ended_by(), SIGTERM);
  }
  {
    const Victim outer(false, group.path());
    const Victim inner(true, group.inner());
    EXPECT_EQ(End(group.life(), milliseconds(20)), absl::OkStatus());
    EXPECT_EQ(inner.ended_by(), SIGKILL);
  }
  EXPECT_EQ(End(group.life()), absl::OkStatus()) << "empty";
  EXPECT_EQ(End(CgroupLife(group.path() + "/gone")), absl::OkStatus());
  EXPECT_FALSE(End(CgroupLife("/tmp")).ok()) << "it is no cgroup";
}

TEST_F(ConsumerEndTest, ACgroupOfBerthdOrOfPluginsIsNeverEnded) {
  const GroupOfTwo plugins("berth-plugins");
  if (!plugins.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  const Victim plugin(false, plugins.inner());
  EXPECT_TRUE(absl::IsFailedPrecondition(End(plugins.life())));
  EXPECT_TRUE(absl::IsFailedPrecondition(End(plugin.life()))) << "nor one process of it";
  EXPECT_EQ(plugin.ended_by(), 0);
}

TEST_F(ConsumerEndTest, ACgroupWithBerthdInItIsNeverEnded) {
  const GroupOfTwo group;
  if (!group.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  const Victim neighbour(false, group.inner());
  const std::string before = OwnGroup(group.root());
  ASSERT_TRUE(Move(getpid(), group.inner()));
  const absl::Status refused = End(group.life());
  EXPECT_TRUE(Move(getpid(), before));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(MessageOf(refused)), HasSubstr("berthd is in it"));
  EXPECT_EQ(neighbour.ended_by(), 0);
}

TEST_F(ConsumerEndTest, AUnitIsStoppedAndThenKilled) {
  systemd_.SetUnit("web.service", "active");
  EXPECT_EQ(End(Unit("web.service")), absl::OkStatus());
  EXPECT_THAT(systemd_.ended(), ElementsAre("stop web.service"));
  EXPECT_EQ(End(Unit("web.service")), absl::OkStatus());
  EXPECT_EQ(End(Unit("gone.service")), absl::OkStatus());
  EXPECT_THAT(systemd_.ended(), ElementsAre("stop web.service")) << "those had ended";

  systemd_.SetUnit("db.service", "active");
  systemd_.MakeStubborn("db.service");
  EXPECT_EQ(End(Unit("db.service"), milliseconds(20)), absl::OkStatus());
  EXPECT_THAT(systemd_.ended(), ElementsAre("stop web.service", "stop db.service", "kill db.service"));
}

TEST_F(ConsumerEndTest, NobodyIsKilledBeforeTheGraceIsOver) {
  const auto not_yet = [this](const ConsumerLife& life) {
    const absl::Status status = End(life, seconds(10), milliseconds(200));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(MessageOf(status)), HasSubstr("was asked to end, and has not yet"));
  };
  const Victim stubborn(/*stubborn=*/true);
  not_yet(stubborn.life());
  EXPECT_EQ(stubborn.ended_by(), 0);

  systemd_.SetUnit("db.service", "active");
  systemd_.MakeStubborn("db.service");
  not_yet(Unit("db.service"));
  EXPECT_THAT(systemd_.ended(), ElementsAre("stop db.service"));

  const GroupOfTwo group;
  if (!group.valid()) GTEST_SKIP() << "no cgroup v2 hierarchy can be written here";
  const Victim inside(/*stubborn=*/true, group.inner());
  not_yet(group.life());
  EXPECT_EQ(inside.ended_by(), 0);
}

TEST_F(ConsumerEndTest, UnitsThatTheNodeLivesByAreNeverStopped) {
  for (const char* name :
       {"init.scope", "berth-plugins.slice", "berth-plugin-nfs.scope", "multi-user.target", "user.slice"}) {
    systemd_.SetUnit(name, "active");
    EXPECT_TRUE(absl::IsFailedPrecondition(End(Unit(name)))) << name;
  }
  // Nor by another name.
  systemd_.AddAlias("web.service", "berth-plugin-nfs.scope");
  EXPECT_TRUE(absl::IsFailedPrecondition(End(Unit("web.service"))));
  EXPECT_THAT(systemd_.ended(), IsEmpty());
}

}  // namespace
}  // namespace berth
