#include "cli/cluster_client.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "cli/failure.h"

namespace berth::cli {
namespace {

constexpr int kClusterAnswerLimit = 256 << 20;

}  // namespace

ClusterClient::ClusterClient(std::string address, std::chrono::milliseconds timeout)
    : address_(std::move(address)), timeout_(timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kClusterAnswerLimit);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  channel_ = grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  stub_ = ::berth::v1::Cluster::NewStub(channel_);
}

absl::StatusOr<ClusterClient> ClusterClient::Connect(const std::string& address,
                                                     std::chrono::milliseconds timeout) {
  const bool is_unix = address.starts_with("unix:/");
  const size_t colon = address.rfind(':');
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < address.size() &&
                        address.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!is_unix && !has_port) {
    return UsageError(fmt::format("the cluster's address '{}': it must be unix:/path or HOST:PORT",
                                  Printable(address, 200)),
                      "It is one of `listen` in the scheduler's scheduler.toml");
  }
  return ClusterClient(address, timeout);
}

absl::Status ClusterClient::Failure(const grpc::Status& status, std::string_view doing) const {
  const absl::Status failure = FromGrpc(status);
  const bool stops = MessageOf(failure).find("is stopping") != std::string_view::npos;
  if (absl::IsUnavailable(failure) && !stops) {
    return UnreachableError(
        fmt::format("cannot reach the scheduler at {}: {}: {}", Printable(address_, 200), doing,
                    Printable(MessageOf(failure), 300)),
        "Does berth-scheduler run there? Another one: --cluster ADDRESS, or BERTH_CLUSTER");
  }
  if (absl::IsNotFound(failure))
    return WithHint(failure, "What there is: berthctl node list, berthctl plugin list");
  if (absl::IsUnimplemented(failure))
    return WithHint(Annotate(failure, doing), "Is it a berth-scheduler, and of this version?");
  return WithHint(absl::IsDeadlineExceeded(failure) ? Annotate(failure, doing) : failure,
                  "What led to it: the log of berth-scheduler");
}

}  // namespace berth::cli
