// One call at a time about each volume and snapshot, in the order in which they were asked for.
//
// CSI wants no two calls of a controller in flight about one volume. A call is about one thing or several
// (its keys), and its turn comes once no earlier call about any of them is left: two calls can never wait for
// each other. Owned by ControllerAccess; loop thread only; outlives the turns that it gave.
#pragma once

#include <absl/status/statusor.h>

#include <boost/asio/any_io_executor.hpp>
#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

// What a call is about. What is still to be made has only the caller's name for it.
struct CallKey {
  enum class Kind { kVolume, kVolumeName, kSnapshot, kSnapshotName, kGroup, kGroupName, kListing };

  std::string driver;
  Kind kind = Kind::kVolume;
  std::string id;

  auto operator<=>(const CallKey&) const = default;
};

class VolumeCallQueue {
 public:
  // How many may wait for one thing.
  static constexpr size_t kWaiting = 64;

  class Turn;

  // Until when one waits: asked again at each end that it gave, for it may be later by then.
  using Until = std::function<TimePoint()>;

  explicit VolumeCallQueue(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  VolumeCallQueue(const VolumeCallQueue&) = delete;
  VolumeCallQueue& operator=(const VolumeCallQueue&) = delete;

  // Without keys it is at once. DEADLINE_EXCEEDED: an earlier call goes on still; RESOURCE_EXHAUSTED: too
  // many wait. `owner` is only compared, by IsLast.
  [[nodiscard]] Awaitable<absl::StatusOr<Turn>> Wait(std::vector<CallKey> keys, TimePoint deadline,
                                                     const void* owner = nullptr);
  // The same, for a caller that may get more time while it waits: it keeps its place in line.
  [[nodiscard]] Awaitable<absl::StatusOr<Turn>> Wait(std::vector<CallKey> keys, Until until,
                                                     const void* owner);

  // Whether no other's call about any of `keys` has come after the one of `owner`.
  [[nodiscard]] bool IsLast(const std::vector<CallKey>& keys, const void* owner) const;

 private:
  struct Ticket {
    Ticket(std::vector<CallKey> its, const void* whose, const asio::any_io_executor& executor)
        : keys(std::move(its)), owner(whose), moved(executor) {}

    std::vector<CallKey> keys;
    const void* owner;
    Condition moved;
  };

  [[nodiscard]] bool IsFirst(const Ticket& ticket) const;
  void Leave(const Ticket& ticket);

  asio::any_io_executor executor_;
  std::map<CallKey, std::deque<Ticket*>> lines_;  // never an empty one
};

// Its owner may call; the next turn comes when it is gone.
class VolumeCallQueue::Turn {
 public:
  Turn(VolumeCallQueue& turns, std::unique_ptr<Ticket> ticket) : turns_(&turns), ticket_(std::move(ticket)) {}
  ~Turn() {
    if (ticket_) turns_->Leave(*ticket_);
  }
  Turn(Turn&&) = default;
  Turn& operator=(Turn&&) = delete;

 private:
  friend class VolumeCallQueue;

  VolumeCallQueue* turns_;
  std::unique_ptr<Ticket> ticket_;
};

}  // namespace berth
