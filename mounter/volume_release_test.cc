#include "mounter/volume_release.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace berth {
namespace {

using ::testing::HasSubstr;

std::string How(HoldKind kind, pid_t pid, const std::string& keeper = "") {
  return HolderOf({.object = 0, .kind = kind, .pid = pid, .where = "/data", .keeper = keeper}).how;
}

TEST(HolderOfTest, SaysWhatItHas) {
  EXPECT_EQ(How(HoldKind::kMount, 0), "the mount at /data");
  EXPECT_EQ(How(HoldKind::kNamespace, 1), "in another mount namespace, mounted at /data");
  EXPECT_EQ(How(HoldKind::kNamespace, 0, "/run/ns/x"),
            "a mount namespace without a process (/run/ns/x), mounted at /data");
  EXPECT_EQ(How(HoldKind::kOpenFile, 1), "open file /data");
  EXPECT_EQ(How(HoldKind::kOpenFile, 1, "detached"), "open file /data on a mount that was detached");
  EXPECT_EQ(How(HoldKind::kWorkingDirectory, 1), "working directory /data");
  EXPECT_EQ(How(HoldKind::kRootDirectory, 1), "root directory /data");
  EXPECT_EQ(How(HoldKind::kMappedFile, 1), "mapped file /data");
  EXPECT_EQ(How(HoldKind::kProgram, 1), "program /data");
  EXPECT_EQ(How(HoldKind::kOverlay, 0), "the overlay mounted at /data");
  EXPECT_EQ(How(HoldKind::kOverlay, 0, "possible"),
            "the overlay mounted at /data, whose upper directory is not found");
  EXPECT_EQ(How(HoldKind::kSwap, 0), "the swap file /data");
  EXPECT_EQ(How(HoldKind::kLoop, 0), "block device /data");
  EXPECT_EQ(How(HoldKind::kLoop, 0, "possible"), "block device /data, which does not answer");
}

TEST(HolderOfTest, NamesTheProcessByItsCommand) {
  const MountHolder holder =
      HolderOf({.object = 0, .kind = HoldKind::kOpenFile, .pid = getpid(), .where = "/x", .keeper = ""});
  EXPECT_THAT(holder.command, HasSubstr("mounter_unit"));
  EXPECT_EQ(holder.pid, getpid());
}

}  // namespace
}  // namespace berth
