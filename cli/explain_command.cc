// volume explain, explain.
#include <fmt/format.h>

#include "base/status.h"
#include "cli/explain_view.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_options.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

absl::Status Explain(Session& session, const VolumeOptions& given) {
  VolumeOptions options = given;
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  v1::ExplainVolumeRequest request;
  BERTH_RETURN_IF_ERROR(NameVolume(node, options));
  request.set_plugin_id(options.plugin);
  request.set_volume_id(options.volume);
  BERTH_ASSIGN_OR_RETURN(const v1::ExplainVolumeResponse answer,
                         node.Call(&NodeClient::Stub::ExplainVolume, request,
                                   fmt::format("explain volume {}", PrintableName(options.volume))));
  if (session.output.json()) {
    session.output.Json(answer);
  } else {
    session.output.Text(ExplainText(answer, std::chrono::system_clock::now(), session.output.colour()));
  }
  return absl::OkStatus();
}

}  // namespace

void AddExplain(CLI::App& parent, Command& chosen) {
  AddCommand<VolumeOptions>(parent, "explain",
                            "What is the matter with a volume: state, holders, last calls, mounts, records",
                            chosen, DeclareHeldVolume, Explain);
}

}  // namespace berth::cli
