#include "mounter/mounter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "journal/journal.h"
#include "mounter/journal_rebuild.h"
#include "mounter/leftovers.h"
#include "mounter/mounter_impl.h"
#include "mounter/recovery.h"
#include "mounts/earlier_mounts.h"
#include "mounts/immutable.h"
#include "mounts/mount_tree.h"

namespace berth {
namespace {

// The least that every plugin has to accept for a path.
constexpr size_t kPathPromise = 128;
constexpr size_t kTargetLength =
    sizeof("/0123456789abcdef0123456789abcdef/publish/0123456789abcdef0123456789abcdef/target") - 1;

void Warn(const absl::Status& status) {
  if (!status.ok()) SPDLOG_WARN("{}", MessageOf(status));
}

// Closes the directory beneath the tree. Nothing of it keeps berthd from starting. Returns the names of what
// lies in it.
std::set<std::string> TidyUp(const std::string& tree, UniqueFd directory, const VolumePaths& paths) {
  std::set<std::string> found;
  Warn(paths.RemoveUnfinishedIdentities());
  if (!directory.valid()) return found;
  const SafeRoot covered = SafeRoot::Of(tree, std::move(directory));
  const auto leftovers = ListLeftovers(covered);
  Warn(leftovers.status());
  for (const Leftover& leftover : leftovers.ok() ? *leftovers : std::vector<Leftover>()) {
    SPDLOG_WARN("{}: files lie on the disk beneath the mount, and were left there: {}", tree,
                Describe(leftover));
    found.insert(leftover.name);
  }
  if (const absl::Status closed = MakeImmutable(covered.fd()); !closed.ok()) {
    SPDLOG_WARN("{}: while berthd has not started, files can be put into this directory: {}", tree,
                MessageOf(closed));
  }
  return found;
}

}  // namespace

absl::Status MounterImpl::Load(const std::set<std::string>& leftovers) {
  BERTH_ASSIGN_OR_RETURN(const auto rows, RestoreRows(*context_.journal, *context_.paths, BootId()));
  BERTH_ASSIGN_OR_RETURN(auto machines, ReadRows(rows, BootId()));
  const EarlierMounts mounts = MountsNow(context_.paths->tree());
  for (auto& [key, machine] : machines) {
    // Of another boot: the kernel has nothing of it.
    if (machine.record().boot_id != BootId()) machine.SetEarlierMounts(mounts);
    table_.Add(key, std::move(machine));
  }
  context_.pending_expansions.Load(context_.journal->TakeMeta());
  CompareIdentities(leftovers);
  return absl::OkStatus();
}

void MounterImpl::CompareIdentities(const std::set<std::string>& leftovers) {
  const VolumePaths& paths = *context_.paths;
  const auto listed = paths.ListIdentities();
  Warn(listed.status());
  if (!listed.ok()) return;  // not known which are missing
  const std::set<std::string> keys(listed->begin(), listed->end());
  for (const auto& [key, actor] : table_.all()) {
    if (keys.contains(key)) continue;
    Warn(paths.WriteIdentity(actor->machine().record()));
    context_.identity_sync.Add(key);
  }
  for (const std::string& key : keys) {
    if (table_.all().contains(key) || leftovers.contains(key)) continue;
    const auto directory = paths.LookAtVolume(key);
    const auto identity = paths.ReadIdentity(key);
    if (!directory.ok() || directory->exists || !identity.ok()) continue;
    Warn(paths.RemoveIdentity(key));
  }
}

Awaitable<absl::Status> MounterImpl::Recover() {
  ReportRestored(*context_.journal, context_.events);
  const auto known = [this](const std::string& key) { return table_.all().contains(key); };
  ReportOrphans(*context_.paths, known, context_.events);
  // Before anything is looked at, so that no change falls between.
  tree_watch_.Start();

  size_t unfinished = 0;
  size_t awaiting = 0;
  bool rebooted = false;
  // By value: an actor may be gone as soon as it begins.
  const auto actors = table_.all();
  context_.recovered = true;
  for (const auto& [key, actor] : actors) {
    const VolumeRecord& record = actor->machine().record();
    const std::string before = record.boot_id;
    actor->reconciler().Reconcile({.start = true, .rebooted = before != BootId()});
    actor->ReportUsers();
    awaiting += actor->reconciler().HasBlocked(Origin::kScheduler) ? 1 : 0;
    rebooted = rebooted || before != BootId();
    if (!actor->machine().plan().Unsettled()) continue;
    ++unfinished;
    context_.events.Append({.type = "volume.recovered",
                            .plugin_id = record.plugin_id,
                            .volume_id = record.volume_id,
                            .consumer = "",
                            .message = "not finished when berthd ended: finishing it"});
    actor->Start();
  }
  if (awaiting > 0) {
    ReportAwaitingScheduler(
        fmt::format("{} volumes wait for their scheduler's confirmation, since {} was restarted", awaiting,
                    rebooted ? "the node" : "berthd"));
  }
  tree_watch_.StartRounds();
  SPDLOG_INFO("{} volumes in the journal, {} with unfinished steps, {} that wait for a scheduler",
              actors.size(), unfinished, awaiting);
  co_return absl::OkStatus();
}

std::vector<std::string> MounterImpl::Problems() const {
  std::vector<std::string> problems;
  if (context_.journal != nullptr) {
    if (std::string problem = context_.journal->problem(); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  const std::vector<std::string> watched = tree_watch_.Problems();
  problems.insert(problems.end(), watched.begin(), watched.end());
  for (const StuckHelper& helper : context_.helper.stuck()) {
    problems.push_back(fmt::format("process {} hangs in the kernel: {}; it ends when its file system answers",
                                   helper.pid, helper.what));
  }
  return problems;
}

void MounterImpl::BeginShutdown(std::string why) {
  if (!context_.leaving.empty()) return;
  context_.leaving = std::move(why);
  const auto actors = table_.all();
  for (const auto& [key, actor] : actors) actor->reconciler().BeginShutdown(context_.leaving);
}

Awaitable<void> MounterImpl::Shutdown(TimePoint deadline) {
  BeginShutdown("berthd is stopping");
  context_.stopping = true;
  const auto actors = table_.all();
  for (const auto& [key, actor] : actors) actor->WakeUp();
  auto quiet = [&actors] {
    return std::ranges::none_of(actors, [](const auto& a) { return a.second->busy(); });
  };
  if (!co_await context_.work_ended.WaitUntil(quiet, deadline)) {
    SPDLOG_WARN("steps of volumes still run; they are taken up again at the next start");
  }
  co_await context_.consumers.Shutdown();
  co_await context_.scope.Join();
  context_.watch.reset();
  for (const auto& [key, actor] : actors) actor->FailAll(absl::UnavailableError("berthd is stopping"));
  co_await context_.journal->Flush(std::max(deadline, Clock::now() + std::chrono::seconds(1)));
  context_.journal.reset();

  const bool holds = std::ranges::any_of(actors, [](const auto& a) { return a.second->present(); });
  const std::string tree = context_.paths->tree();
  context_.paths.reset();
  table_.Clear();
  if (holds) co_return;
  // A volume that the journal does not know keeps it busy, rightly.
  const absl::Status taken_down = TakeDownMountTree(tree);
  if (!taken_down.ok()) SPDLOG_WARN("{}", taken_down.ToString());
}

absl::StatusOr<std::unique_ptr<Mounter>> Mounter::Open(asio::any_io_executor executor, MounterOptions options,
                                                       PluginDirectory& plugins, EventLog& events) {
  BERTH_RETURN_IF_ERROR(MakeDirectories(options.state_dir, 0711));
  std::error_code error;
  // The kernel shows mounts by their true paths.
  const std::string state_dir = std::filesystem::canonical(options.state_dir, error).string();
  if (error) return ErrnoStatus(error.value(), fmt::format("resolve {}", options.state_dir));
  options.state_dir = state_dir;
  const std::string tree = VolumePaths::TreeIn(state_dir);
  if (tree.size() + kTargetLength > kPathPromise) {
    SPDLOG_WARN("{}: target paths of {} bytes; a plugin need not accept more than {}", state_dir,
                tree.size() + kTargetLength, kPathPromise);
  }
  // The journal first: its lock says that the tree is ours to touch.
  BERTH_ASSIGN_OR_RETURN(auto journal, Journal::Open(executor, {.path = state_dir + "/journal.db"}));
  BERTH_ASSIGN_OR_RETURN(UniqueFd covered, SetUpMountTree(tree));
  BERTH_ASSIGN_OR_RETURN(VolumePaths paths, VolumePaths::Open(state_dir));
  const std::set<std::string> leftovers = TidyUp(tree, std::move(covered), paths);
  auto mounter = std::make_unique<MounterImpl>(executor, std::move(options), plugins, events,
                                               std::move(journal), std::move(paths));
  BERTH_RETURN_IF_ERROR(mounter->Load(leftovers));
  return mounter;
}

}  // namespace berth
