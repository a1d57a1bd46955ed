#include "mounter/volume_reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/process.h"
#include "base/statmount.h"
#include "base/status.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

// What was published before is mounted again once it is not blocked any more, and its consumer has to know.
bool IsMountedAgain(const PublicationRecord& p) {
  const bool was_published = p.state == PublicationState::kPublishing && p.published_at.has_value();
  return !p.blocked.empty() || (!p.forward_blocked.empty() && was_published);
}

}  // namespace

void VolumeReconciler::Reconcile(Circumstances circumstances) {
  if (!volume_.machine.present() || volume_.context.stopping) return;
  if (volume_.trying.kind == StepKind::kRenew && volume_.sent) {
    // The plugin changes its own mount meanwhile: that is no foreign change.
    volume_.reconcile_again = true;
    return;
  }
  circumstances.leaving = !volume_.machine.leaving().empty();
  const auto facts = LookAtMounts(volume_.machine.record(), *volume_.context.paths);
  if (circumstances.start && !circumstances.rebooted) FindStagingMount();
  const ShownMount staging = LookAtStagingMount(volume_.machine.record(), *volume_.context.paths);
  auto plan = PlanReconciliation(volume_.machine.record(), facts, circumstances);
  if (auto found = PlanStaging(volume_.machine.record(), staging)) plan.push_back(*std::move(found));
  for (const Reconciliation& found : plan) Apply(found);
  if (circumstances.start) {
    const VolumeRecord& record = volume_.machine.record();
    const bool stands = std::ranges::any_of(record.publications, [&facts](const PublicationRecord& p) {
      const auto shown = facts.find(p.key);
      return !p.ephemeral && shown != facts.end() && shown->second.there;
    });
    if (!stands) volume_.machine.DoubtStaging();
    // From here on each publication says for itself what is to become of it.
    volume_.machine.SetBootId(BootId());
    for (const PublicationRecord& p : volume_.machine.record().publications) {
      const auto shown = facts.find(p.key);
      if (shown != facts.end() && shown->second.there && p.state == PublicationState::kPublished)
        volume_.machine.SetOfThisBoot(p.key);
      const bool found = shown != facts.end() && shown->second.mount_id != 0;
      if (found && !p.uncertain && p.mount_id == 0) volume_.machine.SetMountId(p.key, shown->second.mount_id);
    }
    if (!circumstances.rebooted && record.objects.empty()) {
      // berthd ended before it was noted, or the journal was lost.
      if (staging.mount_id != 0)
        volume_.NoteObjects(volume_.context.paths->StagedPath(record), staging.mount_id,
                            VolumeState::Noted::kBefore);
      for (const PublicationRecord& p : volume_.machine.record().publications) {
        const auto shown = facts.find(p.key);
        if (shown != facts.end() && shown->second.mount_id != 0) {
          volume_.NoteObjects(volume_.context.paths->TargetPath(volume_.machine.record(), p),
                              shown->second.mount_id, VolumeState::Noted::kBefore);
        }
      }
    }
    const bool staged = record.stage_state == StageState::kStaged && !record.stage_uncertain;
    if (staged && record.staging_mount_id == 0)
      volume_.machine.SetStagingMount({.path = record.staging_mount_path, .mount_id = staging.mount_id});
  }
  // Whatever is there: the end of a mount on top of ours is reported, too.
  volume_.context.Track(staging.mount_id, volume_.key);
  for (const auto& [key, shown] : facts) volume_.context.Track(shown.mount_id, volume_.key);
  const bool path_lost = !circumstances.start && ReconcilePaths();
  if (plan.empty() && !circumstances.rebooted && !path_lost) return;
  volume_.row.SaveSoon();
  volume_.ReportUsers();
  volume_.reporter.ReportAwaitingSecrets();
  if (!circumstances.start) volume_.start();
}

void VolumeReconciler::FindStagingMount() {
  const VolumeRecord& record = volume_.machine.record();
  if (!record.stages || record.staging_mount_id != 0) return;
  auto found = volume_.context.paths->FindStagingMount(record);
  if (found.ok()) volume_.machine.SetStagingMount({.path = std::move(found->path)});
}

void VolumeReconciler::OnPathMounted(const PublicationKey& key, const PathMount& mounted) {
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  if (publication == nullptr) return;
  const bool known = !mounted.fresh && publication->path_mount_id == mounted.mount_id;
  // A mount that existed already does not say whether its directory is guarded.
  volume_.machine.SetPathMounted(key, mounted.mount_id,
                                 known ? publication->path_unguarded : mounted.unguarded);
  volume_.context.Track(mounted.mount_id, volume_.key);
  if (mounted.fresh) {
    volume_.reporter.Emit("volume.path_mounted", key.consumer,
                          fmt::format("mounted at {} too", Printable(publication->path.path)));
  }
}

