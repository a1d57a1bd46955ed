#include "cli/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "berth/v1/node.pb.h"
#include "cli/output.h"

namespace berth::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TableTest, AlignsColumnsAndEndsNoLineWithBlanks) {
  Table table({"ID", "STATE"});
  table.Add({"a", "READY"});
  table.Add({"longer", "OK"});
  EXPECT_EQ(table.Render(false), "ID      STATE\na       READY\nlonger  OK\n");
}

TEST(TableTest, CountsCharactersRatherThanBytes) {
  Table table;
  table.Add({"Größe", "1"});
  table.Add({"n", "2"});
  EXPECT_EQ(table.Render(false), "Größe  1\nn      2\n");
}

TEST(TableTest, ShowsAnEmptyCellAsADash) {
  Table table({"A", "B"});
  table.Add({"", "x"});
  EXPECT_EQ(table.Render(false), "A  B\n-  x\n");
}

TEST(TableTest, TextFromOutsideCannotDriveTheTerminal) {
  Table table;
  table.Add({"reason", "\033[2Jgone\nfake line"});
  const std::string text = table.Render(true);
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(TableTest, ColoursOnlyWhereAskedAndKeepsTheAlignment) {
  Table table;
  table.Add({Cell("READY", Tone::kGood), "x"});
  table.Add({Cell("FAILED", Tone::kBad), "y"});
  EXPECT_EQ(table.Render(false), "READY   x\nFAILED  y\n");
  EXPECT_EQ(table.Render(true), "\033[32mREADY\033[0m   x\n\033[31mFAILED\033[0m  y\n");
}

TEST(ToJsonTest, KeepsTheProtosNamesAndPrintsDefaults) {
  const std::string json = ToJson(v1::Volume(), false);
  for (const char* key : {"\"volume_id\":\"\"", "\"awaiting_secrets\":false", "\"publications\":[]",
                          "\"state\":\"VOLUME_STATE_UNKNOWN\""}) {
    EXPECT_THAT(json, HasSubstr(key));
  }
  EXPECT_EQ(std::count(json.begin(), json.end(), '\n'), 1) << "one document, one line";
}

}  // namespace
}  // namespace berth::cli
