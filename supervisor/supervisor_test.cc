// The supervisor with real processes: testing/test_plugin.cc stands in for a plugin, and FakeProber for
// whoever probes it.
#include "supervisor/supervisor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <csignal>
#include <cstring>
#include <future>

#include "base/file.h"
#include "base/unique_fd.h"
#include "supervisor/plugin_config.h"
#include "supervisor/run_record.h"
#include "base/temp_dir.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kBound = seconds(20);

TimePoint Soon() { return Clock::now() + kBound; }

// Says at once that every plugin is well, unless told otherwise.
class FakeProber : public PluginObserver {
 public:
  explicit FakeProber(asio::io_context& loop) : loop_(loop) {}

  void OnSocketAppeared(const Incarnation& incarnation) override {
    appeared_at_[incarnation.plugin_id] = Clock::now();
    appeared_.push_back(fmt::format("{}#{}", incarnation.plugin_id, incarnation.number));
    newest_[incarnation.plugin_id] = incarnation;
    asio::post(loop_, [this, incarnation] {
      if (supervisor_ == nullptr) return;
      supervisor_->OnHealth(incarnation.plugin_id, incarnation.number, health_);
      if (health_.ok) supervisor_->OnFacts(incarnation.plugin_id, incarnation.number, facts_, "class");
    });
  }
  void OnIncarnationGone(const std::string& plugin_id, uint64_t number) override {
    gone_.push_back(fmt::format("{}#{}", plugin_id, number));
  }

  asio::io_context& loop_;
  Supervisor* supervisor_ = nullptr;
  PluginHealth health_{.ok = true};
  absl::StatusOr<PluginFacts> facts_ = PluginFacts{.name = "test.berth.dev", .vendor_version = "1"};
  std::vector<std::string> appeared_;
  std::vector<std::string> gone_;
  std::map<std::string, Incarnation> newest_;
  std::map<std::string, TimePoint> appeared_at_;
};

