#include "csi/secrets_text.h"

#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "base/status.h"

namespace berth {
namespace {

using SecretsMap = std::map<std::string, std::string>;

absl::StatusOr<SecretsMap> ParseJson(std::string_view text) {
  google::protobuf::Struct object;
  // The parser's own message would show parts of the text, hence it is not passed on.
  if (!google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, &object).ok()) {
    return absl::InvalidArgumentError("it begins like a JSON object, and is not one");
  }
  SecretsMap secrets;
  for (const auto& [key, value] : object.fields()) {
    if (value.kind_case() != google::protobuf::Value::kStringValue) {
      return absl::InvalidArgumentError(
          fmt::format("the value of '{}' is not a JSON string", Printable(key, 80)));
    }
    secrets[key] = value.string_value();
  }
  return secrets;
}

absl::StatusOr<SecretsMap> ParseLines(std::string_view text) {
  SecretsMap secrets;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos || line.starts_with('#')) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(fmt::format("line {} is not KEY=VALUE", number));
    }
    if (!secrets.emplace(line.substr(0, equals), line.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(fmt::format("line {} repeats the key of an earlier line", number));
    }
  }
  return secrets;
}

}  // namespace

absl::StatusOr<SecretsMap> ParseSecretsText(std::string_view text) {
  // As editors of Windows begin a file.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && text[first] == '{';
  return json ? ParseJson(text) : ParseLines(text);
}

}  // namespace berth
