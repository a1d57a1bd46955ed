#include "mounts/mount_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/process.h"
#include "base/safe_path.h"
#include "base/sanitizer.h"
#include "base/status.h"
#include "base/testing/from_text.h"
#include "base/testing/killed_daemon.h"
#include "base/testing/run_on.h"
#include "base/testing/run_process.h"
#include "base/testing/test_area.h"
#include "base/unique_fd.h"
#include "mounts/testing/fuse_server.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TimePoint In(Duration time) { return Clock::now() + time; }
constexpr std::chrono::seconds kSoon{20};
// Passes where something hangs; until then a helper has reached its file system, also on a slow machine.
constexpr std::chrono::seconds kShort{1};
constexpr std::chrono::milliseconds kTick{10};

void MountTmpfs(const std::string& path) {
  ASSERT_EQ(mount("x", path.c_str(), "tmpfs", 0, "mode=0755"), 0) << path;
}
void MakeFile(const std::string& path) {
  std::ofstream file(path);
  file << "x";
  ASSERT_TRUE(file.flush().good()) << path;
}
struct stat StatOf(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info;
}

class MountHelperTest : public ::testing::Test {
 protected:
  void TearDown() override { RunOn(loop_, reaper_.Join()); }

  absl::Status Unmount(const std::string& path, UnmountOptions options = {}, Duration within = kSoon) {
    return RunOn(loop_, helper_.Unmount(path, options, In(within)));
  }
  std::vector<absl::Status> Probe(std::vector<std::string> paths, Duration within = kSoon) {
    return RunOn(loop_, helper_.Probe(std::move(paths), In(within)));
  }
  absl::Status SetPermissions(const std::string& path, const RootPermissions& permissions) {
    return RunOn(loop_, helper_.SetPermissions(path, permissions, In(kSoon)));
  }

  // Returns once no helper is left behind. WaitUnstuck is for one of those that are left behind when it
  // begins.
  void AwaitNoneStuck() {
    const TimePoint bound = In(kSoon);
    loop_.restart();
    while (!helper_.stuck().empty() && Clock::now() < bound) loop_.run_one_for(kTick);
    EXPECT_THAT(helper_.stuck(), IsEmpty());
  }

  asio::io_context loop_;
  TaskScope reaper_{loop_.get_executor(), "reaper"};
  MountHelper helper_{BERTH_MOUNT_HELPER, reaper_};
};

TEST_F(MountHelperTest, UnmountsAndSaysWhyNot) {
  const std::string path = NewTestDirectory();
  EXPECT_EQ(ErrnoOf(Unmount(path)), EINVAL);
  MountTmpfs(path);
  EXPECT_EQ(Unmount(path), absl::OkStatus());
  EXPECT_FALSE(LookAt(path)->mount_root);
}

TEST_F(MountHelperTest, ABusyMountGoesOnlyLazily) {
  const std::string path = NewTestDirectory();
  MountTmpfs(path);
  const UniqueFd open_file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const absl::Status busy = Unmount(path);
  EXPECT_EQ(ErrnoOf(busy), EBUSY) << busy;
  EXPECT_THAT(MessageOf(busy), HasSubstr(path));
  EXPECT_EQ(Unmount(path, {.lazy = true}), absl::OkStatus());
  EXPECT_FALSE(LookAt(path)->mount_root);
}

