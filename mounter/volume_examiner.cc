#include "mounter/volume_examiner.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "mounter/doctor.h"
#include "mounter/holder_names.h"
#include "mounter/leftovers.h"
#include "mounts/immutable.h"
#include "mounts/mount_table.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

constexpr size_t kMountsShown = 256;
// How long a repair is waited for; it goes on beyond.
constexpr Duration kRepairPatience = std::chrono::seconds(30);

// What the disk and the kernel say, read on a helper thread: a node may have very many volumes and mounts.
struct DirectoryFacts {
  bool there = false;
  std::string identity_problem;
  std::map<PublicationKey, ShownMount> targets;
  std::string says;  // its identity file, for people
};
struct TreeFacts {
  std::map<std::string, DirectoryFacts> volumes;
  std::vector<OrphanEvidence> orphans;
  std::vector<Mount> mounts;
  std::string unprotected;
  std::vector<Leftover> leftovers;
};
using Records = std::map<std::string, VolumeRecord>;  // by the journal's key

DirectoryFacts LookAtDirectory(const VolumePaths& paths, const std::string& key, const VolumeRecord& record) {
  DirectoryFacts facts;
  const auto identity = paths.ReadIdentity(key);
  facts.identity_problem =
      identity.ok() ? LostWithJournal(*identity, record) : std::string(MessageOf(identity.status()));
  // Where it cannot be asked, the look at the targets says so.
  const auto directory = paths.LookAtVolume(key);
  facts.there = !directory.ok() || directory->exists;
  facts.targets = LookAtMounts(record, paths);
  facts.says = paths.DescribeIdentity(key);
  return facts;
}

// What lies beneath the mount of the tree, and whether anything can be put there.
void LookBeneath(const std::string& tree, TreeFacts* facts) {
  auto covered = OpenCovered(tree);
  if (!covered.ok()) {
    facts->unprotected = std::string(MessageOf(covered.status()));
    return;
  }
  const SafeRoot root = SafeRoot::Of(tree, *std::move(covered));
  const auto immutable = IsImmutable(root.fd());
  if (!immutable.ok()) {
    facts->unprotected =
        fmt::format("its file system cannot prevent that ({})", MessageOf(immutable.status()));
  } else if (!*immutable) {
    facts->unprotected =
        "its immutable flag is not set: berthd sets it when it starts, or its log says why it cannot";
  }
  auto leftovers = ListLeftovers(root);
  if (leftovers.ok()) facts->leftovers = *std::move(leftovers);
}

// Of the volumes in `records` alone, and the mounts beneath `directory`.
absl::StatusOr<TreeFacts> LookAtVolumes(const std::string& state_dir, const std::string& directory,
                                        const Records& records) {
  TreeFacts facts;
  const std::string tree = VolumePaths::TreeIn(state_dir);
  BERTH_ASSIGN_OR_RETURN(const VolumePaths paths, VolumePaths::Open(state_dir));
  BERTH_ASSIGN_OR_RETURN(facts.mounts, MountsBeneath(tree, kMountLimit));
  std::erase_if(facts.mounts,
                [&directory](const Mount& mount) { return !IsAtOrBeneath(mount.target, directory); });
  for (const auto& [key, record] : records) facts.volumes[key] = LookAtDirectory(paths, key, record);
  LookBeneath(tree, &facts);
  return facts;
}

absl::StatusOr<TreeFacts> LookAtEverything(const std::string& state_dir, const Records& records) {
  BERTH_ASSIGN_OR_RETURN(TreeFacts facts, LookAtVolumes(state_dir, VolumePaths::TreeIn(state_dir), records));
  BERTH_ASSIGN_OR_RETURN(const VolumePaths paths, VolumePaths::Open(state_dir));
  BERTH_ASSIGN_OR_RETURN(const std::vector<std::string> names, paths.List());
  for (const std::string& name : names) {
    // A volume that has gone meanwhile needs no finding.
    const auto directory = paths.LookAtVolume(name);
    if (records.contains(name) || !directory.ok() || !directory->exists) continue;
    facts.orphans.push_back(
        {.name = name, .says = paths.DescribeIdentity(name), .has_identity = paths.HasIdentity(name)});
  }
  return facts;
}

