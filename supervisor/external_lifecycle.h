// The life of a plugin that berthd does not run, as a state machine: what each event does in each state.
//
// Pure: no clock, no socket. ExternalPlugin feeds it what happened and carries out what it returns, in order.
// Confined to the event loop.
//
//   ┌─────────┐ start  ┌──────────┐ served, Probe OK ┌───────┐ Probes fail ┌───────────┐
//   │ stopped │───────▶│ starting │─────────────────▶│ ready │────────────▶│ unhealthy │
//   └─────────┘        └──────────┘◀── server gone ──└───────┘◀────────────└───────────┘
//        ▲                   ▲                                   Probe OK
//        │ the last volume   │ start
//        │ has left     ┌──────────┐
//        └──────────────│ draining │◀── drain, from starting, ready and unhealthy
//                       └──────────┘
//
// Starting: its socket is not served, it does not answer Probe as ready yet, or it does not see the tree of
// volumes; the reason says which. Its server may come and go in every state but stopped, in which it is not
// watched. Nothing here ends it: stopped only means that Berth does not use it.
#pragma once

#include <string>
#include <vector>

#include "supervisor/registry.h"

namespace berth {

struct ExternalEvent {
  enum class Type {
    kStartRequested,  // by a person, or berthd's start; gives a drain up
    kDisabled,        // its file does not want it any more: `text`
    kDrainRequested,  // `holders`
    kHoldersChanged,  // `holders`
    kWaiting,         // it is not served: `text` says why
    kServed,          // a server has appeared that was not there before
    kGone,            // it has gone: `text`
    kProbeOk,
    kProbeNotReady,  // answered, with ready = false, for the `failures`-th time in a row
    kProbeFailed,    // not answered, or with an error: `text`, for the `failures`-th time in a row
    kSocketLost,     // it answers, and its socket's path leads nowhere any more: `text`
    kTreeLooked,     // whether it can work with the tree of volumes: `text` says why not; empty: it can
  };
  Type type = Type::kWaiting;
  std::string text = {};
  int failures = 0;
  std::vector<std::string> holders = {};  // of volumes through it
};

enum class ExternalAction {
  kAnnounce,  // a new instance: calls may begin
  kRetire,    // no more calls, now
};

class ExternalLifecycle {
 public:
  // `health_failures`: failed Probes in a row that make it unhealthy.
  explicit ExternalLifecycle(int health_failures) : health_failures_(health_failures) {}

  [[nodiscard]] std::vector<ExternalAction> Handle(const ExternalEvent& event);

  [[nodiscard]] PluginState state() const;
  [[nodiscard]] std::string reason() const;
  // Whether its socket is to be watched.
  [[nodiscard]] bool watching() const { return wanted_; }
  // Its socket is served.
  [[nodiscard]] bool served() const { return served_; }
  // Its socket is not served, after a check.
  [[nodiscard]] bool absent() const { return !served_ && !absent_because_.empty(); }
  // It answers Probe as ready, and can work with the tree of volumes.
  [[nodiscard]] bool ready() const { return health_ == Health::kReady && no_tree_because_.empty(); }
  // Why it cannot work with the tree of volumes; empty: it can, or it is not known.
  [[nodiscard]] const std::string& no_tree_because() const { return no_tree_because_; }
  [[nodiscard]] bool draining() const { return wanted_ && draining_; }
  [[nodiscard]] const std::vector<std::string>& holders() const { return holders_; }

  void SetHealthFailures(int failures) { health_failures_ = failures; }

 private:
  enum class Health { kUnknown, kReady, kUnhealthy };
  using Actions = std::vector<ExternalAction>;

  // Ends its use; empty where it was not served.
  Actions Leave();
  Actions OnHolders(const ExternalEvent& event);
  void OnProbeFailed(const ExternalEvent& event, std::string text);

  int health_failures_;
  bool wanted_ = false;
  bool draining_ = false;
  bool served_ = false;
  Health health_ = Health::kUnknown;
  std::string stopped_because_ = "not begun";
  std::string absent_because_;
  std::string ill_because_;
  std::string no_tree_because_;       // while served
  std::vector<std::string> holders_;  // while draining
};

}  // namespace berth
