#include "rpc/node_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "base/printable.h"
#include "base/status.h"

namespace berth {
namespace {

// What a change is about, for the log: names only, never what may be secret.
template <class Request>
std::string PluginSubject(const Request& request) {
  return fmt::format("plugin={}", PrintableName(request.id()));
}
std::string Subject(const v1::StartPluginRequest& request) { return PluginSubject(request); }
std::string Subject(const v1::StopPluginRequest& request) {
  return PluginSubject(request) + (request.force() ? " force" : "");
}
std::string Subject(const v1::RestartPluginRequest& request) {
  return PluginSubject(request) + (request.force() ? " force" : "");
}
std::string Subject(const v1::DrainPluginRequest& request) { return PluginSubject(request); }
// Arguments may hold what is not for the log.
std::string Subject(const v1::SwapPluginRequest& request) {
  return fmt::format("{}{}{}{}", PluginSubject(request),
                     request.command().empty() ? "" : " command=", PrintableName(request.command()),
                     request.accept_changes() ? " accept_changes" : "");
}
std::string Subject(const v1::ReloadRequest& /*request*/) { return "plugins.d"; }
std::string Subject(const v1::CreateVolumeRequest& request) {
  return fmt::format("plugin={} name={}", PrintableName(request.plugin_id()), PrintableName(request.name()));
}
template <class Request>
std::string VolumeSubject(const Request& request) {
  return fmt::format("plugin={} volume={}", PrintableName(request.plugin_id()),
                     PrintableName(request.volume_id()));
}
std::string Subject(const v1::DeleteVolumeRequest& request) { return VolumeSubject(request); }
std::string Subject(const v1::ExpandVolumeRequest& request) { return VolumeSubject(request); }
std::string Subject(const v1::PublishVolumeRequest& request) {
  return fmt::format("{} consumer={}", VolumeSubject(request), PrintableName(request.consumer()));
}
std::string Subject(const v1::UnpublishVolumeRequest& request) {
  return fmt::format("{} consumer={}{}{}", VolumeSubject(request), PrintableName(request.consumer()),
                     request.force() ? " force" : "", request.lazy() ? " lazy" : "");
}
std::string Subject(const v1::EndConsumerRequest& request) {
  return fmt::format("consumer={}", PrintableName(request.consumer()));
}
std::string Subject(const v1::ExamineRequest& /*request*/) { return "repair"; }
std::string Subject(const v1::DrainNodeRequest& request) {
  return request.end() ? "end" : fmt::format("reason={}", PrintableName(request.reason()));
}
template <class Request>
std::string ClaimSubject(const Request& request) {
  return fmt::format("namespace={} volume={} consumer={}", PrintableName(request.namespace_()),
                     PrintableName(request.volume()), PrintableName(request.consumer()));
}
std::string Subject(const v1::ClaimVolumeRequest& request) { return ClaimSubject(request); }
std::string Subject(const v1::ReleaseClaimRequest& request) { return ClaimSubject(request); }
// Methods that only read are not logged.
template <class Request>
std::string Subject(const Request&) {
  return {};
}

std::string_view VerbOf(Right right) {
  switch (right) {
    case Right::kRead:
      return "read";
    case Right::kChange:
      return "change";
    case Right::kClaim:
      break;
  }
  return "claim";
}

// Logs one change, once, however the call ends. A caller that may only claim must not be able to fill the
// log; the outcome of a claim is an event.
class ChangeRecord {
 public:
  template <class Request>
  ChangeRecord(Right right, const CallInfo& call, const Request& request)
      : level_(right == Right::kClaim ? spdlog::level::debug : spdlog::level::info),
        what_(fmt::format("{} by {}, {}", call.method, call.peer->Describe(), Subject(request))),
        began_(Clock::now()) {}
  ~ChangeRecord() {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_).count();
    // Not the macro: it is compiled out below the level "info".
    spdlog::log(level_, "{}: {} after {} ms", what_, outcome_.value_or("the caller no longer waits"), took);
  }
  ChangeRecord(const ChangeRecord&) = delete;
  ChangeRecord& operator=(const ChangeRecord&) = delete;

  void End(const absl::Status& status) {
    const absl::string_view message = status.message();
    outcome_ = status.ok() ? "OK"
                           : fmt::format("{}: {}", CodeName(status.code()),
                                         Printable({message.data(), message.size()}, 1024));
  }

 private:
  spdlog::level::level_enum level_;
  std::string what_;
  TimePoint began_;
  std::optional<std::string> outcome_;
};

}  // namespace

NodeService::Calls::Calls(asio::any_io_executor executor, const std::string& name, UserLimits limits,
                          Duration longest)
    : users(name, limits, getuid()), scope(std::move(executor), name, "berthd"), longest(longest) {}

NodeService::NodeService(asio::any_io_executor executor, NodeApi& api, Right right, std::string directory,
                         PeerLookup peers, OnRefused refused, ServiceLimits limits)
    : api_(api),
      right_(right),
      directory_(std::move(directory)),
      peers_(std::move(peers)),
      refused_(std::move(refused)),
      calls_(executor, "calls", limits.calls, limits.longest_call),
      claims_(executor, "claims", limits.claims, limits.longest_claim),
      watches_(std::move(executor), "watches", limits.watches, limits.longest_call) {}

void NodeService::StopAdmitting() {
  watches_.scope.StopAdmitting();
  claims_.scope.StopAdmitting();
  calls_.scope.StopAdmitting();
}

Awaitable<void> NodeService::Stop(TimePoint grace) {
  co_await watches_.scope.Stop(Clock::now());
  co_await claims_.scope.Stop(Clock::now());
  co_await calls_.scope.Stop(grace);
}

