// Text in aligned columns, for people. What programs read is JSON.
//
// Pure; any thread. Cells are made printable here, so that text from outside cannot drive a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

enum class Tone { kPlain, kGood, kBad, kCareful, kFaint };

struct Cell {
  // Not explicit: a row is written as a list of texts.
  Cell(std::string content, Tone shade = Tone::kPlain) : text(std::move(content)), tone(shade) {}
  Cell(const char* content, Tone shade = Tone::kPlain) : text(content), tone(shade) {}

  std::string text;
  Tone tone;
};

class Table {
 public:
  // Rows below a line of headings.
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}
  // Two columns, name and value, without headings.
  Table() = default;

  void Add(std::vector<Cell> row);
  [[nodiscard]] bool empty() const { return rows_.empty(); }

  // Each line ends with a newline, and never with blanks. Empty cells show as "-". `colour`: tones become
  // ANSI colours.
  [[nodiscard]] std::string Render(bool colour) const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<Cell>> rows_;
};

// How many columns `text` takes: one for each character. It must be printable UTF-8.
[[nodiscard]] size_t DisplayWidth(std::string_view text);

// `text` between the ANSI codes of `tone`, or alone.
[[nodiscard]] std::string Toned(std::string_view text, Tone tone, bool colour);

}  // namespace berth::cli
