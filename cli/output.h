// What berthctl prints: answers on standard output, everything else on standard error.
//
// One per run, made by main; its thread only. Answers are either tables for people or proto3 JSON for
// programs, with the proto's own field names and every default, so that keys are stable.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "cli/table.h"

namespace berth::cli {

enum class Format { kTable, kJson };

// `message` as one line of proto3 JSON or, `pretty`, over several lines. Ends with a newline.
[[nodiscard]] std::string ToJson(const google::protobuf::Message& message, bool pretty);

class Output {
 public:
  Output();

  void set_format(Format format) { format_ = format; }
  [[nodiscard]] bool json() const { return format_ == Format::kJson; }
  // Colours: standard output is a terminal, and neither NO_COLOR nor TERM=dumb speaks against it.
  [[nodiscard]] bool colour() const { return colour_; }
  [[nodiscard]] bool stderr_is_terminal() const { return stderr_terminal_; }

  // The answer as one JSON document, over several lines where a person looks on.
  void Json(const google::protobuf::Message& message) const;
  // One answer of many: one line, flushed.
  void JsonLine(const google::protobuf::Message& message) const;
  // Already formatted and printable text.
  void Text(std::string_view text) const;
  // One value that a script captures: as it is, but made printable on a terminal.
  void Value(std::string_view value) const;
  void Show(const Table& table) const { Text(table.Render(colour_)); }

  // For people, on standard error: "berthctl: text".
  void Note(std::string_view text) const;

  // A failure on standard error, in the way of the format: two lines, or a JSON object.
  void Error(const absl::Status& status) const;

  // Flushes standard output. Fails where not all of it could be written (a full disk behind a redirection):
  // a script must not take half an answer for a whole one.
  [[nodiscard]] absl::Status Finish() const;

 private:
  Format format_ = Format::kTable;
  bool stdout_terminal_;
  bool stderr_terminal_;
  bool colour_;
};

}  // namespace berth::cli
