#include "mounter/volume_publisher.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "base/status.h"
#include "mounter/publish_check.h"
#include "mounter/secrets_reference.h"
#include "mounter/verify_published.h"
#include "mounts/earlier_mounts.h"
#include "mounts/mount_table.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

// How many file systems and devices of a volume may be in use by the kernel before nothing more is published
// of it.
constexpr size_t kObjectsPerVolume = 16;

VolumeRecord NewRecord(const PublishRequest& request, const PluginFacts& facts) {
  VolumeRecord record;
  record.plugin_id = request.plugin_id;
  record.volume_id = request.volume_id;
  record.driver_name = facts.name;
  record.node_id = facts.node_id;
  record.boot_id = BootId();
  record.use = request.use;
  record.sent_mode = ModeFor(request.use.access_mode, facts);
  record.volume_context = request.volume_context;
  record.publish_context = request.publish_context;
  record.stages = facts.Stages() && !request.ephemeral;
  return record;
}

// Another node may have the volume of a blocked publication of a scheduler's. Only the scheduler knows.
absl::Status MayPublishAnothers(const PublishRequest& request, const PublicationRecord* known) {
  if (known == nullptr || known->origin != Origin::kScheduler || request.origin == Origin::kScheduler) {
    return absl::OkStatus();
  }
  if (known->state == PublicationState::kUnpublishing && !known->remount_after_undo) return absl::OkStatus();
  const std::string& why = known->blocked.empty() ? known->forward_blocked : known->blocked;
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("a scheduler requested this publication, and it is blocked: {}; to publish it without the "
                  "scheduler, unpublish it first",
                  why));
}

PublicationRecord NewPublication(const PublishRequest& request) {
  PublicationRecord publication;
  publication.key = {.consumer = request.consumer, .name = request.name};
  publication.component = VolumePaths::PublicationComponent(publication.key);
  publication.readonly = request.readonly;
  publication.had_secrets = !request.secrets.empty();
  publication.secrets_at_hand = publication.had_secrets;
  publication.origin = request.origin;
  if (request.origin == Origin::kScheduler) publication.confirmed_at = BootClock::now();
  publication.remount = request.remount;
  publication.ephemeral = request.ephemeral;
  publication.life = request.life;
  publication.permissions = request.permissions;
  publication.secrets_reference = request.secrets_reference;
  publication.consumer_labels = request.consumer_labels;
  if (request.origin == Origin::kDeclared) publication.path = request.path;
  return publication;
}

}  // namespace

