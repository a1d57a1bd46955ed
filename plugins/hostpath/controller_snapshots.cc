// The snapshots of the Controller service.
#include <fmt/format.h>

#include <utility>

#include "plugins/hostpath/controller_service.h"
#include "plugins/hostpath/validate.h"

namespace berth::hostpath {

using Space = OperationLocks::Space;

namespace {

void SetTime(int64_t nanoseconds, ::google::protobuf::Timestamp* out) {
  out->set_seconds(nanoseconds / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
}

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(WallClock::now().time_since_epoch()).count();
}

void DescribeSnapshot(const SnapshotRecord& record, ::csi::v1::Snapshot* out) {
  out->set_snapshot_id(record.id);
  out->set_source_volume_id(record.source_volume);
  out->set_size_bytes(record.size);
  out->set_ready_to_use(true);
  SetTime(record.created_ns, out->mutable_creation_time());
}

}  // namespace

grpc::Status ControllerService::CreateSnapshot(grpc::ServerContext*,
                                               const ::csi::v1::CreateSnapshotRequest* request,
                                               ::csi::v1::CreateSnapshotResponse* response) {
  return Answer(context_, CallKind::kChanges, "CreateSnapshot", request->name(),
                [&] { return Snap(*request, response); });
}

absl::Status ControllerService::Snap(const ::csi::v1::CreateSnapshotRequest& request,
                                     ::csi::v1::CreateSnapshotResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  BERTH_RETURN_IF_ERROR(CheckSnapshotParameters(request.parameters()));
  const auto name_lock = context_.locks.Take(Space::kSnapshotName, request.name());
  if (!name_lock.ok()) return name_lock.status();
  if (const absl::StatusOr<SnapshotRecord> present = context_.store.GetSnapshotByName(request.name());
      present.ok()) {
    if (present->lifecycle != Lifecycle::kReady) {
      return absl::AbortedError(
          fmt::format("the snapshot named {} is being deleted", Printable(request.name(), 128)));
    }
    if (present->source_volume != request.source_volume_id()) {
      return absl::AlreadyExistsError(fmt::format("a snapshot named {} exists as {}, but of volume {}",
                                                  Printable(request.name(), 128), present->id,
                                                  present->source_volume));
    }
    DescribeSnapshot(*present, response->mutable_snapshot());
    return absl::OkStatus();
  } else if (!absl::IsNotFound(present.status())) {
    return present.status();
  }

  const auto lock = context_.locks.Share(Space::kVolume, request.source_volume_id());
  if (!lock.ok()) return lock.status();
  VolumeRecord volume;
  BERTH_ASSIGN_OR_RETURN(volume, FindVolume(context_, request.source_volume_id()));
  SnapshotRecord snapshot;
  snapshot.id = Storage::NewId(Area::kSnapshots);
  snapshot.name = request.name();
  snapshot.source_volume = volume.id;
  snapshot.kind = volume.kind;
  snapshot.fs_type = volume.fs_type;
  snapshot.size = volume.capacity;
  snapshot.format = volume.format;
  snapshot.grow_pending = volume.grow_pending;
  BERTH_RETURN_IF_ERROR(context_.store.InsertSnapshot(snapshot, context_.options.capacity));

  std::optional<FrozenFileSystem> frozen;
  absl::Status status = Quiesce(volume, &frozen);
  if (status.ok()) {
    snapshot.created_ns = NowNanoseconds();
    status = context_.storage.MakeCopy(Area::kVolumes, volume.id, Area::kSnapshots, snapshot.id,
                                       snapshot.kind, snapshot.size);
  }
  frozen.reset();
  if (status.ok()) status = context_.store.FinishSnapshot(snapshot.id, snapshot.created_ns);
  if (!status.ok()) {
    if (context_.storage.Discard(Area::kSnapshots, snapshot.id).ok()) {
      context_.store.DeleteSnapshot(snapshot.id).IgnoreError();
      context_.storage.EmptyTrash();
    }
    return status;
  }
  DescribeSnapshot(snapshot, response->mutable_snapshot());
  return absl::OkStatus();
}

grpc::Status ControllerService::DeleteSnapshot(grpc::ServerContext*,
                                               const ::csi::v1::DeleteSnapshotRequest* request,
                                               ::csi::v1::DeleteSnapshotResponse*) {
  return Answer(context_, CallKind::kChanges, "DeleteSnapshot", request->snapshot_id(),
                [&] { return DropSnapshot(*request); });
}

absl::Status ControllerService::DropSnapshot(const ::csi::v1::DeleteSnapshotRequest& request) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  {
    const auto lock = context_.locks.Take(Space::kSnapshot, request.snapshot_id());
    if (!lock.ok()) return lock.status();
    const absl::StatusOr<SnapshotRecord> snapshot = context_.store.GetSnapshot(request.snapshot_id());
    if (absl::IsNotFound(snapshot.status())) return absl::OkStatus();
    if (!snapshot.ok()) return snapshot.status();
    if (snapshot->lifecycle == Lifecycle::kCreating) {
      return absl::AbortedError(fmt::format("snapshot {} is still being created", snapshot->id));
    }
    BERTH_RETURN_IF_ERROR(context_.store.SetSnapshotLifecycle(snapshot->id, Lifecycle::kDeleting));
    BERTH_RETURN_IF_ERROR(context_.storage.Discard(Area::kSnapshots, snapshot->id));
    BERTH_RETURN_IF_ERROR(context_.store.DeleteSnapshot(snapshot->id));
  }
  context_.storage.EmptyTrash();
  return absl::OkStatus();
}

