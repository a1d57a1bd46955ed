#include "cli/failure.h"

#include <absl/strings/cord.h>
#include <absl/strings/string_view.h>

namespace berth::cli {
namespace {

constexpr absl::string_view kExitPayload = "berthctl/exit";
constexpr absl::string_view kHintPayload = "berthctl/hint";
constexpr absl::string_view kUsage = "usage";
constexpr absl::string_view kUnreachable = "unreachable";
constexpr absl::string_view kFindings = "findings";
constexpr absl::string_view kNotInTime = "not in time";
constexpr absl::string_view kNotDeclared = "not declared";
constexpr absl::string_view kBrokenFile = "broken file";

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status UsageError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::InvalidArgumentError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kUsage));
  return WithHint(std::move(status), hint.empty() ? "See --help after the command, or man berthctl" : hint);
}

absl::Status UnreachableError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::UnavailableError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kUnreachable));
  return WithHint(std::move(status), hint);
}

absl::Status FindingsError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::FailedPreconditionError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kFindings));
  return WithHint(std::move(status), hint);
}

absl::Status NotInTimeError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::DeadlineExceededError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kNotInTime));
  return WithHint(std::move(status), hint);
}

absl::Status NotDeclaredError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::NotFoundError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kNotDeclared));
  return WithHint(std::move(status), hint);
}

absl::Status BrokenFileError(std::string_view message, std::string_view hint) {
  absl::Status status = absl::FailedPreconditionError(Absl(message));
  status.SetPayload(kExitPayload, absl::Cord(kBrokenFile));
  return WithHint(std::move(status), hint);
}

absl::Status WithHint(absl::Status status, std::string_view hint) {
  if (status.ok()) return status;
  status.SetPayload(kHintPayload, absl::Cord(Absl(hint)));
  return status;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kDone;
  const auto payload = status.GetPayload(kExitPayload);
  if (!payload) return ExitCode::kFailed;
  if (*payload == kFindings) return ExitCode::kFindings;
  if (*payload == kNotInTime) return ExitCode::kNotInTime;
  if (*payload == kNotDeclared) return ExitCode::kNotDeclared;
  if (*payload == kBrokenFile) return ExitCode::kBrokenFile;
  return *payload == kUsage ? ExitCode::kUsage : ExitCode::kUnreachable;
}

std::string HintOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kHintPayload);
  return payload ? std::string(*payload) : std::string();
}

bool IsAnswer(const absl::Status& status) { return !status.ok() && !status.GetPayload(kExitPayload); }

}  // namespace berth::cli
