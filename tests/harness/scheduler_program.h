// berth-scheduler itself for a test: the program, with its settings and its record in a directory of its own.
//
// One thread. Waits end the test with what was waited for. The destructor kills it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/testing/temp_dir.h"
#include "berth/v1/cluster.grpc.pb.h"

namespace berth {

class SchedulerProgram {
 public:
  // `settings` follow the cluster's name ("test") and the socket.
  explicit SchedulerProgram(
      const std::string& settings = "[lease]\nheartbeat_interval = \"500ms\"\nduration = \"5s\"\n");
  ~SchedulerProgram();
  SchedulerProgram(const SchedulerProgram&) = delete;
  SchedulerProgram& operator=(const SchedulerProgram&) = delete;

  // Returns once it answers.
  void Start();
  void Kill();
  // SIGTERM, and waits for exit status 0.
  void Stop();

  // As berthd.toml and --cluster have it.
  [[nodiscard]] std::string address() const { return "unix:" + directory_.path() + "/s.sock"; }
  [[nodiscard]] std::string settings_file() const { return directory_.path() + "/scheduler.toml"; }
  [[nodiscard]] std::string state_dir() const { return directory_.path() + "/state"; }
  [[nodiscard]] std::string log() const;
  [[nodiscard]] v1::Cluster::Stub& stub();

  // The node's line of ListNodes; without a name where it is in none.
  [[nodiscard]] v1::ClusterNode Node(const std::string& name);
  // Until it is connected and has reported everything; and until it is away.
  void WaitConnected(const std::string& name);
  void WaitAway(const std::string& name);

 private:
  TempDir directory_;
  pid_t pid_ = -1;
  std::unique_ptr<v1::Cluster::Stub> stub_;
};

}  // namespace berth
