// A whole node for a test: a real berthd with real plugins on real sockets and mounts, in the test process's
// own mount namespace, on a tmpfs that goes with it.
//
// One thread. Waits are for a condition under a bound, and end the test with what was waited for. The
// destructor ends every process that the node left, and fails the test if a loop device is left.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/test_bound.h"
#include "berth/v1/node.grpc.pb.h"

namespace berth {

inline constexpr int64_t kMiB = int64_t{1} << 20;

// What the file holds; empty where it does not exist.
[[nodiscard]] std::string ReadText(const std::string& path);

// Calls `condition` until it is true. After `bound` the test has failed, and ends with an exception, so that
// nodes are cleared away.
void WaitFor(const std::string& what, const std::function<bool()>& condition,
             std::chrono::seconds bound = kTestBound);

// Enters a mount namespace in which nothing mounted is seen by the host, and becomes the reaper of all
// orphans below. Once per process, before the first Node.
void EnterOwnNamespaces();

class Node {
 public:
  explicit Node(std::string node_id = "node-1");
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Before Start. `toml` is the content of plugins.d/<id>.toml.
  void WritePlugin(const std::string& id, const std::string& toml);
  // berth-hostpath under the id "hostpath", with these more arguments.
  void WriteHostpath(const std::vector<std::string>& arguments = {});
  void WriteBerthdToml(const std::string& toml);

  // Before Start: berthd is started by this command, which has to become it; its own words are added.
  void RunThrough(std::vector<std::string> command) { wrapper_ = std::move(command); }
  // Before the first call: a refusal may come late (stub()), since a request waits for one that is under way.
  void AllowLateRefusals() { late_refusals_ = true; }
  // Before Start: berthd does not learn that its own mount namespace is meant.
  void ForbidPrivateMounts() { private_mounts_ = false; }

  // Starts berthd and waits for its READY=1.
  void Start();
  // The two halves of Start. AwaitReady returns at once where that was seen already.
  void Begin();
  void AwaitReady();
  // Starts one more berthd on the same directories, expecting it to refuse, and returns its exit status
  // (-1: ended by a signal).
  int RunAnother();
  // SIGKILL to berthd alone. Returns once it is gone.
  void Kill();
  // SIGTERM, and waits for exit status 0.
  void Stop();
  // The two halves of Stop.
  void BeginStop();
  void AwaitStopped();
  [[nodiscard]] bool running() const { return pid_ > 0; }
  // SIGHUP, and waits until berthd has reported to the service manager that it is done. Once ready.
  void Reload();
  // What berthd has sent to the service manager since Begin, one message each.
  [[nodiscard]] const std::vector<std::string>& Notified();

  // A stub over a fresh connection, and a context with a deadline for one call. INVALID_ARGUMENT and
  // FAILED_PRECONDITION have to be answered at once, or the test fails: repeating changes nothing about them.
  [[nodiscard]] v1::Node::Stub& stub();
  [[nodiscard]] static std::unique_ptr<grpc::ClientContext> Context(
      std::chrono::milliseconds timeout = kTestBound);

  [[nodiscard]] v1::Plugin Plugin(const std::string& id);
  v1::Plugin WaitPlugin(const std::string& id, const std::string& what,
                        const std::function<bool(const v1::Plugin&)>& predicate);
  v1::Plugin WaitReady(const std::string& id);

  [[nodiscard]] v1::ListVolumesResponse Volumes();
  // What is wrong with the node.
  [[nodiscard]] std::vector<std::string> Problems();
  // Each fails the test where the call does not succeed.
  std::string CreateVolume(v1::CreateVolumeRequest request);
  std::string Publish(const v1::PublishVolumeRequest& request);
  void Unpublish(const std::string& volume_id, const std::string& consumer);
  void DeleteVolume(const std::string& volume_id);
  grpc::Status TryPublish(const v1::PublishVolumeRequest& request, std::string* target);

  [[nodiscard]] const std::string& dir() const { return dir_; }
  [[nodiscard]] std::string state_dir() const { return dir_ + "/state"; }
  [[nodiscard]] std::string runtime_dir() const { return dir_ + "/run"; }
  [[nodiscard]] std::string socket() const { return runtime_dir() + "/berthd.sock"; }
  [[nodiscard]] std::string log() const;
  // The beginning of a shell command: `program`, run as this user and the group of the same number without
  // any other rights. It is copied into the node's directory, since that user need not be able to reach the
  // build tree.
  [[nodiscard]] std::string CommandAs(uid_t uid, const std::string& program) const;
  // Mount points of this namespace beneath the node's directories, from the kernel.
  [[nodiscard]] std::vector<std::string> Mounts() const;
  // Everything beneath `directory`, not crossing mounts, relative to it.
  [[nodiscard]] static std::vector<std::string> Tree(const std::string& directory);

 private:
  [[nodiscard]] pid_t Launch() const;

  std::string node_id_;
  std::string dir_;
  std::vector<std::string> wrapper_;
  bool private_mounts_ = true;
  bool late_refusals_ = false;
  pid_t pid_ = -1;
  bool ready_ = false;
  int notify_fd_ = -1;
  std::vector<std::string> notified_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Node::Stub> stub_;
};

}  // namespace berth