// One berthd's worth of supervisor, on a loop of its own.
class Node {
 public:
  explicit Node(const TempDir& temp)
      : temp_(temp),
        events_(loop_.get_executor(), 10'000, 1),
        prober_(loop_),
        scope_(loop_.get_executor(), "node") {
    SupervisorOptions options{
        .config_dir = temp_.Path("etc"),
        .state_dir = temp_.Path("state"),
        .runtime_dir = temp_.Path("run"),
        .node_id = "node-1",
        .held_by = [this](const std::string&) { return held_by_; },
        .busy_until = [this](const std::string&, uint64_t) -> std::optional<TimePoint> {
          if (!busy_) return std::nullopt;
          return Soon();
        },
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
    const TimePoint end = Clock::now() + 3 * kBound;
    loop_.restart();
    while (result.wait_for(seconds(0)) != std::future_status::ready) {
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

  const TempDir& temp_;
  asio::io_context loop_;
  EventLog events_;
  FakeProber prober_;
  TaskScope scope_;
  std::vector<std::string> held_by_;
  bool busy_ = false;
  std::unique_ptr<Supervisor> supervisor_;
};

class SupervisorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Plugins whose berthd is gone become ours, and are reaped by us.
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  }
  SupervisorTest() {
    EXPECT_TRUE(MakeDirectories(temp_.Path("etc/plugins.d"), 0755).ok());
    node_ = std::make_unique<Node>(temp_);
  }
  ~SupervisorTest() override {
    std::vector<std::string> ids;
    for (const auto& [id, plugin] : node_->supervisor_->registry().plugins()) {
      if (plugin.alive) ids.push_back(id);
    }
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
    node_ = std::make_unique<Node>(temp_);
  }
  PluginPlaces Places() const {
    return {.runtime_dir = temp_.Path("run"),
            .state_dir = temp_.Path("state"),
            .node_id = "node-1",
            .credentials_dir = ""};
  }
  std::string RunDir(const std::string& id) const { return PluginRuntimeDir(Places(), id); }

  TempDir temp_;
  std::unique_ptr<Node> node_;
};

TEST_F(SupervisorTest, LaunchesAndTellsEachFact) {
  WritePlugin("nfs", "\"--say\", \"at ${CSI_SOCKET}\", \"--print-environment\"",
              "[env]\nMINE = \"${BERTH_NODE_ID}!\"\n");
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.state, PluginState::kReady);
  EXPECT_TRUE(plugin.alive);
  EXPECT_EQ(plugin.reason, "");
  EXPECT_EQ(plugin.incarnation, 1U);
  EXPECT_EQ(plugin.restarts, 0);
  EXPECT_EQ(plugin.facts->name, "test.berth.dev");
  EXPECT_EQ(plugin.computed_class, "class");
  EXPECT_EQ(plugin.socket_path, temp_.Path("run/plugins/nfs/csi.sock"));
  EXPECT_EQ(getsid(plugin.pid), plugin.pid) << "it leads a session of its own";
  EXPECT_THAT(node_->prober_.appeared_, ElementsAre("nfs#1"));
  EXPECT_THAT(node_->Events(), ElementsAre("plugin.launched", "plugin.ready", "plugin.joined"));
  EXPECT_EQ(
      Text("state/logs/nfs.log"),
      fmt::format("at {0}/run/plugins/nfs/csi.sock\n"
                  "BERTH_NODE_ID=node-1\nBERTH_PLUGIN_DIR={0}/state/plugins/nfs\n"
                  "CSI_ENDPOINT=unix://{0}/run/plugins/nfs/csi.sock\nHOME=/\nLANG=C.UTF-8\nMINE=node-1!\n"
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
                  temp_.path()));
}

TEST_F(SupervisorTest, SocketIsToldWithinMillisecondsOfListening) {
  WritePlugin("nfs");
  node_->Start();
  Duration best = kBound;
  for (int round = 0; round < 5; ++round) {
    node_->WaitRegistered("nfs");
    const int64_t listening = std::stoll(Text("state/plugins/nfs/listening"));
    const auto told = node_->prober_.appeared_at_["nfs"].time_since_epoch();
    best = std::min(best, Duration(told) - std::chrono::nanoseconds(listening));
    ASSERT_TRUE(node_->Restart("nfs").ok());
  }
  EXPECT_LT(best, milliseconds(20));
}

TEST_F(SupervisorTest, EndIsSeenAtOnceAndTheFirstRestartIsImmediate) {
  WritePlugin("nfs", "", "[restart]\ninitial_backoff = \"1h\"\nmax_backoff = \"1h\"\n");
  node_->Start();
  const pid_t first = node_->WaitRegistered("nfs").pid;
  const TimePoint killed = Clock::now();
  ASSERT_EQ(kill(first, SIGKILL), 0);
  const PluginSnapshot plugin = node_->WaitOtherPid("nfs", first);
  EXPECT_LT(Clock::now() - killed, seconds(5));
  EXPECT_EQ(plugin.last_exit, "signal 9 (Killed)");
  EXPECT_EQ(plugin.restarts, 1);
  EXPECT_EQ(plugin.incarnation, 2U);
  EXPECT_THAT(node_->prober_.appeared_, ElementsAre("nfs#1", "nfs#2"));
  EXPECT_THAT(node_->prober_.gone_, ElementsAre("nfs#1"));
}

TEST_F(SupervisorTest, CrashLoopBacksOffAndFailsWithTheReason) {
  WritePlugin("nfs", "\"--exit\", \"3\"",
              "[restart]\ninitial_backoff = \"10ms\"\nmax_backoff = \"20ms\"\nburst = 4\nwindow = \"1m\"\n");
  node_->Start();
  const PluginSnapshot backing_off = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_TRUE(backing_off.next_restart_at.has_value());
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_FALSE(plugin.alive);
  EXPECT_EQ(plugin.last_exit, "exit code 3");
  EXPECT_THAT(plugin.last_output, ElementsAre("no licence"));
  EXPECT_EQ(plugin.reason,
            "given up, as it ended 4 times within 1m; last: exit code 3, its last line: no licence");
  EXPECT_EQ(plugin.incarnation, 4U);
  EXPECT_THAT(node_->Events(), Contains("plugin.backing_off").Times(2));
  EXPECT_THAT(node_->Events(), Contains("plugin.exited").Times(4));
  EXPECT_THAT(node_->EventText("plugin.failed"), HasSubstr("no licence"));
  EXPECT_THAT(node_->prober_.appeared_, IsEmpty());

  // A person mends the file, and starts it: the file is read afresh.
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  WritePlugin("nfs");
  node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").restarts, 0);
}

TEST_F(SupervisorTest, StopEndsItInOrderAndStartBringsItBack) {
  WritePlugin("nfs");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
  PluginSnapshot plugin = node_->Get("nfs");
  EXPECT_EQ(plugin.state, PluginState::kStopped);
  EXPECT_FALSE(plugin.alive);
  EXPECT_FALSE(plugin.registered);
  EXPECT_EQ(plugin.last_exit, "signal 15 (Terminated)");
  EXPECT_THAT(node_->prober_.gone_, ElementsAre("nfs#1"));
  EXPECT_FALSE(ReadRunRecord(RunDir("nfs")).ok());
  EXPECT_TRUE(node_->Stop("nfs").ok()) << "stopped it is already";
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  plugin = node_->Get("nfs");
  EXPECT_TRUE(plugin.registered);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok()) << "it runs already";
  EXPECT_EQ(node_->Get("nfs").pid, plugin.pid);
}

