// What is reported of this node: itself, its plugins and volumes, consumers that have ended, forced releases.
// What changes is noted in the outbox, and described when it is sent.
//
// Owned by the Uplink; loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/uplink/uplink_context.h"

namespace berth {

class NodeObjects {
 public:
  explicit NodeObjects(UplinkContext& link) : link_(link), tasks_(link.executor, "ended consumers") {}

  // As link.db has them.
  void RestoreEnded(uint64_t number, v1::EndedConsumer ended);
  void RestoreNextEnded(uint64_t number);
  // All there is, for the first stream.
  void Start();
  // Before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown() { return tasks_.Join(); }

  // See Uplink.
  void OnVolumeChanged(const std::string& plugin_id, const std::string& volume_id, bool here);
  void OnNodeChanged();
  void OnForcedReleasesChanged();
  void OnConsumerEnded(const std::string& consumer, const std::string& cause, Origin origin);
  // Note what changes without a call, until they are cancelled.
  [[nodiscard]] Awaitable<void> FollowPlugins();
  [[nodiscard]] Awaitable<void> FollowNode();

  // See LinkHost.
  [[nodiscard]] Awaitable<std::optional<v1::Object>> Describe(ObjectKey key);
  void OnBegun();
  // The scheduler has acknowledged it.
  void DropEndedConsumer(uint64_t number);

 private:
  // Sent once its number and itself are on the disk.
  [[nodiscard]] Awaitable<void> ReportEnded(v1::EndedConsumer ended);

  UplinkContext& link_;
  std::map<uint64_t, v1::EndedConsumer> ended_consumers_;
  uint64_t next_ended_ = 1;
  bool reported_dropped_ = false;                    // that ended consumers are dropped
  std::map<uint64_t, std::string> forced_releases_;  // as the outbox knows them
  std::map<std::string, size_t> known_plugins_;      // their hashes
  bool node_changed_ = false;
  TaskScope tasks_;
};

}  // namespace berth