grpc::Status ControllerService::ListSnapshots(grpc::ServerContext*,
                                              const ::csi::v1::ListSnapshotsRequest* request,
                                              ::csi::v1::ListSnapshotsResponse* response) {
  return Answer(context_, CallKind::kReads, "ListSnapshots", "", [&] { return List(*request, response); });
}

absl::Status ControllerService::List(const ::csi::v1::ListSnapshotsRequest& request,
                                     ::csi::v1::ListSnapshotsResponse* response) {
  BERTH_RETURN_IF_ERROR(CheckRequest(request));
  int64_t last = 0;
  BERTH_ASSIGN_OR_RETURN(last, context_.store.LastSnapshotSequence());
  int64_t after = 0;
  BERTH_ASSIGN_OR_RETURN(after, ParsePageToken(request.starting_token(), last));
  if (!request.snapshot_id().empty()) {
    const absl::StatusOr<SnapshotRecord> snapshot = context_.store.GetSnapshot(request.snapshot_id());
    if (absl::IsNotFound(snapshot.status())) return absl::OkStatus();
    if (!snapshot.ok()) return snapshot.status();
    const bool of_volume =
        request.source_volume_id().empty() || snapshot->source_volume == request.source_volume_id();
    if (snapshot->lifecycle == Lifecycle::kReady && of_volume && snapshot->sequence > after) {
      DescribeSnapshot(*snapshot, response->add_entries()->mutable_snapshot());
    }
    return absl::OkStatus();
  }
  const int64_t limit = request.max_entries() == 0 ? 0 : int64_t{request.max_entries()} + 1;
  std::vector<SnapshotRecord> snapshots;
  BERTH_ASSIGN_OR_RETURN(snapshots, context_.store.ListSnapshots(request.source_volume_id(), after, limit));
  if (limit != 0 && static_cast<int64_t>(snapshots.size()) == limit) {
    snapshots.pop_back();
    response->set_next_token(MakePageToken(snapshots.back().sequence));
  }
  for (const SnapshotRecord& snapshot : snapshots) {
    DescribeSnapshot(snapshot, response->add_entries()->mutable_snapshot());
  }
  return absl::OkStatus();
}

grpc::Status ControllerService::GetSnapshot(grpc::ServerContext*,
                                            const ::csi::v1::GetSnapshotRequest* request,
                                            ::csi::v1::GetSnapshotResponse* response) {
  return Answer(context_, CallKind::kReads, "GetSnapshot", request->snapshot_id(), [&]() -> absl::Status {
    BERTH_RETURN_IF_ERROR(CheckRequest(*request));
    SnapshotRecord snapshot;
    BERTH_ASSIGN_OR_RETURN(snapshot, context_.store.GetSnapshot(request->snapshot_id()));
    if (snapshot.lifecycle != Lifecycle::kReady) {
      return absl::NotFoundError(
          fmt::format("there is no snapshot {}", Printable(request->snapshot_id(), 128)));
    }
    DescribeSnapshot(snapshot, response->mutable_snapshot());
    return absl::OkStatus();
  });
}

}  // namespace berth::hostpath
