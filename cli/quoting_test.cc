#include "cli/quoting.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

namespace berth::cli {
namespace {

// `text` as a real shell reads it.
std::string ThroughShell(const std::string& word) {
  const std::string command = "printf %s " + word;
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 256> buffer{};
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  if (pipe != nullptr) pclose(pipe);
  return out;
}

TEST(QuotingTest, AShellReadsBackWhatWasQuoted) {
  for (const char* text : {"/plain/path-1.x", "/with space", "it's", "$(echo owned)", "`id`", "a\"b", "a\\b",
                           "*", "~", "a;b|c&d", "!x", "#no comment", "ünïcode", "a\nb", "''"}) {
    EXPECT_EQ(ThroughShell(ShellQuoted(text)), text);
  }
  EXPECT_EQ(ShellQuoted(""), "''");
  EXPECT_EQ(ShellQuoted("type=bind,source=/a,target=/b"), "type=bind,source=/a,target=/b");
}

TEST(QuotingTest, FieldsOfCommaSeparatedValues) {
  EXPECT_EQ(CsvField("source=/a"), "source=/a");
  EXPECT_EQ(CsvField("source=/a,b"), "\"source=/a,b\"");
  EXPECT_EQ(CsvField("source=/a\"b"), "\"source=/a\"\"b\"");
}

TEST(QuotingTest, BackslashesAreEscapedToo) {
  EXPECT_EQ(BackslashEscaped(R"(/a:b\c d)", ": "), R"(/a\:b\\c\ d)");
}

TEST(QuotingTest, ControlCharacters) {
  EXPECT_TRUE(HasControlCharacter("a\nb"));
  EXPECT_TRUE(HasControlCharacter("a\x7f"));
  EXPECT_FALSE(HasControlCharacter("a b ü"));
}

}  // namespace
}  // namespace berth::cli
