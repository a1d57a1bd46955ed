// Explanations and findings: facts gathered for the doctor, and what it proposes carried out.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "mounter/doctor.h"
#include "mounter/holder_names.h"
#include "mounter/mount_holders.h"
#include "mounter/mount_table.h"
#include "mounter/mounter_impl.h"

namespace berth {
namespace {

constexpr size_t kMountLimit = 1'000'000;
constexpr size_t kMountsShown = 256;
// How long a repair is waited for; it goes on beyond.
constexpr Duration kRepairPatience = std::chrono::seconds(30);

// What lies in the tree, read on a helper thread: a node may have very many mounts.
struct TreeFacts {
  std::vector<std::string> directories;
  std::vector<Mount> mounts;
};

Awaitable<absl::StatusOr<TreeFacts>> ReadTree(VolumePaths* paths, std::string tree, TimePoint deadline) {
  TreeFacts facts;
  BERTH_CO_ASSIGN_OR_RETURN(facts.directories, paths->List());
  auto read = [tree] { return MountsBeneath(tree, kMountLimit); };
  BERTH_CO_ASSIGN_OR_RETURN(facts.mounts,
                            co_await RunBlocking("read the mount table", std::move(read), deadline));
  co_return facts;
}

std::string IdentityProblem(const VolumePaths& paths, const std::string& key) {
  const auto said = paths.ReadIdentity(key);
  return said.ok() ? std::string() : std::string(MessageOf(said.status()));
}

// Whether the repair has come to an end, well or not.
bool Mounted(const VolumeActor& actor, const PublicationKey& key) {
  const PublicationRecord* p = actor.machine().record().Find(key);
  return p == nullptr || (p->state == PublicationState::kPublished && !p->uncertain && p->dead.empty());
}

}  // namespace

VolumeEvidence MounterImpl::EvidenceOf(const std::string& key, const VolumeActor& actor) {
  VolumeEvidence evidence;
  evidence.key = key;
  evidence.record = actor.machine().record();
  evidence.view = actor.View();
  // While it is at work its row is behind for a moment, rightly.
  evidence.in_journal = actor.busy() || context_.journal->Holds(key, EncodeRecord(evidence.record));
  const auto staging = context_.paths->ReadIdentity(key);
  evidence.directory_there = staging.ok() || staging.status().code() != absl::StatusCode::kNotFound;
  if (evidence.directory_there) evidence.identity_problem = IdentityProblem(*context_.paths, key);
  evidence.targets = LookAtMounts(evidence.record, *context_.paths);
  const auto plugin = context_.plugins.Find(evidence.record.plugin_id);
  if (!plugin.ok()) evidence.plugin_problem = std::string(MessageOf(plugin.status()));
  return evidence;
}

Awaitable<absl::StatusOr<VolumeExplanation>> MounterImpl::Explain(std::string plugin_id,
                                                                  std::string volume_id, TimePoint deadline) {
  const std::string context = fmt::format("explain volume {}", Printable(volume_id, 128));
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  const auto actor = FindActor(plugin_id, volume_id);
  if (actor == nullptr || !actor->present()) {
    co_return absl::NotFoundError(
        fmt::format("{}: nothing is known of it through plugin {}", context, Printable(plugin_id, 128)));
  }
  VolumeExplanation explanation;
  explanation.journal_key = VolumePaths::VolumeKey(plugin_id, volume_id);
  explanation.directory = fmt::format("{}/{}", context_.paths->tree(), explanation.journal_key);
  explanation.identity = context_.paths->DescribeDirectory(explanation.journal_key);

  const std::string directory = explanation.directory;
  auto read = [directory] { return MountsBeneath(directory, kMountLimit); };
  const auto mounts = co_await RunBlocking("read the mount table", std::move(read), deadline);
  if (context_.stopping) co_return absl::UnavailableError(context + ": berthd is stopping");
  if (!mounts.ok()) {
    explanation.remarks.push_back(
        fmt::format("what is mounted could not be asked: {}", MessageOf(mounts.status())));
  }
  const VolumeRecord record = actor->machine().record();
  for (const Mount& mount : mounts.ok() ? *mounts : std::vector<Mount>()) {
    if (explanation.mounts.size() == kMountsShown) {
      explanation.remarks.push_back(fmt::format("more than {} mounts; the rest is not shown", kMountsShown));
      break;
    }
    const auto facts = LookAt(mount.target);
    explanation.mounts.push_back({.target = mount.target,
                                  .source = mount.source,
                                  .fs_type = mount.fs_type,
                                  .options = mount.options,
                                  .id = facts.ok() && facts->mount_root ? facts->mount_id : 0});
  }
  // Who uses it where it is published; where nothing is left of that, who keeps the staging.
  std::vector<std::string> held;
  for (const PublicationRecord& p : record.publications)
    held.push_back(context_.paths->TargetPath(record, p));
  held.push_back(context_.paths->StagingPath(record));
  std::set<std::pair<int64_t, std::string>> seen;
  for (const std::string& path : held) {
    const auto facts = LookAt(path);
    if (!facts.ok() || !facts->mount_root) continue;
    const auto holders = co_await HoldersOf(path, facts->device, deadline);
    if (!holders.ok()) {
      explanation.remarks.push_back(
          fmt::format("who holds it could not be asked: {}", MessageOf(holders.status())));
      break;
    }
    for (const MountHolder& holder : *holders) {
      if (explanation.holders.size() < kHoldersShown && seen.emplace(holder.pid, holder.how).second) {
        explanation.holders.push_back(holder);
      }
    }
  }
  NameConsumers(record, &explanation.holders);
  if (context_.stopping || !actor->present()) {
    co_return absl::NotFoundError(fmt::format("{}: it has gone meanwhile", context));
  }
  // All at one moment, now that nothing is waited for any more.
  const VolumeEvidence evidence = EvidenceOf(explanation.journal_key, *actor);
  explanation.view = evidence.view;
  explanation.in_journal = context_.journal->Holds(explanation.journal_key, EncodeRecord(evidence.record));
  explanation.rpcs = actor->rpcs();
  for (const Diagnosis& diagnosis : DiagnoseVolume(evidence, context_.paths->tree())) {
    explanation.remarks.push_back(diagnosis.finding.text);
  }
  explanation.remarks.push_back(fmt::format("next: {}", WhatComesNext(explanation.view, WallClock::now())));
  co_return explanation;
}

Awaitable<absl::StatusOr<std::vector<Diagnosis>>> MounterImpl::DiagnoseAll(TimePoint deadline) {
  const std::string tree = context_.paths->tree();
  auto facts = co_await ReadTree(&*context_.paths, tree, deadline);
  if (context_.stopping) co_return absl::UnavailableError("examine: berthd is stopping");
  if (!facts.ok()) co_return Annotate(facts.status(), "examine");
  Evidence evidence;
  evidence.tree = tree;
  evidence.problems = Problems();
  evidence.mounts = std::move(facts->mounts);
  std::set<std::string> known;
  for (const auto& [key, actor] : volumes_) {
    known.insert(key);
    if (actor->present()) evidence.volumes.push_back(EvidenceOf(key, *actor));
  }
  for (const std::string& name : facts->directories) {
    if (known.contains(name)) continue;
    const auto identity = context_.paths->ReadIdentity(name);
    // It has gone since.
    if (identity.status().code() == absl::StatusCode::kNotFound) continue;
    const std::string says = context_.paths->DescribeDirectory(name);
    evidence.strangers.push_back({.name = name, .says = says, .has_identity = says != "no identity file"});
  }
  co_return Diagnose(evidence);
}

Awaitable<absl::Status> MounterImpl::Perform(Diagnosis diagnosis, TimePoint deadline) {
  const auto it = volumes_.find(diagnosis.key);
  const auto actor = it == volumes_.end() ? nullptr : it->second;
  const bool here = actor != nullptr && actor->present();
  switch (diagnosis.repair) {
    case RepairKind::kNone:
      co_return absl::OkStatus();
    case RepairKind::kRemoveDirectory:
      if (actor != nullptr) co_return absl::AbortedError("a volume came to use it meanwhile");
      co_return context_.paths->RemoveEmptyStranger(diagnosis.key);
    case RepairKind::kWriteIdentity:
      if (!here) co_return absl::OkStatus();
      co_return context_.paths->WriteIdentity(actor->machine().record());
    case RepairKind::kWriteRow: {
      if (!here) co_return absl::OkStatus();
      const std::string row = EncodeRecord(actor->machine().record());
      co_return co_await context_.journal->Put(diagnosis.key, row);
    }
    case RepairKind::kMountAgain:
      break;
  }
  if (!here || !actor->Repair(diagnosis.publication, diagnosis.finding.text)) {
    co_return absl::FailedPreconditionError("it cannot be mounted again: publish it again, or unpublish it");
  }
  const TimePoint until = std::min(deadline, Clock::now() + kRepairPatience);
  const PublicationKey key = diagnosis.publication;
  while (!Mounted(*actor, key) && !context_.stopping && Clock::now() < until) {
    const TimePoint look = std::min(until, Clock::now() + std::chrono::milliseconds(100));
    co_await context_.work_ended.WaitUntil([&actor, &key] { return Mounted(*actor, key); }, look);
  }
  if (Mounted(*actor, key)) co_return absl::OkStatus();
  const PublicationRecord* p = actor->machine().record().Find(key);
  const std::string why = p == nullptr ? std::string() : p->last_error;
  co_return absl::DeadlineExceededError(
      fmt::format("not mounted again yet; it goes on{}{}", why.empty() ? "" : ": ", why));
}

Awaitable<absl::StatusOr<std::vector<Finding>>> MounterImpl::Examine(bool repair, TimePoint deadline) {
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