TEST_F(SupervisorTest, PluginThatIgnoresTermIsKilled) {
  WritePlugin("nfs", "\"--ignore-term\"", "stop_timeout = \"50ms\"\n");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").last_exit, "signal 9 (Killed)");
}

TEST_F(SupervisorTest, StopThatTakesLongerThanTheCallerWaitsGoesOn) {
  WritePlugin("nfs", "\"--ignore-term\"", "stop_timeout = \"200ms\"\n");
  node_->Start();
  node_->WaitRegistered("nfs");
  const absl::Status status =
      node_->Run(node_->supervisor_->StopPlugin("nfs", false, Clock::now() + milliseconds(20)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(node_->Get("nfs").state, PluginState::kDraining);
  node_->WaitState("nfs", PluginState::kStopped);
}

TEST_F(SupervisorTest, StopIsRefusedWhileVolumesAreHeld) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_->held_by_ = {"job-7", "job-9"};
  const absl::Status status = node_->Stop("nfs");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job-7, job-9"));
  EXPECT_EQ(node_->WaitRegistered("nfs").pid, pid);
  EXPECT_TRUE(node_->Restart("nfs").ok()) << "volumes stay over a restart";
  EXPECT_TRUE(node_->Stop("nfs", true).ok());
}

TEST_F(SupervisorTest, RestartIsRefusedWhileAnOperationRuns) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_->busy_ = true;
  EXPECT_EQ(node_->Restart("nfs").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node_->Get("nfs").pid, pid);
  EXPECT_TRUE(node_->Restart("nfs", true).ok());
  EXPECT_NE(node_->Get("nfs").pid, pid);
  EXPECT_EQ(node_->Get("nfs").restarts, 0);
}

TEST_F(SupervisorTest, UnknownPluginIsNotFoundAndTheOthersAreNamed) {
  WritePlugin("nfs");
  WritePlugin("ceph");
  node_->Start();
  for (const absl::Status& status : {node_->StartPlugin("nsf"), node_->Stop("nsf"), node_->Restart("nsf")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("there are ceph, nfs"));
  }
}

