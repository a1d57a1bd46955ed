// Whether an operator takes the whole node out of use, and how far that has come.
//
//   in use ── Begin ──▶ draining ── the last publication leaves ──▶ drained
//     ▲                     │                                          │
//     └───────── End ───────┴──────────────────────────────────────────┘
//
// While it drains nothing new is published (Admit), and what is here may leave. Declared publications do not
// count: files ask for them, not callers. A drain is a small file, which is on the disk before Begin answers
// and off it before End does, so that it outlives berthd and the machine.
//
// Owned by main; loop thread only. Events: node.draining (begun, or with another reason), node.drained (the
// last publication has left; emitted again by a new berthd that finds it so), node.in_use.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berth/v1/node.pb.h"
#include "mounter/mounter.h"

namespace berth {

class NodeDrainer {
 public:
  // `file`: where the drain is kept, on a local disk. Mounter and events outlive this.
  NodeDrainer(asio::any_io_executor executor, std::string file, const Mounter& mounter, EventLog& events);

  // Restores the drain of an earlier berthd, and begins to watch publications leave: once, before anything is
  // published. A file that cannot be read counts as a drain, and its reason says so: a node that takes
  // nothing is better than one that an operator takes for empty.
  [[nodiscard]] Awaitable<void> Restore();

  // A repeat only changes the reason. The work goes on if `deadline` ends the wait (DEADLINE_EXCEEDED).
  // Errors: those of the disk; nothing has changed then.
  [[nodiscard]] Awaitable<absl::Status> Begin(std::string reason, TimePoint deadline);
  // OK where the node is in use.
  [[nodiscard]] Awaitable<absl::Status> End(TimePoint deadline);

  // The drain as it is now; nullopt: the node is in use.
  [[nodiscard]] std::optional<v1::NodeDrain> Describe() const;

  // One use of a volume: plugin id, volume id, consumer, name.
  using UseKey = std::tuple<std::string, std::string, std::string, std::string>;
  // Keeps a publish that was admitted known as one that is under way. Ends before the NodeDrainer.
  class Admission;
  // To be asked before a publish that is not a declared volume's, and held while it runs. FAILED_PRECONDITION
  // with the reason while the node drains, unless this publication is under way, or is here and not on its
  // way out.
  [[nodiscard]] absl::StatusOr<Admission> Admit(const PublishRequest& request);

  // Counts the changes of Describe() so far. A reader waits here for the next change; false: there was none
  // until `deadline`.
  [[nodiscard]] uint64_t version() const { return version_; }
  [[nodiscard]] Awaitable<bool> WaitChange(uint64_t after, TimePoint deadline);

  // Some volume has another number of publications than before (MounterOptions::on_holders_changed).
  void OnHoldersChanged();

  // Ends the watch, and waits for the disk.
  [[nodiscard]] Awaitable<void> Shutdown();

 private:
  // One change on its way to the disk, shared by the task that makes it and its waiters.
  struct Change {
    std::optional<v1::NodeDrain> wanted;
    bool done = false;
    absl::Status status;
  };

  // Makes one change after the other.
  Awaitable<absl::Status> Become(bool drain, std::string reason, TimePoint deadline);
  Awaitable<void> Write(std::shared_ptr<Change> change);
  void TakeOver(const Change& change);
  Awaitable<void> Watch();
  void Changed();
  // The mounter's publications, and publishes under way that it does not show yet.
  [[nodiscard]] int PublicationsLeft() const;
  // Here, and not on its way out.
  [[nodiscard]] bool IsHere(const UseKey& use) const;

  asio::any_io_executor executor_;
  const std::string file_;
  const Mounter& mounter_;
  EventLog& events_;
  std::optional<v1::NodeDrain> drain_;  // without the number of publications
  std::map<UseKey, int> under_way_;
  bool writing_ = false;
  int left_ = -1;  // as last reported; -1: not counted yet
  uint64_t holders_changed_ = 0;
  uint64_t version_ = 1;
  Condition changed_;
  TaskScope tasks_;
};

class NodeDrainer::Admission {
 public:
  Admission(NodeDrainer& drainer, UseKey use) : drainer_(&drainer), use_(std::move(use)) {
    ++drainer.under_way_[use_];
  }
  ~Admission() {
    if (drainer_ == nullptr) return;
    if (--drainer_->under_way_[use_] == 0) drainer_->under_way_.erase(use_);
    drainer_->OnHoldersChanged();
  }
  Admission(Admission&& other) noexcept
      : drainer_(std::exchange(other.drainer_, nullptr)), use_(std::move(other.use_)) {}
  Admission& operator=(Admission&&) = delete;

 private:
  NodeDrainer* drainer_;
  UseKey use_;
};

}  // namespace berth
