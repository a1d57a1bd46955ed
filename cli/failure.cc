#include "cli/failure.h"

#include <absl/strings/cord.h>
#include <absl/strings/string_view.h>

#include <string>
#include <utility>

namespace berth::cli {
namespace {

constexpr absl::string_view kExitPayload = "berthctl/exit";  // the exit code, as a number
constexpr absl::string_view kHintPayload = "berthctl/hint";
constexpr absl::string_view kQuietPayload = "berthctl/quiet";

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

absl::Status WithExit(absl::Status status, ExitCode code) {
  status.SetPayload(kExitPayload, absl::Cord(Absl(std::to_string(static_cast<int>(code)))));
  return status;
}

}  // namespace

absl::Status UsageError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::InvalidArgumentError(Absl(message)), ExitCode::kUsage),
                  hint.empty() ? "See --help after the command, or man berthctl" : hint);
}

absl::Status UnreachableError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::UnavailableError(Absl(message)), ExitCode::kUnreachable), hint);
}

absl::Status FindingsError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::FailedPreconditionError(Absl(message)), ExitCode::kFindings), hint);
}

absl::Status NotInTimeError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::DeadlineExceededError(Absl(message)), ExitCode::kNotInTime), hint);
}

absl::Status NotDeclaredError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::NotFoundError(Absl(message)), ExitCode::kNotDeclared), hint);
}

absl::Status BrokenFileError(std::string_view message, std::string_view hint) {
  return WithHint(WithExit(absl::FailedPreconditionError(Absl(message)), ExitCode::kBrokenFile), hint);
}

absl::Status WithHint(absl::Status status, std::string_view hint) {
  if (status.ok()) return status;
  status.SetPayload(kHintPayload, absl::Cord(Absl(hint)));
  return status;
}

absl::Status QuietEnd(int exit_code) {
  if (exit_code == 0) return absl::OkStatus();
  absl::Status status = WithExit(absl::UnknownError(""), static_cast<ExitCode>(exit_code));
  status.SetPayload(kQuietPayload, absl::Cord());
  return status;
}

bool IsQuiet(const absl::Status& status) { return status.GetPayload(kQuietPayload).has_value(); }

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kDone;
  const auto payload = status.GetPayload(kExitPayload);
  return payload ? static_cast<ExitCode>(std::stoi(std::string(*payload))) : ExitCode::kFailed;
}

std::string HintOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kHintPayload);
  return payload ? std::string(*payload) : std::string();
}

bool IsAnswer(const absl::Status& status) { return !status.ok() && !status.GetPayload(kExitPayload); }

}  // namespace berth::cli
