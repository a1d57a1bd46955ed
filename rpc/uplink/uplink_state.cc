// The part of Uplink that describes the node and its objects.
#include <fmt/format.h>

#include <functional>
#include <utility>

#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/convert_volume.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/uplink.h"

namespace berth {
namespace {

constexpr size_t kEndedConsumers = 4096;
// A message has room for so many with names as long as may be.
constexpr int kPublicationsTold = 1000;
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

}  // namespace

void Uplink::OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here) {
  ObjectKey key{.kind = ObjectKey::Kind::kVolume, .plugin_id = plugin_id, .volume_id = volume_id};
  if (here) {
    state_.outbox.Changed(key);
  } else {
    state_.outbox.Removed(key);
  }
  node_changed_ = true;
  Wake();
}

void Uplink::OnNodeChanged() {
  state_.outbox.Changed({.kind = ObjectKey::Kind::kNode});
  Wake();
}

void Uplink::OnForcedReleasesChanged() {
  const auto key = [](uint64_t number) {
    return ObjectKey{.kind = ObjectKey::Kind::kForcedRelease, .number = number};
  };
  std::map<uint64_t, std::string> before = std::exchange(forced_releases_, {});
  for (const v1::ForcedRelease& forced_release : parts_.lease.forced_release()) {
    const std::string& now = forced_releases_[forced_release.number()] = forced_release.SerializeAsString();
    const auto known = before.extract(forced_release.number());
    if (known.empty() || known.mapped() != now) state_.outbox.Changed(key(forced_release.number()));
  }
  for (const auto& [acknowledged, text] : before) state_.outbox.Forget(key(acknowledged));
  Wake();
}

void Uplink::OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin) {
  if (origin != Origin::kScheduler) return;
  const ConsumerName name = SplitConsumer(consumer);
  v1::EndedConsumer ended;
  ended.set_number(next_ended_++);
  ended.set_namespace_(ToUtf8(name.name_space));
  ended.set_consumer(ToUtf8(name.consumer));
  ended.set_cause(Printable(cause));
  *ended.mutable_ended_at() = ToProto(WallClock::now());
  operations_.Spawn("ended consumer", ReportEnded(std::move(ended)));
}

