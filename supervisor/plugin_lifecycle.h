// The life of one plugin, as a state machine: what each event does in each state, and what is to be done.
//
// Pure: no clock, no process, no socket. PluginRunner feeds it what happened and carries out what it
// returns, in order. Confined to the event loop.
//
//   ┌─────────┐  start, taken back  ┌──────────┐  Probe OK  ┌───────┐  Probes fail  ┌───────────┐
//   │ stopped │────────────────────▶│ starting │───────────▶│ ready │──────────────▶│ unhealthy │
//   └─────────┘                     └──────────┘            └───────┘◀──────────────└───────────┘
//        ▲                               ▲                               Probe OK
//        │   stop  ┌─────────────┐       │
//        ├─────────│ backing off │───────┤  start, restart, swap, or the backoff is over
//        │         └─────────────┘       │
//        │   stop    ┌────────┐          │
//        ├───────────│ failed │──────────┤  start, restart, swap
//        │           └────────┘          │
//        │   ended  ┌──────────┐  ended  │
//        └──────────│ draining │─────────┘  to be restarted, replaced, swapped; or failed for good
//                   └──────────┘
//
// Draining has three phases, each with its reason shown:
//
//   volumes ──the last one has left──▶ operations ──idle, or past their deadlines──▶ process ──ended──▶
//
//   volumes     after a drain request: new work is refused, volumes leave; a start request ends it
//   operations  no call may begin (callers of one that comes back queue); those in flight end, or are past
//               their deadlines, which no longer protect it. A start request ends a stop, a Probe OK ends a
//               replacement or a failure. `force` skips this phase.
//   process     calls are over; SIGTERM, and SIGKILL after the stop timeout
//
// From starting, ready and unhealthy:
//   drain                              draining (volumes), then stopped
//   stop                               draining (operations), then stopped
//   restart                            draining (operations), then starting
//   ill for too long                   draining (operations), then starting: replaced, by ReplacePolicy
//   the same, its budget used up       draining (operations), then failed for good
//   start took too long                draining (process), then as RestartPolicy says
//   ended unasked, or launch failed    as RestartPolicy says: starting, backing off, failed, or stopped
//
// A swap is a restart on trial: the new one has `start_timeout` and a Probe's time to be accepted (kAccepted:
// registered and compared). Whatever it fails by, kRevert follows and the old one is launched:
//
// clang-format off
//   swap ▶ draining (operations, process) ▶ kTry, starting ──accepted──▶ kAdopt
//                                                  └──ended, refused, too late──▶ kRevert, draining ▶ starting
// clang-format on
//
// Alive, ready and registered are three facts: this machine knows alive (process) and ready (what Probe says,
// in whatever state). The start timeout ends with the first connection that the plugin's socket accepts; a
// plugin that then answers Probe with ready = false, for however long, is left alone: it says itself that it
// is on its way. Ill is what does not answer, or answers with an error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "supervisor/registry.h"
#include "supervisor/restart_policy.h"

namespace berth {

struct LifecycleLimits {
  Duration start_timeout = std::chrono::seconds(30);  // from the launch to an answering socket
  Duration stop_timeout = std::chrono::seconds(30);   // from SIGTERM to SIGKILL
  Duration probe_timeout = std::chrono::seconds(5);
  int health_failures = 3;  // failed Probes in a row that make a ready plugin unhealthy
  RestartLimits restart;
  ReplaceLimits replace;
};

struct LifecycleEvent {
  enum class Type {
    kStartRequested,    // by a person, or berthd's start; clears the budgets, gives a drain up
    kStopRequested,     // whether it may be stopped was decided before; `force`
    kRestartRequested,  // likewise
    kSwapRequested,     // likewise; none is under way
    kDrainRequested,    // `holders`
    kHoldersChanged,    // `holders`
    kIdle,              // the last operation in flight has ended
    kTakenBack,         // it already runs, launched by an earlier berthd `uptime` ago; `drain`: and drained
    kLaunched,          // what kLaunch asked for
    kLaunchFailed,      // likewise; `text` says why, `final` that another try would not help
    kSocketAnswered,    // something accepts connections
    kProbeOk,
    kProbeNotReady,  // answered, with ready = false, for the `failures`-th time in a row
    kProbeFailed,    // not answered, or with an error: `text`, for the `failures`-th time in a row
    kSocketLost,     // it answers, and its socket's path does not lead to it any more: `text`
    kAccepted,       // it is registered; in a trial: and compared
    kRefused,        // it cannot be registered, or the comparison failed: `text`
    kExited,         // the process has ended: `text` says how, `clean` that it was with code 0
    kTimer,          // wake_at() has passed
  };
  Type type = Type::kTimer;
  std::string text;
  bool force = false;
  bool clean = false;
  bool final = false;
  bool drain = false;
  int failures = 0;
  Duration uptime{};
  double random = 0.5;  // of [0, 1), for the backoff's jitter; with kExited and kLaunchFailed
  // With every event: the latest deadline of the operations in flight; none: nullopt.
  std::optional<TimePoint> busy_until;
  // With kTimer: why it must not be replaced for ill health; empty: it may.
  std::string keep;
  // With every event of a plugin that drains, and with kDrainRequested: who holds volumes through it.
  std::vector<std::string> holders;
};

enum class LifecycleAction {
  kLaunch,     // then report kLaunched or kLaunchFailed before anything else
  kTerminate,  // SIGTERM to the process
  kKill,       // SIGKILL to its group
  kAnnounce,   // calls may begin
  kRetire,     // no more calls, now
  kTry,        // what is launched from now on is the new one of the swap
  kAdopt,      // the swap is done: the new one is the plugin from now on
  kRevert,     // the swap has failed, see swap_failure(): what is launched from now on is the old one
};

class PluginLifecycle {
 public:
  explicit PluginLifecycle(LifecycleLimits limits);

