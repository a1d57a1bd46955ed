#include "fingerprint/read_facts.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "csi/errors.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;

// Takes in one RPC's answer after the other; the first that failed for good or for now decides.
class Reading {
 public:
  // False where the reading is over.
  template <class Response>
  bool Take(CsiRpc rpc, absl::StatusOr<Response> answer, Response* out) {
    if (answer.ok()) {
      *out = *std::move(answer);
      return true;
    }
    return Failed(rpc, answer.status());
  }

  // The same, but an RPC that is not implemented leaves `out` unset and is no failure.
  template <class Response>
  bool TakeOptional(CsiRpc rpc, absl::StatusOr<Response> answer, std::optional<Response>* out) {
    if (answer.ok()) {
      *out = *std::move(answer);
      return true;
    }
    return absl::IsUnimplemented(answer.status()) || Failed(rpc, answer.status());
  }

  FactsReading Take() { return std::move(result_); }

 private:
  bool Failed(CsiRpc rpc, const absl::Status& status) {
    const absl::Status named = Annotate(status, fmt::format("{}: {}", RpcName(rpc), CodeName(status.code())));
    if (Classify(rpc, status.code()) == CallOutcome::kFinal) {
      result_.facts = named;
    } else {
      result_.answered = named;
    }
    return false;
  }

  FactsReading result_{.answered = absl::OkStatus(), .facts = absl::UnknownError("not read")};
};

// Whether an error says that the service does not exist, rather than that it declines.
bool IsSilence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Awaitable<FactsReading> ReadFacts(std::shared_ptr<CsiClient> client, ExpectedServices expected,
                                  Duration timeout) {
  Reading reading;
  PluginAnswers answers;

  auto info = co_await client->GetPluginInfo({}, Clock::now() + timeout);
  if (!reading.Take(CsiRpc::kGetPluginInfo, std::move(info), &answers.info)) co_return reading.Take();

  auto plugin = co_await client->GetPluginCapabilities({}, Clock::now() + timeout);
  if (!reading.TakeOptional(CsiRpc::kGetPluginCapabilities, std::move(plugin),
                            &answers.plugin_capabilities)) {
    co_return reading.Take();
  }

  if (Promises(answers.plugin_capabilities, csi::PluginCapability::Service::CONTROLLER_SERVICE)) {
    auto controller = co_await client->ControllerGetCapabilities({}, Clock::now() + timeout);
    const bool declined = !controller.ok() && !expected.controller && !IsSilence(controller.status());
    if (!declined && !reading.TakeOptional(CsiRpc::kControllerGetCapabilities, std::move(controller),
                                           &answers.controller_capabilities)) {
      co_return reading.Take();
    }
  }

  if (Promises(answers.plugin_capabilities, csi::PluginCapability::Service::GROUP_CONTROLLER_SERVICE)) {
    auto group = co_await client->GroupControllerGetCapabilities({}, Clock::now() + timeout);
    const bool declined = !group.ok() && !expected.controller && !IsSilence(group.status());
    if (!declined && !reading.TakeOptional(CsiRpc::kGroupControllerGetCapabilities, std::move(group),
                                           &answers.group_capabilities)) {
      co_return reading.Take();
    }
  }

  if (expected.node) {
    auto node = co_await client->NodeGetCapabilities({}, Clock::now() + timeout);
    if (!reading.TakeOptional(CsiRpc::kNodeGetCapabilities, std::move(node), &answers.node_capabilities)) {
      co_return reading.Take();
    }
    auto node_info = co_await client->NodeGetInfo({}, Clock::now() + timeout);
    if (!reading.TakeOptional(CsiRpc::kNodeGetInfo, std::move(node_info), &answers.node_info)) {
      co_return reading.Take();
    }
  }
  FactsReading result{.answered = absl::OkStatus(), .facts = CheckAnswers(answers, expected)};
  co_return result;
}

}  // namespace berth
