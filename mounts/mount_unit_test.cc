#include "mounts/mount_unit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/testing/test_area.h"

namespace berth {
namespace {

TEST(MountUnitTest, TheMountStaysUntilBerthdHasStopped) {
  const std::string units = NewTestDirectory();
  ASSERT_EQ(WriteMountDropIn(units, "/srv/my-db"), absl::OkStatus());
  ASSERT_EQ(WriteMountDropIn(units, "/srv/my-db"), absl::OkStatus()) << "a repeat";
  const auto text = ReadFile(units + "/srv-my\\x2ddb.mount.d/50-berth.conf", 1000);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_NE(text->find("[Unit]\nBefore=berthd.service\n"), std::string::npos) << *text;
  ASSERT_EQ(RemoveMountDropIn(units, "/srv/my-db"), absl::OkStatus());
  ASSERT_EQ(RemoveMountDropIn(units, "/srv/my-db"), absl::OkStatus()) << "a repeat";
  EXPECT_EQ(rmdir(units.c_str()), 0) << "something is left";
}

TEST(MountUnitTest, DropInsOfOthersStay) {
  const std::string units = NewTestDirectory();
  ASSERT_EQ(WriteMountDropIn(units, "/srv/db"), absl::OkStatus());
  std::ofstream(units + "/srv-db.mount.d/own.conf") << "[Unit]\n" << std::flush;
  ASSERT_EQ(RemoveMountDropIn(units, "/srv/db"), absl::OkStatus());
  EXPECT_EQ(access((units + "/srv-db.mount.d/own.conf").c_str(), F_OK), 0);
}

TEST(MountUnitTest, NothingIsWrittenWhereSystemdDoesNotSeeTheMount) {
  // This program has a mount namespace of its own.
  EXPECT_EQ(RuntimeUnitDirectory(), "");
  EXPECT_EQ(WriteMountDropIn("", "/srv/db"), absl::OkStatus());
  EXPECT_EQ(RemoveMountDropIn("", "/srv/db"), absl::OkStatus());
}

}  // namespace
}  // namespace berth
