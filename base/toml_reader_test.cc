#include "base/toml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using testing::AllOf;
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

TEST(TrustedTomlFileTest, WhatOthersCanChangeIsAMistakeByName) {
  if (geteuid() != 0) GTEST_SKIP() << "without root it is a warning";
  const TempDir temp;
  const std::string directory = temp.path() + "/plugins.d";
  const std::string file = directory + "/p.toml";
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  std::ofstream(file) << "a = 1\n";
  const auto mistake = [&](mode_t mode, uid_t uid, gid_t gid, mode_t directory_mode) {
    EXPECT_EQ(chown(file.c_str(), uid, gid), 0);
    EXPECT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_EQ(chmod(directory.c_str(), directory_mode), 0);
    const auto read = ReadTrustedTomlFile(file);
    EXPECT_TRUE(read.ok() || absl::IsInvalidArgument(read.status())) << read.status();
    return std::string(read.status().message());
  };
  EXPECT_EQ(mistake(0644, 0, 0, 0755), "");
  EXPECT_EQ(mistake(0664, 0, 0, 0775), "") << "of root's group";
  EXPECT_EQ(mistake(0644, 0, 1000, 0755), "");
  EXPECT_EQ(mistake(0600, 0, 0, 01777), "") << "only its owner can replace it there";
  EXPECT_THAT(mistake(0666, 0, 0, 0755),
              AllOf(HasSubstr("everybody (mode 0666)"), HasSubstr("chmod go-w " + file)));
  EXPECT_THAT(mistake(0664, 0, 1000, 0755), HasSubstr("its group, gid 1000"));
  EXPECT_THAT(mistake(0644, 1000, 0, 0755), HasSubstr("its owner, uid 1000"));
  EXPECT_THAT(mistake(0644, 0, 0, 0777),
              AllOf(HasSubstr(file), HasSubstr("in " + directory + ", which everybody")));
  EXPECT_TRUE(ReadTomlFile(file).ok()) << "of a caller's own file that is his affair";

  // What is opened counts, not its name.
  EXPECT_EQ(mistake(0666, 0, 0, 0755).empty(), false);
  const std::string link = temp.path() + "/link.toml";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  EXPECT_THAT(std::string(ReadTrustedTomlFile(link).status().message()), HasSubstr("everybody"));
}

TEST(TomlReaderTest, ADirectoryIsNoFile) {
  EXPECT_EQ(ReadTomlFile("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTomlFile("/nonexistent.toml").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace berth
