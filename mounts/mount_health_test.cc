#include "mounts/mount_health.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "base/safe_path.h"
#include "base/testing/run_on.h"
#include "base/testing/test_area.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr auto kHangs = absl::StatusCode::kDeadlineExceeded;
constexpr auto kDead = absl::StatusCode::kUnavailable;
constexpr auto kWell = absl::StatusCode::kOk;

TEST(MountHealthTest, OnlySomeFileSystemsCanDie) {
  for (const char* const type :
       {"fuse", "fuse.sshfs", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph"}) {
    EXPECT_TRUE(CanDie(type)) << type;
  }
  for (const char* const type :
       {"", "ext4", "xfs", "tmpfs", "overlay", "fusectl", "nfsd", "btrfs", "devtmpfs"}) {
    EXPECT_FALSE(CanDie(type)) << type;
  }
}

class MountHealthRounds : public ::testing::Test {
 protected:
  void TearDown() override { RunOn(loop_, scope_.Join()); }

  void Watch(std::vector<std::string> paths) {
    for (std::string& path : paths)
      watched_.push_back({.key = "k", .component = "c", .path = std::move(path)});
    scope_.Spawn("health", health_.Run());
  }
  static std::unique_ptr<FuseServer> MountFuse(const std::string& path) {
    auto server = FuseServer::Mount(path);
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  // Waits until so many verdicts were reported, and returns them.
  std::vector<std::pair<std::string, absl::StatusCode>> WaitForVerdicts(size_t count) {
    auto enough = [this, count] { return verdicts_.size() >= count; };
    const bool in_time = RunOn(loop_, changed_.WaitUntil(enough, Clock::now() + std::chrono::seconds(20)));
    EXPECT_TRUE(in_time);
    return std::exchange(verdicts_, {});
  }
  void WaitForRounds(int count) {
    const int until = rounds_ + count;
    auto enough = [this, until] { return rounds_ >= until; };
    EXPECT_TRUE(RunOn(loop_, changed_.WaitUntil(enough, Clock::now() + std::chrono::seconds(20))));
  }

  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "test"};
  Condition changed_{loop_.get_executor()};
  MountHelper helper_{BERTH_MOUNT_HELPER, scope_};
  std::vector<WatchedMount> watched_;
  int rounds_ = 0;
  std::vector<std::pair<std::string, absl::StatusCode>> verdicts_;
  MountHealth health_{loop_.get_executor(),
                      helper_,
                      std::chrono::milliseconds(50),
                      [this] {
                        ++rounds_;
                        changed_.NotifyAll();
                        return watched_;
                      },
                      [this](const WatchedMount& mount, const absl::Status& verdict) {
                        verdicts_.emplace_back(mount.path, verdict.code());
                        changed_.NotifyAll();
                      },
                      std::chrono::milliseconds(800)};
};

TEST_F(MountHealthRounds, Fault24ADeadFileSystemIsToldOnceAndItsReturnToo) {
  const std::string path = NewTestDirectory();
  auto server = MountFuse(path);
  Watch({path});
  WaitForRounds(3);
  EXPECT_THAT(verdicts_, IsEmpty()) << "that it is well is no news";
  server->Die();
  EXPECT_THAT(WaitForVerdicts(1), ElementsAre(Pair(path, kDead)));
  WaitForRounds(3);
  EXPECT_THAT(verdicts_, IsEmpty()) << "reported before";
  // A round that is under way has it in use for a moment.
  const TimePoint unmounted_by = Clock::now() + std::chrono::seconds(20);
  while (umount2(path.c_str(), UMOUNT_NOFOLLOW) != 0) {
    ASSERT_EQ(errno, EBUSY);
    ASSERT_LT(Clock::now(), unmounted_by);
    loop_.run_one_for(std::chrono::milliseconds(1));
  }
  server.reset();  // before there is another of its device number, which it would take for its own
  server = MountFuse(path);
  WaitForRounds(3);
  // Where a round fell between the two mounts, the old one was forgotten with its verdict.
  if (!verdicts_.empty()) EXPECT_THAT(verdicts_, ElementsAre(Pair(path, kWell)));
  verdicts_.clear();
  server->Die();
  EXPECT_THAT(WaitForVerdicts(1), ElementsAre(Pair(path, kDead))) << "of the new mount";
}

TEST_F(MountHealthRounds, Fault24AHungFileSystemIsAskedOnceAndAgainWhenItAnswers) {
  const std::string path = NewTestDirectory();
  const std::string other = NewTestDirectory();
  const auto server = MountFuse(path);
  const auto living = MountFuse(other);
  server->Hang();
  Watch({path, other});
  EXPECT_THAT(WaitForVerdicts(1), ElementsAre(Pair(path, kHangs)));
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  const pid_t pid = helper_.stuck()[0].pid;
  WaitForRounds(3);
  EXPECT_THAT(verdicts_, IsEmpty());
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  EXPECT_EQ(helper_.stuck()[0].pid, pid);
  server->Resume();
  EXPECT_THAT(WaitForVerdicts(1), ElementsAre(Pair(path, kWell)));
  EXPECT_THAT(helper_.stuck(), IsEmpty());
}

// Each of them left a helper behind, a round after the other, and there are only so many.
TEST_F(MountHealthRounds, Fault24OneMountOfAHungFileSystemIsAskedForAllOfThem) {
  const std::string path = NewTestDirectory();
  const std::string copy = NewTestDirectory();
  const std::string third = NewTestDirectory();
  const auto server = MountFuse(path);
  ASSERT_EQ(mount(path.c_str(), copy.c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(mount(path.c_str(), third.c_str(), nullptr, MS_BIND, nullptr), 0);
  server->Hang();
  Watch({path, copy, third});
  EXPECT_THAT(WaitForVerdicts(3),
              UnorderedElementsAre(Pair(path, kHangs), Pair(copy, kHangs), Pair(third, kHangs)));
  WaitForRounds(3);
  EXPECT_THAT(helper_.stuck(), SizeIs(1));
  server->Resume();
  EXPECT_THAT(WaitForVerdicts(3),
              UnorderedElementsAre(Pair(path, kWell), Pair(copy, kWell), Pair(third, kWell)));
  for (const std::string& mounted : {third, copy}) umount2(mounted.c_str(), MNT_DETACH);
}

// The staging had answered, and the publication was then mounted again from it, dead as it was.
TEST_F(MountHealthRounds, Fault43FileSystemThatDiesBetweenTwoProbesIsDeadForBothMounts) {
  const std::string path = NewTestDirectory();
  const std::string copy = NewTestDirectory();
  const auto server = MountFuse(path);
  ASSERT_EQ(mount(path.c_str(), copy.c_str(), nullptr, MS_BIND, nullptr), 0);
  // After the first probe the server is killed; once it is a zombie the kernel fails all requests.
  const std::string script = NewTestDirectory() + "/helper";
  std::ofstream(script) << fmt::format(R"(#!/bin/sh
{0} "$@"
kill -9 {1} 2>/dev/null
until grep -q ') Z' /proc/{1}/stat; do :; done
)",
                                       BERTH_MOUNT_HELPER, server->pid());
  ASSERT_EQ(chmod(script.c_str(), 0755), 0);
  MountHelper helper(script, scope_);
  MountHealth health(
      loop_.get_executor(), helper, std::chrono::milliseconds(50),
      [&] {
        return std::vector<WatchedMount>{{.key = "k", .component = "", .path = path},
                                         {.key = "k", .component = "c", .path = copy}};
      },
      [this](const WatchedMount& mount, const absl::Status& verdict) {
        verdicts_.emplace_back(mount.path, verdict.code());
        changed_.NotifyAll();
      },
      std::chrono::seconds(20));
  scope_.Spawn("health", health.Run());
  EXPECT_THAT(WaitForVerdicts(2), ElementsAre(Pair(path, kDead), Pair(copy, kDead)));
  RunOn(loop_, scope_.Join());
  EXPECT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountHealthRounds, TwoMountsOfOneFileSystemThatHangsAreAskedOnce) {
  const std::string path = NewTestDirectory();
  const std::string copy = NewTestDirectory();
  const auto server = MountFuse(path);
  ASSERT_EQ(mount(path.c_str(), copy.c_str(), nullptr, MS_BIND, nullptr), 0);
  server->Hang();
  Watch({path, copy});
  EXPECT_THAT(WaitForVerdicts(2), UnorderedElementsAre(Pair(path, kHangs), Pair(copy, kHangs)));
  EXPECT_THAT(helper_.stuck(), SizeIs(1));
  server->Die();
  EXPECT_THAT(WaitForVerdicts(2), UnorderedElementsAre(Pair(path, kDead), Pair(copy, kDead)));
  EXPECT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

}  // namespace
}  // namespace berth
