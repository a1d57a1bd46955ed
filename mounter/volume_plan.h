// The states of one volume on this node, and which step may come next.
//
//          RequestPublish                             done                     done
//   absent ─────────────► staging ──NodeStageVolume──► staged ──NodePublishVolume──► published
//     ▲                     │                           ▲ │ │  (each publication        │
//     │                final│ failure, or               │ │ │   for itself)             │ Repair, or
//     │ forget              ▼ RequestUnpublish          │ │ └─ final failure ─┐         ▼ RequestUnpublish
//     └────────────── unstaging ◄─NodeUnstageVolume─ last one gone ◄─NodeUnpublishVolume─ unpublishing
//                           │                             │                             │
//                           └─ RepairStaging: all undone, └─ kExpand: NodeExpandVolume, └─ Repair:
//                              then staged again             while an expansion            published
//                                                            is pending                    again
//
// A volume whose plugin does not stage goes from absent to publishing, and back without unstaging; so does an
// ephemeral one.
//
// In addition to its state, the volume's staging or a publication may be:
//
//   uncertain          the step was sent and its outcome is not known, or the kernel does not show what it
//                      made. What may follow:   stage     ──► stage again, or unstage
//                                               publish   ──► publish again, or unpublish
//                                               unpublish ──► unpublish again
//                                               unstage   ──► unstage again
//                                               staged    ──► stage again, or unstage: the row may be older
//                                                             than an unstage, since that is not awaited
//                                               published ──► (mount lost) unpublish, then publish; of an
//                                                             ephemeral one publish alone
//                      and nothing else of the volume that rests on it.
//   staging lost       the staging is uncertain since its mount was taken away or mounted over. What is
//                      published from it stays. It is staged again before the next publish; unstaged before
//                      that if nothing is published from it, since plugins keep records too.
//   stuck              uncertain, and the plugin's call or the helper process has not returned. The same
//                      steps may follow; a forced reverse does not wait for it.
//   awaiting secrets   the step has to be repeated, and the secrets that it took were never written down:
//                      only its reverse, which takes none, may run, until a caller brings them again. One
//                      with a reference to its secrets never awaits them.
//   blocked            nothing forward is begun or repeated. What is published stays published, a lost or
//                      dead mount is not repaired, and reverse steps go on. Its reason, and what ends it:
//                        rebooted      `blocked`: RequestPublish, RequestUnpublish, Confirm
//                        no lease      `forward_blocked`, of a scheduler's: UnblockForward
//                        unconfirmed   the same: the lease ended, or the node was rebooted, since the
//                                      scheduler requested or confirmed it. Another node may have the volume
//                                      by now, so a new lease alone is not enough: RequestPublish, Confirm
//   leaving            berthd or the machine is being stopped: no forward step is begun or repeated for any
//                      publication, and nothing is repaired (BeginShutdown; it is final). Reverse steps go
//                      on.
//   dead               published, the mount is there, and its file system has ended. Only Repair follows, if
//                      it was requested.
//   hung               published, the mount is there, and its file system does not answer. It may answer
//                      again, or turn out to be dead. Until then nothing is repaired: an unmount would hang,
//                      too.
//
//                               answers ◄──► hung ──► dead ──► answers (mounted again)
//
//   read-only          published to be written, and it refuses writes. Nothing is repaired: what is wrong
//                      with it may have to be looked at first.
//
//   renewed            published, and its plugin gets new tokens with the same NodePublishVolume (kRenew, see
//                      MayRenew). Whatever its outcome, the publication does not change; the kernel shows
//                      what the plugin has changed.
//   in use             nothing of it is published or staged, and the kernel still has it (volume_release.h):
//                      it is forgotten once that has ended. A new publish may begin meanwhile.
//   path pending       published, and not (known to be) mounted at the path that was asked for too, or still
//                      mounted at one that is not wanted any more (kMountPath). That it fails never undoes a
//                      publication. An unpublish removes that mount first.
//   expansion pending  tried after each stage (or publish, without staging) and then in the background. Its
//                      failure never undoes or delays a publication.
//
// Pure: no clock, no I/O; any thread. VolumeMachine changes the state that is looked at here.
#pragma once

#include <string>
#include <vector>

#include "mounter/volume_record.h"

namespace berth {

enum class StepKind {
  kNone,  // nothing to do, or nothing that may be done now
  kStage,
  kPublish,
  kExpand,     // the node's part of a pending expansion
  kRenew,      // NodePublishVolume once more, of what is published, for its tokens
  kMountPath,  // mount what is published at its path too, or unmount it where it is not wanted any more
  kUnpublish,
  kUnstage,
  kForget,  // remove the volume's directories, then its row
};

struct Step {
  StepKind kind = StepKind::kNone;
  // Of kStage and kExpand: the publication that has the secrets; of kPublish, kRenew, kMountPath and
  // kUnpublish: the publication itself.
  PublicationKey key;

  bool operator==(const Step&) const = default;
};

// A look at one volume, for the moment: it does not outlive what it looks at.
class VolumePlan {
 public:
  struct Limits {
    bool present = false;             // a row and directories exist, or may
    bool leaving = false;             // nothing goes forward any more
    bool expansion_deferred = false;  // it failed: later
    bool expansion_refused = false;   // for good: not before the next stage, publish, or SetPendingExpansion
  };

  VolumePlan(const VolumeRecord& record, const Limits& limits) : record_(record), limits_(limits) {}

  // The next step for one publication and, when it was the last, for the volume after it.
  [[nodiscard]] Step NextFor(const PublicationKey& key) const;
  // Publications that can move of themselves: those being undone, those publishing that may go forward, and
  // those whose path is pending.
  [[nodiscard]] std::vector<PublicationKey> Movable() const;
  // The steps that undo what no publication needs any more.
  [[nodiscard]] Step NextTeardown() const;
  // The pending expansion, if it can be done now.
  [[nodiscard]] Step NextExpansion() const;
  // Whether anything can move of itself.
  [[nodiscard]] bool Unsettled() const;
  // Whether a publication's plugin may be called once more to give it new tokens: it is published, as far as
  // is known, for a scheduler with a valid lease, and what it was published from is there. This is no forward
  // step: one that is unconfirmed may. One that is dead may be: that its tokens have ended can be why.
  [[nodiscard]] bool MayRenew(const PublicationKey& key) const;
  // Whether a published one is to be mounted at its path, or to leave one, now.
  [[nodiscard]] bool PathPending(const PublicationKey& key) const;
  // A publication that is wanted awaits its secrets.
  [[nodiscard]] bool AwaitsSecrets() const;
  // Nothing of it is published or staged, and the kernel still has it.
  [[nodiscard]] bool InUseByKernel() const;
  // It is staged, nothing is published, and NodeUnstageVolume has not been sent.
  [[nodiscard]] bool StagedForNobody() const;

 private:
  [[nodiscard]] bool MayGoForward(const PublicationRecord& publication) const;
  [[nodiscard]] bool MayUnstage() const;
  // Whether a staging that is lost is undone before it is made again.
  [[nodiscard]] bool UnstagesFirst() const;
  // The next step for a publication that rests on a staging, and may go forward.
  [[nodiscard]] Step NextOnStaging(const PublicationKey& key) const;
  [[nodiscard]] Step ExpansionWhereItCan() const;
  [[nodiscard]] bool PathPending(const PublicationRecord& publication) const;

  const VolumeRecord& record_;
  Limits limits_;
};

}  // namespace berth