Awaitable<bool> NodeService::WaitGone(TimePoint deadline) {
  const bool calls_gone = co_await calls_.scope.WaitReactorsGone(deadline);
  const bool claims_gone = co_await claims_.scope.WaitReactorsGone(deadline);
  const bool watches_gone = co_await watches_.scope.WaitReactorsGone(deadline);
  co_return calls_gone&& claims_gone&& watches_gone;
}

absl::Status NodeService::CheckRight(Right right, std::string_view method) const {
  if (Gives(right_, right)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("{} needs the right to {}, which {} does not give: connect to {}/{}", method, VerbOf(right),
                  SocketName(right_), directory_, SocketName(right)));
}

absl::StatusOr<UserCounter::Use> NodeService::Admit(Calls& calls, Right right, const std::string& connection,
                                                    CallInfo& call) const {
  call.peer = peers_(connection);
  if (!call.peer) return absl::CancelledError("the caller has gone");
  absl::Status status = CheckRight(right, call.method);
  if (status.ok()) {
    auto use = calls.users.Take(call.peer->uid);
    if (use.ok()) return use;
    status = use.status();
  }
  refused_(*call.peer, status);
  return status;
}

template <class Request, class Response>
grpc::ServerUnaryReactor* NodeService::Serve(Right right, std::string_view method,
                                             Handler<Request, Response> handler, Context* context,
                                             const Request* request, Response* response) {
  Calls& calls = right == Right::kClaim ? claims_ : calls_;
  const CallInfo call{
      .method = method,
      .may_change = Gives(right_, Right::kChange),
      .deadline = DeadlineOf(context->raw_deadline(), calls.longest),
  };
  return UnaryReactor<Request, Response>::Start(
      calls.scope, method, request, response,
      [this, &calls, right, handler, call, connection = context->peer()](Request copy) {
        return Handle(calls, right, handler, connection, std::move(copy), call);
      });
}

template <class Request, class Response>
Awaitable<absl::StatusOr<Response>> NodeService::Handle(Calls& calls, Right right,
                                                        Handler<Request, Response> handler,
                                                        std::string connection, Request request,
                                                        CallInfo call) {
  BERTH_CO_ASSIGN_OR_RETURN(const UserCounter::Use use, Admit(calls, right, connection, call));
  if (right == Right::kRead) co_return co_await handler(api_, std::move(request), call);

  ChangeRecord record(right, call, request);
  auto answer = co_await handler(api_, std::move(request), call);
  record.End(answer.status());
  co_return answer;
}

template <class Request, class Response>
grpc::ServerWriteReactor<Response>* NodeService::Stream(Right right, std::string_view method,
                                                        StreamHandler<Request, Response> handler,
                                                        Context* context, const Request* request) {
  Calls& calls = right == Right::kClaim ? claims_ : watches_;
  const CallInfo call{
      .method = method,
      .may_change = Gives(right_, Right::kChange),
      .deadline = DeadlineOf(context->raw_deadline(), calls.longest),
  };
  return StreamReactor<Request, Response>::Start(
      calls.scope, method, context, request,
      [this, &calls, right, handler, call, connection = context->peer()](Request copy,
                                                                         StreamWriter<Response>& out) {
        return HandleStream(calls, right, handler, connection, std::move(copy), call, out);
      });
}

template <class Request, class Response>
Awaitable<absl::Status> NodeService::HandleStream(Calls& calls, Right right,
                                                  StreamHandler<Request, Response> handler,
                                                  std::string connection, Request request, CallInfo call,
                                                  StreamWriter<Response>& out) {
  BERTH_CO_ASSIGN_OR_RETURN(const UserCounter::Use use, Admit(calls, right, connection, call));
  if (right == Right::kRead) co_return co_await handler(api_, std::move(request), call, out);
  ChangeRecord record(right, call, request);
  const absl::Status status = co_await handler(api_, std::move(request), call, out);
  record.End(status);
  co_return status;
}

#define BERTH_METHOD(part, name, response, right)                                             \
  NodeService::Reactor* NodeService::name(Context* context, const v1::name##Request* request, \
                                          v1::response* answer) {                             \
    return Serve<v1::name##Request, v1::response>(                                            \
        Right::right, #name,                                                                  \
        [](NodeApi& api, v1::name##Request asked, CallInfo call) {                            \
          return api.part.name(std::move(asked), call);                                       \
        },                                                                                    \
        context, request, answer);                                                            \
  }
#define BERTH_STREAM(part, name, right)                                                                   \
  NodeService::Writer<v1::name##Response>* NodeService::name(Context* context,                            \
                                                             const v1::name##Request* request) {          \
    return Stream<v1::name##Request, v1::name##Response>(                                                 \
        Right::right, #name,                                                                              \
        [](NodeApi& api, v1::name##Request asked, CallInfo call, StreamWriter<v1::name##Response>& out) { \
          return api.part.name(std::move(asked), call, out);                                              \
        },                                                                                                \
        context, request);                                                                                \
  }
#include "rpc/node_methods.inc"
#undef BERTH_METHOD
#undef BERTH_STREAM

NodeService::Reactor* NodeService::Examine(Context* context, const v1::ExamineRequest* request,
                                           v1::ExamineResponse* answer) {
  const Right right = request->repair() ? Right::kChange : Right::kRead;
  return Serve<v1::ExamineRequest, v1::ExamineResponse>(
      right, "Examine",
      [](NodeApi& api, v1::ExamineRequest asked, CallInfo call) {
        return api.status.Examine(std::move(asked), call);
      },
      context, request, answer);
}

}  // namespace berth
