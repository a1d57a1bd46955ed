#include "tests/harness/scheduler_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

#include "tests/harness/node.h"

namespace berth {

SchedulerProgram::SchedulerProgram(const std::string& settings) {
  directory_.Write("scheduler.toml",
                   fmt::format("cluster_id = \"test\"\nlisten = [\"{}\"]\nstate_dir = \"{}\"\n{}", address(),
                               state_dir(), settings));
}

SchedulerProgram::~SchedulerProgram() {
  if (pid_ > 0) Kill();
}

void SchedulerProgram::Start() {
  const std::string settings = settings_file();
  const std::string log_path = directory_.path() + "/log";
  pid_ = fork();
  if (pid_ == 0) {
    const int fd = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    close_range(3, ~0U, 0);
    execl(BERTH_SCHEDULER, "berth-scheduler", "--config", settings.c_str(), nullptr);
    _exit(127);
  }
  WaitFor("the scheduler answers", [this] {
    const auto context = Node::Context(std::chrono::seconds(2));
    v1::ListNodesResponse answer;
    if (stub().ListNodes(context.get(), {}, &answer).ok()) return true;
    // A channel without an answer waits for seconds.
    stub_.reset();
    return false;
  });
}

void SchedulerProgram::Kill() {
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
  stub_.reset();
}

void SchedulerProgram::Stop() {
  kill(pid_, SIGTERM);
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << "\n" << log();
  stub_.reset();
}

std::string SchedulerProgram::log() const { return ReadText(directory_.path() + "/log"); }

v1::Cluster::Stub& SchedulerProgram::stub() {
  if (stub_ == nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::Cluster::NewStub(
        grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments));
  }
  return *stub_;
}

v1::ClusterNode SchedulerProgram::Node(const std::string& name) {
  const auto context = berth::Node::Context();
  v1::ListNodesResponse answer;
  const grpc::Status status = stub().ListNodes(context.get(), {}, &answer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const v1::ClusterNode& node : answer.nodes()) {
    if (node.name() == name) return node;
  }
  return {};
}

void SchedulerProgram::WaitConnected(const std::string& name) {
  WaitFor(name + " is connected", [&] {
    const v1::ClusterNode node = Node(name);
    return node.connection() == v1::ClusterNode::CONNECTED && node.synced() && node.has_lease();
  });
}

void SchedulerProgram::WaitAway(const std::string& name) {
  WaitFor(name + " is away", [&] {
    const v1::ClusterNode node = Node(name);
    return node.name() == name && node.connection() == v1::ClusterNode::AWAY;
  });
}

}  // namespace berth