bool VolumeReconciler::ReconcilePaths() {
  bool any = false;
  for (const PublicationRecord& p : volume_.machine.record().publications) {
    if (!p.path_mounted) continue;
    const auto mount = StatMount(p.path_mount_id);
    if (mount.ok() && mount->has_value()) continue;
    any = true;
    const PublicationKey key = p.key;
    // A kernel that cannot say it is asked by the next try, which finds the mount if it is there.
    const bool gone = absl::IsNotFound(mount.status());
    const std::string why = gone ? "it was unmounted there" : "";
    if (gone) {
      volume_.reporter.Emit(
          "volume.path_lost", key.consumer,
          fmt::format("not mounted at {} any more: mounting it again", Printable(p.path.path)));
    }
    volume_.machine.DoubtPath(key, why);
  }
  return any;
}

bool VolumeReconciler::StagingComesFirst(const Step& step) {
  if (step.kind != StepKind::kPublish) return false;
  const ShownMount staging = LookAtStagingMount(volume_.machine.record(), *volume_.context.paths);
  if (const auto found = PlanStaging(volume_.machine.record(), staging)) {
    Apply(*found);
    volume_.row.SaveSoon();
  }
  const StepKind next = volume_.machine.plan().NextFor(step.key).kind;
  return next == StepKind::kStage || next == StepKind::kUnstage;
}

void VolumeReconciler::Apply(const Reconciliation& found) {
  const std::string& consumer = found.key.consumer;
  switch (found.action) {
    case ReconcileAction::kFound:
      volume_.machine.MarkFound(found.key);
      return;
    case ReconcileAction::kLost:
      volume_.machine.MarkLost(found.key, found.why);
      volume_.reporter.Emit("volume.lost", consumer, found.why);
      return;
    case ReconcileAction::kOvermounted:
      volume_.machine.MarkLost(found.key, found.why);
      volume_.reporter.Emit("volume.overmounted", consumer, found.why);
      return;
    case ReconcileAction::kRenewed:
      volume_.machine.SetMountId(found.key, found.mount_id);
      volume_.machine.MarkFound(found.key);
      volume_.reporter.Emit(
          "volume.remounted", consumer,
          fmt::format("{}; {} has to be restarted if it had the old mount", found.why, Describe(found.key)));
      return;
    case ReconcileAction::kRepair:
      volume_.reporter.Emit("volume.lost", consumer, fmt::format("{}: mounting it again", found.why));
      volume_.machine.MarkLost(found.key, found.why);
      MountAgain(found.key, found.why, /*asked=*/false);
      return;
    case ReconcileAction::kResume:
      volume_.machine.Resume(found.key, found.why);
      volume_.remounting.insert(found.key);
      return;
    case ReconcileAction::kBlock: {
      volume_.machine.Block(found.key, found.why);
      // Those that wait for a scheduler are reported once, for the node.
      const PublicationRecord* publication = volume_.machine.record().Find(found.key);
      if (publication != nullptr && publication->origin != Origin::kScheduler) {
        volume_.reporter.Emit("volume.blocked", consumer, found.why);
      }
      return;
    }
    case ReconcileAction::kRelease: {
      volume_.reporter.Emit("volume.released", consumer, found.why);
      const PublicationRecord* publication = volume_.machine.record().Find(found.key);
      if (publication != nullptr) volume_.context.consumer_ended(consumer, found.why, publication->origin);
      volume_.machine.RequestUnpublish(found.key);
      return;
    }
    case ReconcileAction::kStagingFound:
      volume_.machine.MarkStagingFound();
      return;
    case ReconcileAction::kStagingLost:
      volume_.machine.MarkStagingLost(found.why);
      volume_.reporter.Emit("volume.lost", "", found.why);
      return;
    case ReconcileAction::kStagingOvermounted:
      volume_.machine.MarkStagingLost(found.why);
      volume_.reporter.Emit("volume.overmounted", "", found.why);
      return;
  }
}

