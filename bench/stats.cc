#include "bench/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>
#include <string_view>

namespace berth {
namespace {

double Ratio(double candidate, double reference) {
  return reference == 0 ? std::numeric_limits<double>::infinity() : candidate / reference;
}

// Three digits that count, never an exponent.
std::string ThreeDigits(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 1 || size == 0) return fmt::format("{:.2f}", value);
  const int leading_zeros = static_cast<int>(std::ceil(-std::log10(size)));
  return fmt::format("{:.{}f}", value, std::min(leading_zeros + 2, 9));
}

struct Scale {
  double factor;
  std::string_view name;
};

// The largest scale with at least one unit; else the smallest.
template <size_t N>
std::string Scaled(double value, const std::array<Scale, N>& scales) {
  const auto fits = [value](const Scale& scale) { return std::abs(value) >= scale.factor; };
  const auto found = std::find_if(scales.begin(), scales.end(), fits);
  const Scale& scale = found == scales.end() ? scales.back() : *found;
  return fmt::format("{} {}", ThreeDigits(value / scale.factor), scale.name);
}

constexpr std::array<Scale, 3> kSeconds = {{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}}};
constexpr std::array<Scale, 3> kBytes = {
    {{1024.0 * 1024 * 1024, "GiB"}, {1024.0 * 1024, "MiB"}, {1024, "KiB"}}};
constexpr std::array<Scale, 3> kPerSecond = {{{1e6, "M/s"}, {1e3, "k/s"}, {1, "/s"}}};

}  // namespace

double Median(std::vector<double> values) {
  assert(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Percentile(std::vector<double> values, double percent) {
  assert(!values.empty() && percent > 0 && percent <= 100);
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

Summary Summarize(const Series& series) {
  Summary summary{.candidate_p50 = Median(series.candidate),
                  .candidate_p99 = Percentile(series.candidate, 99),
                  .reference_p50 = Median(series.reference),
                  .reference_p99 = Percentile(series.reference, 99)};
  summary.ratio_p50 = Ratio(summary.candidate_p50, summary.reference_p50);
  summary.ratio_p99 = Ratio(summary.candidate_p99, summary.reference_p99);
  return summary;
}

bool Met(const Goal& goal, const Summary& summary) {
  const auto holds = [&goal](double ratio, double bound) {
    return goal.at_least ? ratio >= bound : ratio <= bound;
  };
  return holds(summary.ratio_p50, goal.p50) && (!goal.p99 || holds(summary.ratio_p99, *goal.p99));
}

std::string GoalText(const Goal& goal) {
  const std::string_view sign = goal.at_least ? "≥" : "≤";
  std::string text = fmt::format("{} {:g}", sign, goal.p50);
  if (goal.p99) text += fmt::format(", p99 {} {:g}", sign, *goal.p99);
  return text;
}

std::string QuantityText(double value, Unit unit) {
  switch (unit) {
    case Unit::kSeconds:
      return Scaled(value, kSeconds);
    case Unit::kBytes:
      return Scaled(value, kBytes);
    case Unit::kPerSecond:
      return Scaled(value, kPerSecond);
  }
  return {};
}

std::string RatioText(double ratio) { return ThreeDigits(ratio); }

}  // namespace berth
