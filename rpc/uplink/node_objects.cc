#include "rpc/uplink/node_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "base/printable.h"
#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/operation_check.h"

namespace berth {
namespace {

constexpr size_t kEndedConsumers = 4096;
// A message has room for so many with names as long as may be.
constexpr int kPublicationsReported = 1000;
// What one object has at most: a message has up to 4 MiB, and holds more than this.
constexpr size_t kObjectBytes = size_t{2} << 20;
// Plugins that change all the time are looked at so often.
constexpr auto kPluginsEvery = std::chrono::milliseconds(200);
constexpr auto kNodeLook = std::chrono::seconds(30);

// Without what changes with every probe, and what the scheduler counts itself.
v1::Plugin PluginForScheduler(const PluginSnapshot& snapshot) {
  v1::Plugin plugin = ToProto(snapshot, 0);
  plugin.mutable_health()->clear_last_probe_at();
  plugin.mutable_health()->clear_latency();
  return plugin;
}

// Without what is of the moment, and no longer than a message may be.
v1::Volume VolumeForScheduler(const VolumeView& view) {
  v1::Volume volume = ToProto(view, /*show_options=*/false);
  volume.clear_running();
  volume.clear_running_since();
  volume.clear_next_retry_at();
  volume.clear_advice();
  volume.clear_driver_version();
  const int publications = volume.publications_size();
  if (const int beyond = volume.publications_size() - kPublicationsReported; beyond > 0) {
    volume.mutable_publications()->DeleteSubrange(kPublicationsReported, beyond);
  }
  // What is wrong with each of them may be long.
  while (volume.ByteSizeLong() > kObjectBytes && volume.publications_size() > 0) {
    const int left = volume.publications_size() / 2;
    volume.mutable_publications()->DeleteSubrange(left, volume.publications_size() - left);
  }
  volume.set_publications_omitted(publications - volume.publications_size());
  return volume;
}

}  // namespace

void NodeObjects::RestoreEnded(uint64_t number, v1::EndedConsumer ended) {
  link_.state.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  ended_consumers_[number] = std::move(ended);
  RestoreNextEnded(number + 1);
}

void NodeObjects::RestoreNextEnded(uint64_t number) { next_ended_ = std::max(next_ended_, number); }

void NodeObjects::Start() {
  link_.state.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  for (const VolumeView& volume : link_.parts.mounter.List({})) {
    OnVolumeChanged(volume.plugin_id, volume.volume_id, true);
  }
  OnForcedReleasesChanged();
}

void NodeObjects::OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here) {
  ObjectKey key{.kind = ObjectKey::Kind::kVolume, .plugin_id = plugin_id, .volume_id = volume_id};
  if (here) {
    link_.state.outbox.Changed(key);
  } else {
    link_.state.outbox.Removed(key);
  }
  node_changed_ = true;
  link_.Wake();
}

void NodeObjects::OnNodeChanged() {
  link_.state.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  link_.Wake();
}

void NodeObjects::OnForcedReleasesChanged() {
  const auto key = [](uint64_t number) {
    return ObjectKey{.kind = ObjectKey::Kind::kForcedRelease, .number = number};
  };
  std::map<uint64_t, std::string> before = std::exchange(forced_releases_, {});
  for (const v1::ForcedRelease& forced_release : link_.parts.lease.forced_release()) {
    const std::string& now = forced_releases_[forced_release.number()] = forced_release.SerializeAsString();
    const auto known = before.extract(forced_release.number());
    if (known.empty() || known.mapped() != now) link_.state.outbox.Changed(key(forced_release.number()));
  }
  for (const auto& [acknowledged, text] : before) link_.state.outbox.Forget(key(acknowledged));
  link_.Wake();
}

void NodeObjects::OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin) {
  if (origin != Origin::kScheduler) return;
  const ConsumerName name = SplitConsumer(consumer);
  v1::EndedConsumer ended;
  ended.set_number(next_ended_++);
  ended.set_namespace_(ToUtf8(name.name_space));
  ended.set_consumer(ToUtf8(name.consumer));
  ended.set_cause(Printable(cause));
  *ended.mutable_ended_at() = ToProto(WallClock::now());
  tasks_.Spawn("ended consumer", ReportEnded(std::move(ended)));
}

Awaitable<void> NodeObjects::ReportEnded(v1::EndedConsumer ended) {
  const uint64_t number = ended.number();
  co_await link_.PutUntilDone(std::string(kEndedNumberRow), [this] { return std::to_string(next_ended_); });
  co_await link_.PutUntilDone(Row(kEndedRow, number), [&ended] { return ended.SerializeAsString(); });
  ended_consumers_[number] = std::move(ended);
  link_.state.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  // State has its volumes in any case.
  if (ended_consumers_.size() > kEndedConsumers) {
    DropEndedConsumer(ended_consumers_.begin()->first);
    if (!std::exchange(reported_dropped_, true)) {
      link_.parts.events.Append(
          {.type = "scheduler.untold",
           .message = fmt::format("{} ended consumers wait to be acknowledged by the scheduler: the "
                                  "oldest are not reported any more; State still has their volumes",
                                  kEndedConsumers)});
    }
  }
  link_.Wake();
}

