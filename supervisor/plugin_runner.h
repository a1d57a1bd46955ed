// One plugin's owner: feeds its PluginLifecycle with what happens and carries out what that decides.
//
// Owned by the Supervisor; loop thread only. Run is the one task that launches, signals and ends processes of
// this plugin; others only post to it, what probing has found included. A process itself is a
// PluginInstance's.
//
//   <state_dir>/plugins/<id>/       BERTH_PLUGIN_DIR, the plugin's own
//   <state_dir>/swaps/<id>.toml     SwapState, while a swap overrides the file
//   <runtime_dir>/plugins/<id>/     0700; with `user =` that user's too (plugin_socket.h)
//       csi.sock                    the plugin's
//       run.toml                    RunRecord, while it runs
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_instance.h"
#include "supervisor/plugin_lifecycle.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/plugin_report.h"
#include "supervisor/run_record.h"
#include "supervisor/supervisor.h"
#include "supervisor/swap_plan.h"

namespace berth {

// What all runners share; outlives them.
struct RunnerContext {
  InstanceContext& instances;
  ReportContext& reports;
  PluginObserver& observer;
  std::function<std::optional<TimePoint>(const std::string& plugin_id, uint64_t instance)> busy_until;
  std::function<absl::Status()> may_go_forward;  // SupervisorOptions