TEST_F(SupervisorTest, StaleSocketIsCleanedAway) {
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0755).ok());
  const std::string path = RunDir("nfs") + "/csi.sock";
  {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  WritePlugin("nfs");
  node_->Start();
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, ForeignFileAtTheSocketPathIsAClearErrorAndStays) {
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0755).ok());
  temp_.Write("run/plugins/nfs/csi.sock", "somebody's notes");
  WritePlugin("nfs", "", "[restart]\ninitial_backoff = \"10ms\"\n");
  node_->Start();
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("csi.sock is a file"), HasSubstr("move it away")));
  EXPECT_EQ(Text("run/plugins/nfs/csi.sock"), "somebody's notes");
  // Once it is moved away, the plugin starts by itself.
  temp_.Remove("run/plugins/nfs/csi.sock");
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, BrokenFilesAreFailedPluginsAndTheOthersRun) {
  WritePlugin("bad", "", "colour = \"red\"\n");
  WritePlugin("good");
  WritePlugin("twin", "", "id = \"good\"\n");
  node_->Start();
  node_->WaitRegistered("good");
  const PluginSnapshot bad = node_->WaitState("bad", PluginState::kFailed);
  EXPECT_THAT(bad.reason, HasSubstr(temp_.Path("etc/plugins.d/bad.toml:4: colour")));
  EXPECT_EQ(bad.config_file, temp_.Path("etc/plugins.d/bad.toml"));
  const PluginSnapshot twin = node_->WaitState("twin", PluginState::kFailed);
  EXPECT_THAT(twin.reason, AllOf(HasSubstr("good.toml"), HasSubstr("twin.toml")));

  EXPECT_THAT(std::string(node_->StartPlugin("bad").message()), HasSubstr("bad.toml:4: colour"));
  WritePlugin("bad");
  EXPECT_TRUE(node_->StartPlugin("bad").ok());
  EXPECT_THAT(std::string(node_->StartPlugin("twin").message()), HasSubstr("berthd must be restarted"));
}

TEST_F(SupervisorTest, NoPluginDirectoryIsNoPlugins) {
  rmdir(temp_.Path("etc/plugins.d").c_str());
  node_->Start();
  EXPECT_TRUE(node_->supervisor_->registry().plugins().empty());
}

TEST_F(SupervisorTest, DisabledPluginIsShownAndNotRun) {
  WritePlugin("nfs", "", "enabled = false\n");
  node_->Start();
  const PluginSnapshot plugin = node_->Get("nfs");
  EXPECT_EQ(plugin.state, PluginState::kStopped);
  EXPECT_THAT(plugin.reason, HasSubstr("enabled = false"));
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  WritePlugin("nfs");
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").reason, "");
}

