#include "base/safe_path.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>

#include "base/statmount.h"
#include "base/status.h"
#include "base/testing/mount_namespace.h"

namespace berth {
namespace {

TEST(HashComponentTest, TellsApartWhatIsOnlyJoinedDifferently) {
  EXPECT_EQ(HashComponent({"a", "b"}), HashComponent({"a", "b"}));
  EXPECT_NE(HashComponent({"ab", ""}), HashComponent({"a", "b"}));
  EXPECT_NE(HashComponent({"a:1", "b"}), HashComponent({"a", "1:b"}));
  EXPECT_EQ(HashComponent({"x"}).size(), 32U);
}

TEST(HashComponentTest, TakesAnyBytesOfAnyLength) {
  const std::string odd("../\0\n\xff", 6);
  EXPECT_EQ(HashComponent({odd}).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(HashComponent({std::string(4096, '/')}).size(), 32U);
}

class SafeRootTest : public testing::Test {
 protected:
  void SetUp() override {
    // What a test mounts stays in a namespace of this process.
    ASSERT_TRUE(UnshareMounts()) << "needs root";
    std::string pattern = "/tmp/berth-safe-path-test.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    // Whatever the tests make is in memory, and gone with the mount.
    ASSERT_EQ(mount("berth-test", dir_.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(mkdir((dir_ + "/root").c_str(), 0700), 0);
    auto root = SafeRoot::Open(dir_ + "/root");
    ASSERT_TRUE(root.ok());
    root_.emplace(*std::move(root));
  }
  void TearDown() override {
    root_.reset();
    ASSERT_EQ(umount2(dir_.c_str(), MNT_DETACH), 0);
    ASSERT_EQ(rmdir(dir_.c_str()), 0);
  }
  bool Exists(const std::string& relative) { return access((dir_ + "/" + relative).c_str(), F_OK) == 0; }

  std::string dir_;
  std::optional<SafeRoot> root_;
};

// In a child: whatever asks a file system for attributes fails.
void ForbidStat() {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_statx, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstat, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
  };
  const sock_fprog program{.len = std::size(filter), .filter = const_cast<sock_filter*>(filter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(2);
  }
}

// A mount of cifs, gfs2 or 9p would keep the loop waiting while its server does not answer. This kernel may
// have none of them, so a file system that is on no list stands for them.
TEST_F(SafeRootTest, Fault24AMountOfAnUnknownFileSystemIsNotAskedForAttributes) {
  ASSERT_TRUE(root_->MakeDirectories("mnt", 0700).ok());
  const std::string path = dir_ + "/root/mnt";
  ASSERT_EQ(mount("berth-test", path.c_str(), "mqueue", 0, nullptr), 0);
  struct statx info{};
  constexpr unsigned kUniqueMountId = 0x4000;
  ASSERT_EQ(statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS | kUniqueMountId, &info), 0);
  const auto id = MountIdOf(AT_FDCWD, path);
  ASSERT_TRUE(id.ok()) << id.status();
  for (const bool beneath : {true, false}) {
    const auto look = [&] { return beneath ? root_->Look("mnt") : LookAt(path); };
    const auto facts = look();
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_TRUE(facts->exists);
    EXPECT_TRUE(facts->mount_root);
    EXPECT_TRUE(S_ISDIR(facts->mode));
    EXPECT_EQ(facts->device, makedev(info.stx_dev_major, info.stx_dev_minor));
    EXPECT_EQ(facts->mount_id, info.stx_mnt_id);
    // Linux before 6.12 cannot know without asking.
    if (!id->has_value()) continue;
    const pid_t child = fork();
    if (child == 0) {
      ForbidStat();
      const auto unasked = look();
      _exit(unasked.ok() && unasked->mount_root && S_ISDIR(unasked->mode) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  // Beneath the mount nothing is entered.
  EXPECT_FALSE(root_->Look("mnt/x").ok());
  ASSERT_EQ(umount2(path.c_str(), MNT_DETACH), 0);
}

TEST_F(SafeRootTest, MakesDirectoriesWithTheExactMode) {
  const mode_t old = umask(0077);
  ASSERT_TRUE(root_->MakeDirectories("a/b", 0755).ok());
  umask(old);
  struct stat info{};
  ASSERT_EQ(stat((dir_ + "/root/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0755U);
  EXPECT_TRUE(root_->MakeDirectories("a/b", 0755).ok());
}

TEST_F(SafeRootTest, ASwappedInSymlinkLeadsNowhere) {
  ASSERT_EQ(mkdir((dir_ + "/outside").c_str(), 0700), 0);
  ASSERT_EQ(mkdir((dir_ + "/outside/victim").c_str(), 0700), 0);
  ASSERT_EQ(symlink((dir_ + "/outside").c_str(), (dir_ + "/root/link").c_str()), 0);
  EXPECT_FALSE(root_->MakeDirectories("link/new", 0700).ok());
  EXPECT_FALSE(root_->WriteFile("link/file", "x", 0600).ok());
  EXPECT_FALSE(root_->RemoveEmptyDirectory("link/victim").ok());
  EXPECT_TRUE(Exists("outside/victim"));
  EXPECT_FALSE(Exists("outside/new"));
  EXPECT_FALSE(Exists("outside/file"));
}

TEST_F(SafeRootTest, NeverLeavesTheRoot) {
  EXPECT_FALSE(root_->MakeDirectories("../escaped", 0700).ok());
  EXPECT_FALSE(root_->MakeDirectories("/escaped", 0700).ok());
  EXPECT_FALSE(root_->RemoveEmptyDirectory("..").ok());
  EXPECT_FALSE(root_->RemoveEmptyDirectory("").ok());
  EXPECT_FALSE(Exists("escaped"));
}

TEST_F(SafeRootTest, NeverCrossesAMount) {
  ASSERT_TRUE(root_->MakeDirectories("mnt", 0700).ok());
  ASSERT_EQ(mount("berth-test", (dir_ + "/root/mnt").c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_EQ(mkdir((dir_ + "/root/mnt/data").c_str(), 0700), 0);

  EXPECT_FALSE(root_->RemoveEmptyDirectory("mnt/data").ok());
  EXPECT_EQ(ErrnoOf(root_->RemoveEmptyDirectory("mnt")), EBUSY);
  EXPECT_TRUE(Exists("root/mnt/data"));
  const auto facts = root_->Look("mnt");
  ASSERT_TRUE(facts.ok());
  EXPECT_TRUE(facts->mount_root);
}

TEST_F(SafeRootTest, RemovesOnlyEmptyDirectories) {
  ASSERT_TRUE(root_->MakeDirectories("a/b", 0700).ok());
  EXPECT_EQ(ErrnoOf(root_->RemoveEmptyDirectory("a")), ENOTEMPTY);
  EXPECT_TRUE(root_->RemoveEmptyDirectory("a/b").ok());
  EXPECT_TRUE(root_->RemoveEmptyDirectory("a/b").ok()) << "gone already";
  EXPECT_TRUE(root_->RemoveEmptyDirectory("a").ok());
  EXPECT_FALSE(Exists("root/a"));
}

TEST_F(SafeRootTest, RemovesOnlyPlainFilesAndEmptyOnesWhereAsked) {
  ASSERT_TRUE(root_->WriteFile("f", "data", 0600).ok());
  EXPECT_FALSE(root_->RemoveFile("f", true).ok());
  EXPECT_TRUE(Exists("root/f"));
  EXPECT_TRUE(root_->RemoveFile("f", false).ok());
  EXPECT_TRUE(root_->RemoveFile("f", false).ok()) << "gone already";
  ASSERT_TRUE(root_->MakeDirectories("d", 0700).ok());
  EXPECT_FALSE(root_->RemoveFile("d", false).ok());
  ASSERT_EQ(symlink("/etc/passwd", (dir_ + "/root/s").c_str()), 0);
  EXPECT_FALSE(root_->RemoveFile("s", false).ok());
}

TEST_F(SafeRootTest, WritesAndReadsBackWithALimit) {
  ASSERT_TRUE(root_->MakeDirectories("v", 0700).ok());
  ASSERT_TRUE(root_->WriteFile("v/identity.json", "{}", 0600).ok());
  EXPECT_EQ(*root_->ReadFile("v/identity.json", 10), "{}");
  EXPECT_FALSE(root_->ReadFile("v/identity.json", 1).ok());
  EXPECT_EQ(root_->ReadFile("v/none", 10).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafeRootTest, LooksWithoutFollowing) {
  ASSERT_EQ(symlink("/", (dir_ + "/root/s").c_str()), 0);
  const auto link = root_->Look("s");
  ASSERT_TRUE(link.ok());
  EXPECT_TRUE(S_ISLNK(link->mode));
  const auto none = root_->Look("no/such/thing");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->exists);
}

TEST_F(SafeRootTest, KnowsWhetherItsPathLeadsToItAndFollowsItAnew) {
  EXPECT_TRUE(*root_->AtItsPath());
  ASSERT_EQ(rename((dir_ + "/root").c_str(), (dir_ + "/moved").c_str()), 0);
  EXPECT_FALSE(*root_->AtItsPath()) << "nothing is there";
  ASSERT_EQ(mkdir((dir_ + "/root").c_str(), 0700), 0);
  EXPECT_FALSE(*root_->AtItsPath());
  ASSERT_TRUE(root_->MakeDirectories("before", 0700).ok());
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/moved/before"));
  ASSERT_TRUE(root_->Reopen().ok());
  EXPECT_TRUE(*root_->AtItsPath());
  ASSERT_TRUE(root_->MakeDirectories("after", 0700).ok());
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/root/after"));
}

TEST_F(SafeRootTest, AMountIsFoundByItsOldNumber) {
  const auto facts = LookAt(dir_);
  ASSERT_TRUE(facts.ok()) << facts.status();
  const auto told = StatMount(facts->mount_id);
  ASSERT_TRUE(told.ok()) << told.status();
  if (!told->has_value()) GTEST_SKIP() << "this kernel has no unique ids of mounts";
  EXPECT_EQ(UniqueMountId((*told)->old_id), facts->mount_id);
  EXPECT_EQ(UniqueMountId(0), 0U);
}

}  // namespace
}  // namespace berth
