#include "scheduler/drive/node_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr Duration kLongest = std::chrono::minutes(2);

// The result may come when the caller has gone.
struct Answer {
  explicit Answer(const asio::any_io_executor& executor) : changed(executor) {}
  std::optional<v1::OperationResult> result;
  Condition changed;
};

}  // namespace

Awaitable<absl::StatusOr<v1::OperationResult>> CallNode(NodeLinks& links, std::string node,
                                                        v1::Operation operation, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t id, co_await links.OpenOperation(node));
  struct Closed {
    NodeLinks& links;
    const std::string& node;
    uint64_t id;
    ~Closed() { links.Close(node, id); }
  } closed{links, node, id};
  const Duration left = std::clamp<Duration>(deadline - Clock::now(), std::chrono::seconds(1), kLongest);
  operation.set_id(id);
  operation.mutable_timeout()->set_seconds(std::chrono::duration_cast<std::chrono::seconds>(left).count());
  const auto answer = std::make_shared<Answer>(co_await asio::this_coro::executor);
  links.Add(node,
            {.operation = std::move(operation), .cancel_run = "", .answered = [answer](const auto& result) {
               answer->result = result;
               answer->changed.NotifyAll();
             }});
  if (!co_await answer->changed.WaitUntil([answer] { return answer->result.has_value(); }, deadline))
    co_return absl::DeadlineExceededError(
        fmt::format("node {} has not answered in time", Printable(node, 192)));
  if (answer->result->outcome() == v1::OUTCOME_DONE) co_return *std::move(answer->result);
  const auto code = static_cast<absl::StatusCode>(answer->result->code());
  co_return absl::Status(
      code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
      fmt::format("node {}: {}", Printable(node, 192), Printable(answer->result->message(), 1024)));
}

}  // namespace berth::scheduler
