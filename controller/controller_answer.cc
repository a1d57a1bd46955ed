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

// Where CSI lets 0 mean "unknown", the caller asks only for others.
std::string WrongCapacity(int64_t capacity, const ::csi::v1::CapacityRange& range) {
  if (capacity < 0) return fmt::format("a capacity of {} bytes", capacity);
  if (capacity < range.required_bytes()) {
    return fmt::format("a capacity of {} bytes, though {} were required", capacity, range.required_bytes());
  }
  if (range.limit_bytes() > 0 && capacity > range.limit_bytes()) {
    return fmt::format("a capacity of {} bytes, though at most {} were allowed", capacity,
                       range.limit_bytes());
  }
  return {};
}

// Past the limits of a request it could not be published with.
std::string WrongContext(std::string_view what, const ContextMap& context) {
  size_t bytes = 0;
  for (const auto& [key, value] : context) bytes += key.size() + value.size();
  if (bytes <= RequestLimits::kMapBytes && context.size() <= RequestLimits::kMapEntries) return {};
  return fmt::format("a {} of {} entries, {} bytes", what, context.size(), bytes);
}

std::string WrongId(std::string_view what, const std::string& id) {
  if (id.empty()) return fmt::format("the {} has no id", what);
  if (id.size() > RequestLimits::kVolumeId) {
    return fmt::format("the {}'s id is {} bytes long", what, id.size());
  }
  return {};
}

// A volume that was there before.
std::string WrongVolume(const ::csi::v1::Volume& volume) {
  if (std::string why = WrongId("volume", volume.volume_id()); !why.empty()) return why;
  std::string why = WrongCapacity(volume.capacity_bytes(), {});
  if (why.empty()) why = WrongContext("volume context", volume.volume_context());
  return why.empty() ? why : fmt::format("volume {}: {}", PrintableName(volume.volume_id()), why);
}

std::string WrongTime(bool given, const google::protobuf::Timestamp& time) {
  if (!given) return "no creation_time";
  const bool good = time.seconds() >= 0 && time.seconds() <= kLastSecond && time.nanos() >= 0 &&
                    time.nanos() <= 999'999'999;
  return good ? "" : "a creation_time that is not valid";
}

std::string WrongSnapshot(const ::csi::v1::Snapshot& snapshot) {
  if (std::string why = WrongId("snapshot", snapshot.snapshot_id()); !why.empty()) return why;
  const auto wrong = [&snapshot](std::string_view why) {
    return fmt::format("snapshot {}: {}", PrintableName(snapshot.snapshot_id()), why);
  };
  if (std::string why = WrongId("source volume", snapshot.source_volume_id()); !why.empty()) {
    return wrong(why);
  }
  if (snapshot.size_bytes() < 0) return wrong(fmt::format("a size of {} bytes", snapshot.size_bytes()));
  if (snapshot.group_snapshot_id().size() > RequestLimits::kVolumeId)
    return wrong("its group's id is too long");
  const std::string why = WrongTime(snapshot.has_creation_time(), snapshot.creation_time());
  return why.empty() ? why : wrong(why);
}

std::string WrongGroup(const ::csi::v1::VolumeGroupSnapshot& group) {
  if (std::string why = WrongId("group", group.group_snapshot_id()); !why.empty()) return why;
  const auto wrong = [&group](std::string_view why) {
    return fmt::format("group {}: {}", PrintableName(group.group_snapshot_id()), why);
  };
  if (group.snapshots_size() == 0) return wrong("no snapshots");
  for (const auto& snapshot : group.snapshots()) {
    if (std::string why = WrongSnapshot(snapshot); !why.empty()) return wrong(why);
    if (!snapshot.group_snapshot_id().empty() && snapshot.group_snapshot_id() != group.group_snapshot_id()) {
      return wrong(fmt::format("snapshot {} is of another group", PrintableName(snapshot.snapshot_id())));
    }
  }
  const std::string why = WrongTime(group.has_creation_time(), group.creation_time());
  return why.empty() ? why : wrong(why);
}

template <class Request, class Response>
std::string WrongPage(const Request& request, const Response& answer) {
  if (request.max_entries() > 0 && answer.entries_size() > request.max_entries()) {
    return fmt::format("{} entries, though at most {} were wanted", answer.entries_size(),
                       request.max_entries());
  }
  if (answer.next_token().size() > RequestLimits::kVolumeId) {
    return fmt::format("a next_token of {} bytes", answer.next_token().size());
  }
  return {};
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

std::string Not(std::string_view what, const std::string& given, const std::string& wanted) {
  return fmt::format("it is about {} {}, not {}", what, PrintableName(given), PrintableName(wanted));
}

}  // namespace

absl::Status TooLongAnswer(std::string_view plugin_id, std::string_view rpc, std::string_view what) {
  return absl::InternalError(
      fmt::format("plugin {}: its answer to {} is too long: {}", plugin_id, rpc, what));
}

absl::Status WrongAnswer(std::string_view plugin_id, std::string_view rpc, std::string_view what) {
  return absl::InternalError(fmt::format("plugin {}: its answer to {} is wrong: {}", plugin_id, rpc, what));
}

std::string WrongIn(const ::csi::v1::ControllerPublishVolumeRequest& /*request*/,
                    const ::csi::v1::ControllerPublishVolumeResponse& answer) {
  return WrongContext("publish context", answer.publish_context());
}