Awaitable<absl::Status> VolumePublisher::Publish(std::shared_ptr<VolumeOperation> operation,
                                                 PublishRequest request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  if (Clock::now() >= operation->wanted_until) {
    co_return absl::DeadlineExceededError("not begun: the volume was busy with other requests");
  }
  BERTH_CO_ASSIGN_OR_RETURN(const bool published, co_await FindPublished(request, operation->wanted_until));
  const PublicationRecord* before = volume_.machine.record().Find(key);
  const bool handed_out = before != nullptr && before->published_at.has_value();
  if (!published) BERTH_CO_RETURN_IF_ERROR(co_await BeginPublish(operation, request));
  if (published) volume_.tokens.KeepSecrets(request);
  // Also where the request has just given it another one.
  if (published && volume_.machine.plan().PathPending(key))
    BERTH_CO_RETURN_IF_ERROR(co_await driver_.Drive(key));
  if (LeavesFileSystemOpen(request)) {
    BERTH_CO_RETURN_IF_ERROR(co_await CheckWhatIsMounted(request, handed_out));
  }
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  if (publication == nullptr) co_return absl::InternalError("the publication vanished");
  operation->target_path = volume_.context.paths->TargetPath(volume_.machine.record(), *publication);
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumePublisher::BeginPublish(std::shared_ptr<VolumeOperation> operation,
                                                      PublishRequest request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const TimePoint until =
      std::min(operation->wanted_until, Clock::now() + volume_.context.options.rpc_timeout);
  const Step publish{StepKind::kPublish, key};
  auto superseded = [this, publish, operation] {
    return driver_.Superseded(publish) || !operation->forward_blocked.empty();
  };
  auto plugin = co_await driver_.AwaitPlugin(request.plugin_id, superseded, until);
  if (!operation->forward_blocked.empty()) co_return NotBegun(operation->forward_blocked);
  if (!plugin.ok()) co_return plugin.status();
  Secrets referred;
  const bool elsewhere = IsSet(request.secrets_reference);
  if (elsewhere) {
    // Before anything is begun: who asks learns at once that they are not there.
    auto secrets = co_await ReadSecretsReference(
        request.secrets_reference, volume_.context.options.credentials_dir, volume_.context.helper, until);
    if (!secrets.ok()) co_return Annotate(secrets.status(), "its secrets");
    referred = *std::move(secrets);
  }
  // Nothing is awaited between this and the intent: another volume would take the last place meanwhile.
  BERTH_CO_RETURN_IF_ERROR(MayBegin(request, *plugin));
  if (driver_.Superseded(publish))
    co_return absl::AbortedError("not begun: an unpublish of the same came after it");
  if (!operation->forward_blocked.empty()) co_return NotBegun(operation->forward_blocked);
  if (elsewhere) volume_.secrets[key] = std::move(referred);
  BERTH_CO_RETURN_IF_ERROR(co_await CommitIntent(request, plugin->facts));
  co_return co_await driver_.Drive(key);
}

absl::Status VolumePublisher::MayBegin(const PublishRequest& request,
                                       const PluginDirectory::Entry& plugin) const {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  if (volume_.machine.record().Find(key) != nullptr) return CheckAttached(request, plugin.facts);
  if (!plugin.refuses_new.empty()) return absl::FailedPreconditionError(plugin.refuses_new);
  if (!volume_.context.plugins.TokensWanted(request.plugin_id).empty()) {
    BERTH_RETURN_IF_ERROR(MayHaveTokens(request.origin, request.plugin_id));
  }
  const bool here = volume_.machine.present();
  for (const VolumeRecord* const other :
       volume_.context.same_volumes(here ? volume_.machine.record() : NewRecord(request, plugin.facts))) {
    BERTH_RETURN_IF_ERROR(CheckSame(request, *other));
  }
  if (here && !volume_.machine.plan().InUseByKernel()) {
    BERTH_RETURN_IF_ERROR(reconciler_.CheckStorage(NewPublication(request).Writes(request.use)));
    return CheckPlugin(request, plugin.facts, &volume_.machine.record(), 0);
  }
  // Every volume is looked at, so only where it matters.
  const bool limited = plugin.facts.max_volumes_per_node.value_or(0) > 0;
  const size_t held = limited ? volume_.context.volumes_through(request.plugin_id) : 0;
  return CheckPlugin(request, plugin.facts, nullptr, held);
}

Awaitable<absl::Status> VolumePublisher::CheckWhatIsMounted(PublishRequest request, bool handed_out) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  if (publication == nullptr) co_return absl::InternalError("the publication vanished");
  const auto shown = FileSystemAt(volume_.context.paths->TargetPath(volume_.machine.record(), *publication));
  if (!shown.ok()) co_return absl::UnavailableError(shown.status().ToString());
  const absl::Status usable = CheckFileSystem(request, *shown);
  if (usable.ok()) co_return usable;
  if (handed_out) co_return Annotate(usable, "published as it is, and left so until it is unpublished");
  volume_.machine.RequestUnpublish(key);
  volume_.row.SaveSoon();
  const absl::Status undone = co_await driver_.Drive(key);
  if (undone.ok()) co_return usable;
  co_return Annotate(usable, fmt::format("still to be undone ({})", MessageOf(undone)));
}

Awaitable<absl::Status> VolumePublisher::FinishConflictingUndo(PublishRequest request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  BERTH_CO_RETURN_IF_ERROR(MayPublishAnothers(request, publication));
  const bool undoing = (publication != nullptr && publication->state == PublicationState::kUnpublishing) ||
                       volume_.machine.plan().NextTeardown().kind != StepKind::kNone;
  // If it is still staged, since it is in use, it can be published from as it is. Not by the only writer:
  // whether it is in use is checked again first.
  const bool sole_writer = publication == nullptr && WantsSoleWriter(request, volume_.machine.record());
  const bool unstages =
      publication == nullptr && (sole_writer || !(volume_.machine.plan().StagedForNobody() &&
                                                  CheckCompatible(request, volume_.machine.record()).ok()));
  if (undoing && (publication != nullptr || unstages)) {
    const absl::Status status = co_await driver_.Drive(key);
    // Undone to be mounted again, it may wait for what this request brings.
    publication = volume_.machine.record().Find(key);
    const bool waits = publication != nullptr && publication->state == PublicationState::kPublishing &&
                       (publication->AwaitsSecrets() || !publication->blocked.empty() ||
                        !publication->forward_blocked.empty());
    if (!status.ok() && sole_writer && driver_.in_use()) co_return StillWritable(request, MessageOf(status));
    if (!status.ok() && !waits && !volume_.machine.plan().InUseByKernel())
      co_return Annotate(status, "the volume's last use is still being undone");
  }
  if (sole_writer && volume_.machine.present() && volume_.machine.record().still_in_use) {
    const std::string& known = volume_.machine.record().last_error;
    co_return StillWritable(request, known.empty() ? "a mount of it was detached while it was used" : known);
  }
  co_return absl::OkStatus();
}

