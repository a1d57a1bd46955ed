// VolumeActor: what the kernel, consumers and other people change about a volume, and what follows.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "base/statmount.h"
#include "base/status.h"
#include "consumers/consumer_watch.h"
#include "mounter/volume_actor.h"
#include "mounts/mount_watch.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

// What was published before is mounted again once it is not blocked any more, and its consumer has to know.
bool IsMountedAgain(const PublicationRecord& p) {
  const bool was_published = p.state == PublicationState::kPublishing && p.published_at.has_value();
  return !p.blocked.empty() || (!p.withheld.empty() && was_published);
}

}  // namespace

void VolumeActor::Reconcile(Circumstances circumstances) {
  if (!machine_.present() || context_.stopping) return;
  if (trying_.kind == StepKind::kRenew && sent_) {
    // What the plugin does to its own mount meanwhile is no stranger's doing.
    reconcile_again_ = true;
    return;
  }
  circumstances.leaving = !machine_.leaving().empty();
  const auto facts = LookAtMounts(machine_.record(), *context_.paths);
  const ShownMount staging = LookAtStagingMount(machine_.record(), *context_.paths);
  auto plan = PlanReconciliation(machine_.record(), facts, circumstances);
  if (auto found = PlanStaging(machine_.record(), staging)) plan.push_back(*std::move(found));
  for (const Reconciliation& found : plan) Apply(found);
  if (circumstances.start) {
    const VolumeRecord& record = machine_.record();
    const bool stands = std::ranges::any_of(record.publications, [&facts](const PublicationRecord& p) {
      const auto shown = facts.find(p.key);
      return !p.ephemeral && shown != facts.end() && shown->second.there;
    });
    if (!stands) machine_.DoubtStaging();
    // From here on each publication says for itself what is to become of it.
    machine_.SetBootId(BootId());
    for (const PublicationRecord& p : machine_.record().publications) {
      const auto shown = facts.find(p.key);
      if (shown != facts.end() && shown->second.there && p.state == PublicationState::kPublished)
        machine_.SetOfThisBoot(p.key);
      const bool found = shown != facts.end() && shown->second.mount_id != 0;
      if (found && !p.uncertain && p.mount_id == 0) machine_.SetMountId(p.key, shown->second.mount_id);
    }
    if (!circumstances.rebooted && record.objects.empty()) {
      // berthd ended before it was noted, or the journal was lost.
      if (staging.mount_id != 0)
        NoteObjects(context_.paths->StagingPath(record), staging.mount_id, Noted::kBefore);
      for (const PublicationRecord& p : machine_.record().publications) {
        const auto shown = facts.find(p.key);
        if (shown != facts.end() && shown->second.mount_id != 0) {
          NoteObjects(context_.paths->TargetPath(machine_.record(), p), shown->second.mount_id,
                      Noted::kBefore);
        }
      }
    }
    const bool staged = record.stage_state == StageState::kStaged && !record.stage_uncertain;
    if (staged && record.staging_mount_id == 0) machine_.SetStagingMount(staging.mount_id);
  }
  // Whatever is there: the end of a mount on top of ours is reported, too.
  context_.Track(staging.mount_id, key_);
  for (const auto& [key, shown] : facts) context_.Track(shown.mount_id, key_);
  const bool path_lost = !circumstances.start && ReconcilePaths();
  if (plan.empty() && !circumstances.rebooted && !path_lost) return;
  SaveSoon();
  ReportUsers();
  TellAwaiting();
  if (!circumstances.start) Start();
}

void VolumeActor::OnPathMounted(const PublicationKey& key, const PathMount& mounted) {
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr) return;
  const bool known = !mounted.fresh && publication->path_mount_id == mounted.mount_id;
  // Of one that was there already it is not known anew.
  machine_.SetPathMounted(key, mounted.mount_id, known ? publication->path_unguarded : mounted.unguarded);
  context_.Track(mounted.mount_id, key_);
  if (mounted.fresh) {
    reporter_.Emit("volume.path_mounted", key.consumer,
                   fmt::format("mounted at {} too", Printable(publication->path.path)));
  }
}

