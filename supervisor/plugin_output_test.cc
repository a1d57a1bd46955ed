#include "supervisor/plugin_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "supervisor/testing/temp_dir.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PluginOutputTest : public ::testing::Test {
 protected:
  TempDir temp_;
  std::string path_ = PluginOutputPath(temp_.path(), "nfs");
};

TEST_F(PluginOutputTest, AppendsAndTellsWhereTheRunBegins) {
  EXPECT_EQ(path_, temp_.path() + "/logs/nfs.log");
  absl::StatusOr<PluginOutput> first = OpenPluginOutput(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->offset, 0U);
  EXPECT_EQ(fcntl(first->fd.get(), F_GETFL) & (O_APPEND | O_NONBLOCK), O_APPEND);
  ASSERT_TRUE(WriteAll(first->fd.get(), "one\ntwo\n", "write").ok());
  const absl::StatusOr<PluginOutput> second = OpenPluginOutput(path_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->offset, 8U);
  ASSERT_TRUE(WriteAll(second->fd.get(), "three\n", "write").ok());
  ASSERT_TRUE(WriteAll(first->fd.get(), "four\n", "write").ok());
  EXPECT_THAT(LastOutput(path_, 0), ElementsAre("one", "two", "three", "four"));
  EXPECT_THAT(LastOutput(path_, second->offset), ElementsAre("three", "four"));
  struct stat info{};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(PluginOutputTest, LargeFileIsSetAsideOnce) {
  ASSERT_TRUE(WriteAll(OpenPluginOutput(path_)->fd.get(), "0123456789\n", "write").ok());
  EXPECT_EQ(OpenPluginOutput(path_, 11)->offset, 11U);
  EXPECT_EQ(OpenPluginOutput(path_, 10)->offset, 0U);
  EXPECT_EQ(*ReadFile(path_, 100), "");
  EXPECT_EQ(*ReadFile(path_ + ".1", 100), "0123456789\n");
}

TEST_F(PluginOutputTest, SymlinkAndOtherThingsAreRefused) {
  ASSERT_TRUE(MakeDirectories(temp_.Path("logs"), 0700).ok());
  temp_.Write("target", "precious");
  ASSERT_EQ(symlink(temp_.Path("target").c_str(), path_.c_str()), 0);
  EXPECT_FALSE(OpenPluginOutput(path_).ok());
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(OpenPluginOutput(path_).ok());
  EXPECT_THAT(LastOutput(path_, 0), IsEmpty());
}

TEST_F(PluginOutputTest, LastOutputIsBoundedAndPrintable) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {}\n", i);
  absl::StatusOr<PluginOutput> output = OpenPluginOutput(path_);
  ASSERT_TRUE(WriteAll(output->fd.get(), text, "write").ok());
  std::vector<std::string> lines = LastOutput(path_, 0);
  ASSERT_EQ(lines.size(), kLastLines);
  EXPECT_EQ(lines.front(), "line 80");
  EXPECT_EQ(lines.back(), "line 99");

  ASSERT_TRUE(WriteAll(output->fd.get(), std::string(100'000, 'x') + "\nesc \x1b[31m\r\nend", "write").ok());
  lines = LastOutput(path_, 0);
  ASSERT_GE(lines.size(), 2U);
  EXPECT_EQ(lines.back(), "end");
  EXPECT_EQ(lines[lines.size() - 2].find('\x1b'), std::string::npos);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 4 * kLastLineLength);
}

TEST_F(PluginOutputTest, NoFileAndNoOutputAreEmpty) {
  EXPECT_THAT(LastOutput(path_, 0), IsEmpty());
  ASSERT_TRUE(OpenPluginOutput(path_).ok());
  EXPECT_THAT(LastOutput(path_, 0), IsEmpty());
  EXPECT_THAT(LastOutput(path_, 1000), IsEmpty());
}

}  // namespace
}  // namespace berth
