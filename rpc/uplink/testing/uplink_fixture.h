// For tests only: an uplink with a node of fakes below it, and the test for its scheduler.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_bound.h"
#include "rpc/testing/node_api_fixture.h"
#include "rpc/uplink/testing/fake_link.h"
#include "rpc/uplink/uplink.h"

namespace berth {

// Plugins with changes as the registry reports them: only to waiters of that moment.
class ChangingPlugins final : public ControllerDirectory {
 public:
  ChangingPlugins(asio::any_io_executor executor, const FakePluginControl& control)
      : changed_(std::move(executor)), control_(control) {}

  void Change() {
    ++version_;
    changed_.NotifyAll();
  }
  [[nodiscard]] const std::map<std::string, PluginSnapshot>& plugins() const override {
    return control_.plugins();
  }
  [[nodiscard]] std::shared_ptr<CsiClient> ClientOf(const std::string& /*plugin_id*/) override { return {}; }
  [[nodiscard]] Awaitable<void> WaitChange(TimePoint deadline) override {
    co_await changed_.WaitUntil([this, seen = version_] { return version_ != seen; }, deadline);
  }

 private:
  int version_ = 0;
  Condition changed_;
  const FakePluginControl& control_;
};

// A node, and the test for its scheduler.
class UplinkTest : public NodeApiTest {
 protected:
  using Message = v1::NodeMessage;

  ~UplinkTest() override { Stop(); }

  UplinkOptions Options() {
    UplinkOptions options{.addresses = {"one:1", "two:2"}, .node_id = "n1", .version = "0.1.0"};
    options.dial = {.initial_backoff = std::chrono::milliseconds(1),
                    .max_backoff = std::chrono::milliseconds(5)};
    options.times.state_every = std::chrono::milliseconds(1);
    options.node_state_every = std::chrono::milliseconds(1);
    options.may = {v1::NodeState::VOLUMES, v1::NodeState::PLUGINS, v1::NodeState::NODE};
    return options;
  }

  void Start(UplinkOptions options) {
    // Nothing of the plugins changes but what the test changes.
    controllers_.on_wait = nullptr;
    UplinkParts parts{.dialer = dialer_,
                      .lease = lease_,
                      .rows = rows_,
                      .api = api_,
                      .plugins = control_,
                      .controllers = *directory_,
                      .mounter = mounter_,
                      .events = events_,
                      .controller = [this](v1::ControllerCall call, TimePoint deadline) {
                        return Controller(std::move(call), deadline);
                      }};
    uplink_ =
        std::make_unique<Uplink>(loop_.get_executor(), std::move(options), std::move(parts), rows_.rows);
    uplink_->Start();
  }
  void Start() { Start(Options()); }
  void Stop() {
    if (!uplink_) return;
    RunOn(loop_, uplink_->Shutdown());
    uplink_.reset();
  }

  Awaitable<ControllerCalls::Result> Controller(v1::ControllerCall call, TimePoint deadline) {
    controller_calls_.push_back(std::move(call));
    controller_deadline_ = deadline;
    co_return controller_result_;
  }

  // Runs the loop until `there` says so.
  template <class Predicate>
  void Until(Predicate there, const std::string& what) {
    const TimePoint deadline = Clock::now() + kTestBound;
    loop_.restart();
    while (!there() && Clock::now() < deadline) loop_.run_one_until(deadline);
    ASSERT_TRUE(there()) << "waited for " << what;
  }

  FakeWire& wire() { return *dialer_.wires.back(); }

