#include "mounter/volume_actor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "base/status.h"
#include "mounter/publish_check.h"
#include "mounter/secrets_reference.h"
#include "mounts/mount_table.h"
#include "mounts/mountinfo.h"
#include "mounts/storage_state.h"

namespace berth {
namespace {

constexpr Duration kFirstBackgroundRetry = std::chrono::seconds(1);
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

absl::Status NotBegun(const std::string& why) { return absl::UnavailableError("not begun: " + why); }

// Another node may have the volume of a blocked publication of a scheduler's. Only the scheduler knows.
absl::Status MayPublishAnothers(const PublishRequest& request, const PublicationRecord* known) {
  if (known == nullptr || known->origin != Origin::kScheduler || request.origin == Origin::kScheduler) {
    return absl::OkStatus();
  }
  if (known->state == PublicationState::kUnpublishing && !known->again) return absl::OkStatus();
  const std::string& why = known->blocked.empty() ? known->withheld : known->blocked;
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

VolumeActor::VolumeActor(MounterContext& context, VolumeMachine machine, std::function<void()> on_gone)
    : context_(context),
      steps_(context),
      caller_(context),
      machine_(std::move(machine)),
      on_gone_(std::move(on_gone)),
      key_(VolumePaths::VolumeKey(machine_.record().plugin_id, machine_.record().volume_id)),
      reporter_(context, machine_, key_),
      queue_(context.executor, context.options.queue_per_volume),
      changed_(context.executor),
      tokens_(context, machine_, reporter_, secrets_, key_) {}

absl::StatusOr<std::shared_ptr<VolumeOperation>> VolumeActor::Submit(VolumeRequest request, TimePoint until) {
  BERTH_ASSIGN_OR_RETURN(auto operation, queue_.Submit(std::move(request), until));
  changed_.NotifyAll();
  EnsureWorking();
  return operation;
}

void VolumeActor::ReportUsers() {
  reporter_.ReportUsers(
      [weak = weak_from_this()](const PublicationKey& key, const ConsumerLife& life, const std::string& why) {
        if (const auto self = weak.lock()) self->Release(key, life, why);
      });
}

void VolumeActor::EnsureWorking() {
  if (working_ || context_.stopping) return;
  working_ = true;
  context_.scope.Spawn(fmt::format("volume {}", Printable(machine_.record().volume_id, 128)),
                       Work(shared_from_this()));
}

TimePoint VolumeActor::NextMove() const {
  const TimePoint retry = Unfinished() ? next_retry_ : TimePoint::max();
  const BootTime renewal = tokens_.Next();
  if (renewal == BootTime::max()) return retry;
  const BootTime now = BootClock::now();
  return renewal <= now ? TimePoint::min() : std::min(retry, Clock::now() + (renewal - now));
}

void VolumeActor::Start() {
  next_retry_ = Clock::now();
  changed_.NotifyAll();
  if (NextMove() != TimePoint::max()) EnsureWorking();
}

Awaitable<void> VolumeActor::Work(std::shared_ptr<VolumeActor> self) {
  struct Leave {
    VolumeActor* actor;
    ~Leave() {
      actor->working_ = false;
      actor->context_.work_ended.NotifyAll();
    }
  } leave{self.get()};
  MounterContext& context = self->context_;
  while (!context.stopping) {
    if (!self->queue_.empty()) {
      self->queue_.Begin();
      self->gives_way_ = false;
      absl::Status status = co_await self->Execute(self->queue_.current());
      self->running_.clear();
      self->running_since_.reset();
      self->waiting_for_.clear();
      std::shared_ptr<VolumeOperation> ended = self->queue_.End();
      if (self->GivesWay(*ended, status)) {
        // It goes on once those have ended that take something back.
        self->queue_.PutBack(std::move(ended));
      } else {
        ended->Finish(std::move(status));
      }
      self->MendStaging();
      self->reporter_.ReportView();
      continue;
    }
    const TimePoint next_move = self->NextMove();
    if (next_move == TimePoint::max()) break;
    self->next_retry_at_.reset();
    if (self->Unfinished()) {
      // The first pause is counted from here, not from a failure of long ago.
      self->next_retry_at_ = WallClock::now() + std::max(Duration(0), self->next_retry_ - Clock::now());
    }
    // Until it is time, which may come earlier than it seemed.
    self->slept_ = false;
    auto disturbed = [actor = self.get()] {
      return !actor->queue_.empty() || actor->context_.stopping || actor->slept_ ||
             Clock::now() >= actor->NextMove();
    };
    co_await self->changed_.WaitUntil(std::move(disturbed), next_move);
    if (!self->queue_.empty() || context.stopping) continue;
    if (self->Unfinished() && Clock::now() >= self->next_retry_) {
      co_await self->Settle();
      self->MendStaging();
    } else if (BootClock::now() >= self->tokens_.Next()) {
      co_await self->RenewTokens();
      self->MendStaging();
    }
    self->reporter_.ReportView();
  }
  self->next_retry_at_.reset();
  self->reporter_.ReportView();
  if (context.stopping) {
    self->FailAll(absl::UnavailableError("berthd is stopping; the request may be repeated once it is back"));
    co_return;
  }
  if (!self->machine_.present()) self->on_gone_();
}

Awaitable<absl::Status> VolumeActor::Execute(std::shared_ptr<VolumeOperation> operation) {
  absl::Status status;
  if (const auto* publish = std::get_if<PublishRequest>(&operation->request)) {
    status = co_await ExecutePublish(operation, *publish);
  } else if (const auto* unpublish = std::get_if<UnpublishRequest>(&operation->request)) {
    status = co_await ExecuteUnpublish(operation, *unpublish);
  } else if (const auto* expand = std::get_if<ExpandRequest>(&operation->request)) {
    status = co_await ExecuteExpand(operation, *expand);
  }
  TellAwaiting();
  if (machine_.Unsettled()) {
    failures_in_a_row_ = 1;
    next_retry_ = Clock::now() + context_.RetryAfter(1, kFirstBackgroundRetry, context_.options.retry_limit);
  }
  co_return status;
}

void VolumeActor::OnTokensWantedChanged() {
  tokens_.OnWantedChanged();
  changed_.NotifyAll();
  if (tokens_.Next() != BootTime::max()) EnsureWorking();
}

Awaitable<void> VolumeActor::RenewTokens() {
  for (const PublicationKey& key : tokens_.Due(BootClock::now())) {
    if (!queue_.empty() || context_.stopping) co_return;
    // Something may have come in between.
    if (!tokens_.Renews(key)) continue;
    co_await RunStep({StepKind::kRenew, key});
    // What became of the mount meanwhile, or of its staging, only the kernel knows.
    if (std::exchange(reconcile_again_, false)) Reconcile({});
  }
}

Awaitable<void> VolumeActor::Settle() {
  machine_.RetryExpansion();
  bool all_done = !stale_row_ || (co_await Commit()).ok();
  for (const PublicationKey& key : machine_.Movable()) {
    if (!queue_.empty() || context_.stopping) break;
    const absl::Status status = co_await Drive(key);
    all_done = all_done && status.ok();
  }
  if (queue_.empty() && machine_.NextTeardown().kind != StepKind::kNone) {
    const absl::Status status = co_await Drive({});
    all_done = all_done && status.ok();
  }
  const Step expansion = machine_.NextExpansion();
  if (queue_.empty() && !context_.stopping && expansion.kind != StepKind::kNone) {
    co_await RunStep(expansion);
    const absl::Status status = co_await Commit();
    all_done = all_done && status.ok() && machine_.record().pending_expansion_bytes == 0;
  }
  running_.clear();
  running_since_.reset();
  waiting_for_.clear();
  TellAwaiting();
  failures_in_a_row_ = all_done ? 0 : failures_in_a_row_ + 1;
  next_retry_ = Clock::now() + context_.RetryAfter(std::max(failures_in_a_row_, 1), kFirstBackgroundRetry,
                                                   context_.options.retry_limit);
}

Awaitable<absl::Status> VolumeActor::ExecutePublish(std::shared_ptr<VolumeOperation> operation,
                                                    PublishRequest request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  if (Clock::now() >= operation->wanted_until) {
    co_return absl::DeadlineExceededError("not begun: the volume was busy with other requests");
  }
  BERTH_CO_ASSIGN_OR_RETURN(const bool published, co_await MakeWay(request, operation->wanted_until));
  const PublicationRecord* before = machine_.record().Find(key);
  const bool handed_out = before != nullptr && before->published_at.has_value();
  if (!published) BERTH_CO_RETURN_IF_ERROR(co_await GoForward(operation, request));
  if (published) tokens_.KeepSecrets(request);
  // Also where the request has just given it another one.
  if (published && machine_.PathPending(key)) BERTH_CO_RETURN_IF_ERROR(co_await Drive(key));
  if (LeavesFileSystemOpen(request)) {
    BERTH_CO_RETURN_IF_ERROR(co_await CheckWhatIsMounted(request, handed_out));
  }
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr) co_return absl::InternalError("the publication vanished");
  operation->target_path = context_.paths->TargetPath(machine_.record(), *publication);
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumeActor::GoForward(std::shared_ptr<VolumeOperation> operation,
                                               PublishRequest request) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const TimePoint until = std::min(operation->wanted_until, Clock::now() + context_.options.rpc_timeout);
  const Step publish{StepKind::kPublish, key};
  auto superseded = [this, publish, operation] {
    return Superseded(publish) || !operation->withheld.empty();
  };
  auto plugin = co_await AwaitPlugin(request.plugin_id, superseded, until);
  if (!operation->withheld.empty()) co_return NotBegun(operation->withheld);
  if (!plugin.ok()) co_return plugin.status();
  Secrets referred;
  const bool elsewhere = IsSet(request.secrets_reference);
  if (elsewhere) {
    // Before anything is begun: who asks learns at once that they are not there.
    auto secrets = co_await ReadSecretsReference(request.secrets_reference, context_.options.credentials_dir,
                                                 context_.helper, until);
    if (!secrets.ok()) co_return Annotate(secrets.status(), "its secrets");
    referred = *std::move(secrets);
  }
  // Nothing is awaited between this and the intent: another volume would take the last place meanwhile.
  BERTH_CO_RETURN_IF_ERROR(MayBegin(request, *plugin));
  if (Superseded(publish)) co_return absl::AbortedError("not begun: an unpublish of the same came after it");
  if (!operation->withheld.empty()) co_return NotBegun(operation->withheld);
  if (elsewhere) secrets_[key] = std::move(referred);
  BERTH_CO_RETURN_IF_ERROR(co_await CommitIntent(request, plugin->facts));
  co_return co_await Drive(key);
}

absl::Status VolumeActor::MayBegin(const PublishRequest& request,
                                   const PluginDirectory::Entry& plugin) const {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  if (machine_.record().Find(key) != nullptr) return CheckAttached(request, plugin.facts);
  if (!plugin.refuses_new.empty()) return absl::FailedPreconditionError(plugin.refuses_new);
  if (!context_.plugins.TokensWanted(request.plugin_id).empty()) {
    BERTH_RETURN_IF_ERROR(MayHaveTokens(request.origin, request.plugin_id));
  }
  if (machine_.present() && !machine_.InUseByKernel()) {
    BERTH_RETURN_IF_ERROR(CheckStorage(NewPublication(request).Writes(request.use)));
    return CheckPlugin(request, plugin.facts, &machine_.record(), 0);
  }
  // Every volume is looked at, so only where it matters.
  const bool limited = plugin.facts.max_volumes_per_node.value_or(0) > 0;
  const size_t held = limited ? context_.volumes_through(request.plugin_id) : 0;
  return CheckPlugin(request, plugin.facts, nullptr, held);
}

Awaitable<absl::Status> VolumeActor::CheckWhatIsMounted(PublishRequest request, bool handed_out) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = machine_.record().Find(key);
  if (publication == nullptr) co_return absl::InternalError("the publication vanished");
  const auto shown = FileSystemAt(context_.paths->TargetPath(machine_.record(), *publication));
  if (!shown.ok()) co_return absl::UnavailableError(shown.status().ToString());
  const absl::Status usable = CheckFileSystem(request, *shown);
  if (usable.ok()) co_return usable;
  if (handed_out) co_return Annotate(usable, "published as it is, and left so until it is unpublished");
  machine_.Unwant(key);
  SaveSoon();
  const absl::Status undone = co_await Drive(key);
  if (undone.ok()) co_return usable;
  co_return Annotate(usable, fmt::format("still to be undone ({})", MessageOf(undone)));
}

Awaitable<absl::StatusOr<bool>> VolumeActor::MakeWay(PublishRequest request, TimePoint until) {
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  const PublicationRecord* publication = machine_.record().Find(key);
  BERTH_CO_RETURN_IF_ERROR(MayPublishAnothers(request, publication));
  const bool undoing = (publication != nullptr && publication->state == PublicationState::kUnpublishing) ||
                       machine_.NextTeardown().kind != StepKind::kNone;
  // What is staged still, since somebody uses it, can be published from as it is.
  // Not by one that must be the only writer: whether somebody does is asked again first.
  const bool sole_writer = publication == nullptr && WantsSoleWriter(request, machine_.record());
  const bool unstages =
      publication == nullptr &&
      (sole_writer || !(machine_.StagedForNobody() && CheckCompatible(request, machine_.record()).ok()));
  if (undoing && (publication != nullptr || unstages)) {
    const absl::Status status = co_await Drive(key);
    // Undone to be mounted again, it may wait for what this request brings.
    publication = machine_.record().Find(key);
    const bool waits = publication != nullptr && publication->state == PublicationState::kPublishing &&
                       (machine_.AwaitsSecrets(*publication) || !publication->blocked.empty() ||
                        !publication->withheld.empty());
    if (!status.ok() && sole_writer && in_use_) co_return StillWritable(request, MessageOf(status));
    if (!status.ok() && !waits && !machine_.InUseByKernel())
      co_return Annotate(status, "the volume's last use is still being undone");
  }
  if (sole_writer && machine_.present() && machine_.record().still_in_use) {
    const std::string& known = machine_.record().last_error;
    co_return StillWritable(request, known.empty() ? "a mount of it was detached while it was used" : known);
  }
  if (machine_.InUseByKernel()) {
    if (machine_.record().objects.size() >= kObjectsPerVolume) {
      co_return absl::FailedPreconditionError(
          fmt::format("{} earlier uses of it still live in the kernel: {}", machine_.record().objects.size(),
                      machine_.record().last_error));
    }
    co_return false;
  }
  if (machine_.present()) BERTH_CO_RETURN_IF_ERROR(CheckCompatible(request, machine_.record()));
  const bool completed = machine_.record().rebuilt;
  if (completed) {
    machine_.Complete(NewPublication(request), request.use, request.volume_context, request.publish_context);
  }
  publication = machine_.record().Find(key);
  if (publication == nullptr) co_return false;
  if (publication->state == PublicationState::kPublishing && !publication->blocked.empty() &&
      !publication->ephemeral) {
    // Of another boot: the plugin's books may say that it is done.
    machine_.Unwant(key);
    const absl::Status undone = co_await Drive(key);
    if (!undone.ok()) co_return Annotate(undone, "undo what was begun before the node was restarted");
    co_return false;
  }
  if (publication->state != PublicationState::kPublished) {
    if (!publication->had_secrets || !request.secrets.empty() || IsSet(request.secrets_reference)) {
      co_return false;
    }
    co_return absl::FailedPreconditionError(
        "this publication was begun with secrets, which are never written down: repeat the publish with "
        "them, or "
        "unpublish it");
  }

  const PublicationRecord known = *publication;
  absl::Status verified = co_await steps_.VerifyPublished(machine_.record(), known, until);
  const auto facts = context_.paths->LookAtTarget(machine_.record(), known);
  const bool other =
      facts.ok() && facts->mount_root && known.mount_id != 0 && facts->mount_id != known.mount_id;
  if (verified.ok() && other) verified = absl::InternalError("something is mounted over it");
  if (verified.ok()) {
    BERTH_CO_RETURN_IF_ERROR(CheckUsable(context_.paths->TargetPath(machine_.record(), known),
                                         machine_.record().objects, known.Writes(machine_.record().use)));
    machine_.MarkFound(key);
    // A scheduler that has lost its lease meanwhile takes nothing over.
    if (const std::string& why = queue_.current()->withheld; !why.empty()) co_return NotBegun(why);
    // Who repeats it may say anew what its consumer consists of, and whose it is.
    const bool labelled = machine_.SetLabel(request.label);
    if (machine_.Adopt(NewPublication(request)) || completed || labelled) {
      BERTH_CO_RETURN_IF_ERROR(co_await CommitAdopted(known, completed));
    }
    // The scheduler requests it again: it needs no other confirmation.
    if (request.origin == Origin::kScheduler && known.unconfirmed && Confirm(key)) {
      BERTH_CO_RETURN_IF_ERROR(co_await Commit());
    }
    co_return true;
  }
  if (verified.code() != absl::StatusCode::kInternal) co_return verified;
  machine_.MarkLost(key, std::string(MessageOf(verified)));
  const bool anew = !(known.ephemeral && other);
  reporter_.Emit("volume.lost", key.consumer,
                 fmt::format("{}{}", MessageOf(verified), anew ? ": publishing it again" : ""));
  if (known.ephemeral && other) {
    // The plugin would find a mount there, and so would we, and it is not its own.
    co_return absl::FailedPreconditionError(fmt::format(
        "something is mounted over it, and an ephemeral volume is not unpublished to repair that: "
        "unmount what lies on {}, or unpublish it",
        context_.paths->TargetPath(machine_.record(), known)));
  }
  if (known.ephemeral) {
    // To unpublish it would delete it.
    machine_.Repair(key, std::string(MessageOf(verified)));
    co_return false;
  }
  // Somebody unmounted it, or the node was restarted. Plugins keep books too: told to undo it first, they
  // do not take the repeat for something that they have done already.
  machine_.Unwant(key);
  const absl::Status undone = co_await Drive(key);
  if (!undone.ok()) co_return Annotate(undone, "undo the publication whose mount was lost");
  co_return false;
}

Awaitable<absl::Status> VolumeActor::CommitAdopted(PublicationRecord before, bool completed) {
  const VolumeRecord record = machine_.record();
  const PublicationRecord* now = record.Find(before.key);
  absl::Status status;
  if (now == nullptr || (now->origin == before.origin && !completed)) {
    status = co_await Commit();
  } else {
    // The identity file says whose it is, too, and whether it is attached.
    auto prepare = [&paths = *context_.paths, record, publication = *now] {
      return paths.Make(record, publication);
    };
    context_.Boundary("adopted: writing");
    status = co_await context_.journal->Put(key_, EncodeRecord(record), std::move(prepare));
    context_.Boundary("adopted: written");
    if (status.ok()) SyncIdentitySoon();
  }
  if (status.ok()) {
    ReportUsers();
    co_return status;
  }
  machine_.Unadopt(before);
  // What may have come to the disk after all is overwritten.
  stale_row_ = true;
  SaveSoon();
  co_return status;
}

void VolumeActor::SyncIdentitySoon() {
  context_.journal->WhenIdle([&paths = *context_.paths, key = key_] {
    const absl::Status synced = paths.SyncIdentity(key);
    if (!synced.ok()) SPDLOG_WARN("an identity file may not outlive a power cut: {}", MessageOf(synced));
  });
}

void VolumeActor::WriteIdentity() {
  const absl::Status written = context_.paths->WriteIdentity(machine_.record());
  if (!written.ok()) SPDLOG_WARN("{}", MessageOf(written));
}

Awaitable<absl::Status> VolumeActor::CommitIntent(PublishRequest request, PluginFacts facts) {
  const VolumeMachine before = machine_;
  // What was pending while it was not here is its new record's from now on.
  JournalRows taken_over;
  if (!machine_.present() || machine_.InUseByKernel()) {
    machine_ = VolumeMachine::Fresh(NewRecord(request, facts));
    condition_.reset();
    if (before.present()) {
      machine_.Inherit(before.record());
    } else {
      machine_.SetEarlierMounts(MountsNow(context_.paths->tree()));
    }
    machine_.Owe(context_.pending_expansions.Of(request.plugin_id, request.volume_id));
    taken_over = context_.pending_expansions.End(request.plugin_id, request.volume_id);
  }
  const PublicationKey key{.consumer = request.consumer, .name = request.name};
  std::optional<Secrets> kept;
  if (const auto it = secrets_.find(key); it != secrets_.end()) kept = it->second;
  machine_.SetBootId(BootId());
  machine_.SetLabel(request.label);
  levers_ = {};
  PublicationRecord wanted = NewPublication(request);
  if (const VolumeRecord& record = machine_.record();
      !record.stages && request.use.mount_flags != record.use.mount_flags) {
    wanted.mount_flags = request.use.mount_flags;
  }
  machine_.Want(std::move(wanted));
  if (!request.secrets.empty()) secrets_[key] = request.secrets;

  context_.Boundary("intent: writing");
  const VolumeRecord record = machine_.record();
  // As it is now: whose it is may be older than the request.
  const PublicationRecord publication = *record.Find(key);
  auto prepare = [&paths = *context_.paths, record, publication] { return paths.Make(record, publication); };
  const absl::Status status =
      co_await context_.journal->Put(key_, EncodeRecord(record), std::move(prepare), std::move(taken_over));
  context_.Boundary("intent: written");
  if (status.ok()) {
    stale_row_ = false;
    SyncIdentitySoon();
    ReportUsers();
    co_return status;
  }
  // Nothing was sent. What may have come to the disk after all is overwritten, and the directories go.
  if (before.InUseByKernel()) {
    machine_ = before;
  } else {
    machine_.Withdraw(key, before);
  }
  secrets_.erase(key);
  // Those of the publish before this one, which goes on.
  const PublicationRecord* goes_on = machine_.record().Find(key);
  if (kept && goes_on != nullptr && goes_on->secrets_at_hand) secrets_[key] = *std::move(kept);
  const bool had_it = before.record().Find(key) != nullptr;
  if (!had_it && context_.paths->RemovePublication(record, publication).ok() && !before.present()) {
    const absl::Status removed = context_.paths->RemoveVolume(record);
    if (!removed.ok()) SPDLOG_WARN("{}", removed.ToString());
  }
  if (before.present()) {
    SaveSoon();
  } else {
    context_.journal->DeleteSoon(key_, context_.KeepPending(record));
  }
  co_return status;
}

Awaitable<absl::Status> VolumeActor::ExecuteUnpublish(std::shared_ptr<VolumeOperation> operation,
                                                      UnpublishRequest request) {
  std::vector<PublicationKey> keys;
  for (const PublicationRecord& publication : machine_.record().publications) {
    if (Concerns(request, publication.key)) keys.push_back(publication.key);
  }
  if (request.force || request.lazy) {
    levers_.force = levers_.force || request.force;
    levers_.lazy = levers_.lazy || request.lazy;
    levers_.for_keys.insert(keys.begin(), keys.end());
  }
  plugin_cannot_ = false;
  const VolumeRecord before = machine_.record();
  for (const PublicationKey& key : keys) {
    machine_.Unwant(key);
    secrets_.erase(key);
    const PublicationRecord* was = before.Find(key);
    if (was == nullptr || machine_.record().Find(key) != nullptr) continue;
    // Nothing was sent, so no step follows that would take its directory away.
    VolumeRecord now = before;
    now.publications = machine_.record().publications;
    now.publications.push_back(*was);
    const absl::Status removed = context_.paths->RemovePublication(now, *was);
    if (!removed.ok()) SPDLOG_WARN("{}", MessageOf(removed));
  }
  operation->undone = !keys.empty();
  if (operation->undone) SaveSoon();
  absl::Status first_error;
  for (const PublicationKey& key : keys) {
    const absl::Status status = co_await Drive(key);
    if (first_error.ok()) first_error = status;
  }
  // One that a failed publish, or an unpublish before this one, left half undone.
  if (first_error.ok() && machine_.NextTeardown().kind != StepKind::kNone) first_error = co_await Drive({});
  if (first_error.ok() && stale_row_) first_error = co_await Commit();
  if (!first_error.ok() && request.force && plugin_cannot_ && !context_.stopping) {
    co_return co_await ReleaseWithoutPlugin(operation, request.requested_by, first_error);
  }
  // All that berthd and the plugin can do is done: the rest is for those who use it still.
  if (machine_.InUseByKernel() && in_use_) {
    operation->used_by = std::string(MessageOf(first_error));
    first_error = absl::OkStatus();
  }
  operation->still_in_use = machine_.present() && machine_.record().still_in_use;
  operation->aborted = levers_.aborted_at.has_value();
  operation->detached = levers_.detached_at.has_value();
  ForgetOldLevers();
  const std::string done = WhatLeversDid();
  if (!first_error.ok() && !done.empty()) co_return Annotate(first_error, done);
  co_return first_error;
}

Awaitable<absl::Status> VolumeActor::ReleaseWithoutPlugin(std::shared_ptr<VolumeOperation> operation,
                                                          std::string requested_by, absl::Status why) {
  const TimePoint deadline = Clock::now() + context_.options.rpc_timeout;
  StepInput input{.force = true, .lazy = levers_.lazy};
  StepReport report =
      co_await steps_.ReleaseWithoutPlugin(machine_.record(), std::move(input), Progress({}), deadline);
  last_error_ = report.error;
  if (report.stuck) machine_.OnStuck(*report.stuck);
  AfterInUse(report);
  holders_ = std::move(report.holders);
  if (report.outcome != CallOutcome::kDone) {
    co_return Annotate(report.error, MessageOf(why));
  }
  const auto& publications = machine_.record().publications;
  const bool whole = std::ranges::all_of(publications, [](const PublicationRecord& p) {
    return p.state == PublicationState::kUnpublishing && !p.again;
  });
  const bool before = machine_.record().without_plugin.has_value();
  if (whole && !before) machine_.SetWithoutPlugin({.requested_by = requested_by, .at = WallClock::now()});
  BERTH_CO_RETURN_IF_ERROR(co_await Commit());
  if (!before) {
    reporter_.Emit(
        "volume.released_without_plugin", "",
        fmt::format(
            "{} without plugin {}, at the request of {}; the plugin is asked to undo its part once it "
            "can: {}",
            whole ? "released" : "unmounted", machine_.record().plugin_id, requested_by, MessageOf(why)));
  }
  operation->without_plugin = true;
  operation->aborted = levers_.aborted_at.has_value();
  operation->detached = levers_.detached_at.has_value();
  operation->undone = true;
  levers_ = {};
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumeActor::ExecuteExpand(std::shared_ptr<VolumeOperation> operation,
                                                   ExpandRequest request) {
  const auto& publications = machine_.record().publications;
  if (std::ranges::find(publications, PublicationState::kPublished, &PublicationRecord::state) ==
      publications.end()) {
    co_return absl::NotFoundError("the volume is not published on this node");
  }
  const std::string plugin_id = machine_.record().plugin_id;
  if (!ExpansionPath(machine_.record(), *context_.paths).has_value()) {
    machine_.Owe(request.required_bytes);
    SaveSoon();
    co_return absl::NotFoundError("the volume is not published on this node to be written");
  }
  const TimePoint until = std::min(operation->wanted_until, Clock::now() + context_.options.rpc_timeout);
  sent_ = false;
  auto given_up = [this] { return ExpansionGivenUp(); };
  auto plugin = co_await AwaitPlugin(plugin_id, given_up, until);
  if (!machine_.leaving().empty()) co_return NotBegun(machine_.leaving());
  if (!plugin.ok()) co_return plugin.status();
  if (!plugin->facts.NodeCan(::csi::v1::NodeServiceCapability::RPC::EXPAND_VOLUME)) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} has no EXPAND_VOLUME on the node", plugin_id));
  }
  const TimePoint deadline = Clock::now() + context_.options.rpc_timeout;
  for (int failures = 1;; ++failures) {
    const StepReport report = co_await TryExpand(request, deadline);
    if (report.outcome == CallOutcome::kDone) {
      operation->capacity_bytes = report.capacity_bytes;
      machine_.OnExpanded(std::max(report.capacity_bytes, request.required_bytes));
      SaveSoon();
      reporter_.Emit("volume.expanded", "",
                     fmt::format("expanded on this node to {} bytes", report.capacity_bytes));
      co_return absl::OkStatus();
    }
    const bool repeat = report.outcome == CallOutcome::kRetry || report.outcome == CallOutcome::kUncertain;
    if (!sent_ && !machine_.leaving().empty()) co_return absl::UnavailableError(machine_.leaving());
    if (repeat) {
      // It is pending, and tried again when nothing else is to be done.
      machine_.Owe(request.required_bytes);
      SaveSoon();
    }
    const bool soon = absl::IsUnavailable(report.error) || absl::IsAborted(report.error);
    if (!repeat || !soon || Clock::now() >= deadline || !machine_.leaving().empty()) co_return report.error;
    const Duration pause =
        context_.RetryAfter(failures, std::chrono::milliseconds(100), std::chrono::seconds(5));
    sent_ = false;
    auto disturbed = [this] { return !machine_.leaving().empty() || !queue_.empty(); };
    if (co_await changed_.WaitUntil(std::move(disturbed), std::min(Clock::now() + pause, deadline))) {
      co_return report.error;
    }
  }
}

}  // namespace berth
