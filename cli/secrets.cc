#include "cli/secrets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

constexpr size_t kInputLimit = size_t{4} << 20;

constexpr std::string_view kFormats =
    R"(It holds a JSON object of strings, {"user": "…"}, or lines of KEY=VALUE)";

absl::StatusOr<Secrets> ParseJson(std::string_view text) {
  google::protobuf::Struct object;
  // The parser's own message would show parts of the text, hence it is not passed on.
  if (!google::protobuf::util::JsonStringToMessage({text.data(), text.size()}, &object).ok()) {
    return UsageError("it begins like a JSON object, and is not one", kFormats);
  }
  Secrets secrets;
  for (const auto& [key, value] : object.fields()) {
    if (value.kind_case() != google::protobuf::Value::kStringValue) {
      return UsageError(fmt::format("the value of '{}' is not a JSON string", Printable(key, 80)), kFormats);
    }
    secrets[key] = value.string_value();
  }
  return secrets;
}

absl::StatusOr<Secrets> ParseLines(std::string_view text) {
  Secrets secrets;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos || line.starts_with('#')) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return UsageError(fmt::format("line {} is not KEY=VALUE", number), kFormats);
    }
    if (!secrets.emplace(line.substr(0, equals), line.substr(equals + 1)).second) {
      return UsageError(fmt::format("line {} repeats the key of an earlier line", number), kFormats);
    }
  }
  return secrets;
}

absl::StatusOr<std::string> ReadAll(int fd, std::string_view what) {
  std::string content;
  std::array<char, 16384> buffer{};
  while (true) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return UsageError(fmt::format("{}: {}", what, std::strerror(errno)));
    if (count == 0) return content;
    content.append(buffer.data(), static_cast<size_t>(count));
    if (content.size() > kInputLimit) return UsageError(fmt::format("{}: it is longer than 4 MiB", what));
  }
}

absl::StatusOr<UniqueFd> OpenInput(const std::string& path, std::string_view what) {
  UniqueFd fd(path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return UsageError(fmt::format("{}: {}", what, std::strerror(errno)));
  return fd;
}

std::string Named(const std::string& path, std::string_view option) {
  return fmt::format("{} {}", option, path == "-" ? "- (standard input)" : Printable(path));
}

}  // namespace

absl::StatusOr<Secrets> ParseSecrets(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && text[first] == '{';
  return json ? ParseJson(text) : ParseLines(text);
}

absl::StatusOr<Secrets> ReadSecrets(const std::string& path, std::string* warning) {
  const std::string what = Named(path, "--secrets-file");
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenInput(path, what));
  struct stat info{};
  if (fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IROTH) != 0) {
    *warning = fmt::format("{}: every user can read it; chmod 600 it", what);
  }
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadAll(fd.get(), what));
  absl::StatusOr<Secrets> secrets = ParseSecrets(text);
  if (!secrets.ok()) {
    return UsageError(fmt::format("{}: {}", what, std::string(secrets.status().message())),
                      HintOf(secrets.status()));
  }
  return secrets;
}

absl::StatusOr<std::string> ReadInput(const std::string& path, std::string_view option) {
  const std::string what = Named(path, option);
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenInput(path, what));
  return ReadAll(fd.get(), what);
}

std::string HideSecrets(std::string text, const Secrets& secrets) {
  std::vector<std::string> values;
  for (const auto& [key, value] : secrets) {
    if (value.empty()) continue;
    values.push_back(value);
    values.push_back(Printable(value));  // As it looks in text that was made printable.
  }
  // The longest first: one value may be a part of another.
  std::sort(values.begin(), values.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  // One pass from left to right, so that a short value is not looked for in a mark that replaced another.
  std::string hidden;
  for (size_t at = 0; at < text.size();) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const std::string& value) {
      return std::string_view(text).substr(at).starts_with(value);
    });
    if (found == values.end()) {
      hidden += text[at++];
    } else {
      hidden += "***";
      at += found->size();
    }
  }
  return hidden;
}

}  // namespace berth::cli