// What was read, if the volume has stayed as it was meanwhile. Whether it has.
bool Add(const TreeFacts& facts, const Records& records, VolumeEvidence* evidence) {
  const auto directory = facts.volumes.find(evidence->key);
  const auto record = records.find(evidence->key);
  const bool same = directory != facts.volumes.end() && record != records.end() &&
                    EncodeRecord(record->second) == EncodeRecord(evidence->record);
  if (!same) return false;
  evidence->directory_there = directory->second.there;
  evidence->identity_problem = directory->second.identity_problem;
  evidence->targets = directory->second.targets;
  const auto leftover = std::ranges::find(facts.leftovers, evidence->key, &Leftover::name);
  if (leftover != facts.leftovers.end()) evidence->leftover = *leftover;
  return true;
}

// The volume's directory that a mount lies in; empty: in none.
std::string KeyBeneath(const std::string& tree, const std::string& target) {
  if (target.size() <= tree.size() + 1) return {};
  const std::string beneath = target.substr(tree.size() + 1);
  return beneath.substr(0, beneath.find('/'));
}

// Where a volume may be mounted: its targets, and where nothing is left of them, its staging.
std::vector<std::string> PlacesOf(const VolumeRecord& record, const VolumePaths& paths) {
  std::vector<std::string> places;
  for (const PublicationRecord& p : record.publications) places.push_back(paths.TargetPath(record, p));
  places.push_back(paths.StagedPath(record));
  return places;
}

// Of a place of our own: the way to a mount inside a volume leads through its file system, which may hang.
uint64_t MountIdAt(const std::string& place) {
  const auto facts = LookAt(place);
  return facts.ok() && facts->mount_root ? facts->mount_id : 0;
}

void AddMounts(const std::vector<Mount>& mounts, const std::vector<std::string>& ours,
               VolumeExplanation* explanation) {
  for (const Mount& mount : mounts) {
    if (explanation->mounts.size() == kMountsShown) {
      explanation->remarks.push_back(fmt::format("more than {} mounts; the rest is not shown", kMountsShown));
      break;
    }
    const bool is_ours = std::ranges::find(ours, mount.target) != ours.end();
    explanation->mounts.push_back({.target = mount.target,
                                   .source = mount.source,
                                   .fs_type = mount.fs_type,
                                   .options = mount.options,
                                   .id = is_ours ? MountIdAt(mount.target) : 0});
  }
}

// Of a volume that is not here.
std::string DescribeAbsent(std::string_view plugin_id, int64_t pending_expansion) {
  const std::string plugin = Printable(plugin_id, 128);
  if (pending_expansion == 0) return fmt::format("nothing is known of it through plugin {}", plugin);
  return fmt::format("it is not here through plugin {}; an expansion to {} bytes is pending until it is",
                     plugin, pending_expansion);
}

// Whether the repair has come to an end, well or not.
bool Mounted(const VolumeActor& actor, const PublicationKey& key) {
  const PublicationRecord* p = actor.machine().record().Find(key);
  return p == nullptr || (p->state == PublicationState::kPublished && !p->uncertain && p->dead.empty());
}

}  // namespace

VolumeEvidence VolumeExaminer::EvidenceOf(const std::string& key, const VolumeActor& actor) const {
  VolumeEvidence evidence;
  evidence.key = key;
  evidence.at = WallClock::now();
  evidence.record = actor.machine().record();
  evidence.view = actor.View();
  // While it is at work its row is behind for a moment, rightly.
  evidence.in_journal = actor.busy() || context_.journal->Holds(key, EncodeRecord(evidence.record));
  const auto plugin = context_.plugins.Find(evidence.record.plugin_id);
  if (!plugin.ok()) evidence.plugin_problem = std::string(MessageOf(plugin.status()));
  return evidence;
}

