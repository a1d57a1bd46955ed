#include "bench/measure.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

// Answers from lists and notes the order in which it was asked.
class ScriptedFigure : public Figure {
 public:
  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F0", .what = "w", .reference = "r", .goal = {.p50 = 2}, .pairs = 3, .warmups = 1};
  }
  absl::StatusOr<double> Candidate() override {
    order += 'c';
    return candidates.at(candidate_++);
  }
  absl::StatusOr<double> Reference() override {
    order += 'r';
    return references.at(reference_++);
  }
  absl::StatusOr<Remarks> Finish() override { return remarks; }

  std::vector<absl::StatusOr<double>> candidates = {100.0, 2.0, 4.0, 6.0};
  std::vector<absl::StatusOr<double>> references = {1.0, 2.0, 3.0, 4.0};
  Remarks remarks;
  std::string order;

 private:
  size_t candidate_ = 0;
  size_t reference_ = 0;
};

void Ignore(int /*number*/, int /*of*/) {}

TEST(MeasureTest, ThrowsWarmupsAwayAndTurnsEverySecondPairRound) {
  ScriptedFigure figure;
  std::vector<int> told;
  const FigureResult result = Measure(figure, [&](int number, int of) {
    EXPECT_EQ(of, 4);
    told.push_back(number);
  });
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(figure.order, "crrccrrc");
  EXPECT_EQ(told, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(result.series.candidate, (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(result.series.reference, (std::vector<double>{2, 3, 4}));
  EXPECT_DOUBLE_EQ(result.summary.ratio_p50, 4.0 / 3);
  EXPECT_TRUE(result.met);
}

TEST(MeasureTest, ACheckThatFailsLosesTheGoal) {
  ScriptedFigure figure;
  figure.remarks.checks.push_back({.what = "bounded", .found = "1 GiB", .holds = false});
  EXPECT_FALSE(Measure(figure, Ignore).met);
}

TEST(MeasureTest, AnErrorEndsTheFigure) {
  ScriptedFigure figure;
  figure.candidates[2] = absl::UnavailableError("berthd ended");
  const FigureResult result = Measure(figure, Ignore);
  EXPECT_EQ(result.status, absl::UnavailableError("berthd ended"));
  EXPECT_FALSE(result.met);
}

TEST(MeasureTest, AnExceptionOfTheHarnessEndsTheFigureAlone) {
  ScriptedFigure figure;
  figure.references.clear();  // at() throws
  const FigureResult result = Measure(figure, Ignore);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(result.met);
}

}  // namespace
}  // namespace berth