std::vector<WatchedMount> VolumeReconciler::WatchedMounts() const {
  const VolumeRecord& record = volume_.machine.record();
  std::vector<WatchedMount> watched;
  if (!volume_.machine.present()) return watched;
  if (record.stages && record.stage_state == StageState::kStaged &&
      record.use.access_type != AccessType::kBlock) {
    watched.push_back({.key = volume_.key,
                       .component = "",
                       .path = volume_.context.paths->StagedPath(record),
                       .writes = false,
                       .objects = record.objects});
  }
  for (const PublicationRecord& p : record.publications) {
    if (p.state != PublicationState::kPublished || !p.blocked.empty()) continue;
    watched.push_back({.key = volume_.key,
                       .component = p.component,
                       .path = volume_.context.paths->TargetPath(record, p),
                       .writes = p.Writes(record.use),
                       .objects = record.objects});
  }
  return watched;
}

absl::Status VolumeReconciler::CheckStorage(bool writes) const {
  const VolumeRecord& record = volume_.machine.record();
  absl::Status usable;
  if (record.stages && record.stage_state == StageState::kStaged) {
    usable = CheckUsable(volume_.context.paths->StagedPath(record), record.objects, /*writes=*/false);
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
    usable = CheckUsable(volume_.context.paths->TargetPath(record, *one), record.objects, writes && writer);
  }
  if (usable.ok()) return usable;
  return absl::FailedPreconditionError(fmt::format(
      "{}; unpublish the volume everywhere on this node, then publish it again", MessageOf(usable)));
}

void VolumeReconciler::OnHealth(const std::string& component, const absl::Status& verdict) {
  if (!volume_.machine.present() || volume_.context.stopping) return;
  const bool dead = verdict.code() == absl::StatusCode::kUnavailable;
  const bool hangs = verdict.code() == absl::StatusCode::kDeadlineExceeded;
  const bool read_only = absl::IsFailedPrecondition(verdict);
  if (!verdict.ok() && !dead && !hangs && !read_only) return;  // it could not be asked
  if (component.empty()) {
    // All publications rest on it: their own verdicts inform the consumers.
    staging_dead_ = dead;
    if (dead) RepairStaging(fmt::format("its staging is dead: {}", MessageOf(verdict)), /*asked=*/false);
    return;
  }
  const auto& publications = volume_.machine.record().publications;
  const auto it = std::ranges::find(publications, component, &PublicationRecord::component);
  if (it == publications.end() || it->state != PublicationState::kPublished) return;
  const PublicationKey key = it->key;
  const bool was_well = it->dead.empty() && it->hung.empty() && it->writes_refused.empty();
  volume_.machine.OnVerdict(key, verdict);
  if (!dead) deferred_repairs_.erase(key);
  const std::string why(MessageOf(verdict));
  if (verdict.ok()) {
    if (!was_well) volume_.reporter.Emit("volume.alive", key.consumer, "its file system is well again");
    return;
  }
  if (read_only) {
    volume_.reporter.Emit(
        "volume.read_only", key.consumer,
        fmt::format("{}, though {} was published to write: nothing is repaired", why, Describe(key)));
    return;
  }
  if (hangs) {
    volume_.reporter.Emit(
        "volume.hung", key.consumer,
        fmt::format(
            "its file system does not answer: {}; {} waits for it, and nothing is repaired, since its "
            "server may come back",
            why, Describe(key)));
    return;
  }
  // Published once more from a staging that is dead itself it would be no better.
  const bool with_staging = staging_dead_ && volume_.machine.record().stages && !it->ephemeral;
  if (with_staging && RepairStaging(why, /*asked=*/false)) return;
  const bool remounts =
      !with_staging && it->Remounts() && !it->ephemeral && volume_.machine.leaving().empty();
  const bool repair = remounts && it->forward_blocked.empty();
  if (remounts && !repair) deferred_repairs_.insert(key);
  volume_.reporter.Emit("volume.dead", key.consumer,
                        fmt::format("{}: {} has to be restarted once it is mounted again{}", why,
                                    Describe(key), repair ? "; mounting it again" : ""));
  if (!repair || !MountAgain(key, why, /*asked=*/false)) return;
  volume_.row.SaveSoon();
  volume_.start();
}

bool VolumeReconciler::MountAgain(const PublicationKey& key, const std::string& why, bool asked) {
  if (!volume_.machine.Repair(key, why, asked)) return false;
  KeepSecretsAtHand();
  volume_.remounting.insert(key);
  return true;
}

void VolumeReconciler::KeepSecretsAtHand() {
  for (const auto& [key, secrets] : volume_.secrets) volume_.machine.SetSecretsAtHand(key, true);
}

void VolumeReconciler::RepairDeadStaging() {
  if (!staging_dead_ || !volume_.machine.present() || volume_.context.stopping) return;
  RepairStaging("its staging is dead", /*asked=*/false);
}