  // Decides. An event that means nothing in the present state changes nothing.
  [[nodiscard]] std::vector<LifecycleAction> Handle(const LifecycleEvent& event, TimePoint now);

  [[nodiscard]] PluginState state() const { return state_; }
  [[nodiscard]] bool alive() const { return alive_; }
  // It answers Probe as ready, also while it drains.
  [[nodiscard]] bool ready() const { return alive_ && announced_ && ready_; }
  // No call may begin, but one may soon: it is being restarted, replaced or swapped.
  [[nodiscard]] bool paused() const { return paused_; }
  // It is to end: new work is to be refused.
  [[nodiscard]] bool draining() const;
  // Volumes are waited for, now or as soon as it runs again: the wish that outlives berthd.
  [[nodiscard]] bool drain_wished() const { return drain_wished_; }
  [[nodiscard]] bool waits_for_volumes() const { return In(Phase::kVolumes); }
  [[nodiscard]] bool swapping() const { return swap_ != Swap::kNone; }
  [[nodiscard]] const std::string& swap_failure() const { return swap_failure_; }
  // Why it is in this state, for people; empty where there is nothing to say.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // Launches by itself since a person, or berthd, has started it.
  [[nodiscard]] int restarts() const { return restarts_; }
  // When it wants kTimer.
  [[nodiscard]] std::optional<TimePoint> wake_at() const;

  // For the next launch on, and the next timeouts. Budgets with new limits start afresh.
  void SetLimits(LifecycleLimits limits);

 private:
  using Actions = std::vector<LifecycleAction>;
  enum class Phase { kVolumes, kOperations, kProcess };
  // What comes once a draining plugin's process has ended.
  enum class Goal { kStop, kStart, kReplace, kGiveUp, kSwap, kReturn, kRestartPolicy };
  enum class Swap { kNone, kAsked, kTrial };

  void Enter(PluginState state, std::string reason);
  Actions Start(std::string reason);
  // To the phase of volumes, or beyond it where none is held.
  Actions DrainVolumes(const LifecycleEvent& event, TimePoint now);
  // To the phase of operations, or beyond it where none is in flight.
  Actions Quiesce(Goal goal, std::string doing, const LifecycleEvent& event, TimePoint now);
  Actions WaitIdle(const LifecycleEvent& event, TimePoint now);
  Actions EndProcess(Goal goal, std::string reason, TimePoint now);
  // Back from a drain that was cancelled, by the last Probe.
  void Resume();
  // Ends a swap; kRevert.
  Actions Revert(std::string why);
  Actions RevertTrial(std::string why, TimePoint now);
  // A process that ended, or never began, unasked.
  Actions Ended(EndCause cause, const std::string& how, const LifecycleEvent& event, TimePoint now);
  Actions OnStart(const LifecycleEvent& event, TimePoint now);
  Actions OnStop(const LifecycleEvent& event, TimePoint now);
  Actions OnRestart(const LifecycleEvent& event, TimePoint now);
  Actions OnSwap(const LifecycleEvent& event, TimePoint now);
  Actions OnDrain(const LifecycleEvent& event, TimePoint now);
  Actions OnHolders(const LifecycleEvent& event, TimePoint now);
  Actions OnTakenBack(const LifecycleEvent& event, TimePoint now);
  Actions OnLaunchFailed(const LifecycleEvent& event, TimePoint now);
  Actions OnProbeOk(const LifecycleEvent& event, TimePoint now);
  void OnProbeBad(const LifecycleEvent& event, TimePoint now);
  Actions OnExited(const LifecycleEvent& event, TimePoint now);
  Actions OnTimer(const LifecycleEvent& event, TimePoint now);
  void PlanReplacement();
  [[nodiscard]] bool Running() const;
  [[nodiscard]] bool In(Phase phase) const { return state_ == PluginState::kDraining && phase_ == phase; }
  // Takes kRetire along where calls have begun.
  [[nodiscard]] Actions Retire();

  LifecycleLimits limits_;
  RestartPolicy restart_;
  ReplacePolicy replace_;
  PluginState state_ = PluginState::kStopped;
  Phase phase_ = Phase::kProcess;
  Goal goal_ = Goal::kStop;
  Swap swap_ = Swap::kNone;
  bool alive_ = false;
  bool announced_ = false;
  bool ready_ = false;
  bool paused_ = false;
  bool drain_wished_ = false;
  int restarts_ = 0;
  TimePoint launched_at_;
  std::string doing_;        // "being restarted", while operations are waited for
  std::string drain_cause_;  // with Goal::kRestartPolicy and kGiveUp
  std::string swap_failure_;
  std::string reason_;
  std::string ill_text_;
  std::optional<TimePoint> ill_since_;
  std::optional<TimePoint> deadline_;     // of the state
  std::optional<TimePoint> trial_until_;  // of the swap
  std::optional<TimePoint> replace_at_;
};

}  // namespace berth
