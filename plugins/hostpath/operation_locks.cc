#include "plugins/hostpath/operation_locks.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"

namespace berth::hostpath {
namespace {

std::string_view SpaceName(OperationLocks::Space space) {
  switch (space) {
    case OperationLocks::Space::kVolume:
      return "volume";
    case OperationLocks::Space::kVolumeName:
      return "volume named";
    case OperationLocks::Space::kSnapshot:
      return "snapshot";
    case OperationLocks::Space::kSnapshotName:
      return "snapshot named";
    case OperationLocks::Space::kTarget:
      return "target";
  }
  return "";
}

}  // namespace

OperationLocks::Hold::Hold(Hold&& other) noexcept
    : locks_(std::exchange(other.locks_, nullptr)), key_(std::move(other.key_)) {}

OperationLocks::Hold::~Hold() {
  if (locks_ != nullptr) locks_->Release(key_);
}

absl::StatusOr<OperationLocks::Hold> OperationLocks::Take(Space space, std::string_view name) {
  return Acquire(space, name, /*exclusive=*/true);
}

absl::StatusOr<OperationLocks::Hold> OperationLocks::Share(Space space, std::string_view name) {
  return Acquire(space, name, /*exclusive=*/false);
}

absl::StatusOr<OperationLocks::Hold> OperationLocks::Acquire(Space space, std::string_view name,
                                                             bool exclusive) {
  std::string key = fmt::format("{} {}", SpaceName(space), name);
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(key);
  if (found != held_.end() && (exclusive || found->second < 0)) {
    return absl::AbortedError(fmt::format("an operation is pending for the {} {}: try again later",
                                          SpaceName(space), Printable(name, 128)));
  }
  if (exclusive) {
    held_[key] = -1;
  } else {
    ++held_[key];
  }
  return Hold(this, std::move(key));
}

void OperationLocks::Release(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(key);
  // One alone, or the last of the sharers.
  if (found->second <= 1) {
    held_.erase(found);
  } else {
    --found->second;
  }
}

}  // namespace berth::hostpath
