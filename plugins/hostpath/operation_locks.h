// One operation at a time on one thing: what CSI calls "operation pending".
//
// Without waiting: a second operation on a thing gets ABORTED at once, and the caller tries again later.
// Operations that only read a thing (a copy from it) may share it. Any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace berth::hostpath {

class OperationLocks {
 public:
  // A hold on one key, released by its destructor. Outlived by the OperationLocks it came from.
  class Hold {
   public:
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&&) = delete;
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

   private:
    friend class OperationLocks;
    Hold(OperationLocks* locks, std::string key) : locks_(locks), key_(std::move(key)) {}

    OperationLocks* locks_;
    std::string key_;
  };

  // What is locked. Names and ids of volumes and snapshots are four different spaces.
  enum class Space { kVolume, kVolumeName, kSnapshot, kSnapshotName, kTarget };

  // ABORTED while another operation holds the key (for Share: holds it for itself alone).
  [[nodiscard]] absl::StatusOr<Hold> Take(Space space, std::string_view name);
  [[nodiscard]] absl::StatusOr<Hold> Share(Space space, std::string_view name);

 private:
  absl::StatusOr<Hold> Acquire(Space space, std::string_view name, bool exclusive);
  void Release(const std::string& key);

  std::mutex mutex_;
  std::map<std::string, int> held_;  // number of sharers, or -1 for one alone
};

}  // namespace berth::hostpath