Awaitable<absl::StatusOr<bool>> VolumePublisher::FindPublished(PublishRequest request, TimePoint until) {
  BERTH_CO_RETURN_IF_ERROR(co_await FinishConflictingUndo(request));
  if (volume_.machine.plan().InUseByKernel()) {
    if (volume_.machine.record().objects.size() < kObjectsPerVolume) co_return false;
    co_return absl::FailedPreconditionError(fmt::format("{} earlier uses of it still live in the kernel: {}",
                                                        volume_.machine.record().objects.size(),
                                                        volume_.machine.record().last_error));
  }
  if (volume_.machine.present()) BERTH_CO_RETURN_IF_ERROR(CheckCompatible(request, volume_.machine.record()));
  const bool completed = volume_.machine.record().rebuilt;
  if (completed) {
    volume_.machine.FillRebuilt(NewPublication(request), request.use, request.volume_context,
                                request.publish_context);
  }
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  if (publication == nullptr) co_return false;
  const PublicationRecord known = *publication;
  if (known.state != PublicationState::kPublished) {
    BERTH_CO_RETURN_IF_ERROR(co_await CheckBegun(request, known));
    co_return false;
  }
  absl::Status verified = co_await VerifyPublished(volume_.context, volume_.machine.record(), known, until);
  const auto facts = volume_.context.paths->LookAtTarget(volume_.machine.record(), known);
  const bool other =
      facts.ok() && facts->mount_root && known.mount_id != 0 && facts->mount_id != known.mount_id;
  if (verified.ok() && other) verified = absl::InternalError("something is mounted over it");
  if (verified.ok()) {
    BERTH_CO_RETURN_IF_ERROR(co_await TakeOver(request, known, completed));
    co_return true;
  }
  if (verified.code() != absl::StatusCode::kInternal) co_return verified;
  BERTH_CO_RETURN_IF_ERROR(co_await UndoLost(known, verified, other));
  co_return false;
}

Awaitable<absl::Status> VolumePublisher::CheckBegun(PublishRequest request, PublicationRecord known) {
  if (known.state == PublicationState::kPublishing && !known.blocked.empty() && !known.ephemeral) {
    // Of another boot: the plugin's records may say that it is done.
    volume_.machine.RequestUnpublish(known.key);
    co_return Annotate(co_await driver_.Drive(known.key),
                       "undo what was begun before the node was restarted");
  }
  if (!known.had_secrets || !request.secrets.empty() || IsSet(request.secrets_reference)) {
    co_return absl::OkStatus();
  }
  co_return absl::FailedPreconditionError(
      "this publication was begun with secrets, which are never written down: repeat the publish with them, "
      "or "
      "unpublish it");
}

