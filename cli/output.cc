#include "cli/output.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/quoting.h"

namespace berth::cli {
namespace {

void Put(std::FILE* stream, std::string_view text) {
  // A failure is kept in the stream, where Finish finds it.
  std::fwrite(text.data(), 1, text.size(), stream);
}

bool ColourIsWelcome() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = pretty;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return "{}\n";
  if (!json.ends_with('\n')) json += '\n';
  return json;
}

Output::Output()
    : stdout_terminal_(isatty(STDOUT_FILENO) == 1),
      stderr_terminal_(isatty(STDERR_FILENO) == 1),
      colour_(stdout_terminal_ && ColourIsWelcome()) {}

void Output::Json(const google::protobuf::Message& message) const {
  Put(stdout, ToJson(message, stdout_terminal_));
}

void Output::JsonLine(const google::protobuf::Message& message) const {
  Put(stdout, ToJson(message, false));
  std::fflush(stdout);
}

void Output::Text(std::string_view text) const { Put(stdout, text); }

void Output::Value(std::string_view value) const {
  Put(stdout, stdout_terminal_ ? Printable(value) : value);
  Put(stdout, "\n");
}

void Output::Note(std::string_view text) const {
  Put(stderr, fmt::format("berthctl: {}\n", Printable(text)));
}

void Output::Error(const absl::Status& status) const {
  const absl::string_view raw = status.message();
  const std::string message = Printable({raw.data(), raw.size()});
  const std::string hint = HintOf(status);
  if (json()) {
    const nlohmann::ordered_json error = {
        {"code", CodeName(status.code())}, {"message", message}, {"hint", Printable(hint)}};
    Put(stderr, nlohmann::ordered_json({{"error", error}}).dump() + "\n");
    return;
  }
  Put(stderr, IsAnswer(status) ? fmt::format("berthctl: {}: {}\n", CodeName(status.code()), message)
                               : fmt::format("berthctl: {}\n", message));
  if (!hint.empty()) Put(stderr, fmt::format("  {}\n", hint));
}

absl::Status Output::Finish() const {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return ErrnoStatus(errno == 0 ? EIO : errno, "write the answer to standard output");
}

}  // namespace berth::cli