void NodeObjects::DropEndedConsumer(uint64_t number) {
  if (ended_consumers_.erase(number) == 0) return;
  if (ended_consumers_.empty()) reported_dropped_ = false;
  link_.state.outbox.Forget({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  link_.parts.rows.DeleteSoon(Row(kEndedRow, number));
}

Awaitable<std::optional<v1::Object>> NodeObjects::Describe(ObjectKey key) {
  v1::Object object;
  switch (key.kind) {
    case ObjectKey::Kind::kNode: {
      const auto status = co_await link_.parts.api.status.GetStatus({}, CallInfo{});
      if (!status.ok()) co_return std::nullopt;
      v1::NodeState& node = *object.mutable_node();
      *node.mutable_status() = *status;
      node.mutable_status()->clear_last_event_sequence();
      node.mutable_status()->clear_scheduler();
      node.set_lease(link_.parts.lease.state());
      node.set_lease_epoch(link_.parts.lease.epoch());
      node.set_on_lease_expiry(link_.options.on_lease_expiry);
      for (const RuntimeAbility& runtime : link_.parts.api.volumes.runtimes()) *node.add_runtimes() = runtime;
      for (const v1::NodeState::Right right : link_.options.may) node.add_may(right);
      co_return object;
    }
    case ObjectKey::Kind::kPlugin: {
      const auto& plugins = link_.parts.plugins.plugins();
      const auto plugin = plugins.find(key.plugin_id);
      if (plugin == plugins.end()) co_return std::nullopt;
      *object.mutable_plugin() = PluginForScheduler(plugin->second);
      co_return object;
    }
    case ObjectKey::Kind::kVolume: {
      const auto view = link_.parts.mounter.Find(key.plugin_id, key.volume_id);
      if (!view) co_return std::nullopt;
      *object.mutable_volume() = VolumeForScheduler(*view);
      co_return object;
    }
    case ObjectKey::Kind::kEndedConsumer: {
      const auto ended = ended_consumers_.find(key.number);
      if (ended == ended_consumers_.end()) co_return std::nullopt;
      *object.mutable_ended_consumer() = ended->second;
      co_return object;
    }
    case ObjectKey::Kind::kForcedRelease: {
      for (const v1::ForcedRelease& forced_release : link_.parts.lease.forced_release()) {
        if (forced_release.number() != key.number) continue;
        *object.mutable_forced_release() = forced_release;
        co_return object;
      }
      co_return std::nullopt;
    }
  }
  co_return std::nullopt;
}

Awaitable<void> NodeObjects::FollowPlugins() {
  while (true) {
    const TimePoint looked_at = Clock::now();
    std::set<std::string> there;
    for (const auto& [id, snapshot] : link_.parts.plugins.plugins()) {
      there.insert(id);
      const size_t hash = std::hash<std::string>{}(PluginForScheduler(snapshot).SerializeAsString());
      const auto [known, added] = known_plugins_.try_emplace(id, hash);
      if (!added && std::exchange(known->second, hash) == hash) continue;
      link_.state.outbox.Changed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = id});
      node_changed_ = true;
    }
    std::erase_if(known_plugins_, [&](const auto& known) {
      if (there.contains(known.first)) return false;
      link_.state.outbox.Removed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = known.first});
      return true;
    });
    link_.Wake();
    // The look and this wait are one step on the loop: no change is missed between them. Any that comes while
    // it rests is seen by the next look.
    co_await link_.parts.controllers.WaitChange(TimePoint::max());
    co_await SleepUntil(looked_at + kPluginsEvery);
  }
}

Awaitable<void> NodeObjects::FollowNode() {
  // What follows from volumes and plugins (how many, what is wrong) takes a look at all of them.
  while (true) {
    // Changes without an event, such as a disk that is full now, are seen with the next check.
    co_await link_.changed.WaitUntil([this] { return node_changed_; }, Clock::now() + kNodeLook);
    node_changed_ = false;
    OnNodeChanged();
    co_await SleepUntil(Clock::now() + link_.options.node_state_every);
  }
}

void NodeObjects::OnBegun() {
  for (const auto& [number, ended] : ended_consumers_) {
    link_.state.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  }
  for (const auto& [number, text] : forced_releases_) {
    link_.state.outbox.Changed({.kind = ObjectKey::Kind::kForcedRelease, .number = number});
  }
}

}  // namespace berth