bool VolumeReconciler::RepairStaging(const std::string& why, bool asked) {
  if (volume_.trying.kind != StepKind::kNone) return false;  // RepairDeadStaging comes afterwards
  if (!volume_.machine.RepairStaging(why, asked)) return false;
  KeepSecretsAtHand();
  for (const PublicationRecord& p : volume_.machine.record().publications) {
    if (!p.remount_after_undo) continue;
    deferred_repairs_.erase(p.key);
    volume_.remounting.insert(p.key);
    volume_.reporter.Emit("volume.dead", p.key.consumer,
                          fmt::format("{}: mounting it again; {} has to be restarted", why, Describe(p.key)));
  }
  volume_.row.SaveSoon();
  volume_.start();
  return true;
}

void VolumeReconciler::BlockForward(Origin origin, const std::string& why) {
  volume_.machine.BlockForward(origin, why);
  volume_.queue.EndForward(why, [origin](const VolumeOperation& operation) {
    const auto* publish = std::get_if<PublishRequest>(&operation.request);
    return publish != nullptr && publish->origin == origin;
  });
  volume_.changed.NotifyAll();
  if (HasBlocked(origin)) volume_.reporter.ReportView();
}

void VolumeReconciler::BeginShutdown(const std::string& why) {
  volume_.machine.BeginShutdown(why);
  volume_.queue.EndForward(why, [](const VolumeOperation& operation) {
    return !std::holds_alternative<UnpublishRequest>(operation.request);
  });
  volume_.changed.NotifyAll();
}

size_t VolumeReconciler::UnblockForward(Origin origin, BootTime since) {
  std::vector<PublicationKey> again;
  for (const PublicationRecord& p : volume_.machine.record().publications) {
    if (p.origin == origin && p.blocked.empty() && IsMountedAgain(p)) again.push_back(p.key);
  }
  const bool goes_on = volume_.machine.UnblockForward(origin, since);
  for (const PublicationKey& key : again) {
    const PublicationRecord* p = volume_.machine.record().Find(key);
    if (p != nullptr && p->forward_blocked.empty()) volume_.remounting.insert(key);
  }
  const auto unconfirmed =
      std::ranges::count(volume_.machine.record().publications, true, &PublicationRecord::unconfirmed);
  if (goes_on || unconfirmed > 0) volume_.reporter.ReportView();
  if (goes_on) ResumeForward();
  return static_cast<size_t>(unconfirmed);
}

bool VolumeReconciler::Confirm(const PublicationKey& key) {
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  const bool again = publication != nullptr && IsMountedAgain(*publication);
  if (!volume_.machine.Confirm(key, BootClock::now())) return false;
  if (again) volume_.remounting.insert(key);
  volume_.row.SaveSoon();
  volume_.reporter.ReportView();
  ResumeForward();
  return true;
}

void VolumeReconciler::ResumeForward() {
  volume_.reporter.ReportAwaitingSecrets();
  RepairDeferred();
  volume_.start();
}

bool VolumeReconciler::HasBlocked(Origin origin) const {
  return std::ranges::any_of(volume_.machine.record().publications, [origin](const PublicationRecord& p) {
    return p.origin == origin && p.BlockedBecause().has_value();
  });
}

void VolumeReconciler::RepairDeferred() {
  for (const PublicationKey& key : std::exchange(deferred_repairs_, {})) {
    const PublicationRecord* publication = volume_.machine.record().Find(key);
    if (publication == nullptr || publication->dead.empty()) continue;
    if (!publication->forward_blocked.empty()) {
      deferred_repairs_.insert(key);
      continue;
    }
    MountAgain(key, publication->dead, /*asked=*/false);
  }
  RepairDeadStaging();
  // What was taken away meanwhile. Before Recover the kernel has not been looked at, and is then.
  if (volume_.context.recovered) Reconcile({});
}

bool VolumeReconciler::Repair(const PublicationKey& key, const std::string& why) {
  // If the staging itself is dead, another publish does not repair it.
  const PublicationRecord* publication = volume_.machine.record().Find(key);
  const bool staged = volume_.machine.record().stages && publication != nullptr && !publication->ephemeral;
  if (staging_dead_ && staged) return RepairStaging(why, /*asked=*/true);
  if (!MountAgain(key, why, /*asked=*/true)) return false;
  volume_.row.SaveSoon();
  volume_.reporter.ReportAwaitingSecrets();
  volume_.start();
  return true;
}

}  // namespace berth
