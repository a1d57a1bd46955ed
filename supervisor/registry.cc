#include "supervisor/registry.h"

#include <utility>

namespace berth {

std::string_view PluginStateName(PluginState state) {
  switch (state) {
    case PluginState::kStopped:
      return "stopped";
    case PluginState::kStarting:
      return "starting";
    case PluginState::kReady:
      return "ready";
    case PluginState::kUnhealthy:
      return "unhealthy";
    case PluginState::kBackingOff:
      return "backing off";
    case PluginState::kDraining:
      return "draining";
    case PluginState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string_view PluginKindName(PluginKind kind) {
  switch (kind) {
    case PluginKind::kNode:
      return "node";
    case PluginKind::kController:
      return "controller";
    case PluginKind::kMonolith:
      return "monolith";
  }
  return "unknown";
}

Registry::Registry(asio::any_io_executor executor) : changed_(std::move(executor)) {}

const PluginSnapshot* Registry::Find(const std::string& id) const {
  const auto plugin = plugins_.find(id);
  return plugin == plugins_.end() ? nullptr : &plugin->second;
}

Awaitable<bool> Registry::WaitChanged(uint64_t seen, TimePoint deadline) {
  return changed_.WaitUntil([this, seen] { return version_ > seen; }, deadline);
}

Awaitable<bool> Registry::WaitTokensChanged(uint64_t seen, TimePoint deadline) {
  return changed_.WaitUntil([this, seen] { return tokens_version_ > seen; }, deadline);
}

void Registry::Put(PluginSnapshot snapshot) {
  const auto [entry, is_new] = plugins_.try_emplace(snapshot.id);
  PluginSnapshot& known = entry->second;
  snapshot.since = is_new || known.state != snapshot.state ? Clock::now() : known.since;
  if (known.tokens != snapshot.tokens) ++tokens_version_;
  known = std::move(snapshot);
  ++version_;
  changed_.NotifyAll();
}

void Registry::Remove(const std::string& id) {
  const auto plugin = plugins_.find(id);
  if (plugin == plugins_.end()) return;
  if (!plugin->second.tokens.empty()) ++tokens_version_;
  plugins_.erase(plugin);
  ++version_;
  changed_.NotifyAll();
}

}  // namespace berth