  // The `n`-th wire is there (from 1), and the node has said Hello on it.
  void AwaitHello(size_t n = 1) {
    Until([&] { return dialer_.wires.size() >= n && !dialer_.wires[n - 1]->sent.empty(); }, "Hello");
    ASSERT_EQ(wire().sent.front().message_case(), Message::kHello);
  }
  static v1::Welcome MakeWelcome() {
    v1::Welcome welcome;
    welcome.mutable_protocol()->set_major(1);
    welcome.set_cluster_id("c");
    welcome.mutable_heartbeat_interval()->set_seconds(1);
    return welcome;
  }
  void Say(const v1::Welcome& welcome) {
    v1::SchedulerMessage message;
    *message.mutable_welcome() = welcome;
    wire().Say(std::move(message));
  }
  void Say(const v1::Operation& operation) {
    v1::SchedulerMessage message;
    *message.mutable_operation() = operation;
    wire().Say(std::move(message));
  }
  void SayAcknowledged(const std::vector<uint64_t>& ids, uint64_t settled_below = 0) {
    v1::SchedulerMessage message;
    for (const uint64_t id : ids) message.mutable_acknowledge()->add_operation_ids(id);
    message.mutable_acknowledge()->set_settled_below(settled_below);
    wire().Say(std::move(message));
  }
  // Greets the node and waits until it has sent everything.
  void Greet(size_t n = 1, const v1::Welcome& welcome = MakeWelcome()) {
    AwaitHello(n);
    Say(welcome);
    Until([this] { return Last(Message::kState) != nullptr && Last(Message::kState)->state().synced(); },
          "state");
  }

  // The last message of a kind on the present wire; null: there was none.
  const Message* Last(Message::MessageCase kind) {
    const auto& sent = wire().sent;
    const auto found =
        std::find_if(sent.rbegin(), sent.rend(), [&](const Message& m) { return m.message_case() == kind; });
    return found == sent.rend() ? nullptr : &*found;
  }
  size_t Count(Message::MessageCase kind) {
    return std::ranges::count_if(wire().sent, [&](const Message& m) { return m.message_case() == kind; });
  }
  const v1::OperationResult* ResultOf(uint64_t id) {
    const v1::OperationResult* result = nullptr;
    for (const Message& message : wire().sent) {
      if (message.has_result() && message.result().id() == id) result = &message.result();
    }
    return result;
  }
  v1::OperationResult AwaitResult(uint64_t id) {
    Until([&] { return ResultOf(id) != nullptr; }, "a result");
    return *ResultOf(id);
  }
  // Every object of all State messages of the present wire, in order.
  std::vector<v1::Object> Objects() {
    std::vector<v1::Object> objects;
    for (const Message& message : wire().sent) {
      objects.insert(objects.end(), message.state().objects().begin(), message.state().objects().end());
    }
    return objects;
  }
  size_t ObjectsOf(v1::Object::ObjectCase kind) {
    return std::ranges::count_if(Objects(), [&](const v1::Object& o) { return o.object_case() == kind; });
  }

  static v1::Operation Publish(uint64_t id, const std::string& volume = "v") {
    v1::Operation operation;
    operation.set_id(id);
    operation.set_lease_epoch(1);
    operation.mutable_publish()->set_namespace_("jobs");
    v1::PublishVolumeRequest& request = *operation.mutable_publish()->mutable_request();
    request.set_plugin_id("p");
    request.set_volume_id(volume);
    request.set_consumer("web");
    (*request.mutable_secrets())["password"] = "hunter22";
    return operation;
  }

  static v1::Operation Attach(uint64_t id) {
    v1::Operation operation;
    operation.set_id(id);
    operation.set_lease_epoch(1);
    operation.mutable_controller()->set_plugin_id("p");
    auto& attach = *operation.mutable_controller()->mutable_attach();
    attach.set_volume_id("v");
    attach.set_node_id("storage-1");
    attach.mutable_volume_capability()->mutable_mount();
    attach.mutable_volume_capability()->mutable_access_mode()->set_mode(
        ::csi::v1::VolumeCapability::AccessMode::SINGLE_NODE_WRITER);
    return operation;
  }

  std::vector<std::string> EventTypes() {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 100).events) types.push_back(event.type);
    return types;
  }

  FakeLinkDialer dialer_{loop_.get_executor()};
  ControllerDirectory* directory_ = &controllers_;
  FakeLinkLease lease_;
  FakeLinkRows rows_;
  std::vector<v1::ControllerCall> controller_calls_;
  TimePoint controller_deadline_;  // of the last one
  ControllerCalls::Result controller_result_{
      .status = absl::OkStatus(), .outcome = v1::OUTCOME_DONE, .answer = {}};
  std::unique_ptr<Uplink> uplink_;
};

}  // namespace berth
