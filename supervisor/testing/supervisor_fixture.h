// The supervisor with real processes, for its tests: test_plugin.cc stands in for a plugin, and FakeProber
// for the prober.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "base/file.h"
#include "base/testing/temp_dir.h"
#include "base/testing/test_bound.h"
#include "supervisor/plugin_config.h"
#include "supervisor/run_record.h"
#include "supervisor/supervisor.h"

namespace berth {

inline TimePoint Soon() { return Clock::now() + kTestBound; }

// Says at once that every plugin is well, unless set otherwise.
class FakeProber : public PluginObserver {
 public:
  explicit FakeProber(asio::io_context& loop) : loop_(loop) {}

  void OnSocketAppeared(const Instance& instance) override {
    appeared_at_[instance.plugin_id] = Clock::now();
    appeared_.push_back(fmt::format("{}#{}", instance.plugin_id, instance.number));
    Look(instance.plugin_id);
    newest_[instance.plugin_id] = instance;
    asio::post(loop_, [this, instance] {
      if (supervisor_ == nullptr) return;
      supervisor_->OnHealth(instance.plugin_id, instance.number, health_);
      if (health_.ok) supervisor_->OnFacts(instance.plugin_id, instance.number, facts_, "class");
    });
  }
  void OnInstanceGone(const std::string& plugin_id, uint64_t number) override {
    gone_.push_back(fmt::format("{}#{}", plugin_id, number));
    Look(plugin_id);
  }
  // What the registry says of it as an instance comes or goes: "1 serves".
  void Look(const std::string& plugin_id) {
    if (supervisor_ == nullptr) return;
    const PluginSnapshot* plugin = supervisor_->registry().Find(plugin_id);
    if (plugin == nullptr) return;
    const bool serves = plugin->registered && plugin->ready && !plugin->paused;
    looks_.push_back(fmt::format("{} {}", plugin->instance, serves ? "serves" : "does not serve"));
  }

