// Places of real processes, in a directory of the cgroup v2 hierarchy of this machine that is the test's own.
// What needs systemd, or controllers that this machine may lack, is tested in a machine of its own
// (tests/machine).
#include "supervisor/cgroups/plugin_cgroup.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/status.h"
#include "base/testing/as_user.h"
#include "base/testing/run_on.h"
#include "base/testing/test_bound.h"
#include "supervisor/cgroups/plugin_cgroup_kinds.h"
#include "supervisor/cgroups/testing/gated_child.h"

namespace berth {
namespace {

using cgroup_internal::DirectoryName;
using cgroup_internal::Judge;
using cgroup_internal::ScopeName;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAre;

void WaitUntilHolds(const std::function<bool()>& condition) {
  const TimePoint deadline = Clock::now() + kTestBound;
  while (!condition()) {
    ASSERT_LT(Clock::now(), deadline) << "the condition did not come about";
    poll(nullptr, 0, 2);
  }
}

class PluginCgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto mount = FindCgroup2Mount("/proc/self/mountinfo");
    if (!mount.has_value()) GTEST_SKIP() << "no cgroup v2 hierarchy is mounted here";
    parent_ = mount->mount_point + "/berth-place-test-" + std::to_string(getpid());
    if (mkdir(parent_.c_str(), 0755) != 0) {
      parent_.clear();
      GTEST_SKIP() << "no group can be made in " << mount->mount_point;
    }
    placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), Options()));
  }
  void TearDown() override {
    if (!parent_.empty()) EXPECT_EQ(rmdir(parent_.c_str()), 0) << "something is left in " << parent_;
  }

  [[nodiscard]] CgroupOptions Options() const { return {.use_systemd = false, .cgroup_parent = parent_}; }

  std::unique_ptr<PluginCgroup> Prepare(const std::string& id, CgroupLimits limits = {}) {
    auto group = RunOn(loop_, placer_->Prepare(id, limits, Clock::now() + kTestBound));
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *std::move(group) : nullptr;
  }
  absl::Status Enter(PluginCgroup& group, pid_t pid) {
    return RunOn(loop_, group.Enter(pid, Clock::now() + kTestBound));
  }
  absl::Status KillAll(PluginCgroup& group) { return RunOn(loop_, group.KillAll(Clock::now() + kTestBound)); }
  std::string Path(const std::string& name) { return parent_ + "/berth-plugins/" + name; }

  asio::io_context loop_;
  std::string parent_;
  std::unique_ptr<CgroupProvider> placer_;
};

TEST_F(PluginCgroupTest, EndsAllThatAPluginForked) {
  const auto group = Prepare("nfs.csi-x");
  EXPECT_EQ(group->describe(), "cgroup " + Path("nfs.csi-x"));
  const GatedChild child("(setsid sleep 1000 &) ; (sleep 1000 &) ; sleep 1000");
  ASSERT_EQ(Enter(*group, child.pid()), absl::OkStatus());
  EXPECT_THAT(child.Cgroup(), HasSubstr("/berth-plugins/nfs.csi-x\n"));
  child.Go();
  WaitUntilHolds([&] { return group->Members()->size() == 4; });

  RunOn(loop_, group->Release());
  EXPECT_TRUE(std::filesystem::exists(Path("nfs.csi-x"))) << "released while processes were in it";

  EXPECT_EQ(KillAll(*group), absl::OkStatus());
  EXPECT_THAT(*group->Members(), IsEmpty());
  EXPECT_FALSE(RunOn(loop_, group->HowItEnded()).out_of_memory);
  RunOn(loop_, group->Release());
  EXPECT_FALSE(std::filesystem::exists(parent_ + "/berth-plugins"));
  EXPECT_EQ(KillAll(*group), absl::OkStatus()) << "it is gone, and with it its processes";
}

