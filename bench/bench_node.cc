#include "bench/bench_node.h"

#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace berth {

BenchNode::BenchNode(const std::string& disk) {
  std::string state = disk + "/node.XXXXXX";
  if (mkdtemp(state.data()) == nullptr || mkdir(node_.state_dir().c_str(), 0711) != 0 ||
      mount(state.c_str(), node_.state_dir().c_str(), nullptr, MS_BIND, nullptr) != 0) {
    throw std::runtime_error(fmt::format("{}: {}", state, strerror(errno)));
  }
}

void BenchNode::AddHostpath(const std::string& id, const std::string& more) {
  node_.WritePlugin(id, fmt::format(R"(id = "{}"
kind = "monolith"
command = "{}"
args = ["--endpoint", "${{CSI_ENDPOINT}}", "--node-id", "${{BERTH_NODE_ID}}",
        "--state-dir", "${{BERTH_PLUGIN_DIR}}", "--driver-name", "{}.bench.berth"]
{}
)",
                                    id, BERTH_HOSTPATH, id, more));
  hostpaths_.push_back(id);
}

void BenchNode::AddBind(const std::string& id, const std::string& self, const std::string& more) {
  node_.WritePlugin(id, fmt::format(R"(id = "{}"
kind = "node"
command = "{}"
args = ["bind-plugin", "${{CSI_ENDPOINT}}", "${{BERTH_PLUGIN_DIR}}/backing"]
{}
)",
                                    id, self, more));
  hostpaths_.push_back(id);
}

void BenchNode::Start() {
  node_.Start();
  for (const std::string& id : hostpaths_) node_.WaitReady(id);
  v1::GetStatusResponse status;
  const grpc::Status asked = node_.stub().GetStatus(Node::Context().get(), {}, &status);
  EXPECT_TRUE(asked.ok()) << asked.error_message();
  berthd_pid_ = status.pid();
}

std::string BenchNode::PluginSocket(const std::string& id) const {
  return fmt::format("{}/plugins/{}/csi.sock", node_.runtime_dir(), id);
}

}  // namespace berth
