// A cluster for a test: berth-scheduler itself, whole nodes, and berthctl as its user has it.
//
// One thread. Waits are for a condition under a bound (node.h).
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/node.h"
#include "tests/harness/run_command.h"
#include "tests/harness/scheduler_program.h"

namespace berth {

class Cluster : public ::testing::Test {
 protected:
  // A node of the cluster, without plugins.
  Node& AddNode(const std::string& name) {
    auto node = std::make_unique<Node>(name);
    node->WriteBerthdToml(fmt::format("[scheduler]\naddresses = [\"{}\"]\n", scheduler_.address()));
    nodes_.push_back(std::move(node));
    return *nodes_.back();
  }
  Ended Ctl(const std::string& arguments) const {
    return RunCommand(fmt::format("{} --cluster {} {}", BERTHCTL, scheduler_.address(), arguments));
  }
  // The command has to succeed.
  std::string Says(const std::string& arguments) const {
    const Ended ended = Ctl(arguments);
    EXPECT_EQ(ended.exit_code, 0) << arguments << ": " << ended.said;
    return ended.said;
  }
  void WaitDriverReadyOn(int nodes) {
    WaitFor(fmt::format("the driver is ready on {} nodes", nodes), [&] {
      const auto context = Node::Context();
      v1::ListClusterPluginsResponse answer;
      EXPECT_TRUE(scheduler_.stub().ListPlugins(context.get(), {}, &answer).ok());
      return answer.plugins_size() == 1 && answer.plugins(0).nodes_ready() == nodes;
    });
  }

  SchedulerProgram scheduler_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace berth
