#include "base/toml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using testing::HasSubstr;

TEST(TomlReaderTest, EveryMistakeIsNamedAtOnceInTheFilesOrder) {
  const auto table = ParseToml("/etc/x.toml", "name = 3\nlist = [\"a\", 7]\nflag = \"yes\"\ncolor = 1\n");
  ASSERT_TRUE(table.ok());
  TomlReader reader("/etc/x.toml");
  reader.CheckKeys(*table, "", {"name", "list", "flag", "colour"});
  EXPECT_EQ(reader.Bool(*table, "flag"), std::nullopt);
  EXPECT_EQ(reader.String(*table, "name"), std::nullopt);
  EXPECT_EQ(reader.Strings(*table, "", "list"), std::vector<std::string>{"a"});
  EXPECT_EQ(reader.status().message(),
            "/etc/x.toml:1: name: is an integer, and must be a string\n"
            "/etc/x.toml:2: list[1]: is an integer, and must be a string\n"
            "/etc/x.toml:3: flag: is a string, and must be true or false\n"
            "/etc/x.toml:4: color: unknown key; did you mean colour?");
}

TEST(TomlReaderTest, WhatIsNotThereIsNoMistake) {
  const auto table = ParseToml("x", "");
  ASSERT_TRUE(table.ok());
  TomlReader reader("x");
  EXPECT_EQ(reader.Bool(*table, "a"), std::nullopt);
  EXPECT_EQ(reader.Table(*table, "a"), nullptr);
  EXPECT_EQ(reader.Strings(*table, "", "a"), std::nullopt);
  EXPECT_TRUE(reader.status().ok());
}

TEST(TomlReaderTest, AKeyFarFromAllIsToldWhichThereAre) {
  const auto table = ParseToml("x", "zzzzzz = 1");
  ASSERT_TRUE(table.ok());
  TomlReader reader("x");
  reader.CheckKeys(*table, "access.", {"readers", "changers"});
  EXPECT_EQ(reader.status().message(), "x:1: access.zzzzzz: unknown key; there are readers, changers");
}

TEST(TomlReaderTest, WhatIsNoTomlIsToldWithItsLine) {
  const auto table = ParseToml("x", "a = 1\nb = = 2\n");
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("x:2: not TOML"));
}

TEST(TomlReaderTest, ADirectoryIsNoFile) {
  EXPECT_EQ(ReadTomlFile("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTomlFile("/nonexistent.toml").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace berth
