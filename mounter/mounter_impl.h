// The Mounter as it is built: what its source files share. Included by them alone.
//
//   mounter.cc          opening, recovery, shutdown, what others change
//   mounter_requests.cc publish, unpublish and the like, each handed to its volume
//   mounter_lease.cc    what follows from a scheduler that is heard, or is not
//   mounter_queries.cc  what is asked of it: volumes, mounts of a consumer
//   mounter_examine.cc  explanations and findings: what does not fit together, and its repair
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/status.h"
#include "mounter/doctor.h"
#include "mounter/journal_rebuild.h"
#include "mounter/mounter.h"
#include "mounter/mounter_context.h"
#include "mounter/recovery.h"
#include "mounter/secrets_reference.h"
#include "mounter/volume_actor.h"
#include "mounts/mount_health.h"

namespace berth {

// What one process, cgroup or unit has of a volume.
struct ConsumerShare {
  ConsumerLife life;
  std::vector<PublicationKey> keys;  // never empty
};

// A publish waits for the identity of its consumer: it is in no queue yet.
struct Arriving {
  std::string volume_key;
  PublicationKey publication;
  bool superseded = false;  // an unpublish of it, or its consumer's end, came meanwhile

  // In the list as long as it lives.
  class Place {
   public:
    Place(std::list<Arriving>& list, Arriving arriving)
        : list_(list), at_(list.insert(list.end(), std::move(arriving))) {}
    ~Place() { list_.erase(at_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    [[nodiscard]] const Arriving* operator->() const { return &*at_; }

   private:
    std::list<Arriving>& list_;
    std::list<Arriving>::iterator at_;
  };
};

class MounterImpl final : public Mounter {
 public:
  MounterImpl(const asio::any_io_executor& executor, MounterOptions options, PluginDirectory& plugins,
              EventLog& events, std::unique_ptr<Journal> journal, VolumePaths paths)
      : context_(executor, std::move(options), plugins, events, std::move(journal), std::move(paths)) {
    context_.volumes_through = [this](const std::string& plugin_id) { return VolumesThrough(plugin_id); };
    context_.recorded_mounts = [this](const std::set<dev_t>& devices) { return RecordedMounts(devices); };
    context_.uses = [this](const std::string& consumer, const std::string& key, bool used) {
      Uses(consumer, key, used);
    };
    context_.consumer_ended = [this](const std::string& consumer, const std::string& cause, Origin origin) {
      ReportEnded(consumer, cause, origin);
    };
  }

  // `leftovers`: what lies beneath the mount of the tree, by name.
  [[nodiscard]] absl::Status Load(const std::set<std::string>& leftovers);

  Awaitable<absl::Status> Recover() override;
  void BeginShutdown(std::string why) override;
  absl::Status CheckNotShuttingDown() const override {
    return context_.leaving.empty() ? absl::OkStatus() : absl::UnavailableError(context_.leaving);
  }
  Awaitable<void> Shutdown(TimePoint deadline) override;
  Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request, TimePoint deadline) override;
  Awaitable<absl::StatusOr<UnpublishResult>> Unpublish(UnpublishRequest request, TimePoint deadline) override;
  Awaitable<absl::StatusOr<size_t>> ConsumerEnded(std::string consumer, std::string cause,
                                                  TimePoint deadline) override;
  size_t UnblockForward(Origin origin, BootTime since) override;
  void BlockForward(Origin origin, std::string why) override;
  Awaitable<absl::StatusOr<std::vector<PublicationRef>>> Confirm(std::vector<PublicationRef> wanted,
                                                                 TimePoint deadline) override;
  void OnTokensWantedChanged() override;
  std::vector<VolumeRef> SingleWriterVolumes(Origin origin) const override;
  Awaitable<absl::StatusOr<UnpublishResult>> ForceRelease(VolumeRef volume, Origin origin,
                                                          TimePoint deadline) override;
  Awaitable<absl::Status> SetPendingExpansion(std::string plugin_id, std::string volume_id,
                                              int64_t required_bytes) override;
  Awaitable<absl::Status> CancelPendingExpansion(std::string plugin_id, std::string volume_id) override;
  std::optional<ConsumerMount> MountOf(const std::string& plugin_id, const std::string& volume_id,
                                       const std::string& consumer, const std::string& name) const override;
  std::vector<ConsumerMount> MountsOf(const std::string& consumer) const override;
  std::vector<VolumeView> VolumesOf(const std::string& consumer) const override;
  Awaitable<absl::StatusOr<VolumeExplanation>> Explain(std::string plugin_id, std::string volume_id,
                                                       TimePoint deadline) override;
  Awaitable<absl::StatusOr<std::vector<Finding>>> Examine(bool repair, TimePoint deadline) override;
  std::vector<std::string> Problems() const override;
  Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(std::string plugin_id,
                                                                         std::string volume_id,
                                                                         TimePoint deadline) override;
  Awaitable<absl::StatusOr<int64_t>> NodeExpand(std::string plugin_id, std::string volume_id,
                                                ::csi::v1::CapacityRange range,
                                                std::map<std::string, std::string> secrets,
                                                TimePoint deadline) override;
  std::vector<VolumeView> List() const override;
  std::vector<VolumeView> ListDeclared() const override;
  Awaitable<absl::Status> CheckUnrecorded(std::string plugin_id, std::string volume_id,
                                          TimePoint deadline) override;
  std::optional<VolumeView> Find(const std::string& plugin_id, const std::string& volume_id) const override;
  std::vector<std::string> PluginsOf(const std::string& volume_id, const std::string& name) const override;
  std::vector<VolumeRef> Labelled(const std::string& label, const std::string& plugin) const override;
  std::vector<std::string> HeldThrough(const std::string& plugin_id) const override;
  Awaitable<absl::Status> FreePath(std::string path, TimePoint deadline) override {
    co_return co_await FreePublishedPath(context_.helper, std::move(path), deadline);
  }
  Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecrets(SecretsReference reference,
                                                                            TimePoint deadline) override {
    return ReadSecretsReference(std::move(reference), context_.options.credentials_dir, context_.helper,
                                deadline);
  }

