#include "bench/volume_calls.h"

#include <grpcpp/grpcpp.h>

#include "base/grpc_call.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

v1::PublishVolumeRequest PublishRequestOf(const BenchVolume& volume) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id(volume.plugin_id);
  request.set_volume_id(volume.volume_id);
  request.set_consumer("bench");
  return request;
}

v1::UnpublishVolumeRequest UnpublishRequestOf(const BenchVolume& volume) {
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id(volume.plugin_id);
  request.set_volume_id(volume.volume_id);
  request.set_consumer("bench");
  return request;
}

// One call of many.
template <class Response>
struct Flight {
  std::unique_ptr<grpc::ClientContext> context = Node::Context(kPatience);
  Response response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
};

template <class Response, class Start>
absl::Status CallMany(const std::vector<BenchVolume>& volumes, size_t at_once, const Start& start) {
  grpc::CompletionQueue queue;
  std::vector<Flight<Response>> flights(volumes.size());
  absl::Status result;
  size_t begun = 0;
  const auto begin = [&] {
    Flight<Response>& flight = flights[begun];
    flight.reader = start(flight.context.get(), volumes[begun], &queue);
    flight.reader->Finish(&flight.response, &flight.status, &flight);
    ++begun;
  };
  while (begun < std::min(at_once, volumes.size())) begin();
  for (size_t ended = 0; ended < volumes.size(); ++ended) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) return absl::InternalError("the completion queue has ended");
    const grpc::Status& status = static_cast<Flight<Response>*>(tag)->status;
    if (!status.ok() && result.ok()) result = FromGrpc(status);
    if (begun < volumes.size()) begin();
  }
  return result;
}

::csi::v1::VolumeCapability Capability() {
  ::csi::v1::VolumeCapability capability;
  capability.mutable_mount();
  capability.mutable_access_mode()->set_mode(::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
  return capability;
}

absl::Status Result(const grpc::Status& status) { return status.ok() ? absl::OkStatus() : FromGrpc(status); }

}  // namespace

absl::Status PublishThrough(Node& node, const BenchVolume& volume) {
  v1::PublishVolumeResponse response;
  return Result(
      node.stub().PublishVolume(Node::Context(kPatience).get(), PublishRequestOf(volume), &response));
}

absl::Status UnpublishThrough(Node& node, const BenchVolume& volume) {
  v1::UnpublishVolumeResponse response;
  return Result(
      node.stub().UnpublishVolume(Node::Context(kPatience).get(), UnpublishRequestOf(volume), &response));
}

absl::Status PublishMany(Node& node, const std::vector<BenchVolume>& volumes, size_t at_once) {
  return CallMany<v1::PublishVolumeResponse>(
      volumes, at_once,
      [&node](grpc::ClientContext* context, const BenchVolume& volume, grpc::CompletionQueue* queue) {
        return node.stub().AsyncPublishVolume(context, PublishRequestOf(volume), queue);
      });
}

absl::Status UnpublishMany(Node& node, const std::vector<BenchVolume>& volumes, size_t at_once) {
  return CallMany<v1::UnpublishVolumeResponse>(
      volumes, at_once,
      [&node](grpc::ClientContext* context, const BenchVolume& volume, grpc::CompletionQueue* queue) {
        return node.stub().AsyncUnpublishVolume(context, UnpublishRequestOf(volume), queue);
      });
}

PluginCalls::PluginCalls(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments);
  identity_ = ::csi::v1::Identity::NewStub(channel);
  node_ = ::csi::v1::Node::NewStub(channel);
}

absl::Status PluginCalls::Probe() {
  ::csi::v1::ProbeResponse response;
  return Result(identity_->Probe(Node::Context(kPatience).get(), {}, &response));
}

absl::Status PluginCalls::Stage(const std::string& volume_id, const std::string& staging) {
  ::csi::v1::NodeStageVolumeRequest request;
  request.set_volume_id(volume_id);
  request.set_staging_target_path(staging);
  *request.mutable_volume_capability() = Capability();
  ::csi::v1::NodeStageVolumeResponse response;
  return Result(node_->NodeStageVolume(Node::Context(kPatience).get(), request, &response));
}

absl::Status PluginCalls::Publish(const std::string& volume_id, const std::string& staging,
                                  const std::string& target) {
  ::csi::v1::NodePublishVolumeRequest request;
  request.set_volume_id(volume_id);
  request.set_staging_target_path(staging);
  request.set_target_path(target);
  *request.mutable_volume_capability() = Capability();
  ::csi::v1::NodePublishVolumeResponse response;
  return Result(node_->NodePublishVolume(Node::Context(kPatience).get(), request, &response));
}

absl::Status PluginCalls::Unpublish(const std::string& volume_id, const std::string& target) {
  ::csi::v1::NodeUnpublishVolumeRequest request;
  request.set_volume_id(volume_id);
  request.set_target_path(target);
  ::csi::v1::NodeUnpublishVolumeResponse response;
  return Result(node_->NodeUnpublishVolume(Node::Context(kPatience).get(), request, &response));
}

absl::Status PluginCalls::Unstage(const std::string& volume_id, const std::string& staging) {
  ::csi::v1::NodeUnstageVolumeRequest request;
  request.set_volume_id(volume_id);
  request.set_staging_target_path(staging);
  ::csi::v1::NodeUnstageVolumeResponse response;
  return Result(node_->NodeUnstageVolume(Node::Context(kPatience).get(), request, &response));
}

}  // namespace berth