TEST_F(MountHelperTest, ReadsAFileAndSaysWhoseItIs) {
  const std::string directory = NewTestDirectory();
  const std::string path = directory + "/file";
  const std::string content = std::string("errno 2\n\0", 9) + std::string(300'000, 'x');
  std::ofstream(path) << content;
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_EQ(chown(path.c_str(), 4711, 0), 0);
  const auto whole = RunOn(loop_, helper_.ReadFile(path, 1 << 20, In(kSoon)));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(whole->text == content) << whole->text.size();
  EXPECT_EQ(whole->mode, mode_t{S_IFREG | 0640});
  EXPECT_EQ(whole->owner, 4711U);
  EXPECT_TRUE(RunOn(loop_, helper_.ReadFile(path, 1000, In(kSoon)))->text == content.substr(0, 1000));
  EXPECT_EQ(RunOn(loop_, helper_.ReadFile(directory, 1000, In(kSoon)))->text, "");

  ASSERT_EQ(symlink("file", (directory + "/link").c_str()), 0);
  EXPECT_EQ(ErrnoOf(RunOn(loop_, helper_.ReadFile(directory + "/link", 1, In(kSoon))).status()), ELOOP);
  EXPECT_EQ(ErrnoOf(RunOn(loop_, helper_.ReadFile(directory + "/none", 1, In(kSoon))).status()), ENOENT);
  MountHelper none(directory + "/no-helper", reaper_);
  const absl::Status not_asked = RunOn(loop_, none.ReadFile(path, 1, In(kSoon))).status();
  EXPECT_FALSE(not_asked.ok());
  EXPECT_EQ(ErrnoOf(not_asked), std::nullopt) << "it says nothing of the file: " << not_asked;
}

TEST_F(MountHelperTest, ItsUsageIsChecked) {
  const std::vector<std::vector<std::string>> wrong{{},
                                                    {"umount"},
                                                    {"umount", "--force"},
                                                    {"umount", "relative"},
                                                    {"umount", "/a", "/b"},
                                                    {"format", "/a"},
                                                    {"probe"},
                                                    {"statvfs", "/a", "/b"},
                                                    {"read", "/a"},
                                                    {"read", "relative", "1"},
                                                    {"read", "/a", "many"},
                                                    {"read", "/a", "1048577"},
                                                    {"permissions", "relative"},
                                                    {"permissions", "/a", "--owner", "-1"},
                                                    {"permissions", "/a", "--owner", "4294967295"},
                                                    {"permissions", "/a", "--mode", "10000"},
                                                    {"permissions", "/a", "--mode", "0788"},
                                                    {"permissions", "/a", "--label"},
                                                    {"permissions", "/a", "--colour", "red"}};
  for (const auto& arguments : wrong) {
    ProcessSpec spec;
    spec.executable = BERTH_MOUNT_HELPER;
    spec.arguments = arguments;
    const auto ran = RunOn(loop_, RunProcess(reaper_, std::move(spec), "", 4096, In(kSoon)));
    ASSERT_TRUE(ran.ok()) << ran.status();
    EXPECT_EQ(ran->exit.code, 2) << ::testing::PrintToString(arguments);
  }
}

// --- hanging ---

// The kernel ends a superblock first, and writes the disk's last data then.
TEST_F(MountHelperTest, Fault47AFileSystemHasNotEndedWhileItsDiskIsClaimed) {
  const std::string area = NewTestDirectory();
  const std::string attach =
      fmt::format("truncate -s 1M {0}/image && losetup --find --show {0}/image > {0}/loop", area);
  ASSERT_EQ(std::system(attach.c_str()), 0);
  std::string device;
  std::getline(std::ifstream(area + "/loop"), device);
  const dev_t disk = StatOf(device).st_rdev;
  const dev_t nobodys = makedev(0xFFF, 0xFFFFF);
  const auto alive = [&](dev_t number, dev_t on) {
    const auto answer = RunOn(loop_, helper_.SuperblockIsAlive(number, on, In(kSoon)));
    return answer.ok() ? std::optional(*answer) : std::nullopt;
  };
  EXPECT_EQ(alive(nobodys, disk), false);
  EXPECT_EQ(alive(StatOf(area).st_dev, 0), true);
  {
    const UniqueFd claim(open(device.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
    ASSERT_TRUE(claim.valid());
    EXPECT_EQ(alive(nobodys, disk), true);
    EXPECT_EQ(alive(nobodys, 0), false);
  }
  EXPECT_EQ(alive(nobodys, disk), false);
  ASSERT_EQ(std::system(("losetup --detach " + device).c_str()), 0);
  EXPECT_EQ(alive(nobodys, disk), false) << "an empty one has no file system";
}

TEST_F(MountHelperTest, ReadsThatHangHaveAShareOfTheirOwn) {
  const std::string path = NewTestDirectory();
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  constexpr size_t kShare = kStuckHelpers / 8;
  std::vector<absl::StatusCode> ended;
  for (size_t i = 0; i < kShare; ++i) {
    asio::co_spawn(loop_, helper_.ReadFile(fmt::format("{}/file{}", path, i), 1, In(kShort * 3)),
                   [&ended](const std::exception_ptr&, const absl::StatusOr<FileContent>& read) {
                     ended.push_back(read.status().code());
                   });
  }
  const TimePoint bound = In(kSoon);
  while (ended.size() < kShare && Clock::now() < bound) loop_.run_one_for(kTick);
  EXPECT_THAT(ended, AllOf(SizeIs(kShare), Each(absl::StatusCode::kDeadlineExceeded)));
  ASSERT_THAT(helper_.stuck(), SizeIs(kShare));
  const auto refused = RunOn(loop_, helper_.ReadFile(path + "/another", 1, In(kSoon)));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  const std::string other = NewTestDirectory();
  MountTmpfs(other);
  EXPECT_EQ(Unmount(other), absl::OkStatus());
  (*server)->Resume();
  AwaitNoneStuck();
}

// A mount on a mount point in a FUSE file system: the way to it hangs, in the unmount too.
class HungUnmountTest : public MountHelperTest {
 protected:
  void SetUp() override {
    auto server = FuseServer::Mount(fuse_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    MakeFile(file_);
    ASSERT_EQ(mount(file_.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr), 0);
    server_->Hang();
  }

  std::string fuse_ = NewTestDirectory();
  std::string path_ = fuse_ + "/hello";
  std::string file_ = NewTestDirectory() + "/file";
  std::unique_ptr<FuseServer> server_;
};

TEST_F(HungUnmountTest, Fault24IsLeftBehindOnceAndCostsOnlyItself) {
  const absl::Status first = Unmount(path_, {}, kShort);
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded) << first;
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  const pid_t pid = helper_.stuck()[0].pid;
  EXPECT_EQ(helper_.stuck()[0].what, "umount " + path_);
  EXPECT_THAT(MessageOf(first), HasSubstr(fmt::format("process {} hangs", pid)));

  // Asked again, it waits for the one that hangs.
  EXPECT_EQ(Unmount(path_, {}, kShort).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  EXPECT_EQ(helper_.stuck()[0].pid, pid);
  EXPECT_EQ(kill(pid, 0), 0) << "it was killed, and is there";

  const std::string other = NewTestDirectory();
  MountTmpfs(other);
  EXPECT_EQ(Unmount(other), absl::OkStatus());

  server_->Resume();
  AwaitNoneStuck();
  EXPECT_THAT(helper_.stuck(), IsEmpty());
}

TEST_F(HungUnmountTest, AWaiterGoesOnOnceTheOtherHasEnded) {
  EXPECT_EQ(Unmount(path_, {}, kShort).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  // The kernel fails what waits for a server when that ends.
  server_->Die();
  EXPECT_EQ(ErrnoOf(Unmount(path_)), ENOTCONN);
  EXPECT_THAT(helper_.stuck(), IsEmpty());
}

TEST_F(MountHelperTest, Fault24ForceEndsWhatHangs) {
  const std::string path = NewTestDirectory();
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  // A process waits for an answer and cannot be killed.
  EXPECT_EQ(Probe({path}, kShort)[0].code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  absl::Status forced = Unmount(path, {.force = true});
  AwaitNoneStuck();
  // It may have been busy with its waiters; they have ended.
  if (ErrnoOf(forced) == EBUSY) forced = Unmount(path);
  EXPECT_EQ(forced, absl::OkStatus());
  EXPECT_FALSE(LookAt(path)->mount_root);
}

TEST_F(MountHelperTest, Fault24AKilledDaemonIsNotKeptByItsHelper) {
  const std::string path = NewTestDirectory();
  const std::string lock = NewTestDirectory() + "/lock";
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  const pid_t stuck = KillADaemon(lock, [&path](const Tell& tell) {
    asio::io_context loop;
    TaskScope reaper(loop.get_executor(), "reaper");
    MountHelper helper(BERTH_MOUNT_HELPER, reaper);
    const auto readonly = RunOn(loop, helper.IsReadonly(path, In(kShort)));
    const auto left = helper.stuck();
    tell(left.size() == 1 ? left[0].pid : -1);
  });
  ASSERT_GT(stuck, 0);
  EXPECT_EQ(kill(stuck, 0), 0) << "the helper hangs still, and has nothing of the daemon's";
}

// --- probing ---

TEST_F(MountHelperTest, EachPathIsProbedByItself) {
  const std::string alive = NewTestDirectory();
  const std::string hung = NewTestDirectory();
  const std::string dead = NewTestDirectory();
  const std::string local = NewTestDirectory();
  auto living = FuseServer::Mount(alive);
  auto hanging = FuseServer::Mount(hung);
  auto dying = FuseServer::Mount(dead);
  ASSERT_TRUE(living.ok() && hanging.ok() && dying.ok());
  (*hanging)->Hang();
  (*dying)->Die();

  const auto verdicts = Probe({hung, alive, dead, local, local + "/none"}, kShort * 4);
  ASSERT_THAT(verdicts, SizeIs(5));
  EXPECT_EQ(verdicts[0].code(), absl::StatusCode::kDeadlineExceeded) << verdicts[0];
  EXPECT_EQ(verdicts[1], absl::OkStatus());
  EXPECT_EQ(verdicts[2].code(), absl::StatusCode::kUnavailable) << verdicts[2];
  EXPECT_EQ(ErrnoOf(verdicts[2]), ENOTCONN);
  EXPECT_EQ(verdicts[3], absl::OkStatus());
  EXPECT_EQ(verdicts[4].code(), absl::StatusCode::kNotFound) << verdicts[4];

  // What hangs is not asked again meanwhile, and its probe is known by name.
  EXPECT_EQ(helper_.HangingProbe(hung), helper_.stuck()[0].pid);
  EXPECT_EQ(helper_.HangingProbe(alive), 0);
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  const pid_t pid = helper_.stuck()[0].pid;
  EXPECT_EQ(Probe({hung})[0].code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_THAT(helper_.stuck(), SizeIs(1));
  EXPECT_EQ(helper_.stuck()[0].pid, pid);

  (*hanging)->Resume();
  AwaitNoneStuck();
  EXPECT_EQ(helper_.HangingProbe(hung), 0);
  EXPECT_EQ(Probe({hung})[0], absl::OkStatus());
}

TEST_F(MountHelperTest, WhatIsToBeUnmountedIsKeptFromProbes) {
  const std::string path = NewTestDirectory();
  const std::string local = NewTestDirectory();
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Hang();
  std::optional<std::vector<absl::Status>> round;
  asio::co_spawn(loop_, helper_.Probe({path}, In(kSoon * 2)),
                 [&round](const std::exception_ptr&, std::vector<absl::Status> verdicts) {
                   round = std::move(verdicts);
                 });
  // Not before the server has the probe's request: until then a probe can be killed.
  const TimePoint bound = In(kSoon);
  while (!(*server)->HoldsRequest() && Clock::now() < bound) loop_.run_one_for(kTick);
  ASSERT_TRUE((*server)->HoldsRequest());
  {
    // A round that is under way ends at once. Its probe cannot: this file system keeps its waiters from being
    // killed.
    const auto probe_pause = RunOn(loop_, helper_.PauseProbes(path, In(kShort)));
    const TimePoint until = In(kSoon);
    while (!round.has_value() && Clock::now() < until) loop_.run_one_until(until);
    ASSERT_TRUE(round.has_value());
    ASSERT_THAT(*round, SizeIs(1));
    EXPECT_EQ((*round)[0].code(), absl::StatusCode::kUnknown) << "no verdict: " << (*round)[0];
    EXPECT_NE(helper_.HangingProbe(path), 0);
    EXPECT_FALSE(helper_.MayProbe(path));
    EXPECT_EQ(Probe({path, local})[1], absl::OkStatus());
    (*server)->Resume();
    const auto again = RunOn(loop_, helper_.PauseProbes(path, In(kSoon)));
    EXPECT_EQ(helper_.HangingProbe(path), 0) << "it was waited for";
    EXPECT_EQ(Probe({path})[0].code(), absl::StatusCode::kUnknown);
  }
  EXPECT_TRUE(helper_.MayProbe(path));
  EXPECT_EQ(Probe({path})[0], absl::OkStatus());
}

TEST_F(MountHelperTest, OnlySoManyAreLeftBehind) {
  const std::string path = NewTestDirectory();
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::string> copies;
  for (size_t i = 0; i < kStuckHelpers; ++i) {
    copies.push_back(NewTestDirectory());
    ASSERT_EQ(mount(path.c_str(), copies.back().c_str(), nullptr, MS_BIND, nullptr), 0);
  }
  (*server)->Hang();
  // Each round of probes gets its share of the time. A probe that has not reached its file system by then has
  // no verdict, and is asked again.
  const TimePoint bound = In(kSoon);
  std::vector<absl::Status> verdicts;
  do verdicts = Probe(copies, kShort * 4);
  while (std::ranges::count(verdicts, absl::StatusCode::kUnknown, &absl::Status::code) > 0 &&
         Clock::now() < bound);
  const auto hang = std::ranges::count(verdicts, absl::StatusCode::kDeadlineExceeded, &absl::Status::code);
  const auto refused =
      std::ranges::count(verdicts, absl::StatusCode::kResourceExhausted, &absl::Status::code);
  EXPECT_GT(hang, 0);
  EXPECT_EQ(static_cast<size_t>(hang), helper_.stuck().size());
  EXPECT_LE(helper_.stuck().size(), kStuckHelpers / 2);
  EXPECT_EQ(static_cast<size_t>(hang + refused), copies.size());
  // Probes have not taken the others' places.
  const std::string other = NewTestDirectory();
  MountTmpfs(other);
  EXPECT_EQ(Unmount(other), absl::OkStatus());
  (*server)->Die();
  AwaitNoneStuck();
  for (const std::string& copy : copies) ASSERT_EQ(umount2(copy.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MountHelperTest, Fault29NoDescriptorForAHelper) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer needs descriptors of its own to look at an object";
  const std::string path = NewTestDirectory();
  MountTmpfs(path);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> taken;
  const rlimit few{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  while (true) {
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) break;
    taken.push_back(std::move(fd));
  }
  // Each descriptor on the way may be the one that cannot be had.
  for (int left = 0; left < 3; ++left) {
    const absl::Status status = Unmount(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(Probe({path})[0].code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(LookAt(path)->mount_root);
    taken.pop_back();
  }
  taken.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(helper_.stuck(), IsEmpty());
  EXPECT_EQ(Unmount(path), absl::OkStatus());
}

// --- permissions ---

class PermissionsTest : public MountHelperTest {
 protected:
  void SetUp() override {
    MountTmpfs(root_);
    MakeDirectory(root_ + "/directory");
    MakeFile(root_ + "/directory/file");
    MakeDirectory(root_ + "/mounted");
    MountTmpfs(root_ + "/mounted");
    MakeFile(root_ + "/mounted/file");
    MakeFile(outside_ + "/file");
    ASSERT_EQ(symlink((outside_ + "/file").c_str(), (root_ + "/link").c_str()), 0);
    ASSERT_EQ(symlink(outside_.c_str(), (root_ + "/directory/link").c_str()), 0);
  }
  void TearDown() override {
    EXPECT_EQ(umount2((root_ + "/mounted").c_str(), UMOUNT_NOFOLLOW), 0);
    EXPECT_EQ(umount2(root_.c_str(), UMOUNT_NOFOLLOW), 0);
    MountHelperTest::TearDown();
  }

  std::string root_ = NewTestDirectory();
  std::string outside_ = NewTestDirectory();
};

TEST_F(PermissionsTest, AreSetOnTheRootAloneAndTheModeExactly) {
  const mode_t before = umask(0077);
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("owner: 1001 group: 1002 mode: 02777")),
            absl::OkStatus());
  umask(before);
  const struct stat root = StatOf(root_);
  EXPECT_EQ(root.st_uid, 1001U);
  EXPECT_EQ(root.st_gid, 1002U);
  EXPECT_EQ(root.st_mode & 07777, 02777U);
  EXPECT_EQ(StatOf(root_ + "/directory").st_uid, 0U);
  // What is not asked for stays as it is, the set-id bits too.
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("owner: 1003")), absl::OkStatus());
  EXPECT_EQ(StatOf(root_).st_gid, 1002U);
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("mode: 0700")), absl::OkStatus());
  EXPECT_EQ(StatOf(root_).st_uid, 1003U);
  EXPECT_EQ(StatOf(root_).st_mode & 07777, 0700U);
}

TEST_F(PermissionsTest, GoThroughNoMountAndNoSymlink) {
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("group: 1002 mode: 0770 recursive: true")),
            absl::OkStatus());
  for (const char* const own : {"", "/directory", "/directory/file", "/link", "/directory/link"}) {
    EXPECT_EQ(StatOf(root_ + own).st_gid, 1002U) << own;
  }
  for (const std::string& other :
       {root_ + "/mounted", root_ + "/mounted/file", outside_, outside_ + "/file"}) {
    EXPECT_EQ(StatOf(other).st_gid, 0U) << other;
  }
  EXPECT_EQ(StatOf(root_ + "/directory/file").st_mode & 07777, 0644U) << "the mode is the root's alone";
}

TEST_F(PermissionsTest, WhatIsSoAlreadyIsNotTouched) {
  const std::string file = root_ + "/directory/file";
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("owner: 1001 recursive: true")),
            absl::OkStatus());
  // A set-id bit would be taken away by another change of the owner.
  ASSERT_EQ(chmod(file.c_str(), 04755), 0);
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>("owner: 1001 recursive: true")),
            absl::OkStatus());
  EXPECT_EQ(StatOf(file).st_mode & 07777, 04755U);
}

