// One plugin's owner: feeds its PluginLifecycle with what happens and carries out what that decides.
//
// Owned by the Supervisor; loop thread only. Run is the one task that launches, signals and reaps this
// plugin; others only post to it. Each incarnation has two helpers, which wait for its socket and its end.
//
//   <state_dir>/plugins/<id>/       BERTH_PLUGIN_DIR, the plugin's own
//   <state_dir>/logs/<id>.log       its output, and .log.1 before that
//   <runtime_dir>/plugins/<id>/     0750
//       csi.sock                    the plugin's
//       run.toml                    RunRecord, while it runs
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/process.h"
#include "base/task_scope.h"
#include "supervisor/plugin_config.h"
#include "supervisor/plugin_lifecycle.h"
#include "supervisor/plugin_owner.h"
#include "supervisor/registry.h"
#include "supervisor/run_record.h"
#include "supervisor/supervisor.h"

namespace berth {

// What all runners share; outlives them.
struct RunnerContext {
  asio::any_io_executor executor;
  PluginPlaces places;
  std::function<std::vector<std::string>(const std::string& plugin_id)> held_by;
  std::function<std::optional<TimePoint>(const std::string& plugin_id, uint64_t incarnation)> busy_until;
  PluginObserver& observer;
  EventLog& events;
  Registry& registry;
};

class PluginRunner final : public PluginOwner {
 public:
  // `file.config` not OK: a broken file. It can still be taken back, not launched.
  PluginRunner(RunnerContext& context, PluginFile file);
  // A plugin of which only a run record is left.
  PluginRunner(RunnerContext& context, std::string id);
  ~PluginRunner() override;
  PluginRunner(const PluginRunner&) = delete;
  PluginRunner& operator=(const PluginRunner&) = delete;

  // Takes the plugin back or launches it, and then does what comes, until cancelled; returns by itself only
  // when a plugin without a file has ended.
  [[nodiscard]] Awaitable<void> Run() override;
  // Waits until it was taken back, launched, or neither for good.
  [[nodiscard]] Awaitable<void> WaitBegun() override;
  // Once Run has ended: lets go of the process, which runs on.
  [[nodiscard]] Awaitable<void> LetGo() override;

  // See Supervisor.
  [[nodiscard]] Awaitable<absl::Status> Start(TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Stop(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Restart(bool force, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Drain(TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::Status> Swap(SwapRequest request, TimePoint deadline) override;
  [[nodiscard]] Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file,
                                                                    TimePoint deadline) override;
  void OnHealth(uint64_t incarnation, const PluginHealth& health) override;
  void OnFacts(uint64_t incarnation, absl::StatusOr<PluginFacts> facts,
               const std::string& computed_class) override;
  void OnIdle(uint64_t incarnation) override;
  void OnHoldersChanged() override;

  // True once a plugin without a file has ended: it is no longer in the registry.
  [[nodiscard]] bool gone() const override { return gone_; }

 private:
  struct Message {
    LifecycleEvent event;
    std::optional<ExitStatus> exit;  // with kExited
  };

  // The run itself.
  Awaitable<void> Begin();
  Awaitable<void> Handle(Message message);
  Awaitable<void> Perform(LifecycleAction action);
  Awaitable<LifecycleEvent> Launch();
  Awaitable<absl::Status> LaunchProcess();
  Awaitable<absl::Status> RecordProcess(RunRecord* record, pid_t pid);
  // True: the recorded process runs and is ours again. False: there is none. An error: there is one of which
  // that cannot be said, so that nothing may be launched.
  Awaitable<absl::StatusOr<bool>> TakeBack();
  Awaitable<void> TellEndedMeanwhile(RunRecord record, std::unique_ptr<Process> process);
  void BeginIncarnation(std::unique_ptr<Process> process, RunRecord record);
  Awaitable<void> EndIncarnation(ExitStatus exit);
  Awaitable<void> WatchExit();
  Awaitable<void> WatchSocket();
  void RecordExecuted();
  void DropRecord();

  // Requests.
  uint64_t Post(LifecycleEvent::Type type);
  void Post(Message message);
  Awaitable<bool> Handled(uint64_t ticket, TimePoint deadline);
  absl::Status ReloadFile();
  Awaitable<absl::Status> WaitServing(TimePoint deadline);
  [[nodiscard]] std::vector<std::string> Holders() const;

  // What is told.
  void Announce(PluginState before);
  void Publish();
  void Tell(std::string_view type, std::string message);
  [[nodiscard]] LifecycleLimits Limits() const;
  [[nodiscard]] std::string RuntimeDir() const { return PluginRuntimeDir(context_.places, id_); }

  RunnerContext& context_;
  const std::string id_;
  const std::string config_file_;  // empty: there is none any more
  absl::StatusOr<PluginConfig> config_;
  PluginLifecycle lifecycle_;
  PluginSnapshot snapshot_;  // as in the registry
  std::string note_;         // shown beside the reason: what is odd about this incarnation
  std::string refused_;      // why its facts were refused

  std::unique_ptr<Process> process_;
  RunRecord record_;                  // of process_
  std::unique_ptr<TaskScope> tasks_;  // of process_

  std::deque<Message> inbox_;
  uint64_t posted_ = 0;
  uint64_t handled_ = 0;
  bool begun_ = false;
  bool gone_ = false;
  Condition changed_;
  std::mt19937_64 random_;
};

}  // namespace berth
