#include "bench/bind_plugin.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/safe_path.h"
#include "csi/csi.grpc.pb.h"

namespace berth {
namespace {

using grpc::ServerContext;
using grpc::Status;

Status Failed(const std::string& what) {
  return {grpc::StatusCode::INTERNAL, fmt::format("{}: {}", what, strerror(errno))};
}

class BindIdentity final : public ::csi::v1::Identity::Service {
  Status GetPluginInfo(ServerContext* /*context*/, const ::csi::v1::GetPluginInfoRequest* /*request*/,
                       ::csi::v1::GetPluginInfoResponse* response) override {
    response->set_name("bind.bench.berth");
    response->set_vendor_version("1");
    return Status::OK;
  }
  Status GetPluginCapabilities(ServerContext* /*context*/,
                               const ::csi::v1::GetPluginCapabilitiesRequest* /*request*/,
                               ::csi::v1::GetPluginCapabilitiesResponse* /*response*/) override {
    return Status::OK;
  }
  Status Probe(ServerContext* /*context*/, const ::csi::v1::ProbeRequest* /*request*/,
               ::csi::v1::ProbeResponse* response) override {
    response->mutable_ready()->set_value(true);
    return Status::OK;
  }
};

class BindNode final : public ::csi::v1::Node::Service {
 public:
  explicit BindNode(std::string backing) : backing_(std::move(backing)) {}

 private:
  Status NodePublishVolume(ServerContext* /*context*/, const ::csi::v1::NodePublishVolumeRequest* request,
                           ::csi::v1::NodePublishVolumeResponse* /*response*/) override {
    const std::string& target = request->target_path();
    const auto facts = LookAt(target);
    if (facts.ok() && facts->mount_root) return Status::OK;
    if (mkdir(target.c_str(), 0755) != 0 && errno != EEXIST) return Failed("mkdir " + target);
    if (mount(backing_.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return Failed("bind " + target);
    return Status::OK;
  }
  Status NodeUnpublishVolume(ServerContext* /*context*/, const ::csi::v1::NodeUnpublishVolumeRequest* request,
                             ::csi::v1::NodeUnpublishVolumeResponse* /*response*/) override {
    const std::string& target = request->target_path();
    if (umount2(target.c_str(), UMOUNT_NOFOLLOW) != 0 && errno != EINVAL && errno != ENOENT)
      return Failed("umount " + target);
    if (rmdir(target.c_str()) != 0 && errno != ENOENT) return Failed("rmdir " + target);
    return Status::OK;
  }
  Status NodeGetCapabilities(ServerContext* /*context*/,
                             const ::csi::v1::NodeGetCapabilitiesRequest* /*request*/,
                             ::csi::v1::NodeGetCapabilitiesResponse* response) override {
    // Else the plugin would see any number of consumers of a volume as one.
    response->add_capabilities()->mutable_rpc()->set_type(
        ::csi::v1::NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER);
    return Status::OK;
  }
  Status NodeGetInfo(ServerContext* /*context*/, const ::csi::v1::NodeGetInfoRequest* /*request*/,
                     ::csi::v1::NodeGetInfoResponse* response) override {
    response->set_node_id("node-1");
    return Status::OK;
  }

  const std::string backing_;
};

bool PrepareBacking(const std::string& backing) {
  const auto facts = LookAt(backing);
  if (facts.ok() && facts->mount_root) return true;
  if (mkdir(backing.c_str(), 0755) != 0 && errno != EEXIST) return false;
  return mount(backing.c_str(), backing.c_str(), nullptr, MS_BIND, nullptr) == 0;
}

}  // namespace

int BindPluginMain(const std::string& endpoint, const std::string& backing) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  if (!PrepareBacking(backing)) {
    fmt::print(stderr, "{}: {}\n", backing, strerror(errno));
    return 1;
  }
  BindIdentity identity;
  BindNode node(backing);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials());
  builder.RegisterService(&identity);
  builder.RegisterService(&node);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  int signal = 0;
  sigwait(&ends, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  return 0;
}

}  // namespace berth
