#include "csi/client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <functional>
#include <string_view>
#include <utility>

#include "base/grpc_call.h"
#include "base/grpc_parsed.h"
#include "csi/csi.grpc.pb.h"  // how gRPC reads and writes these messages
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

// One method of one channel, in the form that UnaryCall takes.
template <class Request, class Response>
struct Method {
  const char* name;  // "/csi.v1.Identity/Probe"
  std::shared_ptr<grpc::Channel> channel;
  asio::any_io_executor loop;

  // `done` holds the call and the call holds the channel. The drop of a process's last channel joins gRPC's
  // callback threads, so it must not happen on one of these: they hand all of it over to the loop.
  void Start(grpc::ClientContext* context, const Request* request, Parsed<Response>* response,
             std::function<void(grpc::Status)> done) {
    grpc::TemplatedGenericStub<Request, Parsed<Response>> stub(channel);
    auto on_loop = [loop = loop, done = std::move(done)](grpc::Status status) mutable {
      asio::post(loop, [done = std::move(done), status = std::move(status)] { done(status); });
    };
    stub.UnaryCall(context, name, {}, request, response, std::move(on_loop));
  }
};

// The plugin of a call, as far as it is needed until the call has ended: the client may be gone by then.
struct Callee {
  std::string socket_path;
  const RecentSecrets* secrets = nullptr;
  std::string plugin_id;
  RecentSecrets::InFlight carried;  // what is sent to it in confidence is known until the call has ended
  std::function<void()> on_exhausted = {};
};

// The calls that use one of the volumes that NodeGetInfo's max_volumes_per_node limits.
bool TakesAVolume(std::string_view name) {
  return name == "/csi.v1.Node/NodeStageVolume" || name == "/csi.v1.Node/NodePublishVolume" ||
         name == "/csi.v1.Controller/ControllerPublishVolume";
}

// Plugins quote what they were given, and what they say in an error is logged, shown, and written to the
// journal.
absl::Status WithoutSecrets(const absl::Status& status, const Callee& callee) {
  if (callee.secrets == nullptr) return status;
  const std::string said(MessageOf(status));
  const std::string redacted = callee.secrets->Of(callee.plugin_id)->Redacted(said);
  return redacted == said ? status : absl::Status(status.code(), redacted);
}

// `message` for the log, without what the plugin was given in confidence.
std::string Line(const google::protobuf::Message& message, const Callee& callee) {
  constexpr size_t kLimit = 2048;
  if (callee.secrets == nullptr) return DebugLine(message, kLimit);
  return DebugLine(message, kLimit, callee.secrets->Of(callee.plugin_id).get());
}

// One call over `channel`, which lives until it has ended. Counted in `calls`, unless that is null.
template <class Response, class Request>
Awaitable<absl::StatusOr<Response>> Call(std::shared_ptr<grpc::Channel> channel,
                                         std::shared_ptr<CallsInFlight> calls, Callee callee,
                                         const char* name, Request request, TimePoint deadline) {
  const auto loop = co_await asio::this_coro::executor;
  const CallsInFlight::Call counted(std::move(calls), loop, name, deadline);
  // Not the macro: it is compiled out, and an operator may raise berthd's level while it runs.
  std::string line;
  if (spdlog::should_log(spdlog::level::debug)) line = Line(request, callee);
  const TimePoint start = Clock::now();

  Method<Request, Response> method{.name = name, .channel = std::move(channel), .loop = loop};
  auto parsed = co_await UnaryCall(&method, &Method<Request, Response>::Start, std::move(request), deadline);
  absl::StatusOr<Response> answer = absl::InternalError(
      fmt::format("the answer is not a readable {}: malformed, or a text in it is not valid UTF-8",
                  Response::descriptor()->full_name()));
  if (!parsed.ok()) {
    answer = WithoutSecrets(parsed.status(), callee);
  } else if (parsed->ok) {
    answer = std::move(parsed->message);
  }
  if (absl::IsResourceExhausted(answer.status()) && callee.on_exhausted) callee.on_exhausted();

  if (!line.empty()) {
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    spdlog::debug("csi call to {}: {} -> {} ({} us)", callee.socket_path, line,
                  answer.ok() ? Line(*answer, callee) : answer.status().ToString(), took.count());
  }
  co_return answer;
}

}  // namespace

