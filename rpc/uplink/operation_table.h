// The scheduler's operations on this node, by id: which one runs, what their results are, and which of these
// the scheduler has taken. Decides about each that arrives, so that each is done once, however often it is
// requested.
//
//            Admit                 Finish                      Acknowledge
//   (new) ──────────▶ running ────────────────▶ answered ───────────────────▶ acknowledged ──▶ settled
//                        │ asked for again:        │ asked for again:              │ asked for again:
//                        ▼ its result will come    ▼ the same result, again        ▼ refused (SETTLED)
//
// A refusal is no result: it is not remembered, and the id may be used again.
//
// Pure: it returns what is to be made durable (Changes) to the caller, who keeps it in rows (link_rows.h).
// Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "berth/v1/scheduler.pb.h"

namespace berth {

// Operations that end uses may be 16 times as many of each: they are taken when others are refused.
struct OperationLimits {
  size_t running = 1024;
  // Results that were not acknowledged: how many, and how long together. Beyond, nothing new is begun.
  size_t results = 4096;
  size_t result_bytes = size_t{32} << 20;
  // Acknowledged ids above Acknowledge.settled_below.
  size_t acknowledged = 4096;
};

class OperationTable {
 public:
  explicit OperationTable(OperationLimits limits = {}) : limits_(limits) {}

  // What was kept from before, in any order; before all else.
  void RestoreResult(v1::OperationResult result, std::string subject);
  void RestoreAcknowledged(uint64_t id) { acknowledged_.insert(id); }

  struct Admission {
    enum class Kind {
      kRun,       // begin it: it counts as running now
      kAnswered,  // its result is sent again
      kRuns,      // nothing is to be done
      kRefused,
    };
    Kind kind = Kind::kRun;
    v1::Refusal refusal = v1::REFUSAL_NONE;
    std::string why;  // kRefused
  };
  // `subject`: what it is about, in words, the same for equal operations: an id stands for one of them.
  // `reverse`: it ends uses of volumes.
  [[nodiscard]] Admission Admit(uint64_t id, const std::string& subject, bool reverse);

  // Whether the results that are kept, and one of so many bytes, are within the limit.
  [[nodiscard]] bool HasRoomFor(size_t bytes) const {
    return answered_bytes_ + bytes <= limits_.result_bytes;
  }
  // What a running operation came to. It is kept, and sent from now on.
  void Finish(v1::OperationResult result);

  // What has to be written down of an acknowledgement.
  struct Changes {
    std::vector<uint64_t> acknowledged;  // their results are not needed any more, but the ids are
    std::vector<uint64_t> forgotten;     // nothing of these is needed
    bool settled = false;                // settled_below() has changed
  };
  [[nodiscard]] Changes Acknowledge(const std::vector<uint64_t>& ids, uint64_t settled_below);

  // A new stream: every result is to be sent once more.
  void BeginStream();
  // The next result to be sent, which counts as sent from now on; null: all have been. Good until the next
  // call.
  [[nodiscard]] const v1::OperationResult* NextResult();
  [[nodiscard]] bool anything_to_send() const { return !to_send_.empty(); }

  [[nodiscard]] const std::string* SubjectOf(uint64_t id) const;
  [[nodiscard]] uint64_t settled_below() const { return settled_below_; }
  // Of all that is known. 0: nothing is.
  [[nodiscard]] uint64_t highest_id() const;
  [[nodiscard]] size_t running() const { return running_.size(); }
  [[nodiscard]] size_t kept() const { return answered_.size(); }

 private:
  struct Answered {
    v1::OperationResult result;
    std::string subject;
  };

  void Keep(v1::OperationResult result, std::string subject);
  void Drop(uint64_t id);

  OperationLimits limits_;
  std::map<uint64_t, std::string> running_;  // their subjects
  std::map<uint64_t, Answered> answered_;
  size_t answered_bytes_ = 0;
  std::set<uint64_t> to_send_;
  std::set<uint64_t> acknowledged_;
  uint64_t settled_below_ = 0;
};

}  // namespace berth
