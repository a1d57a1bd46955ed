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
//        ├─────────│ backing off │───────┤  start, restart, or the backoff is over
//        │         └─────────────┘       │
//        │   stop    ┌────────┐          │
//        ├───────────│ failed │──────────┤  start, restart
//        │           └────────┘          │
//        │   ended  ┌──────────┐  ended  │
//        └──────────│ draining │─────────┘  to be restarted
//                   └──────────┘
//
// From starting, ready and unhealthy:
//   stop                               draining, then stopped
//   restart                            draining, then starting
//   start took too long                draining, then as RestartPolicy says
//   ended unasked, or launch failed    as RestartPolicy says: starting, backing off, failed, or stopped
//
// Alive, ready and registered are three facts: this machine knows alive (process) and ready (state). The
// start timeout ends with the first connection that the plugin's socket accepts; a plugin that then answers
// Probe with ready = false, for however long, is left alone: it says itself that it is on its way.
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
  int health_failures = 3;  // failed Probes in a row that make a ready plugin unhealthy
  RestartLimits restart;
};

struct LifecycleEvent {
  enum class Type {
    kStartRequested,    // by a person, or berthd's start; clears the restart budget
    kStopRequested,     // whether it may be stopped was decided before
    kRestartRequested,  // likewise
    kTakenBack,         // it already runs, launched by an earlier berthd `uptime` ago
    kLaunched,          // what kLaunch asked for
    kLaunchFailed,      // likewise; `text` says why, `final` that another try would not help
    kSocketAnswered,    // something accepts connections
    kProbeOk,
    kProbeFailed,  // failed or not ready: `text`, for the `failures`-th time in a row
    kExited,       // the process has ended: `text` says how, `clean` that it was with code 0
    kTimer,        // wake_at() has passed
  };
  Type type = Type::kTimer;
  std::string text;
  bool clean = false;
  bool final = false;
  int failures = 0;
  Duration uptime{};
  double random = 0.5;  // of [0, 1), for the backoff's jitter; with kExited and kLaunchFailed
};

enum class LifecycleAction {
  kLaunch,     // then tell kLaunched or kLaunchFailed before anything else
  kTerminate,  // SIGTERM to the process
  kKill,       // SIGKILL to its group
  kAnnounce,   // calls may begin
  kRetire,     // no more calls, now
};

class PluginLifecycle {
 public:
  explicit PluginLifecycle(LifecycleLimits limits);

  // Decides. An event that means nothing in the present state changes nothing.
  [[nodiscard]] std::vector<LifecycleAction> Handle(const LifecycleEvent& event, TimePoint now);

  [[nodiscard]] PluginState state() const { return state_; }
  [[nodiscard]] bool alive() const { return alive_; }
  // Why it is in this state, for people; empty where there is nothing to say.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // Launches by itself since a person, or berthd, has started it.
  [[nodiscard]] int restarts() const { return restarts_; }
  // When it wants kTimer.
  [[nodiscard]] std::optional<TimePoint> wake_at() const { return wake_at_; }

  // For the next launch on, and the next timeouts. The restart budget starts afresh.
  void SetLimits(LifecycleLimits limits);

 private:
  using Actions = std::vector<LifecycleAction>;
  // What comes once a draining plugin's process has ended.
  enum class AfterDrain { kStop, kStart, kRestartPolicy };

  void Enter(PluginState state, std::string reason);
  Actions Start();
  Actions Drain(AfterDrain after, std::string reason, TimePoint now);
  // A process that ended, or never began, unasked.
  Actions Ended(EndCause cause, const std::string& how, const LifecycleEvent& event, TimePoint now);
  Actions OnStop(TimePoint now);
  Actions OnRestart(TimePoint now);
  Actions OnExited(const LifecycleEvent& event, TimePoint now);
  Actions OnTimer(TimePoint now);
  void OnProbeFailed(const LifecycleEvent& event);
  [[nodiscard]] bool Running() const;
  // Takes kRetire along where calls have begun.
  [[nodiscard]] Actions Retire();

  LifecycleLimits limits_;
  RestartPolicy policy_;
  PluginState state_ = PluginState::kStopped;
  AfterDrain after_drain_ = AfterDrain::kStop;
  bool alive_ = false;
  bool announced_ = false;
  int restarts_ = 0;
  TimePoint launched_at_;
  std::string drain_cause_;  // with AfterDrain::kRestartPolicy
  std::string reason_;
  std::optional<TimePoint> wake_at_;
};

}  // namespace berth