std::string WrongIn(const ::csi::v1::ValidateVolumeCapabilitiesRequest& /*request*/,
                    const ::csi::v1::ValidateVolumeCapabilitiesResponse& answer) {
  if (!answer.has_confirmed()) return {};
  const auto& confirmed = answer.confirmed();
  if (confirmed.volume_capabilities_size() == 0) return "it confirms no capability";
  std::string why = WrongContext("volume context", confirmed.volume_context());
  if (why.empty()) why = WrongContext("set of parameters", confirmed.parameters());
  if (why.empty()) why = WrongContext("set of mutable parameters", confirmed.mutable_parameters());
  return why;
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

std::string WrongIn(const ::csi::v1::CreateVolumeRequest& request,
                    const ::csi::v1::CreateVolumeResponse& answer) {
  const ::csi::v1::Volume& volume = answer.volume();
  if (std::string why = WrongId("volume", volume.volume_id()); !why.empty()) return why;
  std::string why;
  if (volume.capacity_bytes() != 0) why = WrongCapacity(volume.capacity_bytes(), request.capacity_range());
  if (why.empty()) why = WrongContext("volume context", volume.volume_context());
  if (why.empty() && request.has_volume_content_source() && !volume.has_content_source()) {
    why = "it does not say that the volume was filled from the source";
  }
  // The volume has a name, and an operator must learn it: it exists and is of no use.
  return why.empty() ? why
                     : fmt::format("{} (the volume {} exists now)", why, PrintableName(volume.volume_id()));
}

std::string WrongIn(const ::csi::v1::ListVolumesRequest& request,
                    const ::csi::v1::ListVolumesResponse& answer) {
  for (const auto& entry : answer.entries()) {
    if (std::string why = WrongVolume(entry.volume()); !why.empty()) return why;
  }
  return WrongPage(request, answer);
}

std::string WrongIn(const ::csi::v1::ControllerGetVolumeRequest& request,
                    const ::csi::v1::ControllerGetVolumeResponse& answer) {
  if (std::string why = WrongVolume(answer.volume()); !why.empty()) return why;
  const std::string& id = answer.volume().volume_id();
  return id == request.volume_id() ? "" : Not("volume", id, request.volume_id());
}

std::string WrongIn(const ::csi::v1::GetCapacityRequest& /*request*/,
                    const ::csi::v1::GetCapacityResponse& answer) {
  const bool negative = answer.available_capacity() < 0 || answer.maximum_volume_size().value() < 0 ||
                        answer.minimum_volume_size().value() < 0;
  return negative ? "a negative size" : "";
}

std::string WrongIn(const ::csi::v1::ControllerExpandVolumeRequest& request,
                    const ::csi::v1::ControllerExpandVolumeResponse& answer) {
  // Unlike CreateVolume's, this capacity is required. One above the limit is not refused: the volume may have
  // been larger before, and cannot shrink.
  if (answer.capacity_bytes() == 0) return "no capacity";
  ::csi::v1::CapacityRange range = request.capacity_range();
  range.clear_limit_bytes();
  return WrongCapacity(answer.capacity_bytes(), range);
}

std::string WrongIn(const ::csi::v1::CreateSnapshotRequest& request,
                    const ::csi::v1::CreateSnapshotResponse& answer) {
  if (std::string why = WrongSnapshot(answer.snapshot()); !why.empty()) return why;
  const std::string& source = answer.snapshot().source_volume_id();
  return source == request.source_volume_id() ? "" : Not("volume", source, request.source_volume_id());
}

std::string WrongIn(const ::csi::v1::ListSnapshotsRequest& request,
                    const ::csi::v1::ListSnapshotsResponse& answer) {
  for (const auto& entry : answer.entries()) {
    const ::csi::v1::Snapshot& snapshot = entry.snapshot();
    if (std::string why = WrongSnapshot(snapshot); !why.empty()) return why;
    if (!request.source_volume_id().empty() && snapshot.source_volume_id() != request.source_volume_id()) {
      return Not("volume", snapshot.source_volume_id(), request.source_volume_id());
    }
    if (!request.snapshot_id().empty() && snapshot.snapshot_id() != request.snapshot_id()) {
      return Not("snapshot", snapshot.snapshot_id(), request.snapshot_id());
    }
  }
  return WrongPage(request, answer);
}

std::string WrongIn(const ::csi::v1::GetSnapshotRequest& request,
                    const ::csi::v1::GetSnapshotResponse& answer) {
  if (std::string why = WrongSnapshot(answer.snapshot()); !why.empty()) return why;
  const std::string& id = answer.snapshot().snapshot_id();
  return id == request.snapshot_id() ? "" : Not("snapshot", id, request.snapshot_id());
}

std::string WrongIn(const ::csi::v1::CreateVolumeGroupSnapshotRequest& request,
                    const ::csi::v1::CreateVolumeGroupSnapshotResponse& answer) {
  if (std::string why = WrongGroup(answer.group_snapshot()); !why.empty()) return why;
  // One of each volume: less than that could not be put back together.
  std::multiset<std::string> wanted(request.source_volume_ids().begin(), request.source_volume_ids().end());
  std::multiset<std::string> taken;
  for (const auto& snapshot : answer.group_snapshot().snapshots()) taken.insert(snapshot.source_volume_id());
  return taken == wanted ? "" : "its snapshots are not one of each volume";
}

std::string WrongIn(const ::csi::v1::GetVolumeGroupSnapshotRequest& request,
                    const ::csi::v1::GetVolumeGroupSnapshotResponse& answer) {
  if (std::string why = WrongGroup(answer.group_snapshot()); !why.empty()) return why;
  const std::string& id = answer.group_snapshot().group_snapshot_id();
  return id == request.group_snapshot_id() ? "" : Not("group", id, request.group_snapshot_id());
}

}  // namespace berth
