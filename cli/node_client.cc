#include "cli/node_client.h"

#include <fmt/format.h>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

constexpr std::string_view kStartIt =
    "Is it running? systemctl status berthd; another node's socket: --socket PATH";

// What a person does about an answer of the node.
std::string_view HintFor(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kNotFound:
      return "What there is: berthctl plugins, berthctl volumes";
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "Ask as root (sudo), or have the right granted in berthd.toml";
    case absl::StatusCode::kDeadlineExceeded:
      return "The node goes on with it, and the same command joins it; to wait longer: --timeout 10m";
    case absl::StatusCode::kUnavailable:
      return "Try again in a moment; berthctl plugins shows what is ready";
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return "How things are: berthctl volumes, berthctl plugins";
    case absl::StatusCode::kAborted:
      return "Another operation on it is under way: try again in a moment";
    case absl::StatusCode::kUnimplemented:
      return "berthd or the plugin does not have this: compare berthctl version, berthctl status and "
             "berthctl plugin show ID";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "See --help after the command";
    case absl::StatusCode::kResourceExhausted:
      return "Limits of a plugin: berthctl plugin show ID";
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return "What led to it: berthctl events, journalctl -u berthd";
}

}  // namespace

NodeClient::NodeClient(std::shared_ptr<Connection> connection, std::chrono::milliseconds timeout)
    : connection_(std::move(connection)),
      stub_(::berth::v1::Node::NewStub(connection_->channel())),
      timeout_(timeout) {}

absl::StatusOr<NodeClient> NodeClient::Connect(const std::string& socket, std::chrono::milliseconds timeout) {
  absl::StatusOr<Connection> connection = Connection::Open(socket);
  if (!connection.ok()) {
    const bool forbidden = absl::IsPermissionDenied(connection.status());
    return UnreachableError(
        fmt::format("cannot reach berthd at {}", std::string(connection.status().message())),
        forbidden ? "Ask as root (sudo)" : kStartIt);
  }
  return NodeClient(std::make_shared<Connection>(*std::move(connection)), timeout);
}

absl::Status NodeClient::Failure(const grpc::Status& status, std::string_view doing) const {
  const absl::Status failure = FromGrpc(status);
  // What gRPC makes of a connection that ends: mostly UNAVAILABLE, but in the middle of a stream's beginning
  // UNKNOWN ("Stream removed") or CANCELLED. The node itself answers with neither of the two.
  const bool may_be_lost =
      absl::IsUnavailable(failure) || absl::IsUnknown(failure) || absl::IsCancelled(failure);
  if (may_be_lost && connection_->Broken()) {
    return UnreachableError(fmt::format("lost berthd at {}: {}: {}", Printable(connection_->path()), doing,
                                        std::string(failure.message())),
                            kStartIt);
  }
  // The node's own messages say what was attempted; those that gRPC makes do not.
  const bool by_grpc = failure.message().empty() || failure.message() == "Deadline Exceeded" ||
                       absl::IsUnimplemented(failure) || absl::IsCancelled(failure);
  return WithHint(by_grpc ? Annotate(failure, doing) : failure, HintFor(failure.code()));
}

absl::Status NodeClient::WatchEvents(
    const ::berth::v1::WatchEventsRequest& request,
    const std::function<void(const ::berth::v1::WatchEventsResponse&)>& on_event) {
  uint64_t last = request.after_sequence();
  const absl::Status failure = Read<::berth::v1::WatchEventsRequest, ::berth::v1::WatchEventsResponse>(
      &Stub::WatchEvents, request, "watch events", request.follow(),
      [&](const ::berth::v1::WatchEventsResponse& response) {
        on_event(response);
        if (response.has_event()) last = response.event().sequence();
      });
  if (!request.follow() || !absl::IsUnavailable(failure)) return failure;
  return WithHint(failure, fmt::format("To go on where it stopped: berthctl events -f --since {}", last));
}

std::optional<::berth::v1::Volume> NodeClient::PeekVolume(const std::string& plugin_id,
                                                          const std::string& volume_id) {
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + std::chrono::seconds(1));
  ::berth::v1::GetVolumeRequest request;
  request.set_plugin_id(plugin_id);
  request.set_volume_id(volume_id);
  ::berth::v1::Volume volume;
  if (!stub_->GetVolume(&context, request, &volume).ok()) return std::nullopt;
  return volume;
}

std::string NodeClient::RunningStep(const std::string& plugin_id, const std::string& volume_id) {
  const std::optional<::berth::v1::Volume> found = PeekVolume(plugin_id, volume_id);
  if (!found.has_value() || found->running().empty()) return {};
  const ::berth::v1::Volume& volume = *found;
  const int64_t since = volume.running_since().seconds();
  const auto elapsed = system_clock::now() - system_clock::from_time_t(since);
  const std::string step = Printable(volume.running(), 100);
  if (since == 0 || elapsed < std::chrono::seconds(1)) return step;
  return fmt::format("{} {}", step,
                     FormatDuration(std::chrono::duration_cast<std::chrono::seconds>(elapsed)));
}

std::optional<::berth::v1::Plugin> NodeClient::PeekPlugin(const std::string& id) {
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + std::chrono::seconds(1));
  ::berth::v1::GetPluginRequest request;
  request.set_id(id);
  ::berth::v1::Plugin plugin;
  if (!stub_->GetPlugin(&context, request, &plugin).ok()) return std::nullopt;
  return plugin;
}

}  // namespace berth::cli