bool VolumeActor::ReconcilePaths() {
  bool any = false;
  for (const PublicationRecord& p : machine_.record().publications) {
    if (!p.path_mounted) continue;
    const auto mount = StatMount(p.path_mount_id);
    if (mount.ok() && mount->has_value()) continue;
    any = true;
    const PublicationKey key = p.key;
    // A kernel that cannot say it is asked by the next try, which finds the mount if it is there.
    const bool gone = absl::IsNotFound(mount.status());
    const std::string why = gone ? "it was unmounted there" : "";
    if (gone) {
      reporter_.Emit("volume.path_lost", key.consumer,
                     fmt::format("not mounted at {} any more: mounting it again", Printable(p.path.path)));
    }
    machine_.DoubtPath(key, why);
  }
  return any;
}

bool VolumeActor::StagingComesFirst(const Step& step) {
  if (step.kind != StepKind::kPublish) return false;
  const ShownMount staging = LookAtStagingMount(machine_.record(), *context_.paths);
  if (const auto found = PlanStaging(machine_.record(), staging)) {
    Apply(*found);
    SaveSoon();
  }
  const StepKind next = machine_.NextFor(step.key).kind;
  return next == StepKind::kStage || next == StepKind::kUnstage;
}

void VolumeActor::Apply(const Reconciliation& found) {
  const std::string& consumer = found.key.consumer;
  switch (found.action) {
    case ReconcileAction::kFound:
      machine_.MarkFound(found.key);
      return;
    case ReconcileAction::kLost:
      machine_.MarkLost(found.key, found.why);
      reporter_.Emit("volume.lost", consumer, found.why);
      return;
    case ReconcileAction::kOvermounted:
      machine_.MarkLost(found.key, found.why);
      reporter_.Emit("volume.overmounted", consumer, found.why);
      return;
    case ReconcileAction::kRepair:
      reporter_.Emit("volume.lost", consumer, fmt::format("{}: mounting it again", found.why));
      machine_.MarkLost(found.key, found.why);
      MountAgain(found.key, found.why, /*asked=*/false);
      return;
    case ReconcileAction::kResume:
      machine_.Resume(found.key, found.why);
      remounting_.insert(found.key);
      return;
    case ReconcileAction::kHold: {
      machine_.Hold(found.key, found.why);
      // Those that wait for a scheduler are told of once, for the node.
      const PublicationRecord* publication = machine_.record().Find(found.key);
      if (publication != nullptr && publication->origin != Origin::kScheduler) {
        reporter_.Emit("volume.blocked", consumer, found.why);
      }
      return;
    }
    case ReconcileAction::kRelease: {
      reporter_.Emit("volume.released", consumer, found.why);
      const PublicationRecord* publication = machine_.record().Find(found.key);
      if (publication != nullptr) context_.consumer_ended(consumer, found.why, publication->origin);
      machine_.Unwant(found.key);
      return;
    }
    case ReconcileAction::kStagingFound:
      machine_.MarkStagingFound();
      return;
    case ReconcileAction::kStagingLost:
      machine_.MarkStagingLost(found.why);
      reporter_.Emit("volume.lost", "", found.why);
      return;
    case ReconcileAction::kStagingOvermounted:
      machine_.MarkStagingLost(found.why);
      reporter_.Emit("volume.overmounted", "", found.why);
      return;
  }
}

std::vector<WatchedMount> VolumeActor::WatchedMounts() const {
  const VolumeRecord& record = machine_.record();
  std::vector<WatchedMount> watched;
  if (!machine_.present()) return watched;
  if (record.stages && record.stage_state == StageState::kStaged &&
      record.use.access_type != AccessType::kBlock) {
    watched.push_back({.key = key_,
                       .component = "",
                       .path = context_.paths->StagingPath(record),
                       .writes = false,
                       .objects = record.objects});
  }
  for (const PublicationRecord& p : record.publications) {
    if (p.state != PublicationState::kPublished || !p.blocked.empty()) continue;
    watched.push_back({.key = key_,
                       .component = p.component,
                       .path = context_.paths->TargetPath(record, p),
                       .writes = p.Writes(record.use),
                       .objects = record.objects});
  }
  return watched;
}

absl::Status VolumeActor::CheckStorage(bool writes) const {
  const VolumeRecord& record = machine_.record();
  absl::Status usable;
  if (record.stages && record.stage_state == StageState::kStaged) {
    usable = CheckUsable(context_.paths->StagingPath(record), record.objects, /*writes=*/false);
  }
  // They have one file system, or one device: one that writes says it for all.
  const auto published = [&record](bool writer) {
    return std::ranges::find_if(record.publications, [&record, writer](const PublicationRecord& p) {
      return p.state == PublicationState::kPublished && p.Writes(record.use) == writer;
    });
  };
  auto one = published(true);
  const bool writer = one != record.publications.end();
  if (!writer) one = published(false);
  if (usable.ok() && one != record.publications.end()) {
    usable = CheckUsable(context_.paths->TargetPath(record, *one), record.objects, writes && writer);
  }
  if (usable.ok()) return usable;
  return absl::FailedPreconditionError(fmt::format(
      "{}; unpublish the volume everywhere on this node, then publish it again", MessageOf(usable)));
}

