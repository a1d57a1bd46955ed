#include "scheduler/links/node_facts.h"

#include <algorithm>

namespace berth::scheduler {

absl::Status NodeFacts::Apply(const v1::State& state) {
  if (state.full()) {
    full_ = true;
    synced_ = false;
    stale_plugins_.clear();
    stale_volumes_.clear();
    for (const auto& [id, plugin] : plugins_) stale_plugins_.insert(id);
    for (const auto& [key, volume] : volumes_) stale_volumes_.insert(key);
  }
  for (const v1::Object& object : state.objects()) Take(object);
  if (plugins_.size() > kMostPlugins || volumes_.size() > kMostVolumes ||
      ended_.size() + forced_.size() > kMostNotices) {
    return absl::ResourceExhaustedError("the node has more plugins or volumes than a scheduler takes");
  }
  if (!state.synced()) return absl::OkStatus();
  if (std::exchange(full_, false)) {
    for (const std::string& id : stale_plugins_) plugins_.erase(id);
    for (const VolumeKey& key : stale_volumes_) volumes_.erase(key);
    stale_plugins_.clear();
    stale_volumes_.clear();
  }
  synced_ = true;
  return absl::OkStatus();
}

void NodeFacts::Take(const v1::Object& object) {
  switch (object.object_case()) {
    case v1::Object::kNode:
      node_ = object.node();
      return;
    case v1::Object::kPlugin:
      stale_plugins_.erase(object.plugin().id());
      plugins_[object.plugin().id()] = object.plugin();
      return;
    case v1::Object::kVolume: {
      const VolumeKey key(object.volume().plugin_id(), object.volume().volume_id());
      stale_volumes_.erase(key);
      volumes_[key] = object.volume();
      return;
    }
    case v1::Object::kEndedConsumer:
      ended_[object.ended_consumer().number()] = object.ended_consumer();
      return;
    case v1::Object::kForcedRelease:
      forced_[object.forced_release().number()] = object.forced_release();
      return;
    case v1::Object::kRemoved:
      if (object.removed().has_volume()) {
        volumes_.erase({object.removed().volume().plugin_id(), object.removed().volume().volume_id()});
      } else {
        plugins_.erase(object.removed().plugin_id());
      }
      return;
    case v1::Object::OBJECT_NOT_SET:
      return;
  }
}

void NodeFacts::Acknowledged(const v1::Acknowledge& acknowledge) {
  for (const uint64_t number : acknowledge.ended_consumers()) ended_.erase(number);
  for (const uint64_t number : acknowledge.forced_releases()) forced_.erase(number);
}

size_t NodeFacts::OwnPublications() const {
  size_t count = 0;
  for (const auto& [key, volume] : volumes_) {
    count += static_cast<size_t>(
        std::ranges::count(volume.publications(), v1::SCHEDULER, &v1::Publication::origin));
  }
  return count;
}

bool TakesWork(const v1::Plugin& plugin) {
  return plugin.state() == v1::READY && plugin.registered() && !plugin.paused() && !plugin.draining();
}

bool HasController(const v1::Plugin& plugin) {
  const auto& capabilities = plugin.fingerprint().plugin_capabilities();
  return plugin.kind() != "node" &&
         std::ranges::find(capabilities, "CONTROLLER_SERVICE") != capabilities.end();
}

bool ProvidesNode(const v1::Plugin& plugin) { return plugin.kind() != "controller"; }

}  // namespace berth::scheduler
