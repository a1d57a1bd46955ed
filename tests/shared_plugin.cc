// A CSI plugin for tests of schedulers: storage that several nodes reach, one at a time.
//
//   shared_plugin STORE NODE_ID [without-attach]    CSI_ENDPOINT from the environment
//
//   STORE/volumes/ID    a volume: a directory, which is there before the plugin is asked for it
//   STORE/attached/ID   the node id that it is attached to; none: it is free
//   STORE/history       a line for each thing that was really done: "attach ID NODE_ID", "publish …", …
//
// Each node runs one of its own over the same store. A volume that is attached to one node is attached to no
// other, and published nowhere else; as with real storage, nothing keeps a detach from coming too early.
// Without attach every node may publish every volume, also at the same time: only a scheduler prevents it.
#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "csi/csi.grpc.pb.h"
#include "tests/harness/bind_mount.h"

namespace berth {
namespace {

using grpc::ServerContext;
using grpc::Status;
using grpc::StatusCode;

class Store {
 public:
  Store(std::string directory, std::string node_id, bool attaches)
      : directory_(std::move(directory)), node_id_(std::move(node_id)), attaches_(attaches) {}

  [[nodiscard]] bool attaches() const { return attaches_; }
  [[nodiscard]] bool Has(const std::string& id) const { return access(Volume(id).c_str(), F_OK) == 0; }
  [[nodiscard]] const std::string& node_id() const { return node_id_; }
  [[nodiscard]] std::string Volume(const std::string& id) const { return directory_ + "/volumes/" + id; }
  // Empty: it is attached to none.
  [[nodiscard]] std::string AttachedTo(const std::string& id) const {
    std::ifstream in(Attachment(id));
    std::string node_id;
    in >> node_id;
    return node_id;
  }

  // The maker of the link has the volume: of two that try at once, one does.
  Status Attach(const std::string& id, const std::string& node_id) {
    if (!Has(id)) return {StatusCode::NOT_FOUND, "there is no volume " + id};
    const std::string made = fmt::format("{}.{}", Attachment(id), node_id);
    std::ofstream(made) << node_id << std::flush;
    const bool first = link(made.c_str(), Attachment(id).c_str()) == 0;
    unlink(made.c_str());
    if (!first && AttachedTo(id) != node_id) {
      return {StatusCode::FAILED_PRECONDITION, fmt::format("{} is attached to {}", id, AttachedTo(id))};
    }
    if (first) Note("attach", id, node_id);
    return Status::OK;
  }
  void Detach(const std::string& id, const std::string& node_id) {
    if (AttachedTo(id) != node_id || unlink(Attachment(id).c_str()) != 0) return;
    Note("detach", id, node_id);
  }

  // One write a line: both nodes' plugins write to the same file.
  void Note(const std::string& deed, const std::string& id, const std::string& node_id) const {
    const std::string line = fmt::format("{} {} {}\n", deed, id, node_id);
    const int fd = open((directory_ + "/history").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) abort();
    close(fd);
  }

 private:
  [[nodiscard]] std::string Attachment(const std::string& id) const { return directory_ + "/attached/" + id; }

  const std::string directory_;
  const std::string node_id_;
  const bool attaches_;
};

class Identity final : public csi::v1::Identity::Service {
  Status GetPluginInfo(ServerContext*, const csi::v1::GetPluginInfoRequest*,
                       csi::v1::GetPluginInfoResponse* response) override {
    response->set_name("shared.berth.test");
    response->set_vendor_version("1");
    return Status::OK;
  }
  Status GetPluginCapabilities(ServerContext*, const csi::v1::GetPluginCapabilitiesRequest*,
                               csi::v1::GetPluginCapabilitiesResponse* response) override {
    response->add_capabilities()->mutable_service()->set_type(
        csi::v1::PluginCapability::Service::CONTROLLER_SERVICE);
    return Status::OK;
  }
  Status Probe(ServerContext*, const csi::v1::ProbeRequest*, csi::v1::ProbeResponse* response) override {
    response->mutable_ready()->set_value(true);
    return Status::OK;
  }
};

class Controller final : public csi::v1::Controller::Service {
 public:
  explicit Controller(Store& store) : store_(store) {}

