#include "cli/table.h"

#include <algorithm>

#include "base/status.h"

namespace berth::cli {
namespace {

constexpr size_t kCellLimit = 2048;

std::string_view Code(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return {};
    case Tone::kGood:
      return "\033[32m";
    case Tone::kBad:
      return "\033[31m";
    case Tone::kCareful:
      return "\033[33m";
    case Tone::kFaint:
      return "\033[2m";
  }
  return {};
}

}  // namespace

void Table::Add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = cell.text.empty() ? "-" : Printable(cell.text, kCellLimit);
  rows_.push_back(std::move(row));
}

std::string Table::Render(bool colour) const {
  std::vector<size_t> widths;
  const auto widen = [&](size_t column, std::string_view text) {
    if (widths.size() <= column) widths.resize(column + 1);
    widths[column] = std::max(widths[column], DisplayWidth(text));
  };
  for (size_t i = 0; i < headings_.size(); ++i) widen(i, headings_[i]);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widen(i, row[i].text);
  }

  std::string out;
  const auto put = [&](size_t column, size_t columns, std::string_view text, Tone tone) {
    out += Toned(text, tone, colour);
    if (column + 1 == columns) {
      out += '\n';
    } else {
      out.append(widths[column] - DisplayWidth(text) + 2, ' ');
    }
  };
  for (size_t i = 0; i < headings_.size(); ++i) put(i, headings_.size(), headings_[i], Tone::kFaint);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) put(i, row.size(), row[i].text, row[i].tone);
  }
  return out;
}

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string Toned(std::string_view text, Tone tone, bool colour) {
  if (!colour || tone == Tone::kPlain) return std::string(text);
  std::string out(Code(tone));
  out += text;
  out += "\033[0m";
  return out;
}

}  // namespace berth::cli