TEST_F(SupervisorTest, StartThatTakesTooLongIsACrash) {
  for (const char* mode : {"--never-listen", "--no-socket"}) {
    WritePlugin("nfs", fmt::format("\"{}\"", mode),
                "start_timeout = \"50ms\"\n[restart]\ninitial_backoff = \"1h\"\nmax_backoff = \"1h\"\n");
    NextBerthd();
    node_->Start();
    const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
    EXPECT_EQ(plugin.reason, "its socket did not answer within 50ms");
    EXPECT_EQ(plugin.incarnation, 2U);
    EXPECT_THAT(node_->prober_.appeared_, IsEmpty());
    EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(SupervisorTest, ProgramThatHasGoneBacksOffUntilItIsBack) {
  const std::string program = temp_.Path("program");
  std::filesystem::copy_file(TEST_PLUGIN, program);
  temp_.Write(
      "etc/plugins.d/nfs.toml",
      fmt::format("kind = \"node\"\ncommand = \"{}\"\n[restart]\ninitial_backoff = \"10ms\"\n", program));
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  ASSERT_EQ(rename(program.c_str(), (program + ".away").c_str()), 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kBackingOff);
  EXPECT_THAT(plugin.reason, HasSubstr(program));
  EXPECT_FALSE(ReadRunRecord(RunDir("nfs")).ok());
  ASSERT_EQ(rename((program + ".away").c_str(), program.c_str()), 0);
  node_->WaitRegistered("nfs");
}

TEST_F(SupervisorTest, NotReadyIsNoCrashAndUnhealthyIsShown) {
  WritePlugin("nfs", "", "[health]\nfailures = 2\n");
  node_->prober_.health_ = PluginHealth{.ok = false, .error = "not ready", .consecutive_failures = 1};
  node_->Start();
  const PluginSnapshot starting =
      node_->Wait("nfs", [](const auto& plugin) { return !plugin.health.error.empty(); });
  EXPECT_EQ(starting.state, PluginState::kStarting);
  EXPECT_EQ(starting.reason, "Probe: not ready");
  const auto probe = [&](bool ok, int failures) {
    node_->supervisor_->OnHealth(
        "nfs", 1, PluginHealth{.ok = ok, .error = ok ? "" : "timeout", .consecutive_failures = failures});
    return node_->Get("nfs");
  };
  EXPECT_EQ(probe(true, 0).state, PluginState::kReady);
  EXPECT_EQ(probe(false, 1).state, PluginState::kReady);
  const PluginSnapshot unhealthy = probe(false, 2);
  EXPECT_EQ(unhealthy.state, PluginState::kUnhealthy);
  EXPECT_EQ(unhealthy.reason, "Probe: timeout");
  EXPECT_FALSE(unhealthy.ready);
  EXPECT_TRUE(unhealthy.alive);
  EXPECT_EQ(probe(true, 0).state, PluginState::kReady);
  EXPECT_EQ(unhealthy.restarts, 0);
  // What is found of an incarnation that is no longer is ignored.
  node_->supervisor_->OnHealth("nfs", 0,
                               PluginHealth{.ok = false, .error = "old", .consecutive_failures = 9});
  EXPECT_EQ(node_->Get("nfs").state, PluginState::kReady);
  node_->supervisor_->OnFacts("nfs", 0, absl::InternalError("old"), "");
  EXPECT_EQ(node_->Get("nfs").reason, "");
}

TEST_F(SupervisorTest, RefusedPluginStaysAliveUnregisteredAndSaysWhy) {
  WritePlugin("nfs");
  node_->prober_.facts_ = absl::FailedPreconditionError("its name was a, and is b");
  node_->Start();
  const PluginSnapshot plugin =
      node_->Wait("nfs", [](const auto& each) { return !each.reason.empty() && each.ready; });
  EXPECT_TRUE(plugin.alive);
  EXPECT_FALSE(plugin.registered);
  EXPECT_EQ(plugin.reason, "its name was a, and is b");
  EXPECT_THAT(node_->Events(), Contains("plugin.refused").Times(1));
  const absl::Status status = node_->Restart("nfs");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its name was a"));
}

// --- berthd comes and goes --------------------------------------------------------------------------------

TEST_F(SupervisorTest, NextBerthdTakesARunningPluginBack) {
  WritePlugin("nfs", "\"--say\", \"once\"");
  node_->Start();
  const PluginSnapshot before = node_->WaitRegistered("nfs");
  NextBerthd();
  node_->Start();
  const PluginSnapshot after = node_->WaitRegistered("nfs");
  EXPECT_EQ(after.pid, before.pid);
  EXPECT_EQ(after.restarts, 0);
  EXPECT_LT(*after.started_at - *before.started_at, seconds(1));
  EXPECT_EQ(after.reason, "");
  EXPECT_THAT(node_->Events(), ElementsAre("plugin.taken_back", "plugin.ready", "plugin.joined"));
  // Its end is seen, with what it has said; and it can be stopped.
  ASSERT_EQ(kill(after.pid, SIGKILL), 0);
  const PluginSnapshot again = node_->WaitOtherPid("nfs", after.pid);
  EXPECT_EQ(again.last_exit, "signal 9 (Killed)");
  EXPECT_THAT(again.last_output, ElementsAre("once"));
  NextBerthd();
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_TRUE(node_->Stop("nfs").ok());
}

TEST_F(SupervisorTest, PluginThatEndedMeanwhileIsLaunchedAgain) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_.reset();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  node_ = std::make_unique<Node>(temp_);
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_NE(plugin.pid, pid);
  EXPECT_EQ(plugin.last_exit, "ended while berthd was away");
  EXPECT_THAT(node_->EventText("plugin.exited"), HasSubstr("while berthd was away"));
}

TEST_F(SupervisorTest, StrangerWithTheRecordedPidIsNeverSignalled) {
  ProcessSpec spec;
  spec.executable = "/bin/sleep";
  spec.arguments = {"1000"};
  auto stranger = node_->Run(Process::Launch(node_->loop_.get_executor(), spec, Clock::now() + seconds(10)));
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  RunRecord record;
  record.plugin_id = "nfs";
  record.process = *IdentifyProcess((*stranger)->pid());
  record.process.start_time -= 1;
  record.executed = true;
  record.stop_timeout = seconds(1);
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  WritePlugin("nfs");
  node_->Start();
  EXPECT_NE(node_->WaitRegistered("nfs").pid, (*stranger)->pid());
  EXPECT_THAT(node_->EventText("plugin.not_taken_back"), HasSubstr("is another one now"));
  EXPECT_TRUE(node_->Stop("nfs", true).ok());
  EXPECT_TRUE(IdentifyProcess((*stranger)->pid()).ok()) << "the stranger was ended";
  ASSERT_TRUE((*stranger)->Signal(SIGKILL).ok());
  node_->Run((*stranger)->Wait());
}

TEST_F(SupervisorTest, NoSecondInstanceBesideAProcessInDoubt) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  node_.reset();
  RunRecord record = *ReadRunRecord(RunDir("nfs"));
  record.process.executable = "/usr/bin/another";
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  node_ = std::make_unique<Node>(temp_);
  node_->Start();
  const PluginSnapshot plugin = node_->WaitState("nfs", PluginState::kFailed);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr(fmt::format("process {}", pid)), HasSubstr("/usr/bin/another")));
  EXPECT_EQ(node_->StartPlugin("nfs").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IdentifyProcess(pid).ok()) << "it was ended";
  // Once a person has ended it, the plugin starts.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(node_->StartPlugin("nfs").ok());
}

