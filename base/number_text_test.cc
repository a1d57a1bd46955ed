#include "base/number_text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace berth {
namespace {

TEST(ParseNumberTest, TakesAllOfTheTextOrNothing) {
  uint16_t port = 0;
  EXPECT_TRUE(ParseNumber("65535", &port));
  EXPECT_EQ(port, 65535);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "0x1", "65536", "1.0", "one"}) {
    EXPECT_FALSE(ParseNumber(text, &port)) << text;
  }
  int number = 0;
  EXPECT_TRUE(ParseNumber("-7", &number));
  EXPECT_EQ(number, -7);
  unsigned mode = 0;
  EXPECT_TRUE(ParseNumber("0755", &mode, 8));
  EXPECT_EQ(mode, 0755U);
  EXPECT_FALSE(ParseNumber("8", &mode, 8));
}

}  // namespace
}  // namespace berth
