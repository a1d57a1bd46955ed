#include "supervisor/external_lifecycle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>

namespace berth {

std::vector<ExternalAction> ExternalLifecycle::Handle(const ExternalEvent& event) {
  switch (event.type) {
    case ExternalEvent::Type::kStartRequested:
      draining_ = false;
      holders_.clear();
      wanted_ = true;
      stopped_because_.clear();
      return {};
    case ExternalEvent::Type::kDisabled:
      stopped_because_ = event.text;
      return Leave();
    case ExternalEvent::Type::kDrainRequested:
      if (!wanted_) return {};
      draining_ = true;
      return OnHolders(event);
    case ExternalEvent::Type::kHoldersChanged:
      return draining() ? OnHolders(event) : Actions();
    case ExternalEvent::Type::kWaiting:
      if (wanted_ && !served_) absent_because_ = event.text;
      return {};
    case ExternalEvent::Type::kServed: {
      if (!wanted_) return {};
      Actions actions;
      if (served_) actions.push_back(ExternalAction::kRetire);
      actions.push_back(ExternalAction::kAnnounce);
      served_ = true;
      health_ = Health::kUnknown;
      absent_because_.clear();
      ill_because_.clear();
      no_tree_because_.clear();
      return actions;
    }
    case ExternalEvent::Type::kGone: {
      if (!served_) return {};
      served_ = false;
      health_ = Health::kUnknown;
      absent_because_ = event.text;
      ill_because_.clear();
      no_tree_because_.clear();
      return {ExternalAction::kRetire};
    }
    case ExternalEvent::Type::kProbeOk:
      if (!served_) return {};
      health_ = Health::kReady;
      ill_because_.clear();
      return {};
    case ExternalEvent::Type::kProbeNotReady:
      OnProbeFailed(event, "it says that it is not ready");
      return {};
    case ExternalEvent::Type::kProbeFailed:
      OnProbeFailed(event, "Probe: " + event.text);
      return {};
    case ExternalEvent::Type::kSocketLost:
      OnProbeFailed(event, event.text);
      return {};
    case ExternalEvent::Type::kTreeLooked:
      if (served_) no_tree_because_ = event.text;
      return {};
  }
  return {};
}

ExternalLifecycle::Actions ExternalLifecycle::Leave() {
  wanted_ = false;
  draining_ = false;
  holders_.clear();
  health_ = Health::kUnknown;
  absent_because_.clear();
  ill_because_.clear();
  no_tree_because_.clear();
  return std::exchange(served_, false) ? Actions{ExternalAction::kRetire} : Actions();
}

ExternalLifecycle::Actions ExternalLifecycle::OnHolders(const ExternalEvent& event) {
  holders_ = event.holders;
  if (!holders_.empty()) return {};
  stopped_because_ = "drained, and no longer used; berthd does not run it, so that it may keep running";
  return Leave();
}

void ExternalLifecycle::OnProbeFailed(const ExternalEvent& event, std::string text) {
  if (!served_) return;
  ill_because_ = std::move(text);
  // Before its first ready answer it is on its way; after that, a few failures in a row are forgiven.
  const bool enough = event.type == ExternalEvent::Type::kSocketLost || event.failures >= health_failures_;
  if (health_ == Health::kReady && enough) health_ = Health::kUnhealthy;
}

PluginState ExternalLifecycle::state() const {
  if (!wanted_) return PluginState::kStopped;
  if (draining_) return PluginState::kDraining;
  switch (health_) {
    case Health::kUnknown:
      return PluginState::kStarting;
    case Health::kReady:
      return no_tree_because_.empty() ? PluginState::kReady : PluginState::kStarting;
    case Health::kUnhealthy:
      return PluginState::kUnhealthy;
  }
  return PluginState::kStarting;
}

std::string ExternalLifecycle::reason() const {
  if (!wanted_) return stopped_because_;
  std::string now;
  if (!served_) {
    now = fmt::format("waits for its socket{}{}", absent_because_.empty() ? "" : ": ", absent_because_);
  } else if (!no_tree_because_.empty()) {
    now = no_tree_because_;
  } else if (health_ != Health::kReady) {
    now = ill_because_;
  }
  if (!draining_) return now;
  return fmt::format("takes nothing new; waits until volumes have left: {}{}{}", fmt::join(holders_, ", "),
                     now.empty() ? "" : "; ", now);
}

}  // namespace berth
