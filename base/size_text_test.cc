#include "base/size_text.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(SizeTextTest, UnitsAreBinaryAndDecimal) {
  EXPECT_EQ(ParseSize("0B"), 0U);
  EXPECT_EQ(ParseSize("4096B"), 4096U);
  EXPECT_EQ(ParseSize("16KiB"), 16U * 1024);
  EXPECT_EQ(ParseSize("512MiB"), 512U * 1024 * 1024);
  EXPECT_EQ(ParseSize("2GiB"), uint64_t{2} << 30U);
  EXPECT_EQ(ParseSize("1TiB"), uint64_t{1} << 40U);
  EXPECT_EQ(ParseSize("16kB"), 16'000U);
  EXPECT_EQ(ParseSize("16KB"), 16'000U);
  EXPECT_EQ(ParseSize("2MB"), 2'000'000U);
  EXPECT_EQ(ParseSize("2GB"), 2'000'000'000U);
  EXPECT_EQ(ParseSize("2TB"), 2'000'000'000'000U);
}

TEST(SizeTextTest, NothingElseIsASize) {
  for (const char* text : {"", "16", "MiB", "-1MiB", "1.5GiB", "16 KiB", "16Kib", "16K", "16kib", "+1B",
                           "16KiB ", "99999999999999999999B", "8388608TiB"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseSize("8388607TiB"), uint64_t{8388607} << 40U);
}

TEST(SizeTextTest, IsShownInTheGreatestWholeUnit) {
  EXPECT_EQ(FormatSize(0), "0B");
  EXPECT_EQ(FormatSize(1000), "1000B");
  EXPECT_EQ(FormatSize(1536), "1536B");
  EXPECT_EQ(FormatSize(16 * 1024), "16KiB");
  EXPECT_EQ(FormatSize(uint64_t{3} << 30U), "3GiB");
}

}  // namespace
}  // namespace berth