Awaitable<absl::StatusOr<VolumeExplanation>> VolumeExaminer::Explain(std::string plugin_id,
                                                                     std::string volume_id,
                                                                     TimePoint deadline) {
  const std::string context = fmt::format("explain volume {}", Printable(volume_id, 128));
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor == nullptr || !actor->present()) {
    co_return absl::NotFoundError(fmt::format(
        "{}: {}", context, DescribeAbsent(plugin_id, context_.pending_expansions.Of(plugin_id, volume_id))));
  }
  VolumeExplanation explanation;
  explanation.journal_key = VolumePaths::VolumeKey(plugin_id, volume_id);
  explanation.directory = fmt::format("{}/{}", context_.paths->tree(), explanation.journal_key);
  const VolumeRecord record = actor->machine().record();
  const Records records = {{explanation.journal_key, record}};
  auto read = [state_dir = context_.options.state_dir, directory = explanation.directory, records] {
    return LookAtVolumes(state_dir, directory, records);
  };
  auto looked =
      co_await RunBlocking(fmt::format("look at {}", explanation.directory), std::move(read), deadline);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  if (!looked.ok()) {
    explanation.remarks.push_back(
        fmt::format("what is mounted could not be asked: {}", MessageOf(looked.status())));
  }
  const TreeFacts facts_of_tree = looked.ok() ? *std::move(looked) : TreeFacts();
  if (const auto directory = facts_of_tree.volumes.find(explanation.journal_key);
      directory != facts_of_tree.volumes.end()) {
    explanation.identity = directory->second.says;
  }
  const std::vector<std::string> held = PlacesOf(record, *context_.paths);
  AddMounts(facts_of_tree.mounts, held, &explanation);
  co_await AddHolders(record, held, deadline, &explanation);
  if (context_.stopping || !actor->present()) {
    co_return absl::NotFoundError(fmt::format("{}: it has gone meanwhile", context));
  }
  // All at one moment, now that nothing is waited for any more.
  VolumeEvidence evidence = EvidenceOf(explanation.journal_key, *actor);
  [[maybe_unused]] const bool same = Add(facts_of_tree, records, &evidence);
  explanation.view = evidence.view;
  explanation.in_journal = context_.journal->Holds(explanation.journal_key, EncodeRecord(evidence.record));
  explanation.rpcs = actor->rpcs();
  for (const Diagnosis& diagnosis : DiagnoseVolume(evidence, context_.paths->tree())) {
    explanation.remarks.push_back(diagnosis.finding.text);
  }
  explanation.remarks.push_back(fmt::format("next: {}", WhatComesNext(explanation.view, WallClock::now())));
  co_return explanation;
}

Awaitable<void> VolumeExaminer::AddHolders(VolumeRecord record, std::vector<std::string> paths,
                                           TimePoint deadline, VolumeExplanation* explanation) {
  std::set<std::pair<int64_t, std::string>> seen;
  for (const std::string& path : paths) {
    const auto facts = LookAt(path);
    if (!facts.ok() || !facts->mount_root) continue;
    const auto holders = co_await context_.release.HoldersAt(record, path, deadline);
    if (!holders.ok()) {
      explanation->remarks.push_back(
          fmt::format("who uses it could not be asked: {}", MessageOf(holders.status())));
      break;
    }
    for (const MountHolder& holder : *holders) {
      if (explanation->holders.size() < kHoldersShown && seen.emplace(holder.pid, holder.how).second) {
        explanation->holders.push_back(holder);
      }
    }
  }
  NameConsumers(record, &explanation->holders);
}

Awaitable<absl::StatusOr<std::vector<Diagnosis>>> VolumeExaminer::DiagnoseAll(TimePoint deadline) {
  const std::string tree = context_.paths->tree();
  Records records;
  for (const auto& [key, actor] : table_.all()) {
    if (actor->present()) records.emplace(key, actor->machine().record());
  }
  auto look = [state_dir = context_.options.state_dir, records] {
    return LookAtEverything(state_dir, records);
  };
  auto facts = co_await RunBlocking(fmt::format("look at {}", tree), std::move(look), deadline);
  if (context_.stopping) co_return absl::UnavailableError("examine: berthd is stopping");
  if (!facts.ok()) co_return Annotate(facts.status(), "examine");
  Evidence evidence;
  evidence.tree = tree;
  evidence.problems = problems_();
  evidence.unprotected = facts->unprotected;
  evidence.leftovers = facts->leftovers;
  std::set<std::string> same;  // their mounts are compared
  for (const auto& [key, actor] : table_.all()) {
    if (!actor->present()) continue;
    VolumeEvidence& volume = evidence.volumes.emplace_back(EvidenceOf(key, *actor));
    if (Add(*facts, records, &volume)) same.insert(key);
  }
  for (Mount& mount : facts->mounts) {
    const std::string key = KeyBeneath(tree, mount.target);
    const bool known = records.contains(key) || table_.all().contains(key);
    if (!known || same.contains(key)) evidence.mounts.push_back(std::move(mount));
  }
  for (OrphanEvidence& orphan : facts->orphans) {
    if (!table_.all().contains(orphan.name)) evidence.orphans.push_back(std::move(orphan));
  }
  co_return Diagnose(evidence);
}

