#include "supervisor/cgroups/cgroup_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::optional<CgroupMount> FindIn(std::string_view mountinfo) {
  const std::string file = testing::TempDir() + "mountinfo-" + std::to_string(getpid());
  EXPECT_EQ(WriteFileSoon(file, mountinfo, 0600), absl::OkStatus());
  auto found = FindCgroup2Mount(file);
  EXPECT_EQ(unlink(file.c_str()), 0);
  return found;
}

constexpr std::string_view kUnified =
    "24 30 0:22 / /proc rw,nosuid shared:12 - proc proc rw\n"
    "29 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr std::string_view kHybrid =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST(CgroupDirTest, FindsWhereTheSecondVersionIsMounted) {
  EXPECT_EQ(FindIn(kUnified).value().mount_point, "/sys/fs/cgroup");
  EXPECT_EQ(FindIn(kUnified).value().root, "/");
  EXPECT_EQ(FindIn(kHybrid).value().mount_point, "/sys/fs/cgroup/unified");
  EXPECT_FALSE(FindIn("35 31 0:32 / /m rw - cgroup cgroup rw,memory\n").has_value());
}

TEST(CgroupDirTest, PrefersTheWholeHierarchyToAPartOfIt) {
  const auto mount = FindIn(
      "50 1 0:26 /a /mnt/part rw - cgroup2 cgroup2 rw\n"
      "51 1 0:26 / /mnt/with\\040blank rw - cgroup2 cgroup2 rw\n"
      "52 1 0:26 /b /mnt/other rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(mount.value().mount_point, "/mnt/with blank");
}

TEST(CgroupDirTest, BrokenMountLinesAreNoMounts) {
  for (const std::string_view text :
       {"", "\n\n", " - cgroup2", "1 2 3 4 5 6", "1 2 3 4 5 - cgroup2 x rw", " - "}) {
    EXPECT_FALSE(FindIn(text).has_value()) << text;
  }
}

TEST(CgroupDirTest, TellsControllersOfTheFirstVersion) {
  EXPECT_THAT(Cgroup1Controllers("9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/a:b\n0::/y\n"),
              testing::IsSupersetOf({"memory", "cpu", "cpuacct"}));
  for (const char* none : {"0::/system.slice\n", "", "4\n", "4:memory\n"}) {
    EXPECT_THAT(Cgroup1Controllers(none), IsEmpty()) << none;
  }
}

TEST(CgroupDirTest, ReadsTheGroupOfAProcess) {
  EXPECT_EQ(Cgroup2Path("0::/system.slice/berthd.service\n"), "/system.slice/berthd.service");
  EXPECT_EQ(Cgroup2Path("9:name=systemd:/\n4:memory:/x\n0::/y\n"), "/y");
  EXPECT_EQ(Cgroup2Path("0::/gone (deleted)\n"), "/gone");
  EXPECT_EQ(Cgroup2Path("4:memory:/x\n"), std::nullopt);
  EXPECT_EQ(Cgroup2Path("0::x\n"), std::nullopt);
  EXPECT_EQ(Cgroup2Path(""), std::nullopt);
}

TEST(CgroupDirTest, FindsTheDirectoryOfAGroup) {
  const CgroupMount whole{"/sys/fs/cgroup", "/"};
  EXPECT_EQ(whole.DirectoryOf("/"), "/sys/fs/cgroup");
  EXPECT_EQ(whole.DirectoryOf("/a/b"), "/sys/fs/cgroup/a/b");
  EXPECT_EQ(whole.DirectoryOf("/../a"), std::nullopt) << "outside of this cgroup namespace";
  EXPECT_EQ(whole.DirectoryOf("a"), std::nullopt);
  const CgroupMount part{"/mnt", "/a"};
  EXPECT_EQ(part.DirectoryOf("/a/b"), "/mnt/b");
  EXPECT_EQ(part.DirectoryOf("/a"), "/mnt");
  EXPECT_EQ(part.DirectoryOf("/ab"), std::nullopt);
}

TEST(CgroupDirTest, ReadsCounters) {
  constexpr std::string_view kEvents = "low 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n";
  EXPECT_EQ(FlatKeyedValue(kEvents, "oom"), 1);
  EXPECT_EQ(FlatKeyedValue(kEvents, "oom_kill"), 3);
  EXPECT_EQ(FlatKeyedValue(kEvents, "high"), 0);
  EXPECT_EQ(FlatKeyedValue("oom_kill\noom_kill x\n", "oom_kill"), 0);
  EXPECT_EQ(FlatKeyedValue("oom_kill 99999999999999999999999\n", "oom_kill"), 0);
  EXPECT_THAT(CgroupWords("cpu memory  pids\n"), ElementsAre("cpu", "memory", "pids"));
  EXPECT_THAT(CgroupWords("\n"), IsEmpty());
}

TEST(CgroupDirTest, NoDirectoryIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(CgroupDir::Open("/no/such/directory").status()));
}

}  // namespace
}  // namespace berth
