#include "rpc/status_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "base/printable.h"
#include "base/process.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "controller/plugin_choice.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"
#include "rpc/node_findings.h"

namespace berth {
namespace {

constexpr size_t kFindingLimit = 100;

Finding Problem(std::string code, std::string text, std::string advice = "") {
  Finding finding;
  finding.code = std::move(code);
  finding.text = std::move(text);
  finding.advice = std::move(advice);
  return finding;
}

}  // namespace

std::string StatusApi::ComputedClass() const {
  std::string text;
  for (const auto& [id, plugin] : control_.plugins()) {
    if (!plugin.computed_class.empty()) text += HashComponent({id, plugin.computed_class});
  }
  for (const RuntimeAbility& runtime : volumes_.runtimes())
    text += HashComponent({runtime.SerializeAsString()});
  return HashComponent({text});
}

ApiAnswer<v1::GetStatusResponse> StatusApi::GetStatus(v1::GetStatusRequest, CallInfo) {
  v1::GetStatusResponse answer;
  answer.set_node_id(info_.node_id);
  answer.set_version(info_.version);
  answer.set_boot_id(BootId());
  *answer.mutable_started_at() = ToProto(info_.started_at);
  answer.set_pid(getpid());
  answer.set_config_dir(info_.config_dir);
  answer.set_state_dir(info_.state_dir);
  answer.set_runtime_dir(info_.runtime_dir);
  for (const auto& [id, plugin] : control_.plugins()) {
    answer.set_plugins(answer.plugins() + 1);
    if (plugin.state == PluginState::kReady && plugin.registered)
      answer.set_plugins_ready(answer.plugins_ready() + 1);
  }
  const std::vector<VolumeView> volumes = mounter_.List({});
  for (const VolumeView& volume : volumes) {
    answer.set_volumes(answer.volumes() + 1);
    answer.set_publications(answer.publications() + static_cast<int>(volume.publications.size()));
    if (volume.rebuilt) answer.set_volumes_rebuilt(answer.volumes_rebuilt() + 1);
  }
  std::vector<Finding> findings;
  for (std::string& problem : mounter_.Problems()) {
    findings.push_back(Problem("node.problem", std::move(problem), "berthctl doctor"));
  }
  AppendFindings(NodeFindings(volumes), &findings);
  for (const VolumeView& volume : volumes) AppendFindings(FindingsOf(volume), &findings);
  SortFindings(&findings, kFindingLimit);
  answer.set_health(HealthOf(findings));
  for (const Finding& finding : findings) {
    if (finding.severity == Finding::Severity::kInfo) continue;
    answer.add_problems(Printable(finding.text, 1024));
  }
  *answer.mutable_findings() = std::move(*ToProto(findings).mutable_findings());
  answer.set_placement(Printable(control_.Placement(), 512));
  answer.set_last_event_sequence(events_.next_sequence() - 1);
  answer.set_computed_class(ComputedClass());
  if (auto drain = drainer_.Describe()) *answer.mutable_drain() = *std::move(drain);
  if (auto link = scheduler_.Status()) *answer.mutable_scheduler() = *std::move(link);
  co_return answer;
}

std::vector<Finding> StatusApi::NodeFindings(const std::vector<VolumeView>& volumes) const {
  std::vector<Finding> findings = info_.notes;
  if (const auto drain = drainer_.Describe()) findings.push_back(FindingOf(*drain));
  if (const auto link = scheduler_.Status()) AppendFindings(FindingsOf(*link, WallClock::now()), &findings);
  for (std::string& problem : scheduler_.Problems()) {
    findings.push_back(Problem("scheduler.problem", std::move(problem), "berthctl scheduler"));
  }
  AppendFindings(control_.Findings(), &findings);
  for (const std::string& problem : socket_problems_) {
    findings.push_back(Problem("node.problem", problem, "berthctl status"));
  }
  std::map<std::string, int> held;
  for (const VolumeView& volume : volumes) {
    ++held[volume.plugin_id];
    if (auto finding = WithoutItsPlugin(volume)) findings.push_back(*std::move(finding));
  }
  for (const auto& [id, plugin] : control_.plugins()) {
    AppendFindings(FindingsOf(plugin, held[id], Clock::now()), &findings);
  }
  for (std::string& problem : declared_.Problems()) {
    findings.push_back(Problem("node.problem", std::move(problem), "berthctl reload"));
  }
  for (const DeclaredView& file : declared_.List()) {
    std::string plugin = file.request.plugin_id();
    const bool starting = WaitsForStart(control_.plugins(), plugin, Clock::now());
    if (const auto known = lookup_.NodePlugin(plugin); !plugin.empty() && known.ok()) plugin = *known;
    AppendFindings(FindingsOf(file, plugin, starting), &findings);
  }
  return findings;
}

ApiAnswer<v1::ExamineResponse> StatusApi::Examine(v1::ExamineRequest request, CallInfo call) {
  // The service has seen to it already; a repair must not hang on that alone.
  if (request.repair() && !call.may_change) {
    co_return absl::PermissionDeniedError("to repair takes the right to change");
  }
  BERTH_CO_ASSIGN_OR_RETURN(std::vector<Finding> findings,
                            co_await mounter_.Examine(request.repair(), call.deadline));
  const std::vector<VolumeView> volumes = mounter_.List({});
  AppendFindings(NodeFindings(volumes), &findings);
  // What GetStatus finds wrong with a volume is a finding here too, whatever the comparison has found.
  std::set<std::pair<std::string, std::string>> named;
  for (const Finding& finding : findings) {
    if (finding.severity != Finding::Severity::kInfo) named.emplace(finding.plugin_id, finding.volume_id);
  }
  for (const VolumeView& volume : volumes) {
    if (!named.contains({volume.plugin_id, volume.volume_id})) AppendFindings(FindingsOf(volume), &findings);
  }
  co_return ToProto(findings);
}

}  // namespace berth
