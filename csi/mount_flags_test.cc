#include "csi/mount_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MountFlagsTest, WhatStandsBehindTheEqualsSignMayBeASecret) {
  EXPECT_THAT(SecretsInFlag("password=geheimnis"), ElementsAre("geheimnis"));
  EXPECT_THAT(SecretsInFlag("rw,secret=ab=cd==,noatime,token=123456"), ElementsAre("ab=cd==", "123456"));
  EXPECT_THAT(SecretsInFlag("password=\"geheimnis\",secret='geheimnis2'"),
              ElementsAre("geheimnis", "geheimnis2"));
  EXPECT_THAT(SecretsInFlag("password=\"geheim"), ElementsAre("\"geheim"));
}

TEST(MountFlagsTest, ADoubledCommaBelongsToTheValue) {
  EXPECT_THAT(SecretsInFlag("password=ge,,heimnis,secret=another"), ElementsAre("ge,,heimnis", "another"));
  EXPECT_THAT(SecretsInFlag("password=geheim,,,secret=another"), ElementsAre("geheim,,", "another"));
}

// Blotted out, they would make the error that quotes them unreadable.
TEST(MountFlagsTest, WellKnownOptionsAndShortValuesAreNoSecrets) {
  for (const char* flag : {"",
                           ",",
                           ",,",
                           "=",
                           "noatime",
                           "uid=1000",
                           "gid=4294967294",
                           "dir_mode=0000755",
                           "vers=4.2",
                           "rsize=1048576,wsize=1048576",
                           "errors=remount-ro",
                           "data=ordered",
                           "size=10000000",
                           "compress=zstd:15",
                           "subvol=/home/data",
                           "lowerdir=/a/b/c",
                           "context=\"system_u:object_r:svirt_t:s0:c1,c2\"",
                           "unheard-of=none",
                           "password=12345",
                           "password="}) {
    EXPECT_THAT(SecretsInFlag(flag), IsEmpty()) << flag;
  }
}

}  // namespace
}  // namespace berth
