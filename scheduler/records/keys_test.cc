#include "scheduler/records/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace berth::scheduler {
namespace {

TEST(KeysTest, APartHoldsNothingThatSeparatesParts) {
  EXPECT_EQ(KeyPart("node-1.example"), "node-1.example");
  EXPECT_EQ(KeyPart("a/b%c"), "a%2Fb%25c");
  EXPECT_EQ(KeyPart(std::string("\n\0\xff", 3)), "%0A%00%FF");
  EXPECT_EQ(KeyPart(""), "");
  EXPECT_EQ(NodeKey("n/1", "i"), "n/n%2F1/i");
}

TEST(KeysTest, NoTwoTextsShareAKey) {
  std::set<std::string> keys;
  const std::string longest(128, 'x');
  for (const std::string& text : {std::string("a/b"), std::string("a%2Fb"), std::string("a"), std::string(""),
                                  longest, longest + "x", longest + "y", std::string("%h00")}) {
    EXPECT_TRUE(keys.insert(KeyPart(text)).second) << text;
  }
  EXPECT_LE(KeyPart(std::string(4096, '/')).size(), 40U);
  const std::string escaped(128, '/');
  EXPECT_LE(ClaimKey(escaped, escaped, escaped, escaped).size(), 1024U) << "the longest that a store takes";
  EXPECT_LE(ClaimKey(longest, longest, longest, longest).size(), 1024U);
}

}  // namespace
}  // namespace berth::scheduler