Awaitable<void> Uplink::ReportEnded(v1::EndedConsumer ended) {
  const uint64_t number = ended.number();
  co_await PutUntilDone(std::string(kEndedNumberRow), [this] { return std::to_string(next_ended_); });
  co_await PutUntilDone(Row(kEndedRow, number), [&ended] { return ended.SerializeAsString(); });
  ended_consumers_[number] = std::move(ended);
  state_.outbox.Changed({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  // State has its volumes in any case.
  if (ended_consumers_.size() > kEndedConsumers) {
    DropEndedConsumer(ended_consumers_.begin()->first);
    if (!std::exchange(reported_dropped_, true)) {
      parts_.events.Append(
          {.type = "scheduler.untold",
           .message = fmt::format("{} ended consumers wait to be acknowledged by the scheduler: the "
                                  "oldest are not reported any more; State still has their volumes",
                                  kEndedConsumers)});
    }
  }
  Wake();
}

void Uplink::DropEndedConsumer(uint64_t number) {
  if (ended_consumers_.erase(number) == 0) return;
  if (ended_consumers_.empty()) reported_dropped_ = false;
  state_.outbox.Forget({.kind = ObjectKey::Kind::kEndedConsumer, .number = number});
  parts_.rows.DeleteSoon(Row(kEndedRow, number));
}

Awaitable<std::optional<v1::Object>> Uplink::Describe(ObjectKey key) {
  v1::Object object;
  switch (key.kind) {
    case ObjectKey::Kind::kNode: {
      const auto status = co_await parts_.api.status.GetStatus({}, CallInfo{});
      if (!status.ok()) co_return std::nullopt;
      v1::NodeState& node = *object.mutable_node();
      *node.mutable_status() = *status;
      node.mutable_status()->clear_last_event_sequence();
      node.mutable_status()->clear_scheduler();
      node.set_lease(parts_.lease.state());
      node.set_lease_epoch(parts_.lease.epoch());
      node.set_on_lease_expiry(options_.on_lease_expiry);
      for (const RuntimeAbility& runtime : parts_.api.volumes.runtimes()) *node.add_runtimes() = runtime;
      for (const v1::NodeState::Right right : options_.may) node.add_may(right);
      co_return object;
    }
    case ObjectKey::Kind::kPlugin: {
      const auto& plugins = parts_.plugins.plugins();
      const auto plugin = plugins.find(key.plugin_id);
      if (plugin == plugins.end()) co_return std::nullopt;
      *object.mutable_plugin() = PluginForScheduler(plugin->second);
      co_return object;
    }
    case ObjectKey::Kind::kVolume: {
      const auto view = parts_.mounter.Find(key.plugin_id, key.volume_id);
      if (!view) co_return std::nullopt;
      v1::Volume& volume = *object.mutable_volume();
      volume = ToProto(*view, /*show_options=*/false);
      // What is of the moment.
      volume.clear_running();
      volume.clear_running_since();
      volume.clear_next_retry_at();
      volume.clear_advice();
      volume.clear_driver_version();
      const int publications = volume.publications_size();
      if (const int beyond = volume.publications_size() - kPublicationsTold; beyond > 0) {
        volume.mutable_publications()->DeleteSubrange(kPublicationsTold, beyond);
      }
      // What is wrong with each of them may be long.
      while (volume.ByteSizeLong() > kObjectBytes && volume.publications_size() > 0) {
        const int left = volume.publications_size() / 2;
        volume.mutable_publications()->DeleteSubrange(left, volume.publications_size() - left);
      }
      volume.set_publications_omitted(publications - volume.publications_size());
      co_return object;
    }
    case ObjectKey::Kind::kEndedConsumer: {
      const auto ended = ended_consumers_.find(key.number);
      if (ended == ended_consumers_.end()) co_return std::nullopt;
      *object.mutable_ended_consumer() = ended->second;
      co_return object;
    }
    case ObjectKey::Kind::kForcedRelease: {
      for (const v1::ForcedRelease& forced_release : parts_.lease.forced_release()) {
        if (forced_release.number() != key.number) continue;
        *object.mutable_forced_release() = forced_release;
        co_return object;
      }
      co_return std::nullopt;
    }
  }
  co_return std::nullopt;
}

Awaitable<void> Uplink::FollowPlugins() {
  while (true) {
    const TimePoint looked_at = Clock::now();
    std::set<std::string> there;
    for (const auto& [id, snapshot] : parts_.plugins.plugins()) {
      there.insert(id);
      const size_t hash = std::hash<std::string>{}(PluginForScheduler(snapshot).SerializeAsString());
      const auto [known, added] = known_plugins_.try_emplace(id, hash);
      if (!added && std::exchange(known->second, hash) == hash) continue;
      state_.outbox.Changed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = id});
      node_changed_ = true;
    }
    std::erase_if(known_plugins_, [&](const auto& known) {
      if (there.contains(known.first)) return false;
      state_.outbox.Removed({.kind = ObjectKey::Kind::kPlugin, .plugin_id = known.first});
      return true;
    });
    Wake();
    // The look and this wait are one step on the loop: no change is missed between them. Any that comes while
    // it rests is seen by the next look.
    co_await parts_.controllers.WaitChange(TimePoint::max());
    co_await SleepUntil(looked_at + kPluginsEvery);
  }
}

Awaitable<void> Uplink::FollowNode() {
  // What follows from volumes and plugins (how many, what is wrong) takes a look at all of them.
  while (true) {
    // Changes without an event, such as a disk that is full now, are seen with the next check.
    co_await changed_.WaitUntil([this] { return node_changed_; }, Clock::now() + kNodeLook);
    node_changed_ = false;
    OnNodeChanged();
    co_await SleepUntil(Clock::now() + options_.node_state_every);
  }
}

}  // namespace berth