TEST_F(SupervisorTest, RecordOfAnotherBootIsDropped) {
  WritePlugin("nfs");
  RunRecord record;
  record.plugin_id = "nfs";
  record.process = *IdentifyProcess(getpid());
  record.process.boot_id = "another boot";
  record.executed = true;
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  ASSERT_TRUE(WriteRunRecord(RunDir("nfs"), record).ok());
  node_->Start();
  EXPECT_NE(node_->WaitRegistered("nfs").pid, getpid());
}

TEST_F(SupervisorTest, DamagedRecordIsDroppedAndSaid) {
  WritePlugin("nfs");
  ASSERT_TRUE(MakeDirectories(RunDir("nfs"), 0750).ok());
  temp_.Write("run/plugins/nfs/run.toml", "pid = what");
  node_->Start();
  node_->WaitRegistered("nfs");
  EXPECT_THAT(node_->EventText("plugin.not_taken_back"), HasSubstr("damaged"));
}

TEST_F(SupervisorTest, ChangedFileIsTakenBackAsItRunsAndARestartAppliesIt) {
  WritePlugin("nfs", "\"--say\", \"old\"");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  WritePlugin("nfs", "\"--say\", \"new\"");
  NextBerthd();
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, HasSubstr("its file has changed since it was launched"));
  EXPECT_TRUE(node_->Restart("nfs").ok());
  EXPECT_EQ(node_->Get("nfs").reason, "");
  EXPECT_EQ(Text("state/logs/nfs.log"), "old\nnew\n");
}

