#include "spec/permission_text.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <pwd.h>

#include "base/status.h"

namespace berth {
namespace {

using testing::HasSubstr;

TEST(PermissionTextTest, NamesAreThoseOfThisNode) {
  const passwd* nobody = getpwnam("nobody");
  ASSERT_NE(nobody, nullptr);
  const uint32_t uid = nobody->pw_uid;
  EXPECT_EQ(UserId("nobody").value_or(0), uid);
  EXPECT_EQ(UserId("root").value_or(1), 0U);
  const group* daemon = getgrnam("daemon");
  ASSERT_NE(daemon, nullptr);
  const uint32_t gid = daemon->gr_gid;
  EXPECT_EQ(GroupId("daemon").value_or(0), gid);
}

TEST(PermissionTextTest, NumbersNeedNoEntry) {
  EXPECT_EQ(UserId("123456").value_or(0), 123456U);
  EXPECT_EQ(GroupId("0").value_or(1), 0U);
}

TEST(PermissionTextTest, WhatIsNeitherNameNorNumberSaysSo) {
  EXPECT_TRUE(absl::IsNotFound(UserId("no-such-user-here").status()));
  EXPECT_THAT(std::string(MessageOf(GroupId("no-such-group-here").status())),
              HasSubstr("there is no group no-such-group-here on this node"));
  for (const char* wrong : {"", "-1", "4294967295", "99999999999999999999", "+5"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(UserId(wrong).status())) << wrong;
  }
}

TEST(PermissionTextTest, ModesAreOctal) {
  EXPECT_EQ(ParseMode("0750").value_or(0), 0750U);
  EXPECT_EQ(ParseMode("2770").value_or(0), 02770U);
  EXPECT_EQ(ParseMode("0").value_or(1), 0U);
  for (const char* wrong : {"", "800", "10000", "-1", "0x1f", "750 ", "u+rwx"}) {
    EXPECT_THAT(std::string(MessageOf(ParseMode(wrong).status())), HasSubstr("from 0000 to 7777")) << wrong;
  }
}

}  // namespace
}  // namespace berth
