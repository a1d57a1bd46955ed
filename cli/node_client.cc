#include "cli/node_client.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

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
      return "Ask as root (sudo)";
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

// The plugin that answered with this itself: of "publish volume v: plugin nfs: NodeStageVolume: no such
// volume" it is nfs. Empty: none did.
std::string_view PluginThatAnswered(std::string_view message) {
  constexpr std::string_view kPlugin = "plugin ";
  const size_t at = message.find(kPlugin);
  if (at == std::string_view::npos) return {};
  message.remove_prefix(at + kPlugin.size());
  const size_t end = message.find(": ");
  const size_t rpc_end = end == std::string_view::npos ? end : message.find(": ", end + 2);
  if (rpc_end == std::string_view::npos) return {};
  const std::string_view rpc = message.substr(end + 2, rpc_end - end - 2);
  const bool is_rpc = !rpc.empty() && std::isupper(static_cast<unsigned char>(rpc.front())) != 0 &&
                      rpc.find(' ') == std::string_view::npos;
  return is_rpc ? message.substr(0, end) : std::string_view();
}

std::string OwnName() {
  const passwd* user = getpwuid(geteuid());
  return user == nullptr ? std::to_string(geteuid()) : user->pw_name;
}

// Who may connect to that socket, as its file says, and how to become one of them.
std::string WhoMayConnect(const std::string& path) {
  struct stat file{};
  const bool known = stat(path.c_str(), &file) == 0;
  if (!known || (file.st_mode & S_IWGRP) == 0) {
    return fmt::format("Ask as root (sudo): no group may connect to {} (berthd.toml(5), [access])",
                       Printable(path));
  }
  const group* record = getgrgid(file.st_gid);
  const std::string name = record == nullptr ? std::to_string(file.st_gid) : record->gr_name;
  return fmt::format(
      "Root and members of the group {} may connect to {}: sudo usermod -aG {} {}, then log in again", name,
      Printable(path), name, OwnName());
}

// The socket for changes next to `path`.
std::string ChangeSocketOf(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1) + "berthd.sock";
}

}  // namespace

NodeClient::NodeClient(std::shared_ptr<Connection> connection, std::chrono::milliseconds timeout)
    : connection_(std::move(connection)),
      stub_(::berth::v1::Node::NewStub(connection_->channel())),
      timeout_(timeout) {}

absl::StatusOr<NodeClient> NodeClient::Connect(const std::string& socket, const std::string& directory,
                                               Need need, std::chrono::milliseconds timeout) {
  const std::string first = socket.empty() ? directory + "/berthd.sock" : socket;
  absl::StatusOr<Connection> connection = Connection::Open(first);
  std::string tried = first;
  if (socket.empty() && ErrnoOf(connection.status()) == EACCES) {
    tried = directory + (need == Need::kClaim ? "/claim.sock" : "/berthd-ro.sock");
    absl::StatusOr<Connection> second = Connection::Open(tried);
    if (need == Need::kClaim && ErrnoOf(second.status()) == ENOENT) {
      return WithHint(absl::PermissionDeniedError(fmt::format(
                          "{} does not exist: this node takes no claims of local users", Printable(tried))),
                      "claim_group under [access] in berthd.toml names a group that may claim");
    }
    // A berthd that has no such socket: what the first one said counts.
    if (ErrnoOf(second.status()) == ENOENT) {
      tried = first;
    } else {
      connection = std::move(second);
    }
  }
  if (connection.ok()) return NodeClient(std::make_shared<Connection>(*std::move(connection)), timeout);
  const std::string message =
      fmt::format("cannot reach berthd at {}", std::string(connection.status().message()));
  if (ErrnoOf(connection.status()) == EACCES) {
    return WithHint(absl::PermissionDeniedError(message), WhoMayConnect(tried));
  }
  return UnreachableError(message, kStartIt);
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
  const std::string change_socket = ChangeSocketOf(connection_->path());
  const bool may_change = connection_->path() == change_socket;
  const std::string_view plugin =
      absl::IsNotFound(failure) ? PluginThatAnswered(MessageOf(failure)) : std::string_view();
  std::string hint(HintFor(failure.code()));
  if (absl::IsPermissionDenied(failure) && !may_change) hint = WhoMayConnect(change_socket);
  if (!plugin.empty()) {
    hint = fmt::format("Plugin {} itself does not know it: is the id right? berthctl plugin logs {}", plugin,
                       plugin);
  }
  return WithHint(by_grpc ? Annotate(failure, doing) : failure, hint);
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
