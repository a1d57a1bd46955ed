// Keeps the scheduler's lease: what of it survives a restart, and what follows its grant and its end.
//
//   a valid lease    Mounter::UnblockForward: what was requested or confirmed under it goes on. What is older
//                    than the lease (an earlier one ended, or the node was rebooted) stays blocked until the
//                    scheduler confirms it. One that holds is found again by the next berthd, and nothing
//                    changes.
//   a higher epoch   written down, then obeyed
//   an epoch file that cannot be read, or is missing on a node that has obeyed a scheduler
//                    no lease is accepted, until an operator has written the epoch and restarted berthd
//   it runs out      Mounter::BlockForward: nothing forward is begun or repeated; and, with the policy
//                    kRelease, each volume that only one node may write to is released:
//
//     to be released ──row on the disk──► RELEASING ──Mounter::ForceRelease──► RELEASED ──Acknowledge──► gone
//         │                                  ▲  │ (again and again, until it is true)
//         │                                  └──┘ the lease is back: finished nevertheless, and reported
//         │ the lease is back: not begun
//         ▼
//       stays published
//
// What is begun is in a row before anything is done, so a berthd that ends in the middle finishes it at its
// next start. RELEASED says what the node has seen: every known consumer has ended, and the kernel shows no
// mount. The end of a lease alone says nothing about a volume.
//
// Owned by main, or by the link; loop thread. The mounter, the events and the rows outlive it.
//
// Events: lease.granted (one is valid, and none was before), lease.expired,
// lease.epoch (a scheduler of a higher epoch is obeyed), volume.forced_release (it begins; it has left).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/boot_timer.h"
#include "base/event_log.h"
#include "base/process.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "mounter/mounter.h"
#include "rpc/uplink/lease.h"
#include "rpc/uplink/lease_store.h"
#include "rpc/uplink/link_lease.h"
#include "rpc/uplink/link_rows.h"

namespace berth {

struct LeaseKeeperOptions {
  std::string state_dir;    // lease_store.h
  std::string runtime_dir;  // a tmpfs
  v1::LeasePolicy on_expiry = v1::KEEP;
  std::string boot_id = BootId();
  // One try of a forced release; the first pause and the longest between two.
  Duration give_up_timeout = std::chrono::minutes(2);
  Duration first_pause = std::chrono::milliseconds(400);
  Duration retry_limit = std::chrono::minutes(1);
  // Called when state, epoch or forced_release may say something else than before; never from within a call.
  std::function<void()> on_change;
};

class LeaseKeeper final : public LinkLease {
 public:
  LeaseKeeper(asio::any_io_executor executor, LeaseKeeperOptions options, Mounter& mounter, EventLog& events,
              LinkRows& rows);

  // Reads what was kept, and goes on with what was under way; `rows`: those that there are, by key. Once,
  // after Mounter::Recover and before any stream. Blocks for two small files.
  void Start(const std::map<std::string, std::string>& rows);
  // Ends what runs here, and leaves everything to the next start. Before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown();

  // LinkLease. OnAnswer is to be awaited before the next message is read, since that may need what it says.
  // Errors: FAILED_PRECONDITION, from a scheduler that was overtaken by one of a higher epoch.
  void OnStream() override { lease_.OnStream(); }
  [[nodiscard]] absl::Status OnWelcome(uint64_t epoch) override;
  void OnHeartbeat(uint64_t number) override { lease_.OnSent(number, BootClock::now()); }
  [[nodiscard]] Awaitable<absl::Status> OnAnswer(v1::HeartbeatAnswer answer) override;
  [[nodiscard]] v1::Refusal Judge(uint64_t epoch, bool forward) const override {
    return lease_.Judge(epoch, forward, BootClock::now());
  }
  [[nodiscard]] v1::LeaseState state() const override { return lease_.State(BootClock::now()); }
  [[nodiscard]] uint64_t epoch() const override { return lease_.epoch(); }
  [[nodiscard]] std::optional<Duration> left() const override;
  [[nodiscard]] std::string why_not_valid() const override;
  // By number.
  [[nodiscard]] std::vector<v1::ForcedRelease> forced_release() const override;
  // Of one that is not RELEASED, or is not there: nothing.
  void AcknowledgeForcedRelease(uint64_t number) override;
  [[nodiscard]] bool force_releasing(const std::string& plugin_id,
                                     const std::string& volume_id) const override;

  // What an operator should know: that an epoch could not be written down, that a file was damaged.
  [[nodiscard]] std::vector<std::string> Problems() const;

 private:
  [[nodiscard]] Awaitable<void> WatchEnd();
  [[nodiscard]] Awaitable<void> SaveLease();
  // Finds out whether the lease has run out, and does what follows.
  void Look();
  void OnExpired();
  // If the epoch's file is missing: the evidence that it was ever written; empty: none.
  [[nodiscard]] std::string HadScheduler(const std::map<std::string, std::string>& rows,
                                         const LeaseStore::Kept& kept) const;
  // A lease is valid. Returns how many publications wait for the scheduler's confirmation.
  size_t UnblockForward();
  // Nothing forward any more, since the lease that ended at `since` is over or its epoch is.
  void BlockForward(BootTime since);
  [[nodiscard]] Awaitable<void> WriteEpoch(uint64_t epoch);
  // With policy RELEASE: volumes that are not being released yet.
  void ForceReleaseVolumes();
  [[nodiscard]] Awaitable<void> ForceRelease(VolumeRef volume, uint64_t epoch);
  // From RELEASING to RELEASED.
  [[nodiscard]] Awaitable<void> Finish(uint64_t number);
  // Until it is on the disk; false once `stop` says so.
  [[nodiscard]] Awaitable<bool> PutRow(std::string key, std::string value, std::function<bool()> stop);
  [[nodiscard]] Duration PauseAfter(int failures) const;
  // Until the volume is free, or then. `seen`: the number of the last event that is known.
  [[nodiscard]] Awaitable<void> WaitFree(VolumeRef volume, uint64_t seen, TimePoint then);
  void SpawnFinish(uint64_t number);
  void ForgetOlder(uint64_t number);
  void Emit(std::string type, std::string message, const VolumeRef& volume = {});
  void Changed();
  [[nodiscard]] Awaitable<void> ReportChange();

  LeaseKeeperOptions options_;
  Mounter& mounter_;
  EventLog& events_;
  LinkRows& rows_;
  LeaseStore store_;
  asio::any_io_executor executor_;
  Lease lease_;
  BootTimer timer_;
  bool forward_ = false;        // the mounter goes forward
  std::string unknown_epoch_;   // why the epoch is not known, and what to do. Empty: it is known
  uint64_t offered_epoch_ = 0;  // of the leases that are not accepted for that
  std::optional<Lease::Term> saved_;
  std::map<uint64_t, v1::ForcedRelease> forced_releases_;
  std::set<VolumeRef> beginning_;  // their first row is being written
  uint64_t last_number_ = 0;
  std::vector<std::string> damaged_;
  std::string epoch_problem_;
  bool lease_file_failed_ = false;
  bool telling_ = false;
  Condition changed_;
  TaskScope tasks_;
};

}  // namespace berth
