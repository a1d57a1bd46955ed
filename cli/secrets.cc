#include "cli/secrets.h"

#include <fcntl.h>
#include <fmt/format.h>
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
#include "csi/secrets_text.h"

namespace berth::cli {
namespace {

constexpr size_t kInputLimit = size_t{4} << 20;

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
  absl::StatusOr<Secrets> secrets = ParseSecretsText(text);
  if (!secrets.ok()) return UsageError(MessageOf(secrets.status()), kSecretsTextForms);
  return secrets;
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
