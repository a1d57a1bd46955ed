#include "mounter/recovery.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "base/mountinfo.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"
#include "consumers/consumer_watch.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

// Why a publication waits after a reboot.
std::string WhyHeld(const PublicationRecord& publication, bool published) {
  if (publication.origin == Origin::kScheduler) {
    return "the node was restarted: it waits for its scheduler to confirm it, since another node may have it";
  }
  if (!published) return "not finished before the node was restarted";
  return "not mounted any more: the node was restarted";
}

// Whether it is mounted again after a reboot without a confirmation. A scheduler may have given it to another
// node.
bool MountsUnasked(const PublicationRecord& publication) {
  return publication.Remounts() && publication.origin != Origin::kScheduler;
}

// No process outlives a boot, nor does a group of them, though another may be made at its path. A unit is
// what its name says in every boot.
bool EndsWithTheBoot(const ConsumerLife& life) {
  return life.kind_case() == ConsumerLife::kPid || life.kind_case() == ConsumerLife::kCgroup;
}

// Whether `recorded` has gone and `now` has its place. Kernels that cannot say it (before 6.8): it lies over
// it.
bool HasReplaced(uint64_t now, uint64_t recorded) {
  if (now == 0 || recorded == 0 || now == recorded) return false;
  return absl::IsNotFound(StatMount(recorded).status());
}

// Whether the mount `id` shows the volume. A driver that repairs its own mount may do so before we do, and
// after. Kernels that cannot say it (before 6.8): no.
bool ShowsVolume(const VolumeRecord& record, const PublicationRecord& p, uint64_t id) {
  if (record.use.access_type == AccessType::kBlock) return false;
  const auto now = StatMount(id);
  if (!now.ok() || !now->has_value() || (p.readonly && !(*now)->readonly)) return false;
  // Only as long as a mount of ours keeps the file system: the kernel uses its number again.
  const auto kept_by = [&now](uint64_t ours) {
    const auto mount = StatMount(ours);
    return ours != 0 && mount.ok() && mount->has_value() && (*mount)->device == (*now)->device;
  };
  if (!kept_by(record.staging_mount_id) && !kept_by(p.mount_id)) return false;
  return std::ranges::any_of(record.objects, [&now](const KernelObject& object) {
    return !object.block_device && object.device == (*now)->device && object.root == (*now)->root;
  });
}

void PlanPublished(const VolumeRecord& record, const PublicationRecord& p, const ShownMount& facts,
                   Circumstances circumstances, std::vector<Reconciliation>* plan) {
  if (!facts.error.empty()) {
    if (!p.uncertain) plan->push_back({ReconcileAction::kLost, p.key, facts.error});
    return;
  }
  if (facts.renewed && !circumstances.rebooted) {
    plan->push_back({ReconcileAction::kRenewed, p.key, "its plugin has mounted it again", facts.mount_id});
    return;
  }
  const bool replaced = facts.replaced && !circumstances.rebooted;
  if (facts.there && !replaced) {
    const bool other = p.mount_id != 0 && facts.mount_id != 0 && facts.mount_id != p.mount_id;
    if (other && !circumstances.rebooted) {
      if (!p.uncertain) {
        plan->push_back({ReconcileAction::kOvermounted, p.key,
                         "something is mounted over it: publish it again, or unpublish it"});
      }
    } else if (p.uncertain) {
      plan->push_back({ReconcileAction::kFound, p.key, ""});
    }
    return;
  }
  if (!p.blocked.empty()) return;
  if (circumstances.rebooted) {
    if (MountsUnasked(p) && !record.rebuilt) {
      plan->push_back({ReconcileAction::kResume, p.key, "not mounted any more: the node was restarted"});
    } else {
      plan->push_back({ReconcileAction::kBlock, p.key, WhyHeld(p, true)});
    }
    return;
  }
  const bool block = record.use.access_type == AccessType::kBlock;
  std::string why = fmt::format("not {} any more: {}", block ? "there" : "mounted",
                                block ? "the device was removed" : "it was unmounted");
  if (replaced) why = "it was unmounted, and something else is mounted in its place";
  const bool repaired = p.Remounts() && !record.rebuilt;
  if (repaired && p.forward_blocked.empty() && !circumstances.leaving) {
    plan->push_back({ReconcileAction::kRepair, p.key, std::move(why)});
  } else if (!p.uncertain) {
    std::string_view then = "; publish it again, or unpublish it";
    if (repaired && !p.forward_blocked.empty()) then = "; mounted again once its scheduler was heard";
    if (circumstances.leaving) then = "; not mounted again, since berthd is stopping";
    plan->push_back({ReconcileAction::kLost, p.key, why + std::string(then)});
  }
}

}  // namespace