  [[nodiscard]] absl::Status CheckNotShuttingDown() const {
    return may_go_forward ? may_go_forward() : absl::OkStatus();
  }
};

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
  [[nodiscard]] Awaitable<absl::Status> Start(TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Stop(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Restart(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Drain(TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Swap(SwapRequest request, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file,
                                                                    TimePoint deadline) override;
  void OnHealth(uint64_t instance, const PluginHealth& health) override;
  void OnFacts(uint64_t instance, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class) override;
  void OnIdle(uint64_t instance) override;
  void OnHoldersChanged() override;
  [[nodiscard]] bool gone() const override { return report_.removed(); }

 private:
  // What is posted to Run: a request, or what was seen of the instance with this number.
  struct SocketAnswered {
    uint64_t instance;
  };
  struct Exited {
    uint64_t instance;
    ExitStatus exit;
  };
  struct Probed {
    uint64_t instance;
    PluginHealth health;
  };
  struct FactsRead {
    uint64_t instance;
    absl::StatusOr<PluginFacts> facts;
    std::string computed_class;
  };
  using Message = std::variant<LifecycleEvent, SocketAnswered, Exited, Probed, FactsRead>;
  // A swap from its request to its outcome.
  struct SwapOutcome {
    bool done = false;
    absl::Status status;
  };
  struct SwapAttempt {
    PluginConfig file;
    std::optional<SwapOverride> override;
    SwapChanges changes = SwapChanges::kRefuse;
    bool force = false;
    bool tried = false;
    absl::StatusOr<PluginConfig> old_config = absl::UnknownError("");
    std::optional<PluginFacts> before;
    std::shared_ptr<SwapOutcome> outcome;
  };
  // The run itself (plugin_runner.cc).
  Awaitable<void> Begin();
  Awaitable<void> Receive(Message message);
  Awaitable<void> Handle(LifecycleEvent event);
  Awaitable<void> Perform(LifecycleAction action);
  Awaitable<LifecycleEvent> Launch();
  void BeginInstance(std::unique_ptr<PluginInstance> instance);
  Awaitable<LifecycleEvent> EndInstance(ExitStatus exit);
  void Retire(const std::string& why);
  void Fill(LifecycleEvent& event);
  LifecycleEvent TakeHealth(PluginHealth health);
  LifecycleEvent TakeFacts(FactsRead read);
  void KeepWish();
  // What it is to be given when it publishes: shown, and written down for a berthd that finds its file broken
  // or gone, since without its tokens nothing may be published through it.
  void KeepTokens();

  // Taking back (plugin_runner_restore.cc). True: the recorded process runs and is ours again. False: it does
  // not run. An error: a process exists, and it is not known whether it is ours, so that nothing may be
  // launched.
  Awaitable<absl::StatusOr<bool>> TakeBack();
  Awaitable<absl::StatusOr<std::optional<RunRecord>>> ReadRecord();
  Awaitable<void> RestoreSwap();
  void NoteFile();

  // Swaps (plugin_runner_swap.cc).
  Awaitable<absl::Status> SwapTo(PluginConfig file, std::optional<SwapOverride> override, SwapChanges changes,
                                 bool force, TimePoint deadline);
  // Whether what says `now` of itself may serve in the place of what said `before`, in a swap.
  [[nodiscard]] absl::Status CompareInSwap(const PluginFacts& before, const PluginFacts& now) const;
  // A process that was started, rather than swapped, serves whatever it can do, since nothing else would.
  // Reports what it cannot do any more while volumes are held through it.
  void NoteLosses(const PluginFacts& now);
  void TrySwap();
  Awaitable<void> AdoptSwap();
  Awaitable<void> RevertSwap(std::string why);
  Awaitable<absl::Status> KeepSwaps(SwapState state);

  // Requests (plugin_runner_requests.cc).
  uint64_t Post(LifecycleEvent::Type type, bool force = false);
  void Post(Message message);
  Awaitable<bool> Handled(uint64_t ticket, TimePoint deadline);
  Awaitable<absl::StatusOr<PluginConfig>> ReadConfig(std::optional<SwapOverride> override,
                                                     TimePoint deadline);
  Awaitable<void> TakeConfig(PluginConfig file);
  Awaitable<absl::Status> WaitServing(TimePoint deadline);
  // What would break if its process went now, in words; empty: nothing.
  [[nodiscard]] std::string WouldBreak() const;
  absl::Status FileBroken(const absl::Status& error);
  Awaitable<absl::StatusOr<Reconfigured>> FileGone(TimePoint deadline);
  // A changed file of a plugin that does not run, and of one that runs.
  Awaitable<absl::StatusOr<Reconfigured>> ReconfigureStopped(PluginConfig config, TimePoint deadline);
  Awaitable<absl::StatusOr<Reconfigured>> ReconfigureRunning(PluginConfig config, TimePoint deadline);
  Awaitable<absl::StatusOr<Reconfigured>> Disable(PluginConfig file, TimePoint deadline);

  // Reports.
  void Announce(PluginState before, const std::string& reason_before);
  void Publish();
  [[nodiscard]] LifecycleLimits Limits() const;
  [[nodiscard]] const PluginPaths& paths() const { return context_.instances.paths; }

  RunnerContext& context_;
  const std::string id_;
  std::string config_file_;  // empty: its file is gone
  absl::Status contested_;   // why the file may not be used, though it is good: another one claims its id
  // The file as it was read last, and what is launched: that with what a swap put over it.
  absl::StatusOr<PluginConfig> file_;
  absl::StatusOr<PluginConfig> config_;
  SwapState swaps_;  // as on disk
  std::optional<SwapAttempt> swap_;
  PluginLifecycle lifecycle_;
  PluginReport report_;
  PluginSnapshot& snapshot_ = report_.snapshot();
  std::string note_;      // shown after the reason: what is odd about this instance
  bool foreign_ = false;  // note_ says that another process serves its socket

  std::shared_ptr<RunRecordFile> record_;
  std::unique_ptr<PluginInstance> instance_;
  uint64_t instances_ = 0;      // so many there were
  bool announced_ = false;      // to the observer
  bool record_read_ = false;    // and nothing is left of it but instance_
  uint64_t generation_ = 0;     // the highest in any record
  bool wish_restored_ = false;  // a drain that an earlier berthd was asked for

  std::deque<Message> inbox_;
  uint64_t posted_ = 0;
  uint64_t handled_ = 0;
  bool begun_ = false;
  Condition changed_;
};

}  // namespace berth
