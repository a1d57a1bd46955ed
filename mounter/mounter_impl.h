// The Mounter as it is built: what its source files share. Included by them alone.
//
//   mounter.cc          opening, recovery, shutdown, what others change
//   mounter_requests.cc publish, unpublish and the like, each handed to its volume
//   mounter_lease.cc    what follows from a scheduler that is heard, or is not
//
// What is asked of volumes is VolumeQueries', explanations and findings are VolumeExaminer's, what others do
// to the tree is TreeWatch's, the end of a lease is LeaseRelease's. VolumeTable has the volumes.
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
#include "mounter/arriving.h"
#include "mounter/lease_release.h"
#include "mounter/mounter.h"
#include "mounter/mounter_context.h"
#include "mounter/secrets_reference.h"
#include "mounter/tree_watch.h"
#include "mounter/volume_actor.h"
#include "mounter/volume_examiner.h"
#include "mounter/volume_queries.h"
#include "mounter/volume_table.h"

namespace berth {

class MounterImpl final : public Mounter {
 public:
  MounterImpl(const asio::any_io_executor& executor, MounterOptions options, PluginDirectory& plugins,
              EventLog& events, std::unique_ptr<Journal> journal, VolumePaths paths)
      : context_(executor, std::move(options), plugins, events, std::move(journal), std::move(paths)) {}

  // `leftovers`: what lies beneath the mount of the tree, by name.
  [[nodiscard]] absl::Status Load(const std::set<std::string>& leftovers);

  Awaitable<absl::Status> Recover() override;
  void BeginShutdown(std::string why) override;
  absl::Status CheckNotShuttingDown() const override { return context_.CheckNotShuttingDown(); }
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
  std::vector<VolumeRef> SingleWriterVolumes(Origin origin) const override {
    return lease_release_.SingleWriterVolumes(origin);
  }
  Awaitable<absl::StatusOr<UnpublishResult>> ForceRelease(VolumeRef volume, Origin origin,
                                                          TimePoint deadline) override {
    return lease_release_.ForceRelease(std::move(volume), origin, deadline);
  }
  Awaitable<absl::Status> SetPendingExpansion(std::string plugin_id, std::string volume_id,
                                              int64_t required_bytes) override;
  Awaitable<absl::Status> CancelPendingExpansion(std::string plugin_id, std::string volume_id) override;
  std::optional<ConsumerMount> MountOf(const std::string& plugin_id, const std::string& volume_id,
                                       const std::string& consumer, const std::string& name) const override {
    return queries_.MountOf(plugin_id, volume_id, consumer, name);
  }
  std::vector<ConsumerMount> MountsOf(const std::string& consumer) const override {
    return queries_.MountsOf(consumer);
  }
  Awaitable<absl::StatusOr<VolumeExplanation>> Explain(std::string plugin_id, std::string volume_id,
                                                       TimePoint deadline) override {
    return examiner_.Explain(std::move(plugin_id), std::move(volume_id), deadline);
  }
  Awaitable<absl::StatusOr<std::vector<Finding>>> Examine(bool repair, TimePoint deadline) override {
    return examiner_.Examine(repair, deadline);
  }
  std::vector<std::string> Problems() const override;
  Awaitable<absl::StatusOr<::csi::v1::NodeGetVolumeStatsResponse>> Stats(std::string plugin_id,
                                                                         std::string volume_id,
                                                                         TimePoint deadline) override;
  Awaitable<absl::StatusOr<int64_t>> NodeExpand(std::string plugin_id, std::string volume_id,
                                                ::csi::v1::CapacityRange range,
                                                std::map<std::string, std::string> secrets,
                                                TimePoint deadline) override;
  std::vector<VolumeView> List(const VolumeFilter& filter) const override { return queries_.List(filter); }
  VolumeCounts Count() const override { return queries_.Count(); }
  Awaitable<absl::Status> CheckUnrecorded(std::string plugin_id, std::string volume_id,
                                          TimePoint deadline) override;
  std::optional<VolumeView> Find(const std::string& plugin_id, const std::string& volume_id) const override {
    return queries_.Find(plugin_id, volume_id);
  }
  std::vector<std::string> PluginsOf(const std::string& volume_id, const std::string& name) const override {
    return queries_.PluginsOf(volume_id, name);
  }
  std::optional<VolumeView> ShownBy(const std::string& volume_id, const std::string& name) const override {
    return queries_.ShownBy(volume_id, name);
  }
  std::vector<std::string> HeldThrough(const std::string& plugin_id) const override {
    return queries_.HeldThrough(plugin_id);
  }
  Awaitable<absl::Status> FreePath(std::string path, TimePoint deadline) override {
    co_return co_await FreePublishedPath(context_.helper, std::move(path), deadline);
  }
  Awaitable<absl::StatusOr<std::map<std::string, std::string>>> ReadSecrets(SecretsReference reference,
                                                                            TimePoint deadline) override {
    return ReadSecretsReference(std::move(reference), context_.options.credentials_dir, context_.helper,
                                deadline);
  }

 private:
  // Writes missing identity files, and removes those of volumes that have left.
  void CompareIdentities(const std::set<std::string>& leftovers);
  // The consumer's processes have ended. OK where nothing of it is published.
  [[nodiscard]] Awaitable<absl::Status> WaitForConsumer(UnpublishRequest request, TimePoint deadline);
  // Once until it is confirmed.
  void ReportAwaitingScheduler(std::string message);
  // Queues `request`, and waits for its end until `deadline`.
  [[nodiscard]] static Awaitable<absl::StatusOr<std::shared_ptr<VolumeOperation>>> Run(
      std::shared_ptr<VolumeActor> actor, VolumeRequest request, TimePoint deadline);

  MounterContext context_;
  VolumeTable table_{context_};
  VolumeQueries queries_{context_, table_};
  TreeWatch tree_watch_{context_, table_};
  VolumeExaminer examiner_{context_, table_, [this] { return Problems(); }};
  LeaseRelease lease_release_{context_, table_, [this](UnpublishRequest request, TimePoint deadline) {
                                return Unpublish(std::move(request), deadline);
                              }};
  bool reported_awaiting_scheduler_ = false;
  std::string scheduler_blocked_;  // why: see BlockForward. Empty: UnblockForward came after it
  int scheduler_blocks_ = 0;       // how often
  std::list<Arriving> arriving_;
};

}  // namespace berth