// A locked directory counts as one for a launch that is about to begin.
TEST_F(PluginCgroupTest, OtherUsersCannotOpenItToLockIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  const auto group = Prepare("a");
  const auto opens = [this] {
    return open(Path("a").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0 ? 0 : errno;
  };
  EXPECT_EQ(As(64'998, 64'998, opens), EACCES);
  EXPECT_EQ(As(0, 0, opens), 0);
  RunOn(loop_, group->Release());
}

TEST_F(PluginCgroupTest, ProcessesAreClonedIntoIt) {
  const auto group = Prepare("a");
  const GatedChild child("sleep 1000", group->cgroup_fd());
  ASSERT_GT(child.pid(), 0) << strerror(errno);
  EXPECT_THAT(*group->Members(), UnorderedElementsAre(child.pid()));
  EXPECT_EQ(Enter(*group, child.pid()), absl::OkStatus()) << "one that is in it already";
  EXPECT_EQ(KillAll(*group), absl::OkStatus());
  RunOn(loop_, group->Release());
}

TEST_F(PluginCgroupTest, MembersOfGroupsBeneathItAreItsOwn) {
  const auto group = Prepare("a");
  ASSERT_EQ(mkdir(Path("a/inner").c_str(), 0755), 0);
  const GatedChild child("sleep 1000");
  ASSERT_EQ(CgroupDir::Open(Path("a/inner"))->Write("cgroup.procs", std::to_string(child.pid())),
            absl::OkStatus());
  EXPECT_THAT(*group->Members(), UnorderedElementsAre(child.pid()));
  EXPECT_EQ(KillAll(*group), absl::OkStatus());
  EXPECT_THAT(*group->Members(), IsEmpty());
  EXPECT_EQ(rmdir(Path("a/inner").c_str()), 0);
  RunOn(loop_, group->Release());
}

TEST_F(PluginCgroupTest, TakenBackProcessIsFoundInItsPlace) {
  auto before = Prepare("a");
  const GatedChild child("sleep 1000", before->cgroup_fd());
  const std::string described = before->describe();
  before.reset();
  // As another berthd would.
  placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), Options()));
  const auto group = RunOn(loop_, placer_->Find({.cgroup = child.Cgroup()}, true));
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ((*group)->describe(), described);
  EXPECT_THAT(*(*group)->Members(), UnorderedElementsAre(child.pid()));
  EXPECT_EQ(KillAll(**group), absl::OkStatus());
  RunOn(loop_, (*group)->Release());
}

TEST_F(PluginCgroupTest, GroupWhoseNameWasGivenAnewIsNotThatOfAnEndedProcess) {
  auto before = Prepare("a");
  const uint64_t id = before->group_id();
  ASSERT_NE(id, 0U);
  std::string cgroup;
  {
    const GatedChild ended("sleep 1000", before->cgroup_fd());
    cgroup = ended.Cgroup();
    ASSERT_EQ(KillAll(*before), absl::OkStatus());
  }
  RunOn(loop_, before->Release());
  before.reset();
  // Its maker holds no lock on it, and has a process in it.
  ASSERT_TRUE(std::filesystem::create_directories(Path("a")));
  const GatedChild stranger("sleep 1000");
  ASSERT_EQ(CgroupDir::Open(Path("a"))->Write("cgroup.procs", std::to_string(stranger.pid())),
            absl::OkStatus());

  const auto found = RunOn(loop_, placer_->Find({.cgroup = cgroup, .id = id}, /*lives=*/false));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE((*found)->has_group());
  EXPECT_THAT((*found)->describe(), StartsWith("none: "));
  EXPECT_EQ(kill(stranger.pid(), 0), 0);

  const auto same = RunOn(loop_, placer_->Find({.cgroup = cgroup}, /*lives=*/false));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE((*same)->has_group()) << "an older record has no number";
  EXPECT_EQ(KillAll(**same), absl::OkStatus());
  RunOn(loop_, (*same)->Release());
}

TEST_F(PluginCgroupTest, ProcessOutsideOfOurPlacesHasNoGroup) {
  for (const std::string text :
       {"0::/system.slice/berthd.service\n", "4:memory:/x\n", "", "0::/x/berth-plugins/no\n",
        "0::/berth.slice/berth-plugins.slice/berth-plugin-no.scope\n"}) {
    const auto group = RunOn(loop_, placer_->Find({.cgroup = text}, true));
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_FALSE((*group)->has_group()) << text;
    EXPECT_THAT((*group)->describe(), StartsWith("none: ")) << text;
    EXPECT_TRUE(absl::IsUnimplemented(KillAll(**group)));
    EXPECT_TRUE(absl::IsUnimplemented((*group)->Members().status()));
  }
}

TEST_F(PluginCgroupTest, WhatIsInUseKeepsItsName) {
  auto first = Prepare("a");
  auto second = Prepare("a");
  EXPECT_EQ(second->describe(), "cgroup " + Path("a+2"));
  first.reset();  // as if berthd had died before it launched into it
  auto third = Prepare("a");
  EXPECT_EQ(third->describe(), "cgroup " + Path("a"));
  RunOn(loop_, second->Release());
  RunOn(loop_, third->Release());
  EXPECT_FALSE(std::filesystem::exists(parent_ + "/berth-plugins"));
}