std::shared_ptr<CsiClient> CsiClient::Connect(const std::string& socket_path, CsiClientOptions options) {
  // Not make_shared: the constructor is private.
  return std::shared_ptr<CsiClient>(new CsiClient(socket_path, std::move(options)));
}

CsiClient::CsiClient(std::string socket_path, CsiClientOptions options)
    : socket_path_(std::move(socket_path)),
      options_(std::move(options)),
      calls_(std::make_shared<CallsInFlight>(options_.on_idle)),
      channel_(MakeChannel(socket_path_)) {}

std::shared_ptr<grpc::Channel> CsiClient::FreshChannel() {
  // In this state gRPC would fail the call at once, without having tried.
  if (channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    channel_ = MakeChannel(socket_path_);
  }
  return channel_;
}

RecentSecrets::InFlight CsiClient::Carry(const google::protobuf::Message& request,
                                         const std::vector<std::string>& confidential) const {
  if (options_.secrets == nullptr) return {};
  return options_.secrets->Carry(options_.plugin_id, request, confidential);
}

std::string CsiClient::Redacted(std::string text) const {
  if (options_.secrets == nullptr) return text;
  return options_.secrets->Of(options_.plugin_id)->Redacted(std::move(text));
}

template <class Response, class Request>
Awaitable<absl::StatusOr<Response>> CsiClient::Read(const char* name, Request request, TimePoint deadline) {
  // Some that change nothing carry secrets nevertheless.
  Callee callee{.socket_path = socket_path_,
                .secrets = options_.secrets,
                .plugin_id = options_.plugin_id,
                .carried = Carry(request, {})};
  return Call<Response>(FreshChannel(), nullptr, std::move(callee), name, std::move(request), deadline);
}

