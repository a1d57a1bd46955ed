#include "scheduler/decide/claim_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/decide/check_volume.h"

namespace berth::scheduler {
namespace {

constexpr size_t kNodeLimit = 192;
// What is recorded has to fit into a transaction.
constexpr size_t kRequestLimit = size_t{256} << 10;

std::string PrintableName(std::string_view text) { return Printable(text, kNameLimit); }

bool IsReaderOnly(v1::AccessMode mode) {
  return mode == v1::SINGLE_NODE_READER_ONLY || mode == v1::MULTI_NODE_READER_ONLY;
}

}  // namespace

std::string ShownVolume(const std::string& name_space, const std::string& id) {
  return fmt::format("{}/{}", PrintableName(name_space), PrintableName(id));
}

std::string ShownConsumer(const pb::ClaimRecord& claim) {
  const v1::PublishVolumeRequest& request = claim.request();
  if (request.name().empty()) return PrintableName(request.consumer());
  return fmt::format("{} ({})", PrintableName(request.consumer()), PrintableName(request.name()));
}

absl::Status CheckClaim(const v1::ClaimClusterVolumeRequest& request) {
  std::vector<std::string> mistakes;
  const auto check = [&mistakes](std::string_view field, const std::string& text) {
    if (const std::string mistake = MistakeInName(text); !mistake.empty())
      mistakes.push_back(fmt::format("{}: {}", field, mistake));
  };
  check("namespace", request.namespace_());
  check("volume", request.volume());
  check("consumer", request.consumer());
  if (!request.name().empty()) check("name", request.name());
  if (request.node().empty() || request.node().size() > kNodeLimit)
    mistakes.push_back(fmt::format("node: must have 1 to {} bytes", kNodeLimit));
  if (request.ByteSizeLong() > kRequestLimit)
    mistakes.push_back(
        fmt::format("the request has {} bytes, at most {} are taken", request.ByteSizeLong(), kRequestLimit));
  if (mistakes.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}", fmt::join(mistakes, "; ")));
}

absl::StatusOr<pb::ClaimRecord> ClaimOf(const v1::ClaimClusterVolumeRequest& request,
                                        const v1::VolumeSpec& volume) {
  const int mode =
      request.access_mode() == v1::ACCESS_MODE_UNKNOWN ? volume.access_modes(0) : request.access_mode();
  if (std::ranges::find(volume.access_modes(), mode) == volume.access_modes().end()) {
    std::vector<std::string> modes;
    for (const int each : volume.access_modes())
      modes.push_back(v1::AccessMode_Name(static_cast<v1::AccessMode>(each)));
    return absl::InvalidArgumentError(fmt::format("access_mode: volume {} is registered for {}",
                                                  ShownVolume(volume.namespace_(), volume.id()),
                                                  fmt::join(modes, ", ")));
  }
  pb::ClaimRecord claim;
  claim.set_namespace_(volume.namespace_());
  claim.set_volume(volume.id());
  claim.set_node(request.node());
  claim.set_driver(volume.driver());
  claim.set_writes(!request.readonly() && !IsReaderOnly(static_cast<v1::AccessMode>(mode)));
  v1::PublishVolumeRequest& publish = *claim.mutable_request();
  publish.set_volume_id(volume.external_id());
  publish.set_consumer(request.consumer());
  publish.set_name(request.name());
  v1::Capability& capability = *publish.mutable_capability();
  capability.set_access_mode(static_cast<v1::AccessMode>(mode));
  capability.set_access_type(volume.access_type());
  capability.set_fs_type(volume.fs_type());
  *capability.mutable_mount_flags() = volume.mount_flags();
  capability.set_volume_mount_group(volume.volume_mount_group());
  publish.set_readonly(request.readonly());
  *publish.mutable_volume_context() = volume.volume_context();
  if (request.has_mount_options()) *publish.mutable_mount_options() = request.mount_options();
  if (request.has_permissions()) *publish.mutable_permissions() = request.permissions();
  if (request.has_life()) *publish.mutable_life() = request.life();
  if (request.has_runtime()) *publish.mutable_runtime() = request.runtime();
  *publish.mutable_consumer_labels() = request.consumer_labels();
  publish.set_label(volume.namespace_() + "/" + volume.id());
  return claim;
}

std::optional<std::string> OurConsumer(const v1::VolumeSpec& volume, const v1::Publication& publication) {
  const std::string prefix = volume.namespace_() + "/";
  if (publication.origin() != v1::SCHEDULER || !publication.consumer().starts_with(prefix))
    return std::nullopt;
  return publication.consumer().substr(prefix.size());
}

pb::ClaimRecord FoundClaim(const v1::VolumeSpec& volume, const std::string& node, const v1::Volume& shown,
                           const v1::Publication& publication) {
  pb::ClaimRecord claim;
  claim.set_namespace_(volume.namespace_());
  claim.set_volume(volume.id());
  claim.set_node(node);
  claim.set_driver(volume.driver());
  claim.set_writes(!publication.readonly());
  claim.set_phase(pb::ClaimRecord::LEAVING);
  claim.set_cause("it was found on its node, without a claim");
  claim.set_sent(true);
  v1::PublishVolumeRequest& request = *claim.mutable_request();
  request.set_plugin_id(shown.plugin_id());
  request.set_volume_id(shown.volume_id());
  request.set_consumer(OurConsumer(volume, publication).value_or(""));
  request.set_name(publication.name());
  request.set_readonly(publication.readonly());
  *request.mutable_capability() = shown.capability();
  return claim;
}

absl::Status Joins(const pb::ClaimRecord& claim, const pb::ClaimRecord& there) {
  const std::string what = fmt::format("the claim of volume {} for {}",
                                       ShownVolume(there.namespace_(), there.volume()), ShownConsumer(there));
  if (there.phase() == pb::ClaimRecord::LEAVING) {
    return absl::AbortedError(fmt::format("{} on {} is being released{}: try again later", what,
                                          Printable(there.node(), kNodeLimit),
                                          there.error().empty() ? "" : " (" + there.error() + ")"));
  }
  // The plugin was chosen when it was made.
  v1::PublishVolumeRequest request = there.request();
  request.clear_plugin_id();
  std::string fields = DifferingFields(claim.request(), request);
  if (claim.node() != there.node()) fields = fields.empty() ? "node" : "node, " + fields;
  if (fields.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(fmt::format("{} is there, with another {}", what, fields));
}

ClaimFacts FactsOf(const pb::ClaimRecord& claim) {
  return {.consumer = claim.request().consumer(),
          .name = claim.request().name(),
          .node = claim.node(),
          .writes = claim.writes(),
          .phase =
              claim.phase() == pb::ClaimRecord::HELD ? ClaimFacts::Phase::kHeld : ClaimFacts::Phase::kLeaving,
          .error = claim.error()};
}

}  // namespace berth::scheduler
