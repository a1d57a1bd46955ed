#include "bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string_view>

#include "base/status.h"
#include "cli/table.h"

namespace berth {
namespace {

std::string Both(double p50, double p99, Unit unit) {
  return fmt::format("{} ({})", QuantityText(p50, unit), QuantityText(p99, unit));
}

std::string_view UnitName(Unit unit) {
  switch (unit) {
    case Unit::kSeconds:
      return "s";
    case Unit::kBytes:
      return "bytes";
    case Unit::kPerSecond:
      return "1/s";
  }
  return {};
}

// --- JSON ------------------------------------------------------------------------------------------------

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// JSON knows neither infinity nor "not a number".
std::string Number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

std::string Numbers(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(Number(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

class Object {
 public:
  void Add(std::string_view key, const std::string& json) {
    members_.push_back(fmt::format("{}: {}", Quoted(key), json));
  }
  void AddText(std::string_view key, std::string_view text) { Add(key, Quoted(text)); }
  void AddNumber(std::string_view key, double value) { Add(key, Number(value)); }
  void AddBool(std::string_view key, bool value) { Add(key, value ? "true" : "false"); }
  [[nodiscard]] std::string Text() const { return fmt::format("{{{}}}", fmt::join(members_, ", ")); }

 private:
  std::vector<std::string> members_;
};

std::string FigureJson(const FigureResult& result) {
  const FigureInfo& info = result.info;
  Object object;
  object.AddText("id", info.id);
  object.AddText("what", info.what);
  object.AddText("reference_is", info.reference);
  object.AddBool("reference_is_constant", info.reference_is_constant);
  object.AddText("unit", UnitName(info.unit));
  object.AddNumber("goal_p50", info.goal.p50);
  if (info.goal.p99) object.AddNumber("goal_p99", *info.goal.p99);
  object.AddBool("goal_is_a_minimum", info.goal.at_least);
  if (!result.status.ok()) {
    object.AddText("error", MessageOf(result.status));
    return object.Text();
  }
  const Summary& summary = result.summary;
  object.AddBool("met", result.met);
  object.AddNumber("ratio_p50", summary.ratio_p50);
  object.AddNumber("ratio_p99", summary.ratio_p99);
  object.AddNumber("candidate_p50", summary.candidate_p50);
  object.AddNumber("candidate_p99", summary.candidate_p99);
  object.AddNumber("reference_p50", summary.reference_p50);
  object.AddNumber("reference_p99", summary.reference_p99);
  object.Add("candidate", Numbers(result.series.candidate));
  object.Add("reference", Numbers(result.series.reference));
  std::vector<std::string> checks;
  for (const Check& check : result.remarks.checks) {
    Object item;
    item.AddText("what", check.what);
    item.AddText("found", check.found);
    item.AddBool("holds", check.holds);
    checks.push_back(item.Text());
  }
  object.Add("checks", fmt::format("[{}]", fmt::join(checks, ", ")));
  std::vector<std::string> notes;
  for (const std::string& note : result.remarks.notes) notes.push_back(Quoted(note));
  object.Add("notes", fmt::format("[{}]", fmt::join(notes, ", ")));
  return object.Text();
}

}  // namespace

std::string RenderTable(const std::vector<FigureResult>& results, bool colour) {
  cli::Table table(
      {"figure", "ratio", "p99", "goal", "met", "measured (p99)", "reference (p99)", "what, against what"});
  std::string below;
  for (const FigureResult& result : results) {
    const FigureInfo& info = result.info;
    const std::string text = fmt::format("{}; against {}", info.what, info.reference);
    if (!result.status.ok()) {
      table.Add({info.id, "", "", GoalText(info.goal), {"failed", cli::Tone::kBad}, "", "", text});
      below += fmt::format("{}: {}\n", info.id, MessageOf(result.status));
      continue;
    }
    const Summary& summary = result.summary;
    const std::string reference =
        info.reference_is_constant
            ? fmt::format("{}, a constant", QuantityText(summary.reference_p50, info.unit))
            : Both(summary.reference_p50, summary.reference_p99, info.unit);
    table.Add({info.id, RatioText(summary.ratio_p50), RatioText(summary.ratio_p99), GoalText(info.goal),
               result.met ? cli::Cell("yes", cli::Tone::kGood) : cli::Cell("no", cli::Tone::kBad),
               Both(summary.candidate_p50, summary.candidate_p99, info.unit), reference, text});
    for (const Check& check : result.remarks.checks) {
      below += fmt::format("{}: {}: {}, {}\n", info.id, check.what, check.found,
                           check.holds ? "as it should" : "which it should not");
    }
    for (const std::string& note : result.remarks.notes) below += fmt::format("{}: {}\n", info.id, note);
  }
  std::string text = table.Render(colour);
  if (!below.empty()) text += "\n" + below;
  return text;
}

std::string RenderJson(const std::vector<FigureResult>& results) {
  std::vector<std::string> figures;
  for (const FigureResult& result : results) figures.push_back("  " + FigureJson(result));
  return fmt::format("{{\"figures\": [\n{}\n]}}\n", fmt::join(figures, ",\n"));
}

}  // namespace berth
