#include "bench/report.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <limits>

namespace berth {
namespace {

using testing::HasSubstr;

FigureResult Example() {
  FigureResult result{
      .info = {.id = "F6", .what = "kill -9 → \"ready\"", .reference = "bare exec", .goal = {.p50 = 2}}};
  result.series = {.candidate = {0.02, 0.03, 0.04}, .reference = {0.01, 0.02, 0.04}};
  result.summary = Summarize(result.series);
  result.met = true;
  return result;
}

google::protobuf::Struct Parse(const std::string& json) {
  google::protobuf::Struct parsed;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &parsed);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << json;
  return parsed;
}

TEST(ReportTest, TableHoldsRatiosGoalAndAbsoluteNumbers) {
  const std::string table = RenderTable({Example()}, /*colour=*/false);
  for (const char* part :
       {"F6", "1.50", "≤ 2", "yes", "30.0 ms (40.0 ms)", "20.0 ms (40.0 ms)", "bare exec"}) {
    EXPECT_THAT(table, HasSubstr(part));
  }
}

TEST(ReportTest, TableSaysWhatIsAConstantAndWhatFailed) {
  FigureResult constant = Example();
  constant.info.reference_is_constant = true;
  FigureResult failed = Example();
  failed.info.id = "F7";
  failed.status = absl::UnavailableError("berthd ended");
  const std::string table = RenderTable({constant, failed}, /*colour=*/false);
  EXPECT_THAT(table, HasSubstr("20.0 ms, a constant"));
  EXPECT_THAT(table, HasSubstr("failed"));
  EXPECT_THAT(table, HasSubstr("F7: berthd ended\n"));
}

TEST(ReportTest, ChecksAndNotesStandBelowTheTable) {
  FigureResult result = Example();
  result.remarks.checks.push_back({.what = "peak memory", .found = "1 GiB", .holds = false});
  result.remarks.notes.emplace_back("on ext4");
  const std::string table = RenderTable({result}, /*colour=*/false);
  EXPECT_THAT(table, HasSubstr("F6: peak memory: 1 GiB, which it should not\n"));
  EXPECT_THAT(table, HasSubstr("F6: on ext4\n"));
}

TEST(ReportTest, JsonHoldsEveryMeasurement) {
  FigureResult result = Example();
  result.remarks.notes.emplace_back("a \\ and a\nnew line");
  const google::protobuf::Struct parsed = Parse(RenderJson({result}));
  const auto& figure = parsed.fields().at("figures").list_value().values(0).struct_value().fields();
  EXPECT_EQ(figure.at("id").string_value(), "F6");
  EXPECT_EQ(figure.at("what").string_value(), "kill -9 → \"ready\"");
  EXPECT_DOUBLE_EQ(figure.at("ratio_p50").number_value(), 1.5);
  EXPECT_TRUE(figure.at("met").bool_value());
  EXPECT_EQ(figure.at("candidate").list_value().values_size(), 3);
  EXPECT_DOUBLE_EQ(figure.at("candidate").list_value().values(1).number_value(), 0.03);
  EXPECT_EQ(figure.at("notes").list_value().values(0).string_value(), "a \\ and a\nnew line");
}

TEST(ReportTest, JsonStaysJsonWithErrorsAndInfinity) {
  FigureResult failed = Example();
  failed.status = absl::UnavailableError("berthd ended");
  FigureResult infinite = Example();
  infinite.summary.ratio_p50 = std::numeric_limits<double>::infinity();
  const google::protobuf::Struct parsed = Parse(RenderJson({failed, infinite}));
  const auto& figures = parsed.fields().at("figures").list_value();
  EXPECT_EQ(figures.values(0).struct_value().fields().at("error").string_value(), "berthd ended");
  EXPECT_TRUE(figures.values(1).struct_value().fields().at("ratio_p50").has_null_value());
}

}  // namespace
}  // namespace berth
