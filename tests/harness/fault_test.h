// The ground of every test of a fault: a node with a plugin that does wrong (fault()) and one that does not
// (a bystander with a volume in use), and the invariants, which are checked after each test:
//
//   - nothing acknowledged is lost: what Publish said OK to is mounted, once, until Unpublish is asked for;
//     what Unpublish said OK to is not mounted
//   - never unstaged while published, by the plugin's own history
//   - not one byte deleted: the marker in each volume is there, as it was
//   - the bystander was not touched: same process, no restart, its volume in use all the time
//   - no secret in any file of the node (logs, journal, events, state), nor in any answer of its API
//
// One thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/harness/fault_plugin.h"
#include "tests/harness/node.h"

namespace berth {

class FaultTest : public testing::Test {
 protected:
  // Goes with every Publish, and must be nowhere afterwards.
  static constexpr const char* kSecret = "hunter2-0f6d1c9a55";
  // For tests that give a mount flag: nowhere afterwards but in the journal, which keeps a volume's flags.
  static constexpr const char* kSecretInFlag = "hunter3-77c0a4e1b2";

  FaultTest() : fault_(node_) {}
  void TearDown() override;

  // Starts the node, with the bystander in use. It does not wait for the plugin with faults, since its file
  // is written with `sections`.
  void StartNode(const std::string& sections = "");
  // The same, and waits until it is ready.
  v1::Plugin StartReady(const std::string& sections = "");

  // A directory volume of the plugin with faults.
  std::string CreateVolume(const std::string& name);
  // Publishes with a secret; on OK the target counts as acknowledged, and the volume's marker is written or
  // compared. `target` may be null.
  grpc::Status TryPublish(const std::string& volume, const std::string& consumer,
                          std::string* target = nullptr,
                          std::chrono::milliseconds timeout = std::chrono::seconds(30));
  std::string Publish(const std::string& volume, const std::string& consumer);
  grpc::Status TryUnpublish(const std::string& volume, const std::string& consumer,
                            std::chrono::milliseconds timeout = std::chrono::seconds(30));
  void Unpublish(const std::string& volume, const std::string& consumer);
  // What becomes of this publication is the test's own affair from now on.
  void Forget(const std::string& volume, const std::string& consumer) {
    published_.erase({volume, consumer});
  }
  // After a reboot only its user asks for the bystander's volume again.
  void RepublishBystander();
  // Publishes, writes, reads and unpublishes a volume: the plugin works again.
  void ExpectWorks(const std::string& name);

  // A volume as the node shows it; not set: the node knows nothing of it.
  std::optional<v1::Volume> VolumeOf(const std::string& id);
  v1::Volume WaitVolume(const std::string& id, const std::string& what,
                        const std::function<bool(const v1::Volume&)>& predicate);
  void WaitReleased(const std::string& id);
  // How many mounts lie on one another at `path`.
  [[nodiscard]] int64_t MountsAt(const std::string& path) const;
  // How often the plugin with faults was called so, for this volume where one is named.
  [[nodiscard]] int64_t Calls(const std::string& rpc, const std::string& volume = "") const;
  pid_t BerthdPid();

  grpc::Status StartPlugin(const std::string& id);
  grpc::Status StopPlugin(const std::string& id, bool force = false);
  std::vector<v1::Event> Events(const std::string& type = "");
  // Waits for an event of this type of the plugin with faults, with `part` in its message.
  void WaitEvent(const std::string& type, const std::string& part = "");
  v1::Plugin Get() { return node_.Plugin(fault_.id()); }
  v1::Plugin Wait(const std::string& what, const std::function<bool(const v1::Plugin&)>& predicate) {
    return node_.WaitPlugin(fault_.id(), what, predicate);
  }

  Node node_;
  FaultPlugin fault_;

 private:
  struct Use {
    std::string volume;
    std::string consumer;
    bool operator<(const Use& other) const {
      return std::tie(volume, consumer) < std::tie(other.volume, other.consumer);
    }
  };

  void CheckAcknowledged();
  void CheckOrder();
  void CheckMarkers();
  void CheckBystander();
  void CheckSecrets();
  // The marker's path in the plugin's own store.
  [[nodiscard]] std::string MarkerOf(const std::string& volume) const;

  std::map<Use, std::string> published_;  // acknowledged: the target
  std::set<std::string> unpublished_;     // targets, acknowledged as gone
  std::set<std::string> marked_;          // volumes
  v1::PublishVolumeRequest bystander_use_;
  std::string bystander_target_;
  pid_t bystander_pid_ = -1;
};

// Whether a process with this pid lives (zombies do not).
[[nodiscard]] bool Lives(pid_t pid);

// What a process holds: bytes that it alone has, and has written to; the most bytes that it ever
// had in memory; open descriptors.
[[nodiscard]] int64_t PrivateDirtyBytes(pid_t pid);
[[nodiscard]] int64_t PeakBytes(pid_t pid);
[[nodiscard]] size_t Descriptors(pid_t pid);

}  // namespace berth
