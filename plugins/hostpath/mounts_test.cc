#include "plugins/hostpath/mounts.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/file.h"

namespace berth::hostpath {
namespace {

absl::StatusOr<MountFlags> Parse(std::initializer_list<std::string> list) {
  ::google::protobuf::RepeatedPtrField<std::string> flags;
  for (const std::string& flag : list) *flags.Add() = flag;
  return ParseMountFlags(flags);
}

TEST(ParseMountFlagsTest, TellsTheKernelsFlagsFromTheFileSystems) {
  const auto flags = Parse({"noexec,nosuid", "commit=30", "sync", "barrier=0"});
  ASSERT_TRUE(flags.ok());
  EXPECT_EQ(flags->attributes, static_cast<uint64_t>(MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID));
  EXPECT_EQ(flags->flags, static_cast<unsigned long>(MS_SYNCHRONOUS));
  EXPECT_EQ(flags->data, "commit=30,barrier=0");
  EXPECT_FALSE(flags->read_only);
}

TEST(ParseMountFlagsTest, TheLastOfTwoThatContradictCounts) {
  EXPECT_TRUE(Parse({"rw", "ro"})->read_only);
  EXPECT_FALSE(Parse({"ro", "rw"})->read_only);
  EXPECT_EQ(Parse({"noatime", "strictatime"})->attributes, static_cast<uint64_t>(MOUNT_ATTR_STRICTATIME));
  EXPECT_EQ(Parse({"noatime", "relatime"})->attributes, 0U);
}

TEST(ParseMountFlagsTest, ACommaWithinQuotesDoesNotSeparate) {
  EXPECT_EQ(Parse({"context=\"a:b:c0,c1\",noexec"})->data, "context=\"a:b:c0,c1\"");
}

TEST(ParseMountFlagsTest, WhatToMountIsNotTheCallersToSay) {
  for (const std::string flag :
       {"bind", "noexec,remount", "loop", "loop=/dev/loop1", "offset=4096", "rshared"}) {
    const auto flags = Parse({flag});
    EXPECT_TRUE(absl::IsInvalidArgument(flags.status())) << flag;
    EXPECT_EQ(flags.status().ToString().find("4096"), std::string::npos);
  }
  EXPECT_FALSE(Parse({std::string("nul\0", 4)}).ok());
}

TEST(ParseMountGroupTest, IsANumber) {
  EXPECT_EQ(ParseMountGroup("0").value(), 0U);
  EXPECT_EQ(ParseMountGroup("65534").value(), 65534U);
  for (const char* group : {"", "staff", "-1", "1x", "4294967295", "4294967296", " 1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseMountGroup(group).status())) << group;
  }
}

class TargetTest : public ::testing::Test {
 protected:
  TargetTest() {
    std::string pattern = "/tmp/berth-hostpath-target-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/target";
  }
  ~TargetTest() override {
    unlink(path_.c_str());
    rmdir(path_.c_str());
    rmdir(directory_.c_str());
  }
  std::string directory_;
  std::string path_;
};

TEST_F(TargetTest, IsMadeTakenIfEmptyAndRemoved) {
  for (const bool file : {false, true}) {
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_TRUE(MakeTarget(path_, file).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(MakeTarget(path_, !file)));
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_TRUE(RemoveTarget(path_).ok());
  }
}

TEST_F(TargetTest, WithSomethingInItIsLeftAlone) {
  ASSERT_TRUE(WriteFileAtomic(path_, "content", 0600).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(MakeTarget(path_, /*file=*/true)));
  EXPECT_TRUE(absl::IsFailedPrecondition(RemoveTarget(path_)));
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
}

TEST_F(TargetTest, ASymlinkIsNotFollowed) {
  ASSERT_EQ(symlink("/tmp", path_.c_str()), 0);
  EXPECT_FALSE(MakeTarget(path_, /*file=*/false).ok());
  EXPECT_FALSE(MakeTarget(path_, /*file=*/true).ok());
  EXPECT_FALSE(RemoveTarget(path_).ok());
}

}  // namespace
}  // namespace berth::hostpath