Awaitable<absl::Status> VolumeExaminer::Perform(Diagnosis diagnosis, TimePoint deadline) {
  const auto it = table_.all().find(diagnosis.key);
  const auto actor = it == table_.all().end() ? nullptr : it->second;
  const bool here = actor != nullptr && actor->present();
  const std::string tree = context_.paths->tree();
  switch (diagnosis.repair) {
    case RepairKind::kNone:
      co_return absl::OkStatus();
    case RepairKind::kRemoveDirectory: {
      if (actor != nullptr) co_return absl::AbortedError("a volume came to use it meanwhile");
      auto remove = [state_dir = context_.options.state_dir, name = diagnosis.key]() -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const VolumePaths paths, VolumePaths::Open(state_dir));
        return paths.RemoveEmptyStranger(name);
      };
      co_return co_await RunBlocking(fmt::format("remove {}", diagnosis.finding.path), std::move(remove),
                                     deadline);
    }
    case RepairKind::kWriteIdentity: {
      if (!here) co_return absl::OkStatus();
      // On the loop, so that no step writes it at the same time.
      BERTH_CO_RETURN_IF_ERROR(context_.paths->WriteIdentity(actor->machine().record()));
      auto sync = [state_dir = context_.options.state_dir, key = diagnosis.key]() -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const VolumePaths paths, VolumePaths::Open(state_dir));
        return paths.SyncIdentities({key});
      };
      co_return co_await RunBlocking(fmt::format("sync the identity file of {}", diagnosis.finding.path),
                                     std::move(sync), deadline);
    }
    case RepairKind::kWriteRow: {
      if (!here) co_return absl::OkStatus();
      const std::string row = EncodeRecord(actor->machine().record());
      co_return co_await context_.journal->Put(diagnosis.key, row);
    }
    case RepairKind::kMountAgain:
      BERTH_CO_RETURN_IF_ERROR(context_.CheckNotShuttingDown());
      break;
  }
  if (!here || !actor->reconciler().Repair(diagnosis.publication, diagnosis.finding.text)) {
    co_return absl::FailedPreconditionError("it cannot be mounted again: publish it again, or unpublish it");
  }
  const TimePoint until = std::min(deadline, Clock::now() + kRepairPatience);
  const PublicationKey key = diagnosis.publication;
  while (!Mounted(*actor, key) && context_.leaving.empty() && Clock::now() < until) {
    const TimePoint look = std::min(until, Clock::now() + std::chrono::milliseconds(100));
    co_await context_.work_ended.WaitUntil([&actor, &key] { return Mounted(*actor, key); }, look);
  }
  if (Mounted(*actor, key)) co_return absl::OkStatus();
  const PublicationRecord* p = actor->machine().record().Find(key);
  const std::string why = p == nullptr ? std::string() : p->last_error;
  co_return absl::DeadlineExceededError(
      fmt::format("not mounted again yet; it goes on{}{}", why.empty() ? "" : ": ", why));
}

Awaitable<absl::StatusOr<std::vector<Finding>>> VolumeExaminer::Examine(bool repair, TimePoint deadline) {
  if (context_.stopping) co_return absl::UnavailableError("examine: berthd is stopping");
  BERTH_CO_ASSIGN_OR_RETURN(std::vector<Diagnosis> diagnoses, co_await DiagnoseAll(deadline));
  std::vector<Finding> findings;
  for (Diagnosis& diagnosis : diagnoses) {
    if (repair && diagnosis.repair != RepairKind::kNone && !context_.stopping) {
      const absl::Status status = co_await Perform(diagnosis, deadline);
      diagnosis.finding.repaired = status.ok();
      if (!status.ok()) diagnosis.finding.repair_error = std::string(MessageOf(status));
    }
    findings.push_back(std::move(diagnosis.finding));
  }
  co_return findings;
}

}  // namespace berth
