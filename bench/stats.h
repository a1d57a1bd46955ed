// The arithmetic of the figures: what two interleaved series say about their ratio, and whether a goal is
// met.
//
// Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace berth {

// What was measured turn by turn: candidate[i] and reference[i] were taken one right after the other.
struct Series {
  std::vector<double> candidate;
  std::vector<double> reference;
};

// Of a series with at least one pair. Ratios are of like to like: the candidate's median by the reference's
// median, the 99th percentile by the 99th percentile. A reference of 0 gives an infinite ratio.
struct Summary {
  double candidate_p50 = 0;
  double candidate_p99 = 0;
  double reference_p50 = 0;
  double reference_p99 = 0;
  double ratio_p50 = 0;
  double ratio_p99 = 0;
};

struct Goal {
  double p50 = 1;             // of the medians' ratio
  std::optional<double> p99;  // of the percentiles' ratio, where the figure has such a goal
  bool at_least = false;      // the ratio must not be below it, rather than not above it
};

// The middle value; of an even number of them, the mean of the two in the middle. `values` is not empty.
[[nodiscard]] double Median(std::vector<double> values);

// The smallest value that at least `percent` of all do not exceed (nearest rank): with few values, the
// largest one. 0 < percent <= 100; `values` is not empty.
[[nodiscard]] double Percentile(std::vector<double> values, double percent);

[[nodiscard]] Summary Summarize(const Series& series);

[[nodiscard]] bool Met(const Goal& goal, const Summary& summary);

// "≤ 2", "≤ 1.1, p99 ≤ 1.25", "≥ 0.5".
[[nodiscard]] std::string GoalText(const Goal& goal);

enum class Unit { kSeconds, kBytes, kPerSecond };

// For people, with three digits: "12.3 ms", "9.3 MiB", "4.21 k/s".
[[nodiscard]] std::string QuantityText(double value, Unit unit);

// A ratio with three digits: "1.05", "0.0123", "12.3", "10400".
[[nodiscard]] std::string RatioText(double ratio);

}  // namespace berth
