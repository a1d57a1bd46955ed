#include "rpc/node_api.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/process.h"
#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/plugin_choice.h"
#include "rpc/request_check.h"

namespace berth {
namespace {

constexpr size_t kProblemLimit = 100;

std::string Shown(const std::string& text) { return Printable(text, 256); }

bool UsedBy(const VolumeView& volume, const std::string& consumer) {
  return std::any_of(volume.publications.begin(), volume.publications.end(),
                     [&](const PublicationView& view) { return view.consumer == consumer; });
}

std::string Because(const std::string& reason) { return reason.empty() ? "" : ": " + Printable(reason, 512); }

}  // namespace

NodeApi::NodeApi(NodeInfo info, PluginControl& control, ControllerDirectory& controllers, Mounter& mounter,
                 EventLog& events, std::shared_ptr<LogFeed> log)
    : info_(std::move(info)),
      control_(control),
      controllers_(controllers),
      mounter_(mounter),
      events_(events),
      log_(std::move(log)) {}

NodeApi::Answer<v1::GetStatusResponse> NodeApi::GetStatus(v1::GetStatusRequest, CallInfo) {
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
    if (plugin.state == PluginState::kReady) answer.set_plugins_ready(answer.plugins_ready() + 1);
  }
  for (const VolumeView& volume : mounter_.List()) {
    answer.set_volumes(answer.volumes() + 1);
    answer.set_publications(answer.publications() + static_cast<int>(volume.publications.size()));
  }
  for (std::string& problem : Problems()) answer.add_problems(std::move(problem));
  answer.set_placement(Printable(control_.Placement(), 512));
  answer.set_last_event_sequence(events_.next_sequence() - 1);
  co_return answer;
}

std::vector<std::string> NodeApi::Problems() const {
  std::vector<std::string> problems;
  for (const std::string& problem : control_.Problems()) problems.push_back(Printable(problem, 1024));
  for (const auto& [id, plugin] : control_.plugins()) {
    const bool idle = plugin.state == PluginState::kReady && !plugin.registered;
    if (!idle || plugin.held || plugin.draining) continue;
    problems.push_back(fmt::format("plugin {} answers but takes no work{}", id, Because(plugin.reason)));
  }
  for (const VolumeView& volume : mounter_.List()) {
    const std::string name =
        fmt::format("volume {} of plugin {}", Shown(volume.volume_id), Shown(volume.plugin_id));
    if (volume.awaiting_secrets) {
      problems.push_back(
          fmt::format("{} waits for its secrets: publish it again with them, or unpublish it", name));
    } else if (volume.uncertain) {
      problems.push_back(
          fmt::format("{}: whether the last step happened is not known{}", name, Because(volume.last_error)));
    } else if (!volume.last_error.empty()) {
      problems.push_back(fmt::format("{}{}", name, Because(volume.last_error)));
    }
  }
  if (problems.size() > kProblemLimit) {
    const size_t more = problems.size() - kProblemLimit;
    problems.resize(kProblemLimit);
    problems.push_back(fmt::format("and {} more", more));
  }
  return problems;
}

absl::StatusOr<std::string> NodeApi::NodePlugin(const std::string& name) const {
  auto resolved = ResolveNodePlugin(control_.plugins(), name);
  if (absl::IsNotFound(resolved.status()) && !mounter_.HeldThrough(name).empty()) return name;
  return resolved;
}

NodeApi::VolumeKey NodeApi::KeyOf(const std::string& plugin_id, const std::string& volume_id) const {
  const auto plugin = control_.plugins().find(plugin_id);
  const bool known = plugin != control_.plugins().end() && plugin->second.facts.has_value();
  return {known ? plugin->second.facts->name : plugin_id, volume_id};
}