  asio::io_context& loop_;
  Supervisor* supervisor_ = nullptr;
  PluginHealth health_{.ok = true};
  absl::StatusOr<PluginFacts> facts_ = PluginFacts{.name = "test.berth.dev", .vendor_version = "1"};
  std::vector<std::string> appeared_;
  std::vector<std::string> gone_;
  std::vector<std::string> looks_;
  std::map<std::string, Instance> newest_;
  std::map<std::string, TimePoint> appeared_at_;
};

// One berthd's worth of supervisor, on a loop of its own.
class Node {
 public:
  // `root` holds etc, state and run.
  explicit Node(const std::string& root)
      : events_(loop_.get_executor(), 10'000, 1), prober_(loop_), scope_(loop_.get_executor(), "node") {
    SupervisorOptions options{
        .config_dir = root + "/etc",
        .state_dir = root + "/state",
        .runtime_dir = root + "/run",
        .node_id = "node-1",
        .held_by = [this](const std::string&) { return held_by_; },
        .busy_until = [this](const std::string&, uint64_t number) -> std::optional<TimePoint> {
          if (!busy_ && busy_instance_ != number) return std::nullopt;
          return Soon();
        },
        .on_user = [this](const std::string& socket,
                          std::optional<uid_t> user) { users_.emplace_back(socket, user); },
    };
    supervisor_ = std::make_unique<Supervisor>(loop_.get_executor(), std::move(options), prober_, events_);
    prober_.supervisor_ = supervisor_.get();
  }
  ~Node() { Run(supervisor_->Shutdown()); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  template <class T>
  T Run(Awaitable<T> task) {
    std::future<T> result = asio::co_spawn(loop_, std::move(task), asio::use_future);
    const TimePoint end = Clock::now() + kTestBound;
    loop_.restart();
    while (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (Clock::now() >= end) {
        ADD_FAILURE() << "the loop is stuck; " << Describe();
        abort();
      }
      loop_.run_one_until(end);
    }
    return result.get();
  }

  void Start() {
    const absl::Status status = Run(supervisor_->Start());
    ASSERT_TRUE(status.ok()) << status;
  }

  void WaitUntil(const std::function<bool()>& condition) {
    const TimePoint end = Soon();
    loop_.restart();
    while (!condition()) {
      if (Clock::now() >= end) {
        ADD_FAILURE() << "waited in vain; " << Describe();
        abort();
      }
      loop_.run_one_for(std::chrono::milliseconds(100));
    }
  }
  // Runs the loop until `condition` holds of the plugin.
  PluginSnapshot Wait(const std::string& id, const std::function<bool(const PluginSnapshot&)>& condition) {
    return Run(WaitFor(supervisor_->registry(), id, condition, [this] { return Describe(); }));
  }
  PluginSnapshot WaitState(const std::string& id, PluginState state) {
    return Wait(id, [state](const PluginSnapshot& plugin) { return plugin.state == state; });
  }
  PluginSnapshot WaitRegistered(const std::string& id) {
    return Wait(id, [](const PluginSnapshot& plugin) { return plugin.ready && plugin.registered; });
  }
  PluginSnapshot WaitOtherPid(const std::string& id, pid_t pid) {
    return Wait(id, [pid](const PluginSnapshot& plugin) { return plugin.registered && plugin.pid != pid; });
  }
  PluginSnapshot Get(const std::string& id) {
    const PluginSnapshot* plugin = supervisor_->registry().Find(id);
    if (plugin == nullptr) {
      ADD_FAILURE() << "no plugin " << id;
      return {};
    }
    return *plugin;
  }
  absl::Status Stop(const std::string& id, bool force = false) {
    return Run(supervisor_->StopPlugin(id, force, Soon()));
  }
  absl::Status StartPlugin(const std::string& id) { return Run(supervisor_->StartPlugin(id, Soon())); }
  absl::Status Restart(const std::string& id, bool force = false) {
    return Run(supervisor_->RestartPlugin(id, force, Soon()));
  }
  absl::Status Swap(const std::string& id, SwapRequest request = {}) {
    return Run(supervisor_->SwapPlugin(id, std::move(request), Soon()));
  }
  std::vector<std::string> Events() {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 10'000).events) types.push_back(event.type);
    return types;
  }
  std::string EventText(const std::string& type) {
    std::string text;
    for (const Event& event : events_.After(0, 10'000).events) {
      if (event.type == type) text += event.message + "\n";
    }
    return text;
  }
  std::string Describe() {
    std::string text;
    for (const auto& [id, plugin] : supervisor_->registry().plugins()) {
      text +=
          fmt::format("{}: {} pid {} ({}) ", id, PluginStateName(plugin.state), plugin.pid, plugin.reason);
    }
    return text;
  }

  static Awaitable<PluginSnapshot> WaitFor(Registry& registry, std::string id,
                                           std::function<bool(const PluginSnapshot&)> condition,
                                           std::function<std::string()> describe) {
    const TimePoint deadline = Soon();
    while (true) {
      const uint64_t seen = registry.version();
      const PluginSnapshot* plugin = registry.Find(id);
      if (plugin != nullptr && condition(*plugin)) co_return *plugin;
      if (!co_await registry.WaitChanged(seen, deadline)) {
        ADD_FAILURE() << "waited for plugin " << id << " in vain; " << describe();
        abort();
      }
    }
  }

  asio::io_context loop_;
  EventLog events_;
  FakeProber prober_;
  TaskScope scope_;
  std::vector<std::string> held_by_;
  // The reported users of plugins, by their sockets.
  std::vector<std::pair<std::string, std::optional<uid_t>>> users_;
  bool busy_ = false;
  uint64_t busy_instance_ = 0;
  std::unique_ptr<Supervisor> supervisor_;
};

class SupervisorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Plugins without their berthd become ours, and are reaped by us.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  }
  SupervisorTest() {
    EXPECT_TRUE(MakeDirectories(temp_.Path("etc/plugins.d"), 0755).ok());
    node_ = std::make_unique<Node>(temp_.path());
  }
  ~SupervisorTest() override {
    std::vector<std::string> ids;
    // Also those that are just being launched.
    for (const auto& [id, plugin] : node_->supervisor_->registry().plugins()) ids.push_back(id);
    for (const std::string& id : ids) {
      [[maybe_unused]] const absl::Status stopped = node_->Stop(id, true);
    }
    node_.reset();
    int left = 0;
    for (pid_t pid = waitpid(-1, nullptr, WNOHANG); pid != -1; pid = waitpid(-1, nullptr, WNOHANG)) {
      if (pid == 0) break;
      ++left;
    }
    EXPECT_EQ(errno, ECHILD) << "a process is left";
    EXPECT_EQ(left, 0) << "a zombie is left";
  }

  void WritePlugin(const std::string& id, const std::string& args = "", const std::string& more = "") const {
    temp_.Write(
        "etc/plugins.d/" + id + ".toml",
        fmt::format("kind = \"monolith\"\ncommand = \"{}\"\nargs = [{}]\n{}", TEST_PLUGIN, args, more));
  }
  void RemovePlugin(const std::string& id) const { temp_.Remove("etc/plugins.d/" + id + ".toml"); }
  std::string Text(const std::string& name) const { return ReadFile(temp_.Path(name), 1 << 20).value_or(""); }
  // Another berthd on the same directories.
  void NextBerthd() {
    node_.reset();
    node_ = std::make_unique<Node>(temp_.path());
  }
  PluginPaths Paths() const {
    return {.runtime_dir = temp_.Path("run"),
            .state_dir = temp_.Path("state"),
            .node_id = "node-1",
            .credentials_dir = ""};
  }
  std::string RunDir(const std::string& id) const { return PluginRuntimeDir(Paths(), id); }

  TempDir temp_;
  std::unique_ptr<Node> node_;
};

}  // namespace berth