template <class Response, class Request>
Awaitable<absl::StatusOr<Response>> CsiClient::Change(const char* name, Request request, TimePoint deadline,
                                                      const std::vector<std::string>& confidential) {
  Callee callee{.socket_path = socket_path_,
                .secrets = options_.secrets,
                .plugin_id = options_.plugin_id,
                .carried = Carry(request, confidential)};
  if (TakesAVolume(name)) callee.on_exhausted = options_.on_exhausted;
  return Call<Response>(FreshChannel(), calls_, std::move(callee), name, std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetPluginInfoResponse>> CsiClient::GetPluginInfo(
    csi::GetPluginInfoRequest request, TimePoint deadline) {
  return Read<csi::GetPluginInfoResponse>("/csi.v1.Identity/GetPluginInfo", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetPluginCapabilitiesResponse>> CsiClient::GetPluginCapabilities(
    csi::GetPluginCapabilitiesRequest request, TimePoint deadline) {
  return Read<csi::GetPluginCapabilitiesResponse>("/csi.v1.Identity/GetPluginCapabilities",
                                                  std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ProbeResponse>> CsiClient::Probe(csi::ProbeRequest request,
                                                               TimePoint deadline) {
  return Read<csi::ProbeResponse>("/csi.v1.Identity/Probe", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::CreateVolumeResponse>> CsiClient::CreateVolume(csi::CreateVolumeRequest request,
                                                                             TimePoint deadline) {
  return Change<csi::CreateVolumeResponse>("/csi.v1.Controller/CreateVolume", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::DeleteVolumeResponse>> CsiClient::DeleteVolume(csi::DeleteVolumeRequest request,
                                                                             TimePoint deadline) {
  return Change<csi::DeleteVolumeResponse>("/csi.v1.Controller/DeleteVolume", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerPublishVolumeResponse>> CsiClient::ControllerPublishVolume(
    csi::ControllerPublishVolumeRequest request, TimePoint deadline) {
  return Change<csi::ControllerPublishVolumeResponse>("/csi.v1.Controller/ControllerPublishVolume",
                                                      std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerUnpublishVolumeResponse>> CsiClient::ControllerUnpublishVolume(
    csi::ControllerUnpublishVolumeRequest request, TimePoint deadline) {
  return Change<csi::ControllerUnpublishVolumeResponse>("/csi.v1.Controller/ControllerUnpublishVolume",
                                                        std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ValidateVolumeCapabilitiesResponse>> CsiClient::ValidateVolumeCapabilities(
    csi::ValidateVolumeCapabilitiesRequest request, TimePoint deadline) {
  return Read<csi::ValidateVolumeCapabilitiesResponse>("/csi.v1.Controller/ValidateVolumeCapabilities",
                                                       std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ListVolumesResponse>> CsiClient::ListVolumes(csi::ListVolumesRequest request,
                                                                           TimePoint deadline) {
  return Read<csi::ListVolumesResponse>("/csi.v1.Controller/ListVolumes", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetCapacityResponse>> CsiClient::GetCapacity(csi::GetCapacityRequest request,
                                                                           TimePoint deadline) {
  return Read<csi::GetCapacityResponse>("/csi.v1.Controller/GetCapacity", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerGetCapabilitiesResponse>> CsiClient::ControllerGetCapabilities(
    csi::ControllerGetCapabilitiesRequest request, TimePoint deadline) {
  return Read<csi::ControllerGetCapabilitiesResponse>("/csi.v1.Controller/ControllerGetCapabilities",
                                                      std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::CreateSnapshotResponse>> CsiClient::CreateSnapshot(
    csi::CreateSnapshotRequest request, TimePoint deadline) {
  return Change<csi::CreateSnapshotResponse>("/csi.v1.Controller/CreateSnapshot", std::move(request),
                                             deadline);
}

Awaitable<absl::StatusOr<csi::DeleteSnapshotResponse>> CsiClient::DeleteSnapshot(
    csi::DeleteSnapshotRequest request, TimePoint deadline) {
  return Change<csi::DeleteSnapshotResponse>("/csi.v1.Controller/DeleteSnapshot", std::move(request),
                                             deadline);
}

Awaitable<absl::StatusOr<csi::ListSnapshotsResponse>> CsiClient::ListSnapshots(
    csi::ListSnapshotsRequest request, TimePoint deadline) {
  return Read<csi::ListSnapshotsResponse>("/csi.v1.Controller/ListSnapshots", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetSnapshotResponse>> CsiClient::GetSnapshot(csi::GetSnapshotRequest request,
                                                                           TimePoint deadline) {
  return Read<csi::GetSnapshotResponse>("/csi.v1.Controller/GetSnapshot", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerExpandVolumeResponse>> CsiClient::ControllerExpandVolume(
    csi::ControllerExpandVolumeRequest request, TimePoint deadline) {
  return Change<csi::ControllerExpandVolumeResponse>("/csi.v1.Controller/ControllerExpandVolume",
                                                     std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::ControllerGetVolumeResponse>> CsiClient::ControllerGetVolume(
    csi::ControllerGetVolumeRequest request, TimePoint deadline) {
  return Read<csi::ControllerGetVolumeResponse>("/csi.v1.Controller/ControllerGetVolume", std::move(request),
                                                deadline);
}

Awaitable<absl::StatusOr<csi::ControllerModifyVolumeResponse>> CsiClient::ControllerModifyVolume(
    csi::ControllerModifyVolumeRequest request, TimePoint deadline) {
  return Change<csi::ControllerModifyVolumeResponse>("/csi.v1.Controller/ControllerModifyVolume",
                                                     std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GroupControllerGetCapabilitiesResponse>>
CsiClient::GroupControllerGetCapabilities(csi::GroupControllerGetCapabilitiesRequest request,
                                          TimePoint deadline) {
  return Read<csi::GroupControllerGetCapabilitiesResponse>(
      "/csi.v1.GroupController/GroupControllerGetCapabilities", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::CreateVolumeGroupSnapshotResponse>> CsiClient::CreateVolumeGroupSnapshot(
    csi::CreateVolumeGroupSnapshotRequest request, TimePoint deadline) {
  return Change<csi::CreateVolumeGroupSnapshotResponse>("/csi.v1.GroupController/CreateVolumeGroupSnapshot",
                                                        std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::DeleteVolumeGroupSnapshotResponse>> CsiClient::DeleteVolumeGroupSnapshot(
    csi::DeleteVolumeGroupSnapshotRequest request, TimePoint deadline) {
  return Change<csi::DeleteVolumeGroupSnapshotResponse>("/csi.v1.GroupController/DeleteVolumeGroupSnapshot",
                                                        std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::GetVolumeGroupSnapshotResponse>> CsiClient::GetVolumeGroupSnapshot(
    csi::GetVolumeGroupSnapshotRequest request, TimePoint deadline) {
  return Read<csi::GetVolumeGroupSnapshotResponse>("/csi.v1.GroupController/GetVolumeGroupSnapshot",
                                                   std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeStageVolumeResponse>> CsiClient::NodeStageVolume(
    csi::NodeStageVolumeRequest request, TimePoint deadline) {
  return Change<csi::NodeStageVolumeResponse>("/csi.v1.Node/NodeStageVolume", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeUnstageVolumeResponse>> CsiClient::NodeUnstageVolume(
    csi::NodeUnstageVolumeRequest request, TimePoint deadline) {
  return Change<csi::NodeUnstageVolumeResponse>("/csi.v1.Node/NodeUnstageVolume", std::move(request),
                                                deadline);
}

Awaitable<absl::StatusOr<csi::NodePublishVolumeResponse>> CsiClient::NodePublishVolume(
    csi::NodePublishVolumeRequest request, TimePoint deadline, const std::vector<std::string>& confidential) {
  return Change<csi::NodePublishVolumeResponse>("/csi.v1.Node/NodePublishVolume", std::move(request),
                                                deadline, confidential);
}

Awaitable<absl::StatusOr<csi::NodeUnpublishVolumeResponse>> CsiClient::NodeUnpublishVolume(
    csi::NodeUnpublishVolumeRequest request, TimePoint deadline) {
  return Change<csi::NodeUnpublishVolumeResponse>("/csi.v1.Node/NodeUnpublishVolume", std::move(request),
                                                  deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetVolumeStatsResponse>> CsiClient::NodeGetVolumeStats(
    csi::NodeGetVolumeStatsRequest request, TimePoint deadline) {
  return Read<csi::NodeGetVolumeStatsResponse>("/csi.v1.Node/NodeGetVolumeStats", std::move(request),
                                               deadline);
}

Awaitable<absl::StatusOr<csi::NodeExpandVolumeResponse>> CsiClient::NodeExpandVolume(
    csi::NodeExpandVolumeRequest request, TimePoint deadline) {
  return Change<csi::NodeExpandVolumeResponse>("/csi.v1.Node/NodeExpandVolume", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetCapabilitiesResponse>> CsiClient::NodeGetCapabilities(
    csi::NodeGetCapabilitiesRequest request, TimePoint deadline) {
  return Read<csi::NodeGetCapabilitiesResponse>("/csi.v1.Node/NodeGetCapabilities", std::move(request),
                                                deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetInfoResponse>> CsiClient::NodeGetInfo(csi::NodeGetInfoRequest request,
                                                                           TimePoint deadline) {
  return Read<csi::NodeGetInfoResponse>("/csi.v1.Node/NodeGetInfo", std::move(request), deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetVolumeHealthResponse>> CsiClient::NodeGetVolumeHealth(
    csi::NodeGetVolumeHealthRequest request, TimePoint deadline) {
  return Read<csi::NodeGetVolumeHealthResponse>("/csi.v1.Node/NodeGetVolumeHealth", std::move(request),
                                                deadline);
}

Awaitable<absl::StatusOr<csi::NodeGetStorageHealthResponse>> CsiClient::NodeGetStorageHealth(
    csi::NodeGetStorageHealthRequest request, TimePoint deadline) {
  return Read<csi::NodeGetStorageHealthResponse>("/csi.v1.Node/NodeGetStorageHealth", std::move(request),
                                                 deadline);
}

}  // namespace berth