NodeApi::Answer<v1::ListVolumesResponse> NodeApi::ListVolumes(v1::ListVolumesRequest request, CallInfo call) {
  std::string plugin_id;
  if (!request.plugin_id().empty()) {
    BERTH_CO_ASSIGN_OR_RETURN(plugin_id, NodePlugin(request.plugin_id()));
  }
  v1::ListVolumesResponse answer;
  for (const VolumeView& volume : mounter_.List()) {
    if (!plugin_id.empty() && volume.plugin_id != plugin_id) continue;
    if (!request.consumer().empty() && !UsedBy(volume, request.consumer())) continue;
    *answer.add_volumes() = ToProto(volume, call.rights.change);
  }
  co_return answer;
}

NodeApi::Answer<v1::Volume> NodeApi::GetVolume(v1::GetVolumeRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeName(request.plugin_id(), request.volume_id()));
  BERTH_CO_ASSIGN_OR_RETURN(const std::string plugin_id, NodePlugin(request.plugin_id()));
  const auto volume = mounter_.Find(plugin_id, request.volume_id());
  if (!volume) {
    co_return absl::NotFoundError(fmt::format("this node holds no volume {} of plugin {}",
                                              Shown(request.volume_id()), Shown(plugin_id)));
  }
  co_return ToProto(*volume, call.rights.change);
}

NodeApi::Answer<v1::PublishVolumeResponse> NodeApi::PublishVolume(v1::PublishVolumeRequest request,
                                                                  CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(PublishRequest checked, CheckPublish(request));
  BERTH_CO_ASSIGN_OR_RETURN(checked.plugin_id, NodePlugin(checked.plugin_id));
  VolumeKey key = KeyOf(checked.plugin_id, checked.volume_id);
  if (deleting_.contains(key)) {
    co_return absl::AbortedError(fmt::format("volume {} is being deleted", Shown(checked.volume_id)));
  }
  const Hold hold(publishing_, std::move(key));
  const std::string plugin_id = checked.plugin_id;
  const std::string volume_id = checked.volume_id;
  const std::map<std::string, std::string> secrets = checked.secrets;
  auto target = co_await mounter_.Publish(std::move(checked), call.deadline);
  if (!target.ok()) co_return HideSecrets(target.status(), secrets);
  v1::PublishVolumeResponse answer;
  answer.set_target_path(*target);
  if (const auto volume = mounter_.Find(plugin_id, volume_id)) {
    *answer.mutable_volume() = ToProto(*volume, call.rights.change);
  }
  co_return answer;
}

NodeApi::Answer<v1::UnpublishVolumeResponse> NodeApi::UnpublishVolume(v1::UnpublishVolumeRequest request,
                                                                      CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(UnpublishRequest checked, CheckUnpublish(request));
  BERTH_CO_ASSIGN_OR_RETURN(checked.plugin_id, NodePlugin(checked.plugin_id));
  BERTH_CO_ASSIGN_OR_RETURN(const bool was_published,
                            co_await mounter_.Unpublish(std::move(checked), call.deadline));
  v1::UnpublishVolumeResponse answer;
  answer.set_was_published(was_published);
  co_return answer;
}

NodeApi::Answer<v1::GetVolumeStatsResponse> NodeApi::GetVolumeStats(v1::GetVolumeStatsRequest request,
                                                                    CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeName(request.plugin_id(), request.volume_id()));
  BERTH_CO_ASSIGN_OR_RETURN(const std::string plugin_id, NodePlugin(request.plugin_id()));
  const auto plugin = control_.plugins().find(plugin_id);
  using Rpc = ::csi::v1::NodeServiceCapability::RPC;
  if (plugin != control_.plugins().end() && plugin->second.facts &&
      !plugin->second.facts->NodeCan(Rpc::GET_VOLUME_STATS)) {
    co_return absl::FailedPreconditionError(fmt::format(
        "plugin {} does not tell the use of its volumes (no GET_VOLUME_STATS)", Shown(plugin_id)));
  }
  BERTH_CO_ASSIGN_OR_RETURN(const ::csi::v1::NodeGetVolumeStatsResponse stats,
                            co_await mounter_.Stats(plugin_id, request.volume_id(), call.deadline));
  co_return CheckedAnswer(plugin_id, stats);
}

}  // namespace berth