TEST_F(SupervisorTest, BrokenFileDoesNotCostARunningPlugin) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  WritePlugin("nfs", "", "colour = 1\n");
  NextBerthd();
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("runs on"), HasSubstr("nfs.toml:4: colour")));
  EXPECT_EQ(node_->Restart("nfs").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(node_->Get("nfs").pid, pid) << "a wrong file must not cost it";
  // Ended, it cannot come back.
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_THAT(node_->WaitState("nfs", PluginState::kFailed).reason, HasSubstr("nfs.toml:4: colour"));
}

TEST_F(SupervisorTest, PluginWhoseFileIsGoneIsStopped) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  RemovePlugin("nfs");
  NextBerthd();
  node_->Start();
  EXPECT_EQ(node_->Stop("nfs").code(), absl::StatusCode::kOk);
  EXPECT_EQ(IdentifyProcess(pid).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(node_->supervisor_->registry().Find("nfs"), nullptr);
  EXPECT_THAT(node_->EventText("plugin.taken_back"), HasSubstr("its file is gone"));
  EXPECT_EQ(node_->Stop("nfs").code(), absl::StatusCode::kNotFound);
}

TEST_F(SupervisorTest, PluginWhoseFileIsGoneRunsWhileVolumesAreHeld) {
  WritePlugin("nfs");
  node_->Start();
  const pid_t pid = node_->WaitRegistered("nfs").pid;
  RemovePlugin("nfs");
  NextBerthd();
  node_->held_by_ = {"job-7"};
  node_->Start();
  const PluginSnapshot plugin = node_->WaitRegistered("nfs");
  EXPECT_EQ(plugin.pid, pid);
  EXPECT_THAT(plugin.reason, AllOf(HasSubstr("its file is gone"), HasSubstr("job-7")));
  node_->held_by_.clear();
  EXPECT_TRUE(node_->Stop("nfs").ok());
}

// A berthd that is killed, rather than ended: after each step of its loop from nothing to a registered
// plugin. The next one finds or launches exactly one instance.
TEST_F(SupervisorTest, KilledBerthdNeverLeavesTwoInstances) {
  WritePlugin("nfs");
  int taken_back = 0;
  bool reached_the_end = false;
  for (int steps = 0; !reached_the_end; ++steps) {
    SCOPED_TRACE(fmt::format("killed after {} steps", steps));
    ASSERT_LT(steps, 200);
    node_.reset();
    const pid_t berthd = fork();
    ASSERT_GE(berthd, 0);
    if (berthd == 0) {
      Node node(temp_);
      const auto started = asio::co_spawn(node.loop_, node.supervisor_->Start(), asio::use_future);
      for (int i = 0; i < steps; ++i) {
        node.loop_.run_one_for(seconds(5));
        const PluginSnapshot* plugin = node.supervisor_->registry().Find("nfs");
        if (plugin != nullptr && plugin->registered) _exit(0);
      }
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(berthd, &status, 0), berthd);
    reached_the_end = WIFEXITED(status);
    const absl::StatusOr<RunRecord> left = ReadRunRecord(RunDir("nfs"));
    node_ = std::make_unique<Node>(temp_);
    node_->Start();
    const pid_t pid = node_->WaitRegistered("nfs").pid;
    if (left.ok() && left->process.pid == pid) ++taken_back;
    ASSERT_NE(access(temp_.Path("state/plugins/nfs/twice").c_str(), F_OK), 0);
    ASSERT_TRUE(node_->Stop("nfs").ok());
    // Who else there was is gone too: an instance that nobody knows of would be our child now, and alive.
    for (pid_t ended = 0; (ended = waitpid(-1, nullptr, WNOHANG)) != -1;) ASSERT_NE(ended, 0);
  }
  EXPECT_GT(taken_back, 2);
}

}  // namespace
}  // namespace berth
