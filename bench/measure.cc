#include "bench/measure.h"

#include <algorithm>
#include <exception>

#include "base/status.h"

namespace berth {
namespace {

absl::Status MeasurePair(Figure& figure, bool candidate_first, double* candidate, double* reference) {
  if (candidate_first) {
    BERTH_ASSIGN_OR_RETURN(*candidate, figure.Candidate());
    BERTH_ASSIGN_OR_RETURN(*reference, figure.Reference());
  } else {
    BERTH_ASSIGN_OR_RETURN(*reference, figure.Reference());
    BERTH_ASSIGN_OR_RETURN(*candidate, figure.Candidate());
  }
  return absl::OkStatus();
}

absl::Status Run(Figure& figure, const OnPair& on_pair, FigureResult* result) {
  const FigureInfo& info = result->info;
  BERTH_RETURN_IF_ERROR(figure.Prepare());
  const int all = info.warmups + info.pairs;
  for (int i = 0; i < all; ++i) {
    on_pair(i + 1, all);
    double candidate = 0;
    double reference = 0;
    BERTH_RETURN_IF_ERROR(MeasurePair(figure, i % 2 == 0, &candidate, &reference));
    if (i < info.warmups) continue;
    result->series.candidate.push_back(candidate);
    result->series.reference.push_back(reference);
  }
  BERTH_ASSIGN_OR_RETURN(result->remarks, figure.Finish());
  return absl::OkStatus();
}

}  // namespace

FigureResult Measure(Figure& figure, const OnPair& on_pair) {
  FigureResult result{.info = figure.Info()};
  try {
    result.status = Run(figure, on_pair, &result);
  } catch (const std::exception& error) {  // how the tests' harness ends a test
    result.status = absl::InternalError(error.what());
  }
  if (!result.status.ok() || result.series.candidate.empty()) return result;
  result.summary = Summarize(result.series);
  const std::vector<Check>& checks = result.remarks.checks;
  result.met = Met(result.info.goal, result.summary) &&
               std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.holds; });
  return result;
}

}  // namespace berth
