// A CSI plugin for outlive_test.cc, cheap enough to run a hundred times: stage and publish are bind mounts of
// its own directory, and it writes numbered lines to its output, "n=0", "n=1", …, now one, now many at once.
// On SIGUSR1 it writes "end=N", N being how many there were, and no more from then on.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "csi/csi.grpc.pb.h"
#include "tests/harness/bind_mount.h"

namespace berth {
namespace {

using grpc::ServerContext;
using grpc::Status;

class Identity final : public csi::v1::Identity::Service {
  Status GetPluginInfo(ServerContext*, const csi::v1::GetPluginInfoRequest*,
                       csi::v1::GetPluginInfoResponse* response) override {
    response->set_name("outlive.berth.test");
    response->set_vendor_version("1");
    return Status::OK;
  }
  Status GetPluginCapabilities(ServerContext*, const csi::v1::GetPluginCapabilitiesRequest*,
                               csi::v1::GetPluginCapabilitiesResponse*) override {
    return Status::OK;
  }
  Status Probe(ServerContext*, const csi::v1::ProbeRequest*, csi::v1::ProbeResponse* response) override {
    response->mutable_ready()->set_value(true);
    return Status::OK;
  }
};

class NodeService final : public csi::v1::Node::Service {
 public:
  explicit NodeService(std::string source) : source_(std::move(source)) {}

 private:
  Status NodeGetInfo(ServerContext*, const csi::v1::NodeGetInfoRequest*,
                     csi::v1::NodeGetInfoResponse* response) override {
    response->set_node_id("node-1");
    return Status::OK;
  }
  Status NodeGetCapabilities(ServerContext*, const csi::v1::NodeGetCapabilitiesRequest*,
                             csi::v1::NodeGetCapabilitiesResponse* response) override {
    for (const auto type : {csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME,
                            csi::v1::NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER}) {
      response->add_capabilities()->mutable_rpc()->set_type(type);
    }
    return Status::OK;
  }
  Status NodeStageVolume(ServerContext*, const csi::v1::NodeStageVolumeRequest* request,
                         csi::v1::NodeStageVolumeResponse*) override {
    return Bind(source_, request->staging_target_path());
  }
  Status NodeUnstageVolume(ServerContext*, const csi::v1::NodeUnstageVolumeRequest* request,
                           csi::v1::NodeUnstageVolumeResponse*) override {
    return Unbind(request->staging_target_path());
  }
  Status NodePublishVolume(ServerContext*, const csi::v1::NodePublishVolumeRequest* request,
                           csi::v1::NodePublishVolumeResponse*) override {
    return Bind(request->staging_target_path(), request->target_path());
  }
  Status NodeUnpublishVolume(ServerContext*, const csi::v1::NodeUnpublishVolumeRequest* request,
                             csi::v1::NodeUnpublishVolumeResponse*) override {
    if (Status status = Unbind(request->target_path()); !status.ok()) return status;
    if (rmdir(request->target_path().c_str()) != 0 && errno != ENOENT) return FailedTo("remove the target");
    return Status::OK;
  }

  const std::string source_;
};

// One system call a line, as a careful program would.
void WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) abort();
}

int Serve(const char* endpoint, const char* directory) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Identity identity;
  NodeService node(directory);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("outlive");
  quota.SetMaxThreads(8);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials());
  builder.RegisterService(&identity);
  builder.RegisterService(&node);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;

  std::mt19937 random(static_cast<unsigned>(getpid()));
  uint64_t lines = 0;
  bool writing = true;
  while (true) {
    const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000L * std::uniform_int_distribution(20, 180)(random)};
    const int signal = sigtimedwait(&signals, nullptr, &pause);
    if (signal == SIGTERM) break;
    if (signal == SIGUSR1 && writing) {
      writing = false;
      WriteLine(fmt::format("end={}", lines));
    }
    if (!writing) continue;
    const int count = std::uniform_int_distribution(0, 30)(random) == 0 ? 60 : 1;
    for (int i = 0; i < count; ++i) WriteLine(fmt::format("n={}", lines++));
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace berth

int main() {
  const char* endpoint = getenv("CSI_ENDPOINT");
  const char* directory = getenv("BERTH_PLUGIN_DIR");
  if (endpoint == nullptr || directory == nullptr) return 2;
  // gRPC's spelling has no slashes before an absolute path's own.
  const std::string path =
      strncmp(endpoint, "unix://", 7) == 0 ? fmt::format("unix:{}", endpoint + 7) : endpoint;
  return berth::Serve(path.c_str(), directory);
}