void VolumeActor::OnHealth(const std::string& component, const absl::Status& verdict) {
  if (!machine_.present() || context_.stopping) return;
  const bool dead = verdict.code() == absl::StatusCode::kUnavailable;
  const bool hangs = verdict.code() == absl::StatusCode::kDeadlineExceeded;
  const bool read_only = absl::IsFailedPrecondition(verdict);
  if (!verdict.ok() && !dead && !hangs && !read_only) return;  // it could not be asked
  if (component.empty()) {
    // All that is published rests on it, so the verdicts of those tell the consumers.
    staging_dead_ = dead;
    if (dead) RepairStaging(fmt::format("its staging is dead: {}", MessageOf(verdict)), /*asked=*/false);
    return;
  }
  const auto& publications = machine_.record().publications;
  const auto it = std::ranges::find(publications, component, &PublicationRecord::component);
  if (it == publications.end() || it->state != PublicationState::kPublished) return;
  const PublicationKey key = it->key;
  const bool was_well = it->dead.empty() && it->hung.empty() && it->writes_refused.empty();
  machine_.OnVerdict(key, verdict);
  if (!dead) unrepaired_.erase(key);
  const std::string why(MessageOf(verdict));
  if (verdict.ok()) {
    if (!was_well) reporter_.Emit("volume.alive", key.consumer, "its file system is well again");
    return;
  }
  if (read_only) {
    reporter_.Emit(
        "volume.read_only", key.consumer,
        fmt::format("{}, though {} was published to write: nothing is repaired", why, Describe(key)));
    return;
  }
  if (hangs) {
    reporter_.Emit(
        "volume.hung", key.consumer,
        fmt::format(
            "its file system does not answer: {}; {} waits for it, and nothing is repaired, since its "
            "server may come back",
            why, Describe(key)));
    return;
  }
  // Published once more from a staging that is dead itself it would be no better.
  const bool with_staging = staging_dead_ && machine_.record().stages && !it->ephemeral;
  if (with_staging && RepairStaging(why, /*asked=*/false)) return;
  const bool remounts = !with_staging && it->Remounts() && !it->ephemeral && machine_.leaving().empty();
  const bool repair = remounts && it->withheld.empty();
  if (remounts && !repair) unrepaired_.insert(key);
  reporter_.Emit("volume.dead", key.consumer,
                 fmt::format("{}: {} has to be restarted once it is mounted again{}", why, Describe(key),
                             repair ? "; mounting it again" : ""));
  if (!repair || !MountAgain(key, why, /*asked=*/false)) return;
  SaveSoon();
  Start();
}

bool VolumeActor::MountAgain(const PublicationKey& key, const std::string& why, bool asked) {
  if (!machine_.Repair(key, why, asked)) return false;
  KeepSecretsAtHand();
  remounting_.insert(key);
  return true;
}

void VolumeActor::KeepSecretsAtHand() {
  for (const auto& [key, secrets] : secrets_) machine_.SetSecretsAtHand(key, true);
}

void VolumeActor::MendStaging() {
  if (!staging_dead_ || !machine_.present() || context_.stopping) return;
  RepairStaging("its staging is dead", /*asked=*/false);
}

bool VolumeActor::RepairStaging(const std::string& why, bool asked) {
  if (trying_.kind != StepKind::kNone) return false;  // MendStaging comes afterwards
  if (!machine_.RepairStaging(why, asked)) return false;
  KeepSecretsAtHand();
  for (const PublicationRecord& p : machine_.record().publications) {
    if (!p.again) continue;
    unrepaired_.erase(p.key);
    remounting_.insert(p.key);
    reporter_.Emit("volume.dead", p.key.consumer,
                   fmt::format("{}: mounting it again; {} has to be restarted", why, Describe(p.key)));
  }
  SaveSoon();
  Start();
  return true;
}

