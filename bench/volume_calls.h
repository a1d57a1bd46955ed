// Publishing and unpublishing, through berthd and straight through a plugin, for the figures of volumes.
//
// One thread, but PublishMany, which has the calls in flight side by side on one completion queue.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_node.h"
#include "csi/csi.grpc.pb.h"

namespace berth {

// A volume of a plugin.
struct BenchVolume {
  std::string plugin_id;
  std::string volume_id;
};

[[nodiscard]] absl::Status PublishThrough(Node& node, const BenchVolume& volume);
[[nodiscard]] absl::Status UnpublishThrough(Node& node, const BenchVolume& volume);

// All of them with at most `at_once` in flight; the first error.
[[nodiscard]] absl::Status PublishMany(Node& node, const std::vector<BenchVolume>& volumes, size_t at_once);
[[nodiscard]] absl::Status UnpublishMany(Node& node, const std::vector<BenchVolume>& volumes, size_t at_once);

// A plugin's own Node service, called as berthd calls it.
class PluginCalls {
 public:
  explicit PluginCalls(const std::string& socket_path);

  [[nodiscard]] absl::Status Probe();
  // `staging`: empty where the plugin does not stage.
  [[nodiscard]] absl::Status Stage(const std::string& volume_id, const std::string& staging);
  [[nodiscard]] absl::Status Publish(const std::string& volume_id, const std::string& staging,
                                     const std::string& target);
  [[nodiscard]] absl::Status Unpublish(const std::string& volume_id, const std::string& target);
  [[nodiscard]] absl::Status Unstage(const std::string& volume_id, const std::string& staging);

 private:
  std::unique_ptr<::csi::v1::Identity::Stub> identity_;
  std::unique_ptr<::csi::v1::Node::Stub> node_;
};

}  // namespace berth
