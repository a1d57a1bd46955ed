// Finds mounts with a file system that does not answer (hung: its server may come back), or that has ended
// (dead): a FUSE daemon that hangs or has died, an NFS server that is away, a disk that was detached, a file
// system that was shut down; and mounts that refuse writes although these were requested (read-only).
//
// Owned by the Mounter; loop thread only. In rounds. The kernel says what it knows of each (storage_state.h).
// File systems in another process or on another machine are asked by helper processes (mount_helper.h), too;
// a mount with a hanging probe is not asked again while that hangs, and at once when it has ended; one that
// is being unmounted is not asked.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/task_scope.h"
#include "mounts/kernel_object.h"
#include "mounts/mount_helper.h"

namespace berth {

struct WatchedMount {
  std::string key;        // the volume's directory
  std::string component;  // the publication's; empty: the staging path
  std::string path;
  bool writes = false;                // it was asked for to write
  std::vector<KernelObject> objects;  // VolumeRecord::objects

  bool operator==(const WatchedMount&) const = default;
};

struct AskedMount;  // mount_health.cc

class MountHealth {
 public:
  using Which = std::function<std::vector<WatchedMount>()>;
  // OK: it is well (again). UNAVAILABLE: dead. DEADLINE_EXCEEDED: hung. FAILED_PRECONDITION: read-only. The
  // message is for people.
  using OnVerdict = std::function<void(const WatchedMount& mount, absl::Status verdict)>;

  // `which` is called before each round; `on_verdict` for each verdict that differs from the last one about
  // the mount (the first one: if not OK). `patience`: how long a file system may take to answer.
  MountHealth(const asio::any_io_executor& executor, MountHelper& helper, Duration interval, Which which,
              OnVerdict on_verdict, Duration patience = std::chrono::seconds(10));

  // Runs rounds until it is cancelled. This and the helper outlive it.
  [[nodiscard]] Awaitable<void> Run();

 private:
  [[nodiscard]] Awaitable<void> Round();
  // Probes one mount of each file system first: of one that hangs, the others hang too, and are not asked.
  [[nodiscard]] Awaitable<void> Ask(std::vector<AskedMount> to_ask);
  // The file systems of which the probe of a mount hangs still. Each other probe would leave a helper behind.
  [[nodiscard]] std::map<dev_t, absl::Status> Hanging(const std::vector<AskedMount>& to_ask) const;
  // The verdicts, in the same order.
  [[nodiscard]] Awaitable<std::vector<absl::Status>> Probe(const std::vector<AskedMount>& mounts);
  void ConcludeAsked(const AskedMount& asked, const absl::Status& verdict);
  void Conclude(const WatchedMount& mount, uint64_t mount_id, const absl::Status& verdict);

  MountHelper& helper_;
  Duration interval_;
  Which which_;
  OnVerdict on_verdict_;
  Duration patience_;

  // By path: the last verdict that was not OK, and its mount.
  struct Bad {
    absl::StatusCode code = absl::StatusCode::kOk;
    uint64_t mount_id = 0;
  };
  std::map<std::string, Bad> bad_;
};

}  // namespace berth