TEST_F(PermissionsTest, AreRefusedWhereNothingIsMountedOrNothingMayBeWritten) {
  EXPECT_EQ(ErrnoOf(SetPermissions(root_ + "/directory", FromText<RootPermissions>("owner: 1"))), EINVAL);
  EXPECT_EQ(ErrnoOf(SetPermissions(root_ + "/directory/file", FromText<RootPermissions>("owner: 1"))),
            EINVAL);
  EXPECT_EQ(ErrnoOf(SetPermissions(root_ + "/link", FromText<RootPermissions>("owner: 1"))), EINVAL);
  EXPECT_EQ(StatOf(root_ + "/directory").st_uid, 0U);
  ASSERT_EQ(mount(nullptr, root_.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_EQ(ErrnoOf(SetPermissions(root_, FromText<RootPermissions>("owner: 1"))), EROFS);
  EXPECT_EQ(SetPermissions(root_, FromText<RootPermissions>("owner: 0")), absl::OkStatus())
      << "it is so already";
}

TEST_F(PermissionsTest, TheLabelIsTheRoots) {
  constexpr char kLabel[] = "system_u:object_r:container_file_t:s0:c1,c2";
  if (setxattr(root_.c_str(), "security.selinux", "probe", 6, 0) != 0) {
    GTEST_SKIP() << "no labels on this kernel's tmpfs";
  }
  ASSERT_EQ(SetPermissions(root_, FromText<RootPermissions>(fmt::format("selinux_label: \"{}\"", kLabel))),
            absl::OkStatus());
  char label[128] = {};
  EXPECT_EQ(getxattr(root_.c_str(), "security.selinux", label, sizeof label),
            static_cast<ssize_t>(sizeof kLabel));
  EXPECT_STREQ(label, kLabel);
  EXPECT_LT(getxattr((root_ + "/directory").c_str(), "security.selinux", label, sizeof label), 0);
}

TEST_F(MountHelperTest, PermissionsOfAHungFileSystemAreLeftBehind) {
  const std::string path = NewTestDirectory();
  auto server = FuseServer::Mount(path);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_EQ(SetPermissions(path, FromText<RootPermissions>("owner: 1001 mode: 0751")), absl::OkStatus());
  EXPECT_EQ(StatOf(path).st_uid, 1001U);
  EXPECT_EQ(StatOf(path).st_mode & 07777, 0751U);
  (*server)->Hang();
  const absl::Status status =
      RunOn(loop_, helper_.SetPermissions(path, FromText<RootPermissions>("owner: 1002"), In(kShort)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(helper_.stuck(), SizeIs(1));
}

}  // namespace
}  // namespace berth