Awaitable<absl::Status> VolumePublisher::TakeOver(PublishRequest request, PublicationRecord known,
                                                  bool completed) {
  BERTH_CO_RETURN_IF_ERROR(CheckUsable(volume_.context.paths->TargetPath(volume_.machine.record(), known),
                                       volume_.machine.record().objects,
                                       known.Writes(volume_.machine.record().use)));
  volume_.machine.MarkFound(known.key);
  // A scheduler that has lost its lease meanwhile takes nothing over.
  if (const std::string& why = volume_.queue.current()->forward_blocked; !why.empty())
    co_return NotBegun(why);
  // A repeated request may change what its consumer consists of, and its origin.
  const bool labelled = volume_.machine.SetLabel(request.label);
  if (volume_.machine.UpdateRequest(NewPublication(request)) || completed || labelled) {
    BERTH_CO_RETURN_IF_ERROR(co_await CommitUpdate(known, completed));
  }
  // The scheduler requests it again: it needs no other confirmation.
  if (request.origin == Origin::kScheduler && known.unconfirmed && reconciler_.Confirm(known.key)) {
    BERTH_CO_RETURN_IF_ERROR(co_await volume_.row.Commit());
  }
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumePublisher::UndoLost(PublicationRecord known, absl::Status why, bool other) {
  volume_.machine.MarkLost(known.key, std::string(MessageOf(why)));
  const bool again = !(known.ephemeral && other);
  volume_.reporter.Emit("volume.lost", known.key.consumer,
                        fmt::format("{}{}", MessageOf(why), again ? ": publishing it again" : ""));
  if (!again) {
    // The plugin would find a mount there, and so would we, and it is not its own.
    co_return absl::FailedPreconditionError(fmt::format(
        "something is mounted over it, and an ephemeral volume is not unpublished to repair that: "
        "unmount what lies on {}, or unpublish it",
        volume_.context.paths->TargetPath(volume_.machine.record(), known)));
  }
  if (known.ephemeral) {
    // To unpublish it would delete it.
    volume_.machine.Repair(known.key, std::string(MessageOf(why)));
    co_return absl::OkStatus();
  }
  // It was unmounted, or the node was restarted. Plugins keep records too: after an undo they do not take the
  // repeat for something that they have done already.
  volume_.machine.RequestUnpublish(known.key);
  co_return Annotate(co_await driver_.Drive(known.key), "undo the publication with the lost mount");
}

Awaitable<absl::Status> VolumePublisher::CommitUpdate(PublicationRecord before, bool completed) {
  const VolumeRecord record = volume_.machine.record();
  const PublicationRecord* now = record.Find(before.key);
  absl::Status status;
  if (now == nullptr || (now->origin == before.origin && !completed)) {
    status = co_await volume_.row.Commit();
  } else {
    // The identity file names its origin, too, and whether it is attached.
    auto prepare = [&paths = *volume_.context.paths, record, publication = *now] {
      return paths.Make(record, publication);
    };
    volume_.context.Boundary("adopted: writing");
    status = co_await volume_.context.journal->Put(volume_.key, EncodeRecord(record), std::move(prepare));
    volume_.context.Boundary("adopted: written");
    if (status.ok()) volume_.row.SyncIdentitySoon();
  }
  if (status.ok()) {
    volume_.ReportUsers();
    co_return status;
  }
  volume_.machine.RollBackUpdate(before);
  // What may have come to the disk after all is overwritten.
  volume_.row.stale = true;
  volume_.row.SaveSoon();
  co_return status;
}

void VolumePublisher::RollBackIntent(const VolumeMachine& before, const PublicationRecord& publication,
                                     std::optional<Secrets> kept) {
  const VolumeRecord record = volume_.machine.record();
  const PublicationKey key = publication.key;
  // Nothing was sent. What may have come to the disk after all is overwritten, and the directories go.
  if (before.plan().InUseByKernel()) {
    volume_.machine = before;
  } else {
    volume_.machine.RollBackRequest(key, before);
  }
  volume_.secrets.erase(key);
  // The secrets of the publish before this one, which goes on.
  const PublicationRecord* goes_on = volume_.machine.record().Find(key);
  if (kept && goes_on != nullptr && goes_on->secrets_at_hand) volume_.secrets[key] = *std::move(kept);
  const bool had_it = before.record().Find(key) != nullptr;
  if (!had_it && volume_.context.paths->RemovePublication(record, publication).ok() && !before.present()) {
    const absl::Status removed = volume_.context.paths->RemoveVolume(record);
    if (!removed.ok()) SPDLOG_WARN("{}", removed.ToString());
  }
  if (before.present()) {
    volume_.row.SaveSoon();
  } else {
    volume_.context.journal->DeleteSoon(volume_.key, volume_.context.KeepPending(record));
  }
}

Awaitable<absl::Status> VolumePublisher::CommitIntent(PublishRequest request, PluginFacts facts) {
  const VolumeMachine before = volume_.machine;
  // What was pending while it was not here is its new record's from now on.
  JournalRows taken_over;
  if (!volume_.machine.present() || volume_.machine.plan().InUseByKernel()) {
    volume_.machine = VolumeMachine::Fresh(NewRecord(request, facts));
    volume_.condition.reset();
    if (before.present()) {
      volume_.machine.Inherit(before.record());
    } else {
      volume_.machine.SetEarlierMounts(MountsNow(volume_.context.paths->tree()));
    }
    volume_.machine.SetPendingExpansion(
        volume_.context.pending_expansions.Of(request.plugin_id, request.volume_id));
    taken_over = volume_.context.pending_expansions.End(request.plugin_id, request.volume_id);
  }
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  std::optional<Secrets> kept;
  if (const auto it = volume_.secrets.find(key); it != volume_.secrets.end()) kept = it->second;
  volume_.machine.SetBootId(BootId());
  volume_.machine.SetLabel(request.label);
  volume_.forced = {};
  PublicationRecord wanted = NewPublication(request);
  if (const VolumeRecord& record = volume_.machine.record();
      !record.stages && request.use.mount_flags != record.use.mount_flags) {
    wanted.mount_flags = request.use.mount_flags;
  }
  volume_.machine.RequestPublish(std::move(wanted));
  if (!request.secrets.empty()) volume_.secrets[key] = request.secrets;

  volume_.context.Boundary("intent: writing");
  const VolumeRecord record = volume_.machine.record();
  // As it is now: its origin may be older than the request.
  const PublicationRecord publication = *record.Find(key);
  auto prepare = [&paths = *volume_.context.paths, record, publication] {
    return paths.Make(record, publication);
  };
  const absl::Status status = co_await volume_.context.journal->Put(
      volume_.key, EncodeRecord(record), std::move(prepare), std::move(taken_over));
  volume_.context.Boundary("intent: written");
  if (status.ok()) {
    volume_.row.stale = false;
    volume_.row.SyncIdentitySoon();
    volume_.ReportUsers();
    co_return status;
  }
  RollBackIntent(before, publication, std::move(kept));
  co_return status;
}

}  // namespace berth
