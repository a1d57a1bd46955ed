#include "cli/secrets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/failure.h"
#include "cli/testing/temp_dir.h"

namespace berth::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// What such a text may be is csi/secrets_text_test.cc's.
TEST(ParseSecretsTest, AWrongTextIsAUsageErrorThatShowsTheRightForms) {
  const auto secrets = ParseSecrets("fine=1\nhunter2");
  EXPECT_EQ(ExitCodeOf(secrets.status()), ExitCode::kUsage);
  EXPECT_THAT(HintOf(secrets.status()), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(std::string(secrets.status().message()), Not(HasSubstr("hunter2")));
}

TEST(ReadSecretsTest, WarnsWhereEverybodyMayRead) {
  const TempDir dir;
  const std::string open_file = dir.Write("open", "a=b", 0644);
  const std::string closed_file = dir.Write("closed", "a=b", 0600);
  std::string warning;
  EXPECT_TRUE(ReadSecrets(closed_file, &warning).ok());
  EXPECT_THAT(warning, IsEmpty());
  EXPECT_TRUE(ReadSecrets(open_file, &warning).ok());
  EXPECT_THAT(warning, HasSubstr("every user can read it"));
}

TEST(ReadSecretsTest, NamesTheFileThatIsMissing) {
  std::string warning;
  const auto secrets = ReadSecrets("/nonexistent/secrets", &warning);
  EXPECT_EQ(ExitCodeOf(secrets.status()), ExitCode::kUsage);
  EXPECT_THAT(std::string(secrets.status().message()), HasSubstr("/nonexistent/secrets: No such file"));
}

TEST(HideSecretsTest, ReplacesEveryValueTheLongestFirst) {
  EXPECT_EQ(
      HideSecrets("login admin:admin1234 failed for admin", {{"user", "admin"}, {"password", "admin1234"}}),
      "login ***:*** failed for ***");
  EXPECT_EQ(HideSecrets("nothing here", {{"a", ""}, {"b", "zzz"}}), "nothing here");
}

TEST(HideSecretsTest, FindsAValueThatWasMadePrintable) {
  EXPECT_THAT(HideSecrets("bad key: two\\x0alines", {{"key", "two\nlines"}}), HasSubstr("***"));
}

TEST(HideSecretsTest, AMarkIsNotSearchedAgain) {
  EXPECT_EQ(HideSecrets("long*secret", {{"a", "long"}, {"b", "*"}}), "******secret");
}

}  // namespace
}  // namespace berth::cli
