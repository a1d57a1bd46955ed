// What a publish does before its steps and after them: finishes what is being undone in its way, finds what
// is published already, checks plugin and secrets, and writes the intent down.
//
// Owned by the volume's actor; loop thread only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <optional>

#include "mounter/volume_driver.h"
#include "mounter/volume_operation.h"
#include "mounter/volume_reconciler.h"
#include "mounter/volume_state.h"

namespace berth {

class VolumePublisher {
 public:
  // What is given outlives it.
  VolumePublisher(VolumeState& volume, VolumeReconciler& reconciler, VolumeDriver& driver)
      : volume_(volume), reconciler_(reconciler), driver_(driver) {}

  // OK once it is published and that is durable. Errors as berth.v1.Node documents them for PublishVolume.
  [[nodiscard]] Awaitable<absl::Status> Publish(std::shared_ptr<VolumeOperation> operation,
                                                PublishRequest request);

 private:
  // Whether it is published already, after FinishConflictingUndo; if it is not, what is left of it is undone.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> FindPublished(PublishRequest request, TimePoint until);
  // Finishes what is being undone in the way of a publish.
  [[nodiscard]] Awaitable<absl::Status> FinishConflictingUndo(PublishRequest request);
  // OK if a publication that is not published yet, `known`, may go on with this request.
  [[nodiscard]] Awaitable<absl::Status> CheckBegun(PublishRequest request, PublicationRecord known);
  // It is published already, as `known`: the request may change what is written of it.
  [[nodiscard]] Awaitable<absl::Status> TakeOver(PublishRequest request, PublicationRecord known,
                                                 bool completed);
  // It was published, and its mount is lost: `why`; `other`: another mount lies there. It is undone, so that
  // it can be published again.
  [[nodiscard]] Awaitable<absl::Status> UndoLost(PublicationRecord known, absl::Status why, bool other);
  // Publishes what FindPublished has not found: plugin and secrets, whether it may begin, the intent, the
  // steps.
  [[nodiscard]] Awaitable<absl::Status> BeginPublish(std::shared_ptr<VolumeOperation> operation,
                                                     PublishRequest request);
  // CheckPlugin, and whether the plugin is being drained, of a publication that is not begun; one that is
  // goes on, unless its attachment is missing. FAILED_PRECONDITION; RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status MayBegin(const PublishRequest& request,
                                      const PluginDirectory::Entry& plugin) const;
  // Once published: whether the file system that the plugin chose is one that the consumer's runtime can use.
  // If not, a publication that no caller knows of (`handed_out` false) is undone. FAILED_PRECONDITION.
  [[nodiscard]] Awaitable<absl::Status> CheckWhatIsMounted(PublishRequest request, bool handed_out);
  // Writes down what a repeated publish changed; taken back in memory if that fails. `before`: the
  // publication as it was. `completed`: the request brought what a rebuilt record lacked.
  [[nodiscard]] Awaitable<absl::Status> CommitUpdate(PublicationRecord before, bool completed);
  // Writes the intent down, with the directories that it needs; undone in memory if that fails.
  [[nodiscard]] Awaitable<absl::Status> CommitIntent(PublishRequest request, PluginFacts facts);
  // It could not be written: nothing was sent. `kept`: the secrets of an earlier publish of the same.
  void RollBackIntent(const VolumeMachine& before, const PublicationRecord& publication,
                      std::optional<Secrets> kept);

  VolumeState& volume_;
  VolumeReconciler& reconciler_;
  VolumeDriver& driver_;
};

}  // namespace berth
