// One plugin's owner: feeds its PluginLifecycle with what happens and carries out what that decides.
//
// Owned by the Supervisor; loop thread only. Run is the one task that launches, signals and ends processes of
// this plugin; others only post to it, what probing has found included. A process itself is a
// PluginInstance's. The parts, and what they share: runner_state.h.
//
//   <state_dir>/plugins/<id>/       BERTH_PLUGIN_DIR, the plugin's own
//   <state_dir>/swaps/<id>.toml     SwapState, while a swap overrides the file
//   <runtime_dir>/plugins/<id>/     0700; with `user =` that user's too (plugin_socket.h)
//       csi.sock                    the plugin's
//       run.toml                    RunRecord, while it runs
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_instance.h"
#include "supervisor/plugin_lifecycle.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/plugin_reconfigure.h"
#include "supervisor/plugin_requests.h"
#include "supervisor/plugin_swap.h"
#include "supervisor/run_record.h"
#include "supervisor/runner_state.h"

namespace berth {

class PluginRunner final : public PluginOwner {
 public:
  // `file.config` not OK: a broken file. It can still be taken back, not launched. `file.path` empty: only a
  // run record is left.
  PluginRunner(RunnerContext& context, PluginFile file);
  ~PluginRunner() override;
  PluginRunner(const PluginRunner&) = delete;
  PluginRunner& operator=(const PluginRunner&) = delete;

  // See PluginOwner.
  [[nodiscard]] Awaitable<void> Run() override;
  [[nodiscard]] Awaitable<void> WaitBegun() override;
  [[nodiscard]] Awaitable<void> LetGo() override;
  [[nodiscard]] Awaitable<absl::Status> Start(TimePoint deadline) override {
    return requests_.Start(deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> Stop(bool force, TimePoint deadline) override {
    return requests_.Stop(force, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> Restart(bool force, TimePoint deadline) override {
    return requests_.Restart(force, deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> Drain(TimePoint deadline) override {
    return requests_.Drain(deadline);
  }
  [[nodiscard]] Awaitable<absl::Status> Swap(SwapRequest request, TimePoint deadline) override {
    return swap_.Request(std::move(request), deadline);
  }
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file,
                                                                    TimePoint deadline) override {
    return reconfigure_.Take(std::move(file), deadline);
  }
  void OnHealth(uint64_t instance, const PluginHealth& health) override;
  void OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class) override;
  void OnIdle(uint64_t instance) override;
  void OnHoldersChanged() override;
  [[nodiscard]] bool gone() const override { return plugin_.gone(); }

 private:
  Awaitable<void> Begin();
  Awaitable<void> Receive(RunnerState::Message message);
  Awaitable<void> Handle(LifecycleEvent event);
  Awaitable<void> Perform(LifecycleAction action);
  Awaitable<LifecycleEvent> Launch();
  void BeginInstance(std::unique_ptr<PluginInstance> instance);
  Awaitable<LifecycleEvent> EndInstance(ExitStatus exit);
  void Retire(const std::string& why);
  void Fill(LifecycleEvent& event);
  LifecycleEvent TakeHealth(PluginHealth health);
  LifecycleEvent TakeFacts(RunnerState::FactsRead read);
  void KeepWish();
  void Announce(PluginState before, const std::string& reason_before);

  // Taking back (plugin_runner_restore.cc). True: the recorded process runs and is ours again. False: it does
  // not run. An error: a process exists, and it is not known whether it is ours, so that nothing may be
  // launched.
  Awaitable<absl::StatusOr<bool>> TakeBack();
  Awaitable<absl::StatusOr<std::optional<RunRecord>>> ReadRecord();
  void NoteFile();

  RunnerState plugin_;
  PluginRequests requests_{plugin_};
  PluginSwap swap_{plugin_, requests_};
  PluginReconfigure reconfigure_{plugin_, requests_, swap_};

  std::shared_ptr<RunRecordFile> record_;
  uint64_t instances_ = 0;      // so many there were
  bool record_read_ = false;    // and nothing is left of it but the instance
  uint64_t generation_ = 0;     // the highest in any record
  bool wish_restored_ = false;  // a drain that an earlier berthd was asked for
  bool foreign_ = false;        // the note says that another process serves its socket
  bool begun_ = false;
};

}  // namespace berth