 private:
  std::shared_ptr<VolumeActor> AddActor(const std::string& key, VolumeMachine machine);
  // Writes missing identity files, and removes those of volumes that have left.
  void CompareIdentities(const std::set<std::string>& leftovers);
  [[nodiscard]] std::shared_ptr<VolumeActor> FindActor(const std::string& plugin_id,
                                                       const std::string& volume_id) const;
  // The volumes that a consumer uses; the others are not looked at.
  [[nodiscard]] std::vector<std::shared_ptr<VolumeActor>> ActorsOf(const std::string& consumer) const;
  [[nodiscard]] std::shared_ptr<VolumeActor> FindOrAdd(const std::string& plugin_id,
                                                       const std::string& volume_id);
  [[nodiscard]] size_t VolumesThrough(const std::string& plugin_id) const;
  [[nodiscard]] std::vector<uint64_t> RecordedMounts(const std::set<dev_t>& devices) const;
  // Nothing where it is not there, as the kernel sees it.
  [[nodiscard]] std::optional<ConsumerMount> PrintableName(const VolumeRecord& record,
                                                           const PublicationRecord& publication) const;
  // The mounts of these volumes may have changed; unset: of any volume. Checks before anything goes forward
  // that the tree of volumes is where it was; mounts it again if it was unmounted. FAILED_PRECONDITION:
  // something else was mounted over it.
  absl::Status RepairTree();
  void OnMountChanges(const std::optional<std::set<std::string>>& keys);
  void WatchHealth();
  // Asks plugins about their volumes, each round once for every volume.
  [[nodiscard]] Awaitable<void> WatchConditions();
  // One volume after the other, until the plugin does not answer in time. `left` is counted down at the end.
  [[nodiscard]] Awaitable<void> AskConditions(std::vector<std::shared_ptr<VolumeActor>> volumes,
                                              std::shared_ptr<size_t> left);
  // Wakes the volumes after the machine has slept.
  [[nodiscard]] Awaitable<void> WatchSleep();
  // The consumer's processes have ended. OK where nothing of it is published.
  [[nodiscard]] Awaitable<absl::Status> WaitForConsumer(UnpublishRequest request, TimePoint deadline);
  void Uses(const std::string& consumer, const std::string& key, bool used);
  // Once until it is confirmed.
  void ReportAwaitingScheduler(std::string message);
  void ForgetEnded(const std::string& consumer);
  // Reports that a consumer has ended, once for each origin until it uses something again.
  void ReportEnded(const std::string& consumer, const std::string& cause, Origin origin);
  struct Leaving;
  // Ends one of its consumers, and unpublishes the volume for it.
  [[nodiscard]] Awaitable<void> TakeFrom(std::shared_ptr<Leaving> leaving, size_t index, VolumeRef volume,
                                         ConsumerShare share, TimePoint deadline);
  // OK once nothing of the volume is here, as the mounter knows it and as the kernel shows it.
  [[nodiscard]] absl::Status CheckLetGo(const VolumeRef& volume) const;
  // What this berthd knows of one volume; what the disk and the kernel say is for others to add.
  [[nodiscard]] VolumeEvidence EvidenceOf(const std::string& key, const VolumeActor& actor) const;
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Diagnosis>>> DiagnoseAll(TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Perform(Diagnosis diagnosis, TimePoint deadline);

  // Queues `request`, and waits for its end until `deadline`.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::shared_ptr<VolumeOperation>>> Run(
      std::shared_ptr<VolumeActor> actor, VolumeRequest request, TimePoint deadline);

  MounterContext context_;
  std::map<std::string, std::shared_ptr<VolumeActor>> volumes_;  // by the journal's key
  std::map<std::string, std::set<std::string>> by_consumer_;     // the keys of the volumes that each uses
  std::set<std::pair<std::string, Origin>> reported_ended_;      // their volumes are leaving
  std::set<std::string> reported_orphans_;                       // directories with mounts that are not ours
  bool reported_awaiting_scheduler_ = false;
  std::string scheduler_blocked_;  // why: see BlockForward. Empty: UnblockForward came after it
  int scheduler_withholds_ = 0;    // how often
  std::list<Arriving> arriving_;
  std::string tree_problem_;  // of RepairTree; empty: none
  std::string not_watching_;  // why changes by others are not noticed; empty: they are
  std::optional<MountHealth> health_;
  Condition conditions_asked_{context_.executor};
};

}  // namespace berth
