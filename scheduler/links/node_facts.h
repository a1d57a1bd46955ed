// What a node says of itself on its present stream: State, object by object, as it is now.
//
// In memory only: it ends with the stream, and the node sends it again on the next one. A volume that is
// missing here is not therefore released. Pure; loop thread.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "berth/v1/scheduler.pb.h"

namespace berth::scheduler {

// Of one node; one that says more is hung up on.
inline constexpr size_t kMostVolumes = 65'536;
inline constexpr size_t kMostPlugins = 1024;
inline constexpr size_t kMostNotices = 8192;  // ended consumers, forced releases: the node keeps 4096 of each

class NodeFacts {
 public:
  using VolumeKey = std::pair<std::string, std::string>;  // plugin, volume

  // RESOURCE_EXHAUSTED: one of the limits.
  [[nodiscard]] absl::Status Apply(const v1::State& state);

  // These notices end here: nothing follows from the node.
  void Acknowledged(const v1::Acknowledge& acknowledge);

  // The node has sent everything: an object that is in no list below does not exist.
  [[nodiscard]] bool synced() const { return synced_; }
  [[nodiscard]] const v1::NodeState& node() const { return node_; }
  [[nodiscard]] const std::map<std::string, v1::Plugin>& plugins() const { return plugins_; }
  [[nodiscard]] const std::map<VolumeKey, v1::Volume>& volumes() const { return volumes_; }
  [[nodiscard]] const std::map<uint64_t, v1::EndedConsumer>& ended_consumers() const { return ended_; }
  [[nodiscard]] const std::map<uint64_t, v1::ForcedRelease>& forced_releases() const { return forced_; }

  // Publications that the scheduler asked for.
  [[nodiscard]] size_t OwnPublications() const;

 private:
  void Take(const v1::Object& object);

  bool synced_ = false;
  bool full_ = false;  // a complete list is coming
  v1::NodeState node_;
  std::map<std::string, v1::Plugin> plugins_;
  std::map<VolumeKey, v1::Volume> volumes_;
  std::map<uint64_t, v1::EndedConsumer> ended_;
  std::map<uint64_t, v1::ForcedRelease> forced_;
  // What the node sent before, and has not sent again in this list.
  std::set<std::string> stale_plugins_;
  std::set<VolumeKey> stale_volumes_;
};

// It is registered (its capabilities were read), and takes what is new.
[[nodiscard]] bool TakesWork(const v1::Plugin& plugin);
[[nodiscard]] bool HasController(const v1::Plugin& plugin);
[[nodiscard]] bool ProvidesNode(const v1::Plugin& plugin);

}  // namespace berth::scheduler
