#include "base/duration_text.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(DurationTextTest, ReadsEveryUnit) {
  EXPECT_EQ(ParseDuration("500ms"), milliseconds(500));
  EXPECT_EQ(ParseDuration("30s"), seconds(30));
  EXPECT_EQ(ParseDuration("2m"), minutes(2));
  EXPECT_EQ(ParseDuration("1h"), hours(1));
  EXPECT_EQ(ParseDuration("0s"), seconds(0));
}

TEST(DurationTextTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "s", "30", "-1s", "1.5s", "30 s", "30S", "1m30s", "1d", " 1s", "1s ", "0x1s"}) {
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
  }
}

TEST(DurationTextTest, RefusesWhatWouldOverflow) {
  EXPECT_EQ(ParseDuration("9223372036854775807h"), std::nullopt);
  EXPECT_EQ(ParseDuration("99999999999999999999s"), std::nullopt);
  EXPECT_EQ(ParseDuration("8761h"), std::nullopt);
  EXPECT_TRUE(ParseDuration("8760h").has_value());
}

TEST(DurationTextTest, WritesTheShortestForm) {
  EXPECT_EQ(FormatDuration(milliseconds(1500)), "1500ms");
  EXPECT_EQ(FormatDuration(seconds(90)), "90s");
  EXPECT_EQ(FormatDuration(seconds(120)), "2m");
  EXPECT_EQ(FormatDuration(minutes(120)), "2h");
  EXPECT_EQ(FormatDuration(microseconds(10)), "0ms");
}

}  // namespace
}  // namespace berth
