#include "rpc/node_servers.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

// How often it is checked that the sockets still exist. One that was removed is made again.
constexpr Duration kLookEvery = std::chrono::seconds(1);
// For calls that run on a socket which is closed by a reload.
constexpr auto kCallsEndWithin = std::chrono::seconds(5);

bool Contains(const std::vector<SocketAccess>& sockets, Right right) {
  return std::ranges::find(sockets, right, &SocketAccess::right) != sockets.end();
}

}  // namespace

NodeServers::NodeServers(asio::any_io_executor executor, std::string directory, NodeApi& api)
    : executor_(std::move(executor)),
      directory_(std::move(directory)),
      api_(api),
      tasks_(executor_, "node sockets") {}

Awaitable<absl::StatusOr<std::unique_ptr<NodeServers>>> NodeServers::Start(asio::any_io_executor executor,
                                                                           std::string directory,
                                                                           std::vector<SocketAccess> sockets,
                                                                           std::vector<ListenSocket> adopted,
                                                                           NodeApi& api) {
  std::unique_ptr<NodeServers> servers(new NodeServers(std::move(executor), std::move(directory), api));
  absl::Status status;
  for (const Right right : kEveryRight) {
    if (!status.ok() || Contains(sockets, right)) continue;
    status = RemoveStaleSocket(fmt::format("{}/{}", servers->directory_, SocketName(right)));
  }
  for (const SocketAccess& access : sockets) {
    if (!status.ok()) break;
    const std::string path = fmt::format("{}/{}", servers->directory_, SocketName(access.right));
    const auto handed = std::ranges::find(adopted, path, &ListenSocket::path);
    if (handed == adopted.end()) {
      status = servers->Open(access);
      continue;
    }
    status = servers->Open(access, std::move(*handed));
    adopted.erase(handed);
  }
  if (status.ok() && !adopted.empty()) {
    status = absl::InvalidArgumentError(
        fmt::format("systemd hands over the socket {}, and [access] in berthd.toml asks for none there",
                    adopted.front().path()));
  }
  if (status.ok()) {
    servers->tasks_.Spawn("sockets", servers->Watch());
    co_return servers;
  }
  co_await servers->Shutdown(Clock::now());
  co_return status;
}

Awaitable<void> NodeServers::Watch() {
  std::vector<std::string> told;
  while (true) {
    co_await SleepUntil(Clock::now() + kLookEvery);
    std::vector<std::string> problems;
    for (const auto& [right, server] : servers_) {
      const absl::StatusOr<bool> mended = server->RepairPath();
      if (!mended.ok()) {
        problems.emplace_back(MessageOf(mended.status()));
      } else if (*mended) {
        api_.events.Append({.type = "node.socket_removed",
                            .message = fmt::format("{} was removed: it was made again", server->path())});
      }
    }
    if (problems == told) continue;
    for (const std::string& problem : problems) SPDLOG_ERROR("{}", problem);
    told = problems;
    api_.status.SetSocketProblems(std::move(problems));
  }
}

absl::Status NodeServers::Open(const SocketAccess& access, std::optional<ListenSocket> adopted) {
  NodeServerOptions options;
  options.directory = directory_;
  options.access = access;
  BERTH_ASSIGN_OR_RETURN(auto server,
                         NodeServer::Start(executor_, std::move(options), api_, std::move(adopted)));
  servers_[access.right] = std::move(server);
  return absl::OkStatus();
}

Awaitable<void> NodeServers::Close(Right right, TimePoint grace) {
  auto server = servers_.extract(right);
  if (!server.empty()) co_await server.mapped()->Shutdown(grace);
}

Awaitable<std::vector<std::string>> NodeServers::Apply(std::vector<SocketAccess> sockets) {
  std::vector<std::string> problems;
  for (const Right right : kEveryRight) {
    if (servers_.contains(right) && !Contains(sockets, right)) {
      co_await Close(right, Clock::now() + kCallsEndWithin);
      SPDLOG_INFO("{}/{} is closed", directory_, SocketName(right));
    }
  }
  for (const SocketAccess& access : sockets) {
    const auto served = servers_.find(access.right);
    const absl::Status status =
        served == servers_.end() ? Open(access) : served->second->SetGroup(access.group);
    if (!status.ok()) {
      problems.push_back(fmt::format("access.{}: {}", GroupKey(access.right), MessageOf(status)));
    }
  }
  co_return problems;
}

Awaitable<void> NodeServers::Shutdown(TimePoint grace) {
  co_await tasks_.Join();
  TaskScope all(executor_, "node servers");
  for (const Right right : kEveryRight) all.Spawn("shutdown", Close(right, grace));
  co_await all.WaitEmpty();
}

}  // namespace berth
