#include "csi/secrets_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

TEST(SecretsTextTest, ReadsLinesOfKeyAndValue) {
  const auto secrets = ParseSecretsText("# comment\nuser=admin\r\n\n  \npassword=a=b c \nempty=");
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_THAT(*secrets, ElementsAre(Pair("empty", ""), Pair("password", "a=b c "), Pair("user", "admin")));
}

TEST(SecretsTextTest, ReadsAJsonObjectOfStrings) {
  const auto secrets = ParseSecretsText("\n {\"user\": \"admin\", \"password\": \"two\\nlines\"}\n");
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_THAT(*secrets, ElementsAre(Pair("password", "two\nlines"), Pair("user", "admin")));
}

TEST(SecretsTextTest, Fault59AByteOrderMarkIsNoPartOfTheFirstKey) {
  for (const char* text : {"\xEF\xBB\xBFuser=admin", "\xEF\xBB\xBF{\"user\": \"admin\"}"}) {
    const auto secrets = ParseSecretsText(text);
    ASSERT_TRUE(secrets.ok()) << secrets.status();
    EXPECT_THAT(*secrets, ElementsAre(Pair("user", "admin")));
  }
}

TEST(SecretsTextTest, AnEmptyTextHoldsNone) {
  const auto secrets = ParseSecretsText(" \n");
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_THAT(*secrets, IsEmpty());
}

TEST(SecretsTextTest, ErrorsShowLinesAndKeysButNoValue) {
  for (const char* text : {"fine=1\nhunter2", "=hunter2", "a=hunter2\na=hunter2", "{\"a\": hunter2}",
                           "{\"a\": {\"b\": \"hunter2\"}}"}) {
    const auto secrets = ParseSecretsText(text);
    ASSERT_FALSE(secrets.ok()) << text;
    EXPECT_EQ(secrets.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(MessageOf(secrets.status())), Not(HasSubstr("hunter2")));
  }
  EXPECT_THAT(std::string(MessageOf(ParseSecretsText("fine=1\nhunter2").status())), HasSubstr("line 2"));
}

}  // namespace
}  // namespace berth
