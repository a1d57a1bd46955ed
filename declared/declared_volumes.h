// The volumes that files in <config_dir>/volumes.d declare: published when their plugin is ready, attached
// first where that is needed, tried again for as long as it takes, released when their file goes or the
// machine is shut down. No scheduler and no caller is needed for it.
//
// One per berthd, made after the mounter has recovered and the plugins have been started; loop thread only.
// What is to be done is decided in declared.h; here it is carried out, one coroutine a file. Files and notes
// are read and written on helper threads.
//
// A mere stop or restart of berthd leaves declared volumes as they are. When the machine is shut down
// (MachineIsStopping, base/systemd_bus.h), main awaits ReleaseAll, while the plugins are still there. Nothing
// goes forward then (Mounter::BeginShutdown). systemd stops berthd before the scopes of its
// plugins (their property Before=) and before it unmounts anything in the tree (berthd/mount_order.h). berthd
// is ready before its plugins are, and so before its volumes: a unit that needs a declared volume requires
// its berth-volume@.service and is ordered after that, so that it starts once the volume is published, and is
// stopped before berthd is.
//
// Events: volume.declared (its file is new), volume.withdrawn (its file has gone), volume.attached,
// volume.detached, volume.not_released (at a shutdown, in time). The mounter
// emits the events of publishing.
#pragma once

#include <absl/status/status.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "controller/controller_access.h"
#include "controller/controller_directory.h"
#include "declared/declared_directory.h"
#include "mounter/mounter.h"

namespace berth {

struct DeclaredOptions {
  std::string config_dir;  // the files lie in its volumes.d, which may be missing
  std::string state_dir;   // its declared/ has the records
  // Where no volume may be mounted at a path of its own, besides the state directory.
  std::string runtime_dir = {};
};

class DeclaredVolumes final : public DeclaredDirectory {
 public:
  // What is given outlives this.
  DeclaredVolumes(asio::any_io_executor executor, DeclaredOptions options, Mounter& mounter,
                  ControllerDirectory& controllers, ControllerAccess& access, EventLog& events);
  ~DeclaredVolumes() override;

  // Reads the files and the records from before, and begins. Waits for no plugin. Never fails for a file:
  // each broken one is shown by List. An error says that the records cannot be read: nothing is done then,
  // which Problems says, too.
  [[nodiscard]] Awaitable<absl::Status> Start();

  // DeclaredDirectory.
  [[nodiscard]] std::vector<DeclaredView> List() const override;
  void OnUnpublish(const UnpublishRequest& request) override;
  [[nodiscard]] uint64_t version() const override;
  [[nodiscard]] Awaitable<void> WaitChange(uint64_t seen, TimePoint deadline) const override;
  [[nodiscard]] Awaitable<absl::StatusOr<DeclaredReload>> Reload(TimePoint deadline) override;
  // What an operator should look at, a sentence each.
  [[nodiscard]] std::vector<std::string> Problems() const override;

  // Releases every declared volume, side by side, as when the machine is shut down. Returns how many have not
  // left by `deadline`: they are released, and published again, after the next start. Final: nothing is
  // published after it.
  [[nodiscard]] Awaitable<size_t> ReleaseAll(TimePoint deadline);

  // Ends what is under way here; volumes stay. Before the mounter's own, and before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
