// What berthd says of one plugin: its snapshot in the registry, its events, and whether it is registered.
//
// Owned by the plugin's PluginOwner, which fills in the snapshot; loop thread only. Nothing here fails.
// Events (supervisor.h) are appended before the snapshot that shows the same is published.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_log.h"
#include "supervisor/registry.h"

namespace berth {

// What the reports of all plugins share; outlives them.
struct ReportContext {
  // Who has volumes through the plugin; null: no consumer.
  std::function<std::vector<std::string>(const std::string& plugin_id)> held_by;
  EventLog& events;
  Registry& registry;
};

class PluginReport {
 public:
  PluginReport(ReportContext& context, const std::string& id);

  // What the owner fills in. `reason`, `registered` and the facts are written here alone.
  [[nodiscard]] PluginSnapshot& snapshot() { return snapshot_; }

  // Puts the snapshot into the registry. Its reason: the state's, why its facts were refused, `notes`.
  void Publish(std::string_view reason, std::initializer_list<std::string_view> notes);
  // Takes it out of the registry for good: what is published later is dropped.
  void Remove();
  [[nodiscard]] bool removed() const { return removed_; }

  void Emit(std::string_view type, std::string message) const;

  // A new instance has begun: of the last one's health and facts nothing counts any more.
  void BeginInstance(uint64_t number);
  // Its facts were read, and it is registered (plugin.joined).
  void Accept(PluginFacts facts, std::string computed_class);
  // Its facts are an error, or are not taken (plugin.refused where `why` is new, plugin.left).
  void Refuse(std::string why);
  // It is registered no more (plugin.left, if it was).
  void Leave(std::string why);
  // Why its facts were refused last; empty: they were not.
  [[nodiscard]] const std::string& refused() const { return refused_; }

  // Who has volumes through it, by name.
  [[nodiscard]] std::vector<std::string> Holders() const;

  // FAILED_PRECONDITION: "plugin ID HOW: REASON". DEADLINE_EXCEEDED: it is not registered in time.
  [[nodiscard]] absl::Status NotServing(std::string_view how) const;
  [[nodiscard]] absl::Status NotRegisteredInTime() const;

 private:
  ReportContext& context_;
  PluginSnapshot snapshot_;
  std::string refused_;
  bool removed_ = false;
};

}  // namespace berth
