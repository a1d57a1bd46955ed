// doctor.
#include <fmt/format.h>

#include "base/status.h"
#include "cli/confirm.h"
#include "cli/doctor_view.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/session.h"

namespace berth::cli {
namespace {

struct DoctorOptions {
  bool repair = false;
  bool yes = false;
};

absl::StatusOr<v1::ExamineResponse> Examine(const Session& session, NodeClient& node, bool repair) {
  v1::ExamineRequest request;
  request.set_repair(repair);
  const std::string_view doing = repair ? "repair what was found" : "compare everything";
  const Progress progress(session.output, std::string(doing));
  return node.Call(&NodeClient::Stub::Examine, request, doing);
}

void Show(const Session& session, const v1::ExamineResponse& answer, bool repaired) {
  if (session.output.json()) {
    session.output.Json(answer);
  } else {
    session.output.Text(DoctorText(answer, repaired, session.output.colour()));
  }
}

absl::Status Outcome(const v1::ExamineResponse& answer) {
  const FindingCount count = CountFindings(answer);
  if (count.open == 0) return absl::OkStatus();
  const std::string message =
      count.open == 1 ? "1 finding is open" : fmt::format("{} findings are open", count.open);
  if (count.repairable == 0) return FindingsError(message, "A repair can fix none of them: see their texts");
  return FindingsError(fmt::format("{}; a repair can fix {}", message, count.repairable),
                       "To repair them: berthctl doctor --repair");
}

absl::Status Doctor(Session& session, const DoctorOptions& options) {
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::ExamineResponse found, Examine(session, node, false));
  if (!options.repair || CountFindings(found).repairable == 0) {
    Show(session, found, false);
    return Outcome(found);
  }
  // Text shows the plan first. JSON is one document, with the result.
  if (!session.output.json()) {
    Show(session, found, false);
    session.output.Text("\n");
    BERTH_RETURN_IF_ERROR(session.output.Finish());
  }
  BERTH_RETURN_IF_ERROR(Confirm(
      fmt::format("repairing {} of {} findings", CountFindings(found).repairable, found.findings_size()),
      options.yes || session.output.json()));
  BERTH_ASSIGN_OR_RETURN(const v1::ExamineResponse repaired, Examine(session, node, true));
  Show(session, repaired, true);
  return Outcome(repaired);
}

}  // namespace

void AddDoctor(CLI::App& app, Command& chosen) {
  AddCommand<DoctorOptions>(
      app, "doctor",
      "Compare journal, identity files, mounts and plugins, and show how to repair what does not match",
      chosen,
      [](CLI::App& command, DoctorOptions& options) {
        command.add_flag("--repair", options.repair, "Do what the plan says. No data are ever deleted");
        command.add_flag("-y,--yes", options.yes, "Do not ask before a repair");
        command.footer("Exit codes: 0 nothing is wrong, or all of it was repaired; 4 findings are open.");
      },
      Doctor);
}

}  // namespace berth::cli