TEST_F(PluginCgroupTest, WhatAnEarlierBerthdLeftEmptyIsRemoved) {
  Prepare("a").reset();
  EXPECT_TRUE(std::filesystem::exists(Path("a")));
  placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), Options()));
  EXPECT_FALSE(std::filesystem::exists(parent_ + "/berth-plugins"));
}

TEST_F(PluginCgroupTest, LimitsAreSetOrNamedAsNotEnforced) {
  const CgroupLimits limits{.memory_max = 64 << 20, .pids_max = 20, .cpus = 0.5};
  const auto group = Prepare("a", limits);
  const auto set = [&](const char* file) { return ReadFile(Path("a/") + file, 4096).value_or("absent\n"); };
  const auto named = [&](const std::string& word) {
    return group->unenforced().find(word) != std::string::npos;
  };
  EXPECT_EQ(set("memory.max"), named("memory") ? "absent\n" : "67108864\n");
  EXPECT_EQ(set("pids.max"), named("pids") ? "absent\n" : "20\n");
  EXPECT_EQ(set("cpu.max"), named("cpus") ? "absent\n" : "50000 100000\n");
  EXPECT_EQ(group->unenforced().empty(), placer_->describe().find("no limits of") == std::string::npos);
  EXPECT_EQ(Prepare("b")->unenforced(), "") << "nothing was asked for";
  RunOn(loop_, group->Release());
  placer_ = RunOn(loop_, CgroupProvider::Detect(loop_.get_executor(), Options()));
}

TEST(PluginCgroupTextTest, NoPlaceCanBeMade) {
  asio::io_context loop;
  const CgroupOptions options{.use_systemd = false, .cgroup_parent = "/no/such/directory"};
  const auto provider = RunOn(loop, CgroupProvider::Detect(loop.get_executor(), options));
  EXPECT_THAT(provider->describe(), StartsWith("none: open /no/such/directory: "));
  const auto group = RunOn(loop, provider->Prepare("a", {.memory_max = 1 << 20}, Clock::now() + kTestBound));
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->cgroup_fd(), -1);
  EXPECT_EQ(RunOn(loop, (*group)->Enter(getpid(), Clock::now() + kTestBound)), absl::OkStatus());
  EXPECT_THAT((*group)->unenforced(), StartsWith("its limit of memory is not enforced: "));
}

TEST(PluginCgroupTextTest, NamesOfScopesAndDirectories) {
  EXPECT_EQ(ScopeName("nfs.csi.k8s.io", 1), "berth-plugin-nfs.csi.k8s.io.scope");
  EXPECT_EQ(ScopeName("a-b_c", 1), "berth-plugin-a\\x2db_c.scope");
  EXPECT_EQ(ScopeName("a", 2), "berth-plugin-a-2.scope");
  EXPECT_NE(ScopeName("a", 2), ScopeName("a-2", 1));
  EXPECT_NE(DirectoryName("a", 2), DirectoryName("a-2", 1));
  const std::string longest = "a" + std::string(62, '-');
  EXPECT_LE(ScopeName(longest, 100).size(), 255);
}

TEST(PluginCgroupTextTest, TellsWhoseMemoryRanOut) {
  EXPECT_EQ(Judge({}, {}).text, "");
  EXPECT_FALSE(Judge({.oom = 3}, {}).out_of_memory) << "reclaim helped in the end";
  const CgroupLimits limits{.memory_max = 512 << 20, .pids_max = 64};
  EXPECT_TRUE(Judge({.oom_kill = 1, .oom = 1}, limits).out_of_memory);
  EXPECT_EQ(Judge({.oom_kill = 1, .oom = 1}, limits).text, "out of memory (its limit is 512MiB)");
  EXPECT_THAT(Judge({.oom_kill = 1}, limits).text, HasSubstr("the machine's"));
  EXPECT_THAT(Judge({.oom_kill = 1}, {}).text, HasSubstr("it has no limit of its own"));
  const CgroupExit end = Judge({.pids_max = 2}, limits);
  EXPECT_TRUE(end.pids_limit_hit);
  EXPECT_FALSE(end.out_of_memory);
  EXPECT_EQ(end.text, "met its limit of 64 processes and threads");
}

}  // namespace
}  // namespace berth