absl::StatusOr<std::map<std::string, VolumeMachine>> ReadRows(const std::map<std::string, std::string>& rows,
                                                              const std::string& boot_id) {
  std::map<std::string, VolumeMachine> machines;
  for (const auto& [key, bytes] : rows) {
    auto record = DecodeRecord(bytes);
    if (!record.ok()) return Annotate(record.status(), fmt::format("journal: row {}", Printable(key, 64)));
    const bool rebooted = record->boot_id != boot_id;
    machines.emplace(key, VolumeMachine::Recovered(*std::move(record), rebooted));
  }
  return machines;
}

std::vector<Reconciliation> PlanReconciliation(const VolumeRecord& record,
                                               const std::map<PublicationKey, ShownMount>& facts,
                                               Circumstances circumstances) {
  std::vector<Reconciliation> plan;
  const bool after_reboot = circumstances.start && circumstances.rebooted;
  for (const PublicationRecord& p : record.publications) {
    if (after_reboot && EndsWithTheBoot(p.life) &&
        (p.state != PublicationState::kUnpublishing || p.remount_after_undo)) {
      plan.push_back({ReconcileAction::kRelease, p.key,
                      fmt::format("{} ended when the node was restarted", DescribeLife(p.life))});
      continue;
    }
    switch (p.state) {
      case PublicationState::kPublished:
        if (const auto shown = facts.find(p.key); shown != facts.end()) {
          PlanPublished(record, p, shown->second, circumstances, &plan);
        }
        break;
      case PublicationState::kPublishing:
        if (after_reboot && p.blocked.empty()) {
          plan.push_back(MountsUnasked(p) && !record.rebuilt
                             ? Reconciliation{ReconcileAction::kResume, p.key,
                                              "not finished before the node was restarted"}
                             : Reconciliation{ReconcileAction::kBlock, p.key, WhyHeld(p, false)});
        }
        break;
      case PublicationState::kUnpublishing:
        // A repair's first half goes on; its second is like anything else that is to be published.
        if (after_reboot && p.remount_after_undo && p.blocked.empty() && !MountsUnasked(p)) {
          plan.push_back({ReconcileAction::kBlock, p.key, WhyHeld(p, false)});
        }
        break;
    }
  }
  return plan;
}

std::optional<Reconciliation> PlanStaging(const VolumeRecord& record, const ShownMount& shown) {
  if (record.stage_state != StageState::kStaged || record.staging_mount_id == 0) return std::nullopt;
  if (shown.error.empty() && shown.there && shown.mount_id == record.staging_mount_id) {
    if (!record.staging_lost) return std::nullopt;
    return Reconciliation{ReconcileAction::kStagingFound, {}, ""};
  }
  if (record.staging_lost) return std::nullopt;
  constexpr std::string_view kThen = "the volume is staged again before it is published again";
  if (!shown.error.empty()) {
    return Reconciliation{ReconcileAction::kStagingLost, {}, fmt::format("its staging: {}", shown.error)};
  }
  if (!shown.there || shown.replaced) {
    return Reconciliation{
        ReconcileAction::kStagingLost,
        {},
        fmt::format("its staging is not mounted any more{}: {}",
                    shown.there ? ", and something else is mounted in its place" : "", kThen)};
  }
  return Reconciliation{ReconcileAction::kStagingOvermounted,
                        {},
                        fmt::format("something is mounted over its staging: {}", kThen)};
}

