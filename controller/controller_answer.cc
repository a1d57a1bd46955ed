#include "controller/controller_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/status.h"
#include "request/request_check.h"

namespace berth {
namespace {

using ContextMap = google::protobuf::Map<std::string, std::string>;

// The year 9999's end, as google.protobuf.Timestamp has it.
constexpr int64_t kLastSecond = 253'402'300'799;

absl::Status Wrong(std::string why) { return absl::InternalError(why); }

// Where CSI lets 0 mean "unknown", the caller asks only for others.
absl::Status CheckCapacity(int64_t capacity, const ::csi::v1::CapacityRange& range) {
  if (capacity < 0) return Wrong(fmt::format("a capacity of {} bytes", capacity));
  if (capacity < range.required_bytes()) {
    return Wrong(
        fmt::format("a capacity of {} bytes, though {} were required", capacity, range.required_bytes()));
  }
  if (range.limit_bytes() > 0 && capacity > range.limit_bytes()) {
    return Wrong(
        fmt::format("a capacity of {} bytes, more than the limit of {}", capacity, range.limit_bytes()));
  }
  return absl::OkStatus();
}

// Past the limits of a request it could not be published with.
absl::Status CheckContext(std::string_view what, const ContextMap& context) {
  size_t bytes = 0;
  for (const auto& [key, value] : context) bytes += key.size() + value.size();
  if (bytes <= RequestLimits::kMapBytes && context.size() <= RequestLimits::kMapEntries)
    return absl::OkStatus();
  return Wrong(fmt::format("a {} of {} entries, {} bytes", what, context.size(), bytes));
}

absl::Status CheckId(std::string_view what, const std::string& id) {
  if (id.empty()) return Wrong(fmt::format("the {} has no id", what));
  if (id.size() > RequestLimits::kVolumeId) {
    return Wrong(fmt::format("the {}'s id is {} bytes long", what, id.size()));
  }
  return absl::OkStatus();
}

// A volume that was there before.
absl::Status CheckVolume(const ::csi::v1::Volume& volume) {
  BERTH_RETURN_IF_ERROR(CheckId("volume", volume.volume_id()));
  absl::Status status = CheckCapacity(volume.capacity_bytes(), {});
  if (status.ok()) status = CheckContext("volume context", volume.volume_context());
  return Annotate(status, fmt::format("volume {}", PrintableName(volume.volume_id())));
}

absl::Status CheckTime(bool given, const google::protobuf::Timestamp& time) {
  if (!given) return Wrong("no creation_time");
  const bool good = time.seconds() >= 0 && time.seconds() <= kLastSecond && time.nanos() >= 0 &&
                    time.nanos() <= 999'999'999;
  return good ? absl::OkStatus() : Wrong("a creation_time that is not valid");
}

absl::Status CheckSnapshotFields(const ::csi::v1::Snapshot& snapshot) {
  BERTH_RETURN_IF_ERROR(CheckId("source volume", snapshot.source_volume_id()));
  if (snapshot.size_bytes() < 0) return Wrong(fmt::format("a size of {} bytes", snapshot.size_bytes()));
  if (snapshot.group_snapshot_id().size() > RequestLimits::kVolumeId) {
    return Wrong("its group's id is too long");
  }
  return CheckTime(snapshot.has_creation_time(), snapshot.creation_time());
}

absl::Status CheckSnapshot(const ::csi::v1::Snapshot& snapshot) {
  BERTH_RETURN_IF_ERROR(CheckId("snapshot", snapshot.snapshot_id()));
  return Annotate(CheckSnapshotFields(snapshot),
                  fmt::format("snapshot {}", PrintableName(snapshot.snapshot_id())));
}

absl::Status CheckGroupFields(const ::csi::v1::VolumeGroupSnapshot& group) {
  if (group.snapshots_size() == 0) return Wrong("no snapshots");
  for (const auto& snapshot : group.snapshots()) {
    BERTH_RETURN_IF_ERROR(CheckSnapshot(snapshot));
    if (!snapshot.group_snapshot_id().empty() && snapshot.group_snapshot_id() != group.group_snapshot_id()) {
      return Wrong(fmt::format("snapshot {} is of another group", PrintableName(snapshot.snapshot_id())));
    }
  }
  return CheckTime(group.has_creation_time(), group.creation_time());
}

absl::Status CheckGroup(const ::csi::v1::VolumeGroupSnapshot& group) {
  BERTH_RETURN_IF_ERROR(CheckId("group", group.group_snapshot_id()));
  return Annotate(CheckGroupFields(group), fmt::format("group {}", PrintableName(group.group_snapshot_id())));
}

template <class Request, class Response>
absl::Status CheckPage(const Request& request, const Response& answer) {
  if (request.max_entries() > 0 && answer.entries_size() > request.max_entries()) {
    return Wrong(fmt::format("{} entries, though at most {} were wanted", answer.entries_size(),
                             request.max_entries()));
  }
  if (answer.next_token().size() > RequestLimits::kVolumeId) {
    return Wrong(fmt::format("a next_token of {} bytes", answer.next_token().size()));
  }
  return absl::OkStatus();
}

// Equal capabilities have equal ones; the order of mount flags means nothing.
std::string BytesOf(::csi::v1::VolumeCapability capability) {
  if (capability.has_mount()) std::ranges::sort(*capability.mutable_mount()->mutable_mount_flags());
  return capability.SerializeAsString();
}

std::string BytesWithoutFsType(::csi::v1::VolumeCapability capability) {
  if (capability.has_mount()) capability.mutable_mount()->clear_fs_type();
  return BytesOf(std::move(capability));
}

bool IsAnother(const ContextMap& given, const ContextMap& asked) {
  if (given.empty()) return false;
  return given.size() != asked.size() || !std::ranges::all_of(asked, [&given](const auto& entry) {
           const auto same = given.find(entry.first);
           return same != given.end() && same->second == entry.second;
         });
}

absl::Status CheckSame(std::string_view what, const std::string& given, const std::string& wanted) {
  if (given == wanted) return absl::OkStatus();
  return Wrong(fmt::format("it is about {} {}, not {}", what, PrintableName(given), PrintableName(wanted)));
}

}  // namespace

absl::Status TooLongAnswer(std::string_view plugin_id, std::string_view rpc, std::string_view what) {
  return absl::InternalError(
      fmt::format("plugin {}: its answer to {} is too long: {}", plugin_id, rpc, what));
}

absl::Status WrongAnswer(std::string_view plugin_id, std::string_view rpc, std::string_view what) {
  return absl::InternalError(fmt::format("plugin {}: its answer to {} is wrong: {}", plugin_id, rpc, what));
}

absl::Status CheckAnswer(const ::csi::v1::ControllerPublishVolumeRequest& /*request*/,
                         const ::csi::v1::ControllerPublishVolumeResponse& answer) {
  return CheckContext("publish context", answer.publish_context());
}

absl::Status CheckAnswer(const ::csi::v1::ValidateVolumeCapabilitiesRequest& /*request*/,
                         const ::csi::v1::ValidateVolumeCapabilitiesResponse& answer) {
  if (!answer.has_confirmed()) return absl::OkStatus();
  const auto& confirmed = answer.confirmed();
  if (confirmed.volume_capabilities_size() == 0) return Wrong("it confirms no capability");
  BERTH_RETURN_IF_ERROR(CheckContext("volume context", confirmed.volume_context()));
  BERTH_RETURN_IF_ERROR(CheckContext("set of parameters", confirmed.parameters()));
  return CheckContext("set of mutable parameters", confirmed.mutable_parameters());
}

void TakeBackUnconfirmed(const ::csi::v1::ValidateVolumeCapabilitiesRequest& request,
                         ::csi::v1::ValidateVolumeCapabilitiesResponse* answer) {
  if (!answer->has_confirmed()) return;
  const auto& confirmed = answer->confirmed();
  std::set<std::string> exact;
  std::set<std::string> of_any_fs_type;
  for (const auto& capability : confirmed.volume_capabilities()) {
    exact.insert(BytesOf(capability));
    of_any_fs_type.insert(BytesWithoutFsType(capability));
  }
  std::vector<std::string> missing;
  for (int i = 0; i < request.volume_capabilities_size(); ++i) {
    const auto& wanted = request.volume_capabilities(i);
    const bool any = wanted.has_mount() && wanted.mount().fs_type().empty();
    if (!(any ? of_any_fs_type : exact).contains(BytesOf(wanted))) {
      missing.push_back(fmt::format("volume_capabilities[{}]", i));
    }
  }
  if (IsAnother(confirmed.volume_context(), request.volume_context())) missing.emplace_back("volume_context");
  if (IsAnother(confirmed.parameters(), request.parameters())) missing.emplace_back("parameters");
  if (IsAnother(confirmed.mutable_parameters(), request.mutable_parameters())) {
    missing.emplace_back("mutable_parameters");
  }
  if (missing.empty()) return;
  answer->clear_confirmed();
  answer->set_message(fmt::format("the plugin did not confirm, as asked, {}{}{}", fmt::join(missing, ", "),
                                  answer->message().empty() ? "" : ": ", answer->message()));
}

absl::Status CheckAnswer(const ::csi::v1::CreateVolumeRequest& request,
                         const ::csi::v1::CreateVolumeResponse& answer) {
  const ::csi::v1::Volume& volume = answer.volume();
  BERTH_RETURN_IF_ERROR(CheckId("volume", volume.volume_id()));
  absl::Status status;
  if (volume.capacity_bytes() != 0) {
    status = CheckCapacity(volume.capacity_bytes(), request.capacity_range());
  }
  if (status.ok()) status = CheckContext("volume context", volume.volume_context());
  if (status.ok() && request.has_volume_content_source() && !volume.has_content_source()) {
    status = Wrong("it does not say that the volume was filled from the source");
  }
  if (status.ok()) return status;
  // The volume has a name, and an operator must learn it: it exists and is of no use.
  return Wrong(
      fmt::format("{} (the volume {} exists now)", MessageOf(status), PrintableName(volume.volume_id())));
}

absl::Status CheckAnswer(const ::csi::v1::ListVolumesRequest& request,
                         const ::csi::v1::ListVolumesResponse& answer) {
  for (const auto& entry : answer.entries()) {
    BERTH_RETURN_IF_ERROR(CheckVolume(entry.volume()));
  }
  return CheckPage(request, answer);
}

absl::Status CheckAnswer(const ::csi::v1::ControllerGetVolumeRequest& request,
                         const ::csi::v1::ControllerGetVolumeResponse& answer) {
  BERTH_RETURN_IF_ERROR(CheckVolume(answer.volume()));
  return CheckSame("volume", answer.volume().volume_id(), request.volume_id());
}

absl::Status CheckAnswer(const ::csi::v1::GetCapacityRequest& /*request*/,
                         const ::csi::v1::GetCapacityResponse& answer) {
  const bool negative = answer.available_capacity() < 0 || answer.maximum_volume_size().value() < 0 ||
                        answer.minimum_volume_size().value() < 0;
  return negative ? Wrong("a negative size") : absl::OkStatus();
}

absl::Status CheckAnswer(const ::csi::v1::ControllerExpandVolumeRequest& request,
                         const ::csi::v1::ControllerExpandVolumeResponse& answer) {
  // Unlike CreateVolume's, this capacity is required. One above the limit is not refused: the volume may have
  // been larger before, and cannot shrink.
  if (answer.capacity_bytes() == 0) return Wrong("no capacity");
  ::csi::v1::CapacityRange range = request.capacity_range();
  range.clear_limit_bytes();
  return CheckCapacity(answer.capacity_bytes(), range);
}

absl::Status CheckAnswer(const ::csi::v1::CreateSnapshotRequest& request,
                         const ::csi::v1::CreateSnapshotResponse& answer) {
  BERTH_RETURN_IF_ERROR(CheckSnapshot(answer.snapshot()));
  return CheckSame("volume", answer.snapshot().source_volume_id(), request.source_volume_id());
}

absl::Status CheckAnswer(const ::csi::v1::ListSnapshotsRequest& request,
                         const ::csi::v1::ListSnapshotsResponse& answer) {
  for (const auto& entry : answer.entries()) {
    const ::csi::v1::Snapshot& snapshot = entry.snapshot();
    BERTH_RETURN_IF_ERROR(CheckSnapshot(snapshot));
    if (!request.source_volume_id().empty()) {
      BERTH_RETURN_IF_ERROR(CheckSame("volume", snapshot.source_volume_id(), request.source_volume_id()));
    }
    if (!request.snapshot_id().empty()) {
      BERTH_RETURN_IF_ERROR(CheckSame("snapshot", snapshot.snapshot_id(), request.snapshot_id()));
    }
  }
  return CheckPage(request, answer);
}

absl::Status CheckAnswer(const ::csi::v1::GetSnapshotRequest& request,
                         const ::csi::v1::GetSnapshotResponse& answer) {
  BERTH_RETURN_IF_ERROR(CheckSnapshot(answer.snapshot()));
  return CheckSame("snapshot", answer.snapshot().snapshot_id(), request.snapshot_id());
}

absl::Status CheckAnswer(const ::csi::v1::CreateVolumeGroupSnapshotRequest& request,
                         const ::csi::v1::CreateVolumeGroupSnapshotResponse& answer) {
  BERTH_RETURN_IF_ERROR(CheckGroup(answer.group_snapshot()));
  // One of each volume: less than that could not be put back together.
  std::multiset<std::string> wanted(request.source_volume_ids().begin(), request.source_volume_ids().end());
  std::multiset<std::string> taken;
  for (const auto& snapshot : answer.group_snapshot().snapshots()) taken.insert(snapshot.source_volume_id());
  return taken == wanted ? absl::OkStatus() : Wrong("its snapshots are not one of each volume");
}

absl::Status CheckAnswer(const ::csi::v1::GetVolumeGroupSnapshotRequest& request,
                         const ::csi::v1::GetVolumeGroupSnapshotResponse& answer) {
  BERTH_RETURN_IF_ERROR(CheckGroup(answer.group_snapshot()));
  return CheckSame("group", answer.group_snapshot().group_snapshot_id(), request.group_snapshot_id());
}

}  // namespace berth
