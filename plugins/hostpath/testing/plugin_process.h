// For tests: the real berth-hostpath as a process of its own, and a place for it to work in.
//
// One thread: the test's.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "csi/csi.grpc.pb.h"

namespace berth::hostpath {

// Gives the test program a mount namespace of its own, private to the last mount. Once, before any thread.
void EnterPrivateMountNamespace();

// A directory under /tmp. Its destructor removes the files and empty directories in it one by one, and fails
// the test if anything was left mounted, or on a loop device.
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string StateDir() const { return path_ + "/state"; }
  [[nodiscard]] std::string Socket() const { return path_ + "/csi.sock"; }
  // An empty directory, as a CO makes one for staging.
  [[nodiscard]] std::string NewStagingPath(const std::string& name) const;
  // A path that does not exist, in a directory that does.
  [[nodiscard]] std::string Target(const std::string& name) const { return path_ + "/targets/" + name; }

 private:
  std::string path_;
};

class PluginProcess {
 public:
  explicit PluginProcess(const Workplace& workplace) : workplace_(workplace) {}
  ~PluginProcess();
  PluginProcess(const PluginProcess&) = delete;
  PluginProcess& operator=(const PluginProcess&) = delete;

  // Starts it with the usual arguments and `extra`, and waits until its socket is there.
  void Start(std::vector<std::string> extra = {}, const std::string& node_id = "node-1");
  // From now on it is started by `wrapper`, a program and its arguments that becomes the plugin.
  void RunBy(std::vector<std::string> wrapper) { wrapper_ = std::move(wrapper); }
  // Starts it and waits for it to end. The exit code.
  [[nodiscard]] int RunToItsEnd(const std::vector<std::string>& arguments);
  // SIGKILL, as a crash.
  void Kill();
  // SIGTERM. The exit code.
  [[nodiscard]] int Terminate();

  [[nodiscard]] ::csi::v1::Identity::Stub& identity() { return *identity_; }
  [[nodiscard]] ::csi::v1::Controller::Stub& controller() { return *controller_; }
  [[nodiscard]] ::csi::v1::Node::Stub& node() { return *node_; }

  // A call by its stub's method, with a deadline; the response where it succeeded.
  template <class Stub, class Request, class Response>
  grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    return (stub.*method)(&context, request, response);
  }

 private:
  void Spawn(const std::vector<std::string>& arguments);
  int Reap();

  const Workplace& workplace_;
  std::vector<std::string> wrapper_;
  pid_t pid_ = -1;
  std::unique_ptr<::csi::v1::Identity::Stub> identity_;
  std::unique_ptr<::csi::v1::Controller::Stub> controller_;
  std::unique_ptr<::csi::v1::Node::Stub> node_;
};

// What is mounted beneath `path`, and which loop devices have their file there.
[[nodiscard]] std::vector<std::string> MountsBeneath(const std::string& path);
[[nodiscard]] std::vector<std::string> LoopsBeneath(const std::string& path);

}  // namespace berth::hostpath
