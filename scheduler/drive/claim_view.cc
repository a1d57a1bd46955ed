#include "scheduler/drive/claim_view.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <string_view>

#include "base/status.h"

namespace berth::scheduler {
namespace {

// ", and its plugin …", if its plugin cannot do a step now.
std::string PluginTrouble(const pb::ClaimRecord& record, const NodeLinks& links) {
  const MachineNow now = links.Now(record.node());
  if (now.facts == nullptr) return "";
  const std::string id = Printable(record.request().plugin_id(), 128);
  const auto plugin = now.facts->plugins().find(record.request().plugin_id());
  if (plugin == now.facts->plugins().end()) return fmt::format(", and there is no plugin {} any more", id);
  if (plugin->second.state() == v1::READY) return "";
  return fmt::format(", and its plugin {} is {} there{}", id, v1::PluginState_Name(plugin->second.state()),
                     plugin->second.reason().empty() ? "" : ": " + Printable(plugin->second.reason(), 256));
}

}  // namespace

ClaimNode NodeOf(const pb::ClaimRecord& claim, const NodeLinks& links) {
  const MachineNow now = links.Now(claim.node());
  // Another machine under that name knows nothing of this claim.
  if (now.record == nullptr || !now.record->IsInstance(claim.instance_id())) return {};
  ClaimNode node{.synced = now.synced,
                 .ready = now.ready,
                 .boot_id = now.record->boot_id,
                 .run_id = now.run_id,
                 .stream = now.stream};
  if (now.facts != nullptr) {
    const auto& volumes = now.facts->volumes();
    const auto volume = volumes.find({claim.request().plugin_id(), claim.request().volume_id()});
    if (volume != volumes.end()) node.volume = &volume->second;
  }
  return node;
}

// The last error of a claim: what its node says of the volume while it is asked, or what it has answered.
std::string ErrorOf(const pb::ClaimRecord& record, const NodeLinks& links) {
  const ClaimNode node = NodeOf(record, links);
  if (record.has_operation() && node.volume != nullptr && !node.volume->last_error().empty())
    return Printable(node.volume->last_error(), 1024);
  return record.error();
}

std::string WaitsFor(const pb::ClaimRecord& record, const NodeLinks& links) {
  const ClaimNode node = NodeOf(record, links);
  const std::string name = Printable(record.node(), 192);
  const auto with_error = [error = ErrorOf(record, links)](std::string_view what) {
    return error.empty() ? std::string(what) : fmt::format("{}; last error: {}", what, error);
  };
  if (node.boot_id.empty())
    return with_error(fmt::format("the machine of the claim: another one is node {} now", name));
  if (!node.synced) return with_error(fmt::format("node {} to connect", name));
  if (record.has_operation()) {
    return with_error(fmt::format("node {} to {} it{}", name,
                                  record.operation().unpublish() ? "unpublish" : "publish",
                                  PluginTrouble(record, links)));
  }
  if (record.phase() == pb::ClaimRecord::HELD && record.has_mount()) return "";
  if (record.phase() == pb::ClaimRecord::HELD && !node.ready)
    return with_error(fmt::format("node {} to get a lease", name));
  return with_error(record.error().empty() ? "its next step" : "its next try");
}

v1::ClusterClaim ToProto(const ClaimState& claim, const NodeLinks& links) {
  const pb::ClaimRecord& record = claim.record;
  const v1::PublishVolumeRequest& request = record.request();
  v1::ClusterClaim proto;
  proto.set_namespace_(record.namespace_());
  proto.set_volume(record.volume());
  proto.set_consumer(request.consumer());
  proto.set_name(request.name());
  proto.set_node(record.node());
  proto.set_instance_id(record.instance_id());
  proto.set_driver(record.driver());
  proto.set_external_id(request.volume_id());
  proto.set_plugin_id(request.plugin_id());
  proto.set_access_mode(request.capability().access_mode());
  proto.set_writes(record.writes());
  proto.set_phase(record.phase() == pb::ClaimRecord::HELD ? v1::ClusterClaim::HELD
                                                          : v1::ClusterClaim::LEAVING);
  proto.set_cause(record.cause());
  if (record.has_mount()) *proto.mutable_mount() = record.mount().mount();
  if (record.has_operation()) {
    proto.set_step(record.operation().unpublish() ? "unpublish" : "publish");
    proto.set_operation_id(record.operation().id());
  }
  proto.set_waits_for(WaitsFor(record, links));
  proto.set_last_error(ErrorOf(record, links));
  proto.set_tries(static_cast<int32_t>(record.tries()));
  if (const Duration left = claim.not_before - Clock::now();
      left > Duration::zero() && !record.has_operation()) {
    *proto.mutable_next_try() = google::protobuf::util::TimeUtil::MillisecondsToDuration(
        std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  return proto;
}

}  // namespace berth::scheduler