ShownMount LookAtStagingMount(const VolumeRecord& record, const VolumePaths& paths) {
  if (!record.stages) return {};
  const auto looked = paths.LookAtStaged(record);
  if (!looked.ok()) return {.error = std::string(MessageOf(looked.status()))};
  const uint64_t mount_id = looked->mount_root ? looked->mount_id : 0;
  return {.error = "",
          .there = looked->mount_root,
          .mount_id = mount_id,
          .replaced = HasReplaced(mount_id, record.staging_mount_id)};
}

std::map<PublicationKey, ShownMount> LookAtMounts(const VolumeRecord& record, const VolumePaths& paths) {
  std::map<PublicationKey, ShownMount> shown;
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kPublished) continue;
    ShownMount& facts = shown[publication.key];
    const auto looked = paths.LookAtTarget(record, publication);
    if (!looked.ok()) {
      facts.error = std::string(MessageOf(looked.status()));
      continue;
    }
    facts.there = IsThere(record, *looked);
    facts.mount_id = looked->mount_root ? looked->mount_id : 0;
    facts.replaced = HasReplaced(facts.mount_id, publication.mount_id);
    const bool another =
        publication.mount_id != 0 && facts.mount_id != 0 && facts.mount_id != publication.mount_id;
    facts.renewed = another && ShowsVolume(record, publication, facts.mount_id);
  }
  return shown;
}

void ReportOrphans(const VolumePaths& paths, const std::function<bool(const std::string& key)>& known,
                   EventLog& events) {
  const auto names = paths.List();
  if (!names.ok()) {
    SPDLOG_WARN("{}", names.status().ToString());
    return;
  }
  bool orphans = false;
  for (const std::string& name : *names) {
    if (known(name)) continue;
    orphans = true;
    events.Append({.type = "volume.orphan",
                   .plugin_id = "",
                   .volume_id = "",
                   .consumer = "",
                   .message = fmt::format("{}/{}: not in the journal, left alone ({})", paths.tree(),
                                          Printable(name, 128), paths.DescribeIdentity(name))});
  }
  // A mount of an unknown volume is reported, too. It lies in one of these directories.
  if (!orphans) return;
  const std::string root = paths.tree() + "/";
  const absl::Status read = ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    const std::string target = DecodeMountinfo(line.target);
    if (!target.starts_with(root)) return true;
    if (known(target.substr(root.size(), target.find('/', root.size()) - root.size()))) return true;
    events.Append(
        {.type = "volume.orphan",
         .plugin_id = "",
         .volume_id = "",
         .consumer = "",
         .message = fmt::format("{}: mounted, and not in the journal; left alone", Printable(target))});
    return true;
  });
  if (!read.ok()) SPDLOG_WARN("{}", MessageOf(read));
}

bool ReportOrphan(const VolumePaths& paths, const std::string& name, EventLog& events) {
  const std::string directory = fmt::format("{}/{}", paths.tree(), name);
  // A volume that has just gone leaves nothing: then the whole table need not be read.
  const auto facts = LookAt(directory);
  if (!facts.ok() || !facts->exists) return false;
  const auto mounts = MountsBeneath(directory, 1);
  if (!mounts.ok() || mounts->empty()) return false;
  events.Append({.type = "volume.orphan",
                 .plugin_id = "",
                 .volume_id = "",
                 .consumer = "",
                 .message = fmt::format("{}: not mounted by berthd, and not in the journal; left alone",
                                        Printable(mounts->front().target))});
  return true;
}

}  // namespace berth
