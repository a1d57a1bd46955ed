// What the three services share. One per process, made by main, which outlives them; any thread.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <grpcpp/support/status.h>
#include <spdlog/spdlog.h>

#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "plugins/hostpath/active_calls.h"
#include "plugins/hostpath/mounts.h"
#include "plugins/hostpath/operation_locks.h"
#include "plugins/hostpath/options.h"
#include "plugins/hostpath/storage.h"
#include "plugins/hostpath/store.h"
#include "plugins/hostpath/volume_plan.h"

namespace berth::hostpath {

struct Context {
  const Options& options;
  const Machine machine;
  Store& store;
  Storage& storage;
  OperationLocks& locks;
  ActiveCalls& calls;
};

// The store's name of an ephemeral volume, by its caller's id; CreateVolume cannot give such a name.
[[nodiscard]] std::string EphemeralName(std::string_view volume_id);
[[nodiscard]] bool IsEphemeral(const VolumeRecord& volume);

// The volume `id`, which must be ready: one that is being made or deleted is NOT_FOUND like any other that
// is not there. Finds an ephemeral one by its caller's id, too.
[[nodiscard]] absl::StatusOr<VolumeRecord> FindVolume(Context& context, std::string_view id);

// Whether a volume of `bytes` fits, which has `present` of them already. OUT_OF_RANGE: the whole pool is
// smaller. RESOURCE_EXHAUSTED: not so much is left.
[[nodiscard]] absl::Status CheckSpace(const Context& context, int64_t bytes, int64_t present);

// Distinguishes the volume's own mounts, and block devices, from all others.
[[nodiscard]] absl::StatusOr<Recognise> RecogniseVolume(const Storage& storage, const VolumeRecord& volume);

// Whether the volume's content is truly mounted at its staging path (a staged block volume has no mount).
[[nodiscard]] absl::StatusOr<bool> IsMountedAt(const Storage& storage, const VolumeRecord& volume,
                                               const std::string& path);

// What a CO keeps with the volume and shows us again.
[[nodiscard]] std::map<std::string, std::string> VolumeContext(const VolumeRecord& volume);
// INVALID_ARGUMENT where one of our own keys says something else than VolumeContext. Keys that a CO adds
// for itself are let pass.
[[nodiscard]] absl::Status CheckVolumeContext(const VolumeRecord& volume, const StringMap& given);

// What ControllerPublishVolume answers, and NodeStageVolume and NodePublishVolume want to see again:
// INVALID_ARGUMENT where it is missing or speaks of another attachment.
[[nodiscard]] std::map<std::string, std::string> PublishContext(const Attachment& attachment);
[[nodiscard]] absl::Status CheckPublishContext(const Attachment& attachment, const StringMap& given);

// Repairs what a crash left behind. Before the first request.
[[nodiscard]] absl::Status Recover(Context& context);

// Runs `body`, which answers the RPC `method` about `subject` (an id or a name), and logs one line. Neither
// request nor answer is logged, since they may hold secrets. What changes nothing is logged at debug level.
enum class CallKind { kChanges, kReads };
template <class Body>
grpc::Status Answer(Context& context, CallKind kind, std::string_view method, std::string_view subject,
                    Body body) {
  const ActiveCalls::Scope active(context.calls);
  const TimePoint begin = Clock::now();
  const absl::Status status = body();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  if (!status.ok()) {
    SPDLOG_WARN("{} {}: {} {} ({} ms)", method, Printable(subject, 128), CodeName(status.code()),
                Printable(std::string(status.message())), milliseconds);
  } else if (kind == CallKind::kChanges) {
    SPDLOG_INFO("{} {}: OK ({} ms)", method, Printable(subject, 128), milliseconds);
  } else {
    SPDLOG_DEBUG("{} {}: OK ({} ms)", method, Printable(subject, 128), milliseconds);
  }
  return ToGrpc(status);
}

}  // namespace berth::hostpath
