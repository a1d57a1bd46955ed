// The scheduler's lease on this node, as the node knows it: which requests it allows, and until when.
//
//            an answer with a lease, or a berthd
//            begins while one holds (Restore)           its time is over (OnTime)
//   none ─────────────────────────────► valid ────────────────────────────────────► expired
//       ▲                               │  ▲                                           │
//       └─ a higher epoch that has ─────┘  └──────────── an answer with a lease ───────┘
//          granted nothing yet
//
// The rules that make it safe:
//   * A lease counts from the *sending* of the heartbeat that is answered, on the clock that goes on while
//     the machine sleeps. The scheduler counts from the sending of its answer, which is later. So the node
//     finds the lease run out first.
//   * Only the answer to the newest heartbeat that was answered counts. Each is answered once.
//   * A lease of a higher epoch ends all authority of lower ones, for ever: from the moment when it was
//     received nothing of a lower one is done, and nothing of its own before it is on the disk
//     (OnEpochWritten).
//   * One of a lower epoch grants nothing, and its scheduler is not obeyed (kOvertaken). One that is over
//     when it is received grants nothing; its epoch counts.
//   * A lease holds without a break (Term::since) while each answer comes before its end, whatever its epoch,
//     and whether berthd was restarted meanwhile. A lease that is granted after one has ended, or after a
//     reboot, begins a new time: other nodes may have got this node's volumes in between.
//   * The scheduler that sent the Welcome may have volumes released, with a lease or without one.
//   * If the highest epoch cannot be read (WithUnknownEpoch), an overtaken scheduler cannot be recognised: no
//     lease is accepted.
//   * An expired lease means the scheduler was not reached. It does not mean that a volume was released.
//
// Pure: no clock, no I/O. The caller passes the time in and does what is decided. Confined to the loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "berth/v1/scheduler.pb.h"

namespace berth {

// As a HeartbeatAnswer grants it.
struct LeaseGrant {
  uint64_t epoch = 0;
  Duration duration{};
};

// A grant with a shorter one is refused, since it could only be made longer than was meant; one with a longer
// one is cut, which only makes the node more careful.
inline constexpr Duration kShortestLease = std::chrono::seconds(1);
inline constexpr Duration kLongestLease = std::chrono::hours(24);

struct AnswerVerdict {
  enum class Kind {
    kIgnored,    // nothing has changed; `why` says why
    kOvertaken,  // the same: the lease is of a scheduler that another one has taken over from
    kHeard,      // no lease was granted, or it was over already; the one there is runs on
    kGranted,    // the lease is another from now on
  };
  Kind kind = Kind::kIgnored;
  std::string why;
  // Not 0: this epoch is to be written down, durably, and then OnEpochWritten called. Until then nothing of
  // it is valid.
  uint64_t epoch_to_write = 0;
};

class Lease {
 public:
  // Of the last lease.
  struct Term {
    uint64_t epoch = 0;
    BootTime ends;
    // Since when there has been a lease without a break.
    BootTime since = {};

    bool operator==(const Term&) const = default;
  };

  // `highest_epoch`: the highest that was ever written down. 0: none.
  explicit Lease(uint64_t highest_epoch = 0) : seen_(highest_epoch), written_(highest_epoch) {}
  // There is one, and it cannot be read.
  [[nodiscard]] static Lease WithUnknownEpoch();

  // The lease of an earlier run of berthd, in this boot. Ignored if its epoch is higher than the highest; one
  // of a lower epoch only says since when there has been a lease. Where the highest is not known it is never
  // valid, and can only run out. Before anything else.
  void Restore(const Term& term);

  // A new stream: its heartbeats count from the beginning, and the last stream's are not answered any more.
  void OnStream();
  // The scheduler of this stream says the epoch of its leases in its Welcome; 0: it does not.
  void OnWelcome(uint64_t epoch) { welcomed_ = epoch; }
  // The heartbeat `number`, greater than all of this stream before it, leaves at `sent`; called before it
  // does.
  void OnSent(uint64_t number, BootTime sent);
  // It is answered. A grant unset: heard, and nothing is granted.
  [[nodiscard]] AnswerVerdict OnAnswer(uint64_t number, const std::optional<LeaseGrant>& grant, BootTime now);
  // `epoch` is on the disk.
  void OnEpochWritten(uint64_t epoch);
  // True once for each lease that has run out: when it is first found so. To be asked at NextLook, after a
  // start, and before OnAnswer.
  [[nodiscard]] bool OnTime(BootTime now);
  // When OnTime is to be asked; BootTime::max(): there is nothing to run out.
  [[nodiscard]] BootTime NextLook() const;

  // LEASE_NONE: none is known, or a scheduler of a higher epoch was heard and has granted none yet.
  // LEASE_EXPIRED: it ran out, and none has come since.
  [[nodiscard]] v1::LeaseState State(BootTime now) const;
  // Whether an operation under `epoch` may be run: REFUSAL_NONE, LEASE_EPOCH (it is not the present one), or
  // LEASE_NOT_VALID. `forward`: it begins or enlarges a use, and needs a valid lease. Others end or only show
  // one, and need the present epoch or the Welcome's.
  [[nodiscard]] v1::Refusal Judge(uint64_t epoch, bool forward, BootTime now) const;

  // The epoch that the node obeys: the highest one that it has heard of. 0: none ever, or it is not known.
  [[nodiscard]] uint64_t epoch() const { return seen_; }
  [[nodiscard]] bool epoch_known() const { return epoch_known_; }
  // Unset: none is known.
  [[nodiscard]] const std::optional<Term>& last() const { return term_; }

 private:
  [[nodiscard]] bool Valid(BootTime now) const;
  // Whether the scheduler that sent the Welcome may have volumes released under this epoch.
  [[nodiscard]] bool OfWelcome(uint64_t epoch) const;

  uint64_t seen_;     // the highest epoch heard of
  uint64_t written_;  // the highest that is on the disk
  bool epoch_known_ = true;
  uint64_t welcomed_ = 0;  // of this stream's Welcome
  std::optional<Term> term_;
  bool ran_out_ = false;  // the term has run out, and OnTime has said so
  // When each heartbeat left that may be answered yet.
  std::map<uint64_t, BootTime> sent_;
};

}  // namespace berth
