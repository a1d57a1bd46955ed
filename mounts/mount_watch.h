// Reports when others change the mounts in our tree: unmount one, or put one on top.
//
// Owned by the Mounter; loop thread only. The kernel reports, nothing is polled. If fanotify reports mounts
// (Linux 6.15 and later), an event costs a look-up and at most one statmount(2), with any number of mounts.
// On older kernels libmount's monitor says only that something has changed; the mount table is then read
// again and compared, on a helper thread, a tenth of the time at most.
//
//   kernel: attached, detached ── gathered for a moment ──> on_change({keys})
//                    queue overflow, the tree itself ─────> on_change(unset): any may have changed
//
// No lost or merged event stops it for good. The descriptor is waited for only after all of its events were
// read, and each wait asks the kernel again whether there are any. fanotify reports each event that it could
// not queue as an overflow. What libmount's monitor merges does not matter, since the whole table is read
// after it.
//
// Remounts and changes of propagation are not reported.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/task_scope.h"

namespace berth {

struct MountWatchOptions {
  bool use_fanotify = true;  // false: as on a kernel without it
  // Changes are gathered for so long, so that a mount that we have asked for ourselves is tracked by then.
  Duration gather = std::chrono::milliseconds(50);
};

class MountWatch {
 public:
  // The volume directories (first component in the tree) with possible changes; unset: any of them.
  using OnChange = std::function<void(const std::optional<std::set<std::string>>& keys)>;

  // `tree` as the kernel shows it: absolute, no symlinks. `scope` runs the watch; `on_change` is called from
  // there, and not any more once this is destroyed. Errors: what the kernel says, where neither way works.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MountWatch>> Start(asio::any_io_executor executor,
                                                                         TaskScope& scope, std::string tree,
                                                                         OnChange on_change,
                                                                         MountWatchOptions options = {});
  ~MountWatch();
  MountWatch(const MountWatch&) = delete;
  MountWatch& operator=(const MountWatch&) = delete;

  // A mount that is as it should be (PathFacts::mount_id): its appearance is not reported, its end is, with
  // `key`. It is untracked before we unmount it ourselves. On kernels without fanotify for mounts our own
  // changes in the tree are reported, too.
  void Track(uint64_t mount_id, const std::string& key);
  void Untrack(uint64_t mount_id);

  // How it watches, and what that costs, for the log.
  [[nodiscard]] const std::string& describe() const;

 private:
  struct State;
  explicit MountWatch(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace berth
