// For tests only: a NodeApi over fakes, with a plugin on a real socket for controller calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/testing/run_on.h"
#include "csi/testing/fake_plugin.h"
#include "rpc/node_api.h"
#include "rpc/testing/fakes.h"

namespace berth {

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Takes what a stream sends; says that the caller has gone after `take` messages.
template <class Response>
class FakeStream final : public StreamWriter<Response> {
 public:
  std::vector<Response> sent;
  size_t take = 1'000'000;
  std::function<void()> on_message = [] {};

  [[nodiscard]] Awaitable<bool> Send(Response message) override {
    sent.push_back(std::move(message));
    on_message();
    co_return sent.size() < take;
  }
};

class NodeApiTest : public testing::Test {
 protected:
  NodeApiTest() {
    fake_ = std::make_unique<FakePlugin>(directory_ + "/csi.sock");
    fake_->Start();
    controllers_.clients["p"] =
        CsiClient::Connect(fake_->socket_path(), {.secrets = &secrets_, .plugin_id = "p", .on_idle = {}});
  }
  ~NodeApiTest() override {
    controllers_.clients.clear();
    fake_.reset();
    RunOn(loop_, calls_.Shutdown());
    RunOn(loop_, drainer_.Shutdown());
    unlink((directory_ + "/node-drain.json").c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_;
  }

  // The plugin "p"; the fake is its controller, too.
  PluginFacts& AddPlugin(const std::set<int>& controller, const std::set<int>& node = {}) {
    PluginFacts& facts = *control_.Add("p").facts;
    facts.plugin_services.insert(::csi::v1::PluginCapability::Service::CONTROLLER_SERVICE);
    facts.controller_capabilities = controller;
    facts.node_capabilities = node;
    return facts;
  }

  template <class Part, class Request, class Response>
  absl::StatusOr<Response> Call(Awaitable<absl::StatusOr<Response>> (Part::*method)(Request, CallInfo),
                                const Request& request, bool may_change = true) {
    const CallInfo call{.method = "Test",
                        .may_change = may_change,
                        .deadline = Clock::now() + std::chrono::seconds(20),
                        .peer = peer_,
                        .origin = origin_};
    Part& part = std::get<Part&>(std::tie(api_.plugins, api_.list, api_.volumes, api_.stats, api_.controller,
                                          api_.cluster, api_.streams, api_.status));
    return RunOn(loop_, (part.*method)(request, call));
  }

  static std::string MakeDirectory() {
    char name[] = "/tmp/berth-rpc-XXXXXX";
    return mkdtemp(name);
  }

  Origin origin_ = Origin::kCaller;
  asio::io_context loop_;
  std::string directory_ = MakeDirectory();
  std::optional<PeerCredentials> peer_ = PeerCredentials{.pid = getpid(), .uid = getuid(), .gid = getgid()};
  RecentSecrets secrets_;
  std::unique_ptr<FakePlugin> fake_;
  FakePluginControl control_;
  FakeControllerDirectory controllers_{control_};
  FakeMounter mounter_{loop_.get_executor()};
  ControllerAccess access_{loop_.get_executor(), controllers_, mounter_};
  ControllerCalls calls_{
      loop_.get_executor(),
      access_,
      mounter_,
      {.first_pause = std::chrono::milliseconds(1), .longest_pause = std::chrono::milliseconds(4)}};
  FakeDeclared declared_;
  FakeScheduler scheduler_{loop_.get_executor()};
  EventLog events_{loop_.get_executor(), 10};
  NodeDrainer drainer_{loop_.get_executor(), directory_ + "/node-drain.json", mounter_, events_};
  NodeParts parts_{.control = control_,
                   .access = access_,
                   .controller_calls = calls_,
                   .mounter = mounter_,
                   .declared = declared_,
                   .drainer = drainer_,
                   .scheduler = scheduler_,
                   .events = events_};
  NodeApi api_{{.node_id = "n1",
                .version = "0.1.0",
                .started_at = WallTime(std::chrono::seconds(5)),
                .config_dir = "/etc/b",
                .state_dir = "/var/b",
                .runtime_dir = "/run/b"},
               parts_};
};

template <class Request>
Request ForVolume(const std::string& volume = "v") {
  Request request;
  request.set_plugin_id("p");
  request.set_volume_id(volume);
  return request;
}

}  // namespace berth