 private:
  Status ControllerGetCapabilities(ServerContext*, const csi::v1::ControllerGetCapabilitiesRequest*,
                                   csi::v1::ControllerGetCapabilitiesResponse* response) override {
    if (store_.attaches()) {
      response->add_capabilities()->mutable_rpc()->set_type(
          csi::v1::ControllerServiceCapability::RPC::PUBLISH_UNPUBLISH_VOLUME);
    }
    return Status::OK;
  }
  Status ValidateVolumeCapabilities(ServerContext*, const csi::v1::ValidateVolumeCapabilitiesRequest* request,
                                    csi::v1::ValidateVolumeCapabilitiesResponse* response) override {
    if (!store_.Has(request->volume_id()))
      return {StatusCode::NOT_FOUND, "there is no volume " + request->volume_id()};
    for (const csi::v1::VolumeCapability& capability : request->volume_capabilities()) {
      if (!capability.has_mount()) {
        response->set_message("there are no block devices here");
        return Status::OK;
      }
    }
    *response->mutable_confirmed()->mutable_volume_capabilities() = request->volume_capabilities();
    return Status::OK;
  }
  Status ControllerPublishVolume(ServerContext*, const csi::v1::ControllerPublishVolumeRequest* request,
                                 csi::v1::ControllerPublishVolumeResponse* response) override {
    (*response->mutable_publish_context())["attached_to"] = request->node_id();
    return store_.Attach(request->volume_id(), request->node_id());
  }
  Status ControllerUnpublishVolume(ServerContext*, const csi::v1::ControllerUnpublishVolumeRequest* request,
                                   csi::v1::ControllerUnpublishVolumeResponse*) override {
    store_.Detach(request->volume_id(), request->node_id());
    return Status::OK;
  }

  Store& store_;
};

class NodeService final : public csi::v1::Node::Service {
 public:
  explicit NodeService(Store& store) : store_(store) {}

 private:
  Status NodeGetInfo(ServerContext*, const csi::v1::NodeGetInfoRequest*,
                     csi::v1::NodeGetInfoResponse* response) override {
    response->set_node_id(store_.node_id());
    return Status::OK;
  }
  Status NodeGetCapabilities(ServerContext*, const csi::v1::NodeGetCapabilitiesRequest*,
                             csi::v1::NodeGetCapabilitiesResponse*) override {
    return Status::OK;
  }
  Status NodePublishVolume(ServerContext*, const csi::v1::NodePublishVolumeRequest* request,
                           csi::v1::NodePublishVolumeResponse*) override {
    const auto context = request->publish_context().find("attached_to");
    if (store_.attaches() &&
        (context == request->publish_context().end() || context->second != store_.node_id() ||
         store_.AttachedTo(request->volume_id()) != store_.node_id())) {
      return {StatusCode::FAILED_PRECONDITION, "the volume is not attached to " + store_.node_id()};
    }
    if (IsMount(request->target_path())) return Status::OK;
    Status status = Bind(store_.Volume(request->volume_id()), request->target_path(), request->readonly());
    if (status.ok()) store_.Note("publish", request->volume_id(), store_.node_id());
    return status;
  }
  Status NodeUnpublishVolume(ServerContext*, const csi::v1::NodeUnpublishVolumeRequest* request,
                             csi::v1::NodeUnpublishVolumeResponse*) override {
    const bool mounted = IsMount(request->target_path());
    if (Status status = Unbind(request->target_path()); !status.ok()) return status;
    if (rmdir(request->target_path().c_str()) != 0 && errno != ENOENT) return FailedTo("remove the target");
    if (mounted) store_.Note("unpublish", request->volume_id(), store_.node_id());
    return Status::OK;
  }

  Store& store_;
};

int Serve(const std::string& endpoint, Store store) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Identity identity;
  Controller controller(store);
  NodeService node(store);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials());
  builder.RegisterService(&identity);
  builder.RegisterService(&controller);
  builder.RegisterService(&node);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  const char* endpoint = getenv("CSI_ENDPOINT");
  const bool attaches = argc == 3;
  if (endpoint == nullptr || (!attaches && (argc != 4 || std::string_view(argv[3]) != "without-attach")))
    return 2;
  // gRPC's spelling has no slashes before an absolute path's own.
  std::string path = endpoint;
  if (path.starts_with("unix://")) path = "unix:" + path.substr(7);
  return berth::Serve(path, berth::Store(argv[1], argv[2], attaches));
}
