// For tests only: ControllerCalls with a NodeApi, over the same fakes; the plugin "p" is on a real socket.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "controller/controller_calls.h"
#include "controller/testing/controller_requests.h"
#include "rpc/testing/node_api_fixture.h"

namespace berth {

class ControllerCallsTest : public NodeApiTest {
 protected:
  using Result = ControllerCalls::Result;

  // The plugin "p" lacks nothing.
  PluginFacts& AddAblePlugin(const std::string& id = "p") {
    PluginFacts& facts = *control_.Add(id).facts;
    facts.plugin_services = AbleToAll().plugin_services;
    facts.controller_capabilities = AbleToAll().controller_capabilities;
    facts.group_capabilities = AbleToAll().group_capabilities;
    return facts;
  }

  Result Do(const v1::ControllerCall& call, Duration within = std::chrono::seconds(20)) {
    return RunOn(loop_, calls_.Call(call, Clock::now() + within));
  }
  // Runs on in `scope`; `end` is set once it has ended.
  void Begin(TaskScope& scope, const v1::ControllerCall& call, std::optional<Result>& end,
             Duration within = std::chrono::seconds(20)) {
    scope.Spawn("call", Keep(calls_, call, within, end));
    loop_.restart();
    loop_.poll();
  }

 private:
  static Awaitable<void> Keep(ControllerCalls& calls, v1::ControllerCall call, Duration within,
                              std::optional<Result>& end) {
    end = co_await calls.Call(std::move(call), Clock::now() + within);
  }
};

// The correct call of its kind, of the list of them all.
inline v1::ControllerCall CallOf(v1::ControllerCall::RequestCase kind) {
  for (const auto& [call, capability] : EveryControllerCall()) {
    if (call.request_case() == kind) return call;
  }
  return {};
}

}  // namespace berth