void VolumeActor::Withhold(Origin origin, const std::string& why) {
  machine_.Withhold(origin, why);
  queue_.EndForward(why, [origin](const VolumeOperation& operation) {
    const auto* publish = std::get_if<PublishRequest>(&operation.request);
    return publish != nullptr && publish->origin == origin;
  });
  changed_.NotifyAll();
  if (Awaits(origin)) reporter_.ReportView();
}

void VolumeActor::Leave(const std::string& why) {
  machine_.Leave(why);
  queue_.EndForward(why, [](const VolumeOperation& operation) {
    return !std::holds_alternative<UnpublishRequest>(operation.request);
  });
  changed_.NotifyAll();
}

size_t VolumeActor::AllowForward(Origin origin, BootTime since) {
  std::vector<PublicationKey> again;
  for (const PublicationRecord& p : machine_.record().publications) {
    if (p.origin == origin && p.blocked.empty() && IsMountedAgain(p)) again.push_back(p.key);
  }
  const bool goes_on = machine_.AllowForward(origin, since);
  for (const PublicationKey& key : again) {
    const PublicationRecord* p = machine_.record().Find(key);
    if (p != nullptr && p->withheld.empty()) remounting_.insert(key);
  }
  const auto unconfirmed =
      std::ranges::count(machine_.record().publications, true, &PublicationRecord::unconfirmed);
  if (goes_on || unconfirmed > 0) reporter_.ReportView();
  if (goes_on) GoOn();
  return static_cast<size_t>(unconfirmed);
}

bool VolumeActor::Confirm(const PublicationKey& key) {
  const PublicationRecord* publication = machine_.record().Find(key);
  const bool again = publication != nullptr && IsMountedAgain(*publication);
  if (!machine_.Confirm(key, BootClock::now())) return false;
  if (again) remounting_.insert(key);
  SaveSoon();
  reporter_.ReportView();
  GoOn();
  return true;
}

void VolumeActor::GoOn() {
  TellAwaiting();
  MendWhatWaited();
  Start();
}

bool VolumeActor::Awaits(Origin origin) const {
  return std::ranges::any_of(machine_.record().publications, [origin](const PublicationRecord& p) {
    return p.origin == origin && !VolumeMachine::WaitsFor(p).empty();
  });
}

void VolumeActor::MendWhatWaited() {
  for (const PublicationKey& key : std::exchange(unrepaired_, {})) {
    const PublicationRecord* publication = machine_.record().Find(key);
    if (publication == nullptr || publication->dead.empty()) continue;
    if (!publication->withheld.empty()) {
      unrepaired_.insert(key);
      continue;
    }
    MountAgain(key, publication->dead, /*asked=*/false);
  }
  MendStaging();
  // What was taken away meanwhile. Before Recover the kernel has not been looked at, and is then.
  if (context_.recovered) Reconcile({});
}

bool VolumeActor::Repair(const PublicationKey& key, const std::string& why) {
  // What is dead from the staging up is not mended by publishing that once more.
  const PublicationRecord* publication = machine_.record().Find(key);
  const bool staged = machine_.record().stages && publication != nullptr && !publication->ephemeral;
  if (staging_dead_ && staged) return RepairStaging(why, /*asked=*/true);
  if (!MountAgain(key, why, /*asked=*/true)) return false;
  SaveSoon();
  TellAwaiting();
  Start();
  return true;
}

void VolumeActor::Release(const PublicationKey& key, const ConsumerLife& life, const std::string& why) {
  const PublicationRecord* publication = machine_.record().Find(key);
  // Its consumer may be another by now.
  if (publication == nullptr || !(publication->life == life) || context_.stopping) return;
  if (publication->state == PublicationState::kUnpublishing && !publication->again) return;
  reporter_.Emit("volume.released", key.consumer, why);
  context_.consumer_ended(key.consumer, why, publication->origin);
  UnpublishRequest request;
  request.plugin_id = machine_.record().plugin_id;
  request.volume_id = machine_.record().volume_id;
  request.consumer = key.consumer;
  request.name = key.name;
  queue_.SubmitFirst(std::move(request), Clock::now() + context_.options.rpc_timeout);
  changed_.NotifyAll();
  EnsureWorking();
}

Awaitable<absl::Status> VolumeActor::Owe(std::shared_ptr<VolumeActor> self, int64_t bytes) {
  self->machine_.Owe(bytes);
  const absl::Status status = co_await self->Commit();
  if (!status.ok()) co_return status;
  self->Start();
  co_return absl::OkStatus();
}

}  // namespace berth
