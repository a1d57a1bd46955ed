#include "rpc/page_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(PageTokenTest, ComesBackAsItWas) {
  for (const VolumeName& name : {VolumeName("p", "v"), VolumeName("", ""), VolumeName("a.b", "x.y/../z"),
                                 VolumeName("p", std::string("\0\xff\n", 3)),
                                 VolumeName(std::string(256, 'p'), std::string(4096, 'v'))}) {
    const auto read = ReadPageToken(PageTokenAfter(name));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, name);
  }
}

TEST(PageTokenTest, IsPrintable) {
  const std::string token = PageTokenAfter({"p\n", "\xff"});
  EXPECT_THAT(token, testing::MatchesRegex("[0-9a-z.]+"));
}

TEST(PageTokenTest, NothingElseIsTaken) {
  for (const std::string& token :
       {std::string("1000"), std::string("v1."), std::string("v1.70"), std::string("v1.7.76"),
        std::string("v1.70.7g"), std::string("v2.70.76"), std::string("v1.70.76.76"), std::string("V1.70.76"),
        std::string("v1.70.7\xff"), "v1.70." + std::string(100'000, '7')}) {
    EXPECT_EQ(ReadPageToken(token).status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
}

}  // namespace
}  // namespace berth
