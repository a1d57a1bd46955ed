#include "csi/client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "csi/redact.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;

constexpr int kMaxAnswerBytes = 4 << 20;

// A driver may put the whole output of a failed mkfs into its error message, which travels as metadata.
// gRPC's own limit of 8 KiB would replace such an error by one of gRPC's, and its code would be lost.
constexpr int kMaxMetadataBytes = 64 << 10;

// How long one attempt to connect may take: a stopped process still accepts (the kernel does), then says
// nothing. Calls have their own deadlines, so this only bounds what goes on behind them.
constexpr int kConnectTimeoutMs = 10'000;

// The URI that names `path`, which may hold any byte: what is not plain is percent-encoded.
std::string UnixUri(std::string_view path) {
  std::string uri = "unix:";
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/-._~").find(c) != std::string_view::npos;
    if (plain) {
      uri += c;
    } else {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return uri;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  // Without a pool of its own, a new channel to the same path would inherit the old one's connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Whether a call may be repeated is Berth's to decide (csi/errors.h), never gRPC's.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // The default would be the percent-encoded path, which servers in Go refuse as a malformed authority.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // This one is, despite its name, the least time that an attempt to connect is given.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  // gRPC takes no less than 100 ms for these; CsiClient does not wait them out.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(UnixUri(socket_path), grpc::InsecureChannelCredentials(), arguments);
}

// One call over `owner`, which holds the stub and outlives the call.
template <class Async, class Request, class Response>
Awaitable<absl::StatusOr<Response>> CallOver(
    std::shared_ptr<void> owner, std::string socket_path, Async* async,
    void (Async::*method)(grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>),
    Request request, TimePoint deadline) {
  // Not the macro: it is compiled out, and an operator may raise berthd's level while it runs.
  std::string line;
  if (spdlog::should_log(spdlog::level::debug)) line = DebugLine(request);
  const TimePoint start = Clock::now();
  auto answer = co_await UnaryCall(async, method, std::move(request), deadline);
  if (!line.empty()) {
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    spdlog::debug("csi call to {}: {} -> {} ({} us)", socket_path, line,
                  answer.ok() ? DebugLine(*answer) : answer.status().ToString(), took.count());
  }
  co_return answer;
}

}  // namespace

struct CsiClient::Link {
  explicit Link(const std::string& socket_path)
      : channel(MakeChannel(socket_path)), identity(channel), controller(channel), node(channel) {}

  std::shared_ptr<grpc::Channel> channel;
  csi::Identity::Stub identity;
  csi::Controller::Stub controller;
  csi::Node::Stub node;
};

std::shared_ptr<CsiClient> CsiClient::Connect(const std::string& socket_path) {
  // Not make_shared: the constructor is private.
  return std::shared_ptr<CsiClient>(new CsiClient(socket_path));
}

CsiClient::CsiClient(std::string socket_path)
    : socket_path_(std::move(socket_path)), link_(std::make_shared<Link>(socket_path_)) {}

std::shared_ptr<CsiClient::Link> CsiClient::FreshLink() {
  // In this state gRPC would fail the call at once, without having tried.
  if (link_->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    link_ = std::make_shared<Link>(socket_path_);
  }
  return link_;
}

Awaitable<absl::StatusOr<csi::GetPluginInfoResponse>> CsiClient::GetPluginInfo(
    csi::GetPluginInfoRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->identity.async(), &csi::Identity::Stub::async::GetPluginInfo,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetPluginCapabilitiesResponse>> CsiClient::GetPluginCapabilities(
    csi::GetPluginCapabilitiesRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->identity.async(),
                  &csi::Identity::Stub::async::GetPluginCapabilities, std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ProbeResponse>> CsiClient::Probe(csi::ProbeRequest request,
                                                               TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->identity.async(), &csi::Identity::Stub::async::Probe,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::CreateVolumeResponse>> CsiClient::CreateVolume(csi::CreateVolumeRequest request,
                                                                             TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->controller.async(), &csi::Controller::Stub::async::CreateVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::DeleteVolumeResponse>> CsiClient::DeleteVolume(csi::DeleteVolumeRequest request,
                                                                             TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->controller.async(), &csi::Controller::Stub::async::DeleteVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerGetCapabilitiesResponse>> CsiClient::ControllerGetCapabilities(
    csi::ControllerGetCapabilitiesRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->controller.async(),
                  &csi::Controller::Stub::async::ControllerGetCapabilities, std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerExpandVolumeResponse>> CsiClient::ControllerExpandVolume(
    csi::ControllerExpandVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->controller.async(),
                  &csi::Controller::Stub::async::ControllerExpandVolume, std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeStageVolumeResponse>> CsiClient::NodeStageVolume(
    csi::NodeStageVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeStageVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeUnstageVolumeResponse>> CsiClient::NodeUnstageVolume(
    csi::NodeUnstageVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeUnstageVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodePublishVolumeResponse>> CsiClient::NodePublishVolume(
    csi::NodePublishVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodePublishVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeUnpublishVolumeResponse>> CsiClient::NodeUnpublishVolume(
    csi::NodeUnpublishVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeUnpublishVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetVolumeStatsResponse>> CsiClient::NodeGetVolumeStats(
    csi::NodeGetVolumeStatsRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeGetVolumeStats,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeExpandVolumeResponse>> CsiClient::NodeExpandVolume(
    csi::NodeExpandVolumeRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeExpandVolume,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetCapabilitiesResponse>> CsiClient::NodeGetCapabilities(
    csi::NodeGetCapabilitiesRequest request, TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeGetCapabilities,
                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetInfoResponse>> CsiClient::NodeGetInfo(csi::NodeGetInfoRequest request,
                                                                           TimePoint deadline) {
  auto link = FreshLink();
  return CallOver(link, socket_path_, link->node.async(), &csi::Node::Stub::async::NodeGetInfo,
                  std::move(request), deadline);
}

}  // namespace berth
