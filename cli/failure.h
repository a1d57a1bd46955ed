// berthctl's errors: an absl::Status with an exit code and a hint, a line that says what to do. Both are
// payloads, so that they pass through BERTH_RETURN_IF_ERROR.
//
// Pure; any thread.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>

namespace berth::cli {

// Documented in berthctl(1); scripts depend on them. `health` has the exit codes of monitoring plugins
// instead.
enum class ExitCode {
  kDone = 0,
  kFailed = 1,       // the node, or the plugin, refused or failed
  kUsage = 2,        // the command line, or a file that it names, is wrong; nothing was sent
  kUnreachable = 3,  // no answer at the socket
  kFindings = 4,     // status, doctor: the node has answered, and something is wrong with it
  kNotInTime = 5,    // volume wait, reload: not published or ready in time
  kNotDeclared = 6,  // volume wait: no file declares it
  kBrokenFile = 7,   // volume wait: the file that declares it is wrong
};

// The command line is wrong. The default hint points to --help.
[[nodiscard]] absl::Status UsageError(std::string_view message, std::string_view hint = {});

// There is no answer at the socket.
[[nodiscard]] absl::Status UnreachableError(std::string_view message, std::string_view hint);

// The node has answered, and something is wrong with it.
[[nodiscard]] absl::Status FindingsError(std::string_view message, std::string_view hint);

// What is waited for is not there in time; will not come, since nothing declares it; or since its file is
// wrong.
[[nodiscard]] absl::Status NotInTimeError(std::string_view message, std::string_view hint);
[[nodiscard]] absl::Status NotDeclaredError(std::string_view message, std::string_view hint);
[[nodiscard]] absl::Status BrokenFileError(std::string_view message, std::string_view hint);

// Ends berthctl with that exit code and prints nothing more: the answer has said it all. OK with 0.
[[nodiscard]] absl::Status QuietEnd(int exit_code);
[[nodiscard]] bool IsQuiet(const absl::Status& status);

// The same failure with that hint, in place of the one it had.
[[nodiscard]] absl::Status WithHint(absl::Status status, std::string_view hint);

[[nodiscard]] ExitCode ExitCodeOf(const absl::Status& status);
[[nodiscard]] std::string HintOf(const absl::Status& status);

// Whether `status` is an answer's: its code is then worth naming to people.
[[nodiscard]] bool IsAnswer(const absl::Status& status);

}  // namespace berth::cli
