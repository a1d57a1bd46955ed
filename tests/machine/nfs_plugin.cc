// berth-test-nfs-plugin: a CSI plugin that mounts NFS, as those in use do: without staging, one mount a
// target, and a call that hangs in the kernel for as long as the server is away.
//
// A volume is a directory of a server: `server` (an address) and `share` in its volume_context, and the flags
// of the request. Two calls on one target at a time: the second is ABORTED.
//
// With --hang-file FILE an unpublish that begins while FILE is there never returns, and keeps its target.
//
// With --leave-dirty FILE it is no plugin: see LeaveDirty.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "csi/csi.grpc.pb.h"

namespace berth {
namespace {

using grpc::ServerContext;
using grpc::Status;
using grpc::StatusCode;

Status Failed(const std::string& what) {
  return {StatusCode::INTERNAL, fmt::format("{}: {}", what, strerror(errno))};
}

class Identity final : public csi::v1::Identity::Service {
  Status GetPluginInfo(ServerContext* /*context*/, const csi::v1::GetPluginInfoRequest* /*request*/,
                       csi::v1::GetPluginInfoResponse* response) override {
    response->set_name("nfs.berth.test");
    response->set_vendor_version("1");
    return Status::OK;
  }
  Status GetPluginCapabilities(ServerContext* /*context*/,
                               const csi::v1::GetPluginCapabilitiesRequest* /*request*/,
                               csi::v1::GetPluginCapabilitiesResponse* /*response*/) override {
    return Status::OK;
  }
  Status Probe(ServerContext* /*context*/, const csi::v1::ProbeRequest* /*request*/,
               csi::v1::ProbeResponse* response) override {
    response->mutable_ready()->set_value(true);
    return Status::OK;
  }
};

// Targets on which a call is under way.
class Targets {
 public:
  bool Take(const std::string& target) {
    const std::lock_guard lock(mutex_);
    return taken_.insert(target).second;
  }
  void Release(const std::string& target) {
    const std::lock_guard lock(mutex_);
    taken_.erase(target);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> taken_;
};

Status Mount(const csi::v1::NodePublishVolumeRequest& request) {
  const auto& context = request.volume_context();
  if (!context.contains("server") || !context.contains("share"))
    return {StatusCode::INVALID_ARGUMENT, "volume_context needs server and share"};
  const std::string& server = context.at("server");
  const std::string source = fmt::format("{}:{}", server, context.at("share"));
  // What mount.nfs would add.
  std::string options = fmt::format("addr={}", server);
  const auto& flags = request.volume_capability().mount().mount_flags();
  if (!flags.empty()) options += fmt::format(",{}", fmt::join(flags, ","));
  const std::string& target = request.target_path();
  if (mkdir(target.c_str(), 0755) != 0 && errno != EEXIST) return Failed("make " + target);
  const unsigned long mode = request.readonly() ? MS_RDONLY : 0;
  // EBUSY: it is mounted there already.
  if (mount(source.c_str(), target.c_str(), "nfs4", mode, options.c_str()) != 0 && errno != EBUSY)
    return Failed("mount " + source);
  return Status::OK;
}

Status Unmount(const std::string& target) {
  if (umount2(target.c_str(), UMOUNT_NOFOLLOW) != 0 && errno != EINVAL && errno != ENOENT)
    return Failed("unmount " + target);
  if (rmdir(target.c_str()) != 0 && errno != ENOENT) return Failed("remove " + target);
  return Status::OK;
}

class Node final : public csi::v1::Node::Service {
 public:
  explicit Node(std::string hang_file) : hang_file_(std::move(hang_file)) {}

 private:
  Status NodeGetInfo(ServerContext* /*context*/, const csi::v1::NodeGetInfoRequest* /*request*/,
                     csi::v1::NodeGetInfoResponse* response) override {
    response->set_node_id("node-1");
    return Status::OK;
  }
  Status NodeGetCapabilities(ServerContext* /*context*/,
                             const csi::v1::NodeGetCapabilitiesRequest* /*request*/,
                             csi::v1::NodeGetCapabilitiesResponse* response) override {
    response->add_capabilities()->mutable_rpc()->set_type(
        csi::v1::NodeServiceCapability::RPC::SINGLE_NODE_MULTI_WRITER);
    return Status::OK;
  }
  Status NodePublishVolume(ServerContext* /*context*/, const csi::v1::NodePublishVolumeRequest* request,
                           csi::v1::NodePublishVolumeResponse* /*response*/) override {
    return Alone(request->target_path(), [&] { return Mount(*request); });
  }
  Status NodeUnpublishVolume(ServerContext* /*context*/, const csi::v1::NodeUnpublishVolumeRequest* request,
                             csi::v1::NodeUnpublishVolumeResponse* /*response*/) override {
    return Alone(request->target_path(), [&] {
      if (!hang_file_.empty() && access(hang_file_.c_str(), F_OK) == 0) HangForEver();
      return Unmount(request->target_path());
    });
  }

  [[noreturn]] static void HangForEver() {
    while (true) pause();
  }

  template <class Work>
  Status Alone(const std::string& target, Work work) {
    if (!targets_.Take(target)) return {StatusCode::ABORTED, "another call on that target is under way"};
    Status status = work();
    targets_.Release(target);
    return status;
  }

  const std::string hang_file_;
  Targets targets_;
};

int Serve(const std::string& endpoint, const std::string& hang_file) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  Identity identity;
  Node node(hang_file);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials());
  builder.RegisterService(&identity);
  builder.RegisterService(&node);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  int signal = 0;
  sigwait(&ends, &signal);
  // A call that the kernel keeps is not waited for.
  _exit(0);
}

// Writes the line that standard input gives to the beginning of `path`, through a mapping, and ends: the page
// is dirty then, with no process to wait for it. (A close would wait for the server.) Says "ready" once the
// line may come: from then on the server is not asked.
int LeaveDirty(const char* path) {
  constexpr size_t kPage = 4096;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return 1;
  char* const page = static_cast<char*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (page == MAP_FAILED) return 1;
  char first = 0;
  memcpy(&first, page, 1);
  close(fd);
  puts("ready");
  fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line) || line.size() + 1 >= kPage) return 1;
  memset(page, ' ', kPage);
  memcpy(page, line.data(), line.size());
  page[kPage - 1] = '\n';
  return 0;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--leave-dirty") == 0) return berth::LeaveDirty(argv[2]);
  const char* endpoint = getenv("CSI_ENDPOINT");
  if (endpoint == nullptr) return 2;
  const bool hangs = argc == 3 && strcmp(argv[1], "--hang-file") == 0;
  return berth::Serve(endpoint, hangs ? argv[2] : "");
}
