#include "cli/confirm.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/status.h"
#include "cli/failure.h"

namespace berth::cli {
namespace {

std::string ReadAnswer() {
  std::string line;
  for (int c = std::getchar(); c != EOF && c != '\n' && line.size() < 16; c = std::getchar()) {
    line += static_cast<char>(c);
  }
  return line;
}

}  // namespace

absl::Status Confirm(std::string_view warning, bool yes) {
  if (yes) return absl::OkStatus();
  std::fputs(fmt::format("berthctl: {}\n", Printable(warning)).c_str(), stderr);
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) return absl::OkStatus();
  std::fputs("Go on? [y/N] ", stderr);
  std::fflush(stderr);
  const std::string answer = ReadAnswer();
  if (answer == "y" || answer == "Y" || answer == "yes") return absl::OkStatus();
  return WithHint(absl::CancelledError("nothing was done"), "To go on without being asked: --yes");
}

}  // namespace berth::cli
