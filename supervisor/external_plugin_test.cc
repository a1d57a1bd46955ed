// Plugins that berthd does not run: real servers in processes of their own, and a stand-in for the prober.
#include "supervisor/external_plugin.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TimePoint Soon() { return Clock::now() + seconds(20); }

// A process that serves a Unix socket: it accepts, and keeps or closes what it accepted.
class Server {
 public:
  enum class Idle { kKept, kClosed };

  explicit Server(const std::string& path, Idle idle = Idle::kKept) {
    accepted_ = static_cast<std::atomic<int>*>(
        mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    unlink(path.c_str());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (listen(fd, 64) != 0) _exit(1);
      while (true) {
        const int connection = accept(fd, nullptr, nullptr);
        accepted_->fetch_add(1);
        if (idle == Idle::kClosed) close(connection);
      }
    }
    close(fd);
  }
  ~Server() {
    Kill();
    munmap(accepted_, sizeof(std::atomic<int>));
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int accepted() const { return accepted_->load(); }
  [[nodiscard]] bool Runs() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_ = 0;
  std::atomic<int>* accepted_ = nullptr;  // shared with the process
};

// Says at once that each server is well, unless set otherwise.
class Prober : public PluginObserver {
 public:
  explicit Prober(asio::io_context& loop) : loop_(loop) {}
  void OnSocketAppeared(const Instance& instance) override {
    newest_ = instance;
    asio::post(loop_, [this, instance] {
      if (plugin_ == nullptr) return;
      plugin_->OnHealth(instance.number, health_);
      if (health_.ok) plugin_->OnFacts(instance.number, facts_, "class");
    });
  }
  void OnInstanceGone(const std::string& /*plugin_id*/, uint64_t number) override { gone_.push_back(number); }

  asio::io_context& loop_;
  ExternalPlugin* plugin_ = nullptr;
  PluginHealth health_{.ok = true};
  absl::StatusOr<PluginFacts> facts_ = PluginFacts{.name = "test.berth.dev", .vendor_version = "1"};
  Instance newest_;
  std::vector<uint64_t> gone_;
};

class ExternalPluginTest : public ::testing::Test {
 protected:
  ExternalPluginTest() {
    EXPECT_EQ(mkdir(temp_.Path("there").c_str(), 0755), 0);
    config_.file = "/etc/berth/plugins.d/ext.toml";
    config_.id = "ext";
    config_.kind = PluginKind::kNode;
    config_.socket = socket_;
  }
  ~ExternalPluginTest() override { End(); }

  [[nodiscard]] static PluginFile File(const PluginConfig& config) {
    return {.path = config.file, .id = "ext", .config = config};
  }
  void Begin() {
    prober_ = std::make_unique<Prober>(loop_);
    context_.emplace(ExternalContext{
        .executor = loop_.get_executor(),
        .paths = {.runtime_dir = temp_.Path("run"),
                  .state_dir = temp_.Path("state"),
                  .node_id = "node-1",
                  .credentials_dir = ""},
        .reports = reports_,
        .observer = *prober_,
        .check_tree = [this](pid_t pid, std::string path) { return CheckTree(pid, std::move(path)); }});
    plugin_ = std::make_unique<ExternalPlugin>(*context_, File(config_));
    prober_->plugin_ = plugin_.get();
    runs_ = std::make_unique<TaskScope>(loop_.get_executor(), "test");
    runs_->Spawn("run", plugin_->Run());
    RunOn(loop_, plugin_->WaitBegun());
  }
  Awaitable<std::string> CheckTree(pid_t pid, std::string path) {
    tree_asked_.emplace_back(pid, path);
    co_return no_tree_;
  }
  // As a berthd that ends.
  void End() {
    if (!plugin_) return;
    RunOn(loop_, runs_->Join());
    RunOn(loop_, plugin_->LetGo());
    prober_->plugin_ = nullptr;
    loop_.restart();
    loop_.poll();
    plugin_.reset();
  }
  absl::StatusOr<Reconfigured> Reconfigure(PluginFile file) {
    return RunOn(loop_, plugin_->Reconfigure(std::move(file), Soon()));
  }

  bool RunUntil(const std::function<bool()>& done, Duration bound = seconds(20)) {
    const TimePoint end = Clock::now() + bound;
    loop_.restart();
    while (!done() && Clock::now() < end) loop_.run_one_until(std::min(end, Clock::now() + milliseconds(5)));
    return done();
  }
  const PluginSnapshot& Get() const {
    static const PluginSnapshot none;
    const PluginSnapshot* plugin = registry_.Find("ext");
    return plugin == nullptr ? none : *plugin;
  }
  bool Registered() const { return Get().registered && Get().ready; }
  std::vector<std::string> Events() const {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 10'000).events) types.push_back(event.type);
    return types;
  }

  TempDir temp_;
  std::string socket_ = temp_.Path("there/csi.sock");
  asio::io_context loop_;
  EventLog events_{loop_.get_executor(), 10'000, 1};
  std::vector<std::string> held_by_;
  std::string no_tree_;
  std::vector<std::pair<pid_t, std::string>> tree_asked_;
  Registry registry_{loop_.get_executor()};
  PluginConfig config_;
  std::unique_ptr<Prober> prober_;
  ReportContext reports_{
      .held_by = [this](const std::string&) { return held_by_; }, .events = events_, .registry = registry_};
  std::optional<ExternalContext> context_;
  std::unique_ptr<ExternalPlugin> plugin_;
  std::unique_ptr<TaskScope> runs_;
};

TEST_F(ExternalPluginTest, WhoDoesNotSeeTheTreeOfVolumesIsNotReadyUntilItDoes) {
  no_tree_ = "it does not see the tree";
  config_.volumes_path = "/csi/volumes";
  config_.health.interval = milliseconds(20);
  Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return tree_asked_.size() > 1; }));
  EXPECT_EQ(tree_asked_.front(), std::pair(server.pid(), std::string("/csi/volumes")));
  EXPECT_EQ(Get().state, PluginState::kStarting);
  EXPECT_FALSE(Get().ready);
  EXPECT_THAT(Get().reason, HasSubstr("does not see the tree"));
  EXPECT_EQ(std::ranges::count(Events(), "plugin.no_tree"), 1);
  const absl::Status refused = RunOn(loop_, plugin_->Start(Soon()));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(refused), HasSubstr("does not see the tree"));
  no_tree_.clear();
  EXPECT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  const size_t asked = tree_asked_.size();
  EXPECT_FALSE(RunUntil([&] { return tree_asked_.size() > asked; }, milliseconds(100))) << "it is settled";
}

TEST_F(ExternalPluginTest, AControllerNeedsNoTree) {
  no_tree_ = "it does not see the tree";
  config_.kind = PluginKind::kController;
  const Server server(socket_);
  Begin();
  EXPECT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  EXPECT_THAT(tree_asked_, IsEmpty());
}

TEST_F(ExternalPluginTest, ItsSocketAndItsDirectoryMayComeLater) {
  ASSERT_EQ(rmdir(temp_.Path("there").c_str()), 0);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return !Get().reason.empty(); }));
  EXPECT_EQ(Get().state, PluginState::kStarting);
  EXPECT_EQ(Get().reason, "waits for its socket: there is no " + socket_);
  EXPECT_TRUE(Get().external);
  EXPECT_FALSE(Get().alive);
  EXPECT_FALSE(std::filesystem::exists(temp_.Path("there"))) << "what is not ours is not made";

  ASSERT_EQ(mkdir(temp_.Path("there").c_str(), 0755), 0);
  Server server(socket_);
  ASSERT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  EXPECT_EQ(Get().state, PluginState::kReady);
  EXPECT_EQ(Get().pid, server.pid());
  EXPECT_EQ(Get().socket_path, socket_);
  EXPECT_TRUE(Get().alive);
  EXPECT_EQ(Get().reason, "");
  EXPECT_THAT(Events(), ElementsAre("plugin.found", "plugin.ready", "plugin.joined"));
  End();
  EXPECT_TRUE(server.Runs());
  EXPECT_TRUE(std::filesystem::exists(socket_)) << "what is not ours is not removed";
}

TEST_F(ExternalPluginTest, AServerThatGoesAwayIsNoticedAtOnceAndTheNextIsAnother) {
  auto server = std::make_unique<Server>(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  const TimePoint killed = Clock::now();
  server->Kill();
  ASSERT_TRUE(RunUntil([this] { return !Get().alive; }));
  EXPECT_LT(Clock::now() - killed, seconds(5));
  EXPECT_FALSE(Get().registered);
  EXPECT_EQ(Get().state, PluginState::kStarting);
  EXPECT_THAT(prober_->gone_, ElementsAre(1));
  EXPECT_THAT(Events(), AllOf(Contains("plugin.left"), Contains("plugin.lost")));
  EXPECT_TRUE(RunUntil([this] {
    return Get().reason == "waits for its socket: nothing listens at " + socket_;
  })) << Get().reason;

  server = std::make_unique<Server>(socket_);
  ASSERT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  EXPECT_EQ(Get().instance, 2U);
  EXPECT_EQ(Get().pid, server->pid());
}

TEST_F(ExternalPluginTest, AServerThatClosesIdleConnectionsIsTheSameOne) {
  const Server server(socket_, Server::Idle::kClosed);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  EXPECT_TRUE(RunUntil([&] { return server.accepted() >= 5; }));
  EXPECT_FALSE(RunUntil([this] { return !Registered(); }, milliseconds(500)));
  EXPECT_EQ(Get().instance, 1U);
  EXPECT_THAT(prober_->gone_, IsEmpty());
  EXPECT_LT(server.accepted(), 12) << "it is not stormed";
}

TEST_F(ExternalPluginTest, AnotherServerInItsPlaceIsAnother) {
  Server first(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); })) << Get().reason;
  // The second takes the path over while the first still serves who is connected.
  const Server second(socket_);
  EXPECT_FALSE(RunUntil([this] { return Get().instance != 1; }, milliseconds(50)));
  first.Kill();
  ASSERT_TRUE(RunUntil([this] { return Get().instance == 2 && Registered(); })) << Get().reason;
  EXPECT_EQ(Get().pid, second.pid());
  EXPECT_THAT(prober_->gone_, ElementsAre(1));
}

TEST_F(ExternalPluginTest, WhatSomebodyElseRunsIsNotOursToStop) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  for (const absl::Status& status :
       {RunOn(loop_, plugin_->Stop(true, Soon())), RunOn(loop_, plugin_->Restart(true, Soon())),
        RunOn(loop_, plugin_->Swap({}, Soon()))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status), HasSubstr("plugin ext: it is external"));
  }
  EXPECT_TRUE(Registered());
  EXPECT_TRUE(RunOn(loop_, plugin_->Start(Soon())).ok());
}

TEST_F(ExternalPluginTest, StartSaysThatNobodyServes) {
  Begin();
  const absl::Status status = RunOn(loop_, plugin_->Start(Soon()));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(status), HasSubstr("waits for its socket: there is no"));
}

TEST_F(ExternalPluginTest, ADrainWaitsForVolumesAndEndsItsUseUntilAStart) {
  const Server server(socket_);
  held_by_ = {"volume v by web"};
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  const absl::Status waits = RunOn(loop_, plugin_->Drain(Clock::now() + milliseconds(20)));
  EXPECT_EQ(waits.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(waits), HasSubstr("volume v by web"));
  EXPECT_EQ(Get().state, PluginState::kDraining);
  EXPECT_TRUE(Get().draining);
  EXPECT_TRUE(Registered()) << "what takes volumes away goes through";
  EXPECT_THAT(Get().holders, ElementsAre("volume v by web"));

  held_by_.clear();
  plugin_->OnHoldersChanged();
  EXPECT_EQ(Get().state, PluginState::kStopped);
  EXPECT_THAT(prober_->gone_, ElementsAre(1));
  EXPECT_TRUE(RunOn(loop_, plugin_->Drain(Soon())).ok());
  EXPECT_TRUE(server.Runs());

  // The next berthd does not use it either.
  End();
  Begin();
  EXPECT_EQ(Get().state, PluginState::kStopped);
  EXPECT_THAT(Get().reason, HasSubstr("drained"));
  EXPECT_TRUE(RunOn(loop_, plugin_->Start(Soon())).ok());
  EXPECT_TRUE(Registered());
  End();
  Begin();
  EXPECT_TRUE(RunUntil([this] { return Registered(); }));
}

TEST_F(ExternalPluginTest, AStartGivesADrainUp) {
  const Server server(socket_);
  held_by_ = {"volume v by web"};
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  std::optional<absl::Status> drained;
  TaskScope scope(loop_.get_executor(), "test");
  scope.Spawn("drain", [](ExternalPlugin* plugin, std::optional<absl::Status>* result) -> Awaitable<void> {
    *result = co_await plugin->Drain(Soon());
  }(plugin_.get(), &drained));
  ASSERT_TRUE(RunUntil([this] { return Get().draining; }));
  EXPECT_TRUE(RunOn(loop_, plugin_->Start(Soon())).ok());
  EXPECT_FALSE(Get().draining);
  ASSERT_TRUE(RunUntil([&] { return drained.has_value(); }));
  EXPECT_EQ(drained->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(prober_->gone_, IsEmpty()) << "it was used all the time";
  RunOn(loop_, scope.Join());
}

TEST_F(ExternalPluginTest, IllHealthIsShownAndChangesNothing) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  plugin_->OnHealth(1, {.ok = false, .error = "UNAVAILABLE", .answered = false, .consecutive_failures = 3});
  EXPECT_EQ(Get().state, PluginState::kUnhealthy);
  EXPECT_EQ(Get().reason, "Probe: UNAVAILABLE");
  EXPECT_FALSE(Get().ready);
  plugin_->OnHealth(1, {.ok = true});
  EXPECT_EQ(Get().state, PluginState::kReady);
  plugin_->OnFacts(1, absl::FailedPreconditionError("it calls itself other.example now"), "");
  EXPECT_FALSE(Get().registered);
  EXPECT_THAT(Get().reason, HasSubstr("other.example"));
  EXPECT_THAT(Events(), AllOf(Contains("plugin.left"), Contains("plugin.refused")));
  EXPECT_TRUE(server.Runs());
}

TEST_F(ExternalPluginTest, ADisabledOneIsLeftAlone) {
  config_.enabled = false;
  const Server server(socket_);
  Begin();
  EXPECT_FALSE(RunUntil([&] { return server.accepted() > 0; }, milliseconds(50)));
  EXPECT_EQ(Get().state, PluginState::kStopped);
  EXPECT_THAT(Get().reason, HasSubstr("enabled = false"));
}

TEST_F(ExternalPluginTest, ItsViewOfTheVolumesIsHandedOn) {
  config_.volumes_path = "/csi/volumes";
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  EXPECT_EQ(prober_->newest_.volumes_path, "/csi/volumes");
  EXPECT_EQ(prober_->newest_.socket_path, socket_);
}

TEST_F(ExternalPluginTest, AnUnchangedFileTouchesNothing) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  const uint64_t version = registry_.version();
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kUnchanged);
  // Nor does a file of another name.
  config_.file = "/etc/berth/plugins.d/other.toml";
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kUnchanged);
  EXPECT_EQ(Get().instance, 1U);
  EXPECT_LE(registry_.version(), version + 1);
}

TEST_F(ExternalPluginTest, AChangedFileIsTakenOver) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  config_.health.interval = seconds(1);
  config_.volumes_path = "/csi";
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kUpdated);
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  EXPECT_EQ(prober_->newest_.health.interval, seconds(1));
  EXPECT_EQ(prober_->newest_.volumes_path, "/csi");
  EXPECT_EQ(Get().instance, 2U);
  EXPECT_THAT(prober_->gone_, ElementsAre(1));

  const std::string elsewhere = temp_.Path("there/other.sock");
  const Server second(elsewhere);
  config_.socket = elsewhere;
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kUpdated);
  ASSERT_TRUE(RunUntil([&] { return Registered() && Get().pid == second.pid(); })) << Get().reason;
  EXPECT_EQ(Get().socket_path, elsewhere);
}

TEST_F(ExternalPluginTest, ABrokenFileIsShownAndChangesNothing) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  const PluginFile broken{
      .path = config_.file, .id = "ext", .config = absl::InvalidArgumentError("ext.toml:4: x")};
  EXPECT_EQ(Reconfigure(broken).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Get().file_error, "ext.toml:4: x");
  EXPECT_TRUE(Registered());
  EXPECT_EQ(Get().instance, 1U);
  EXPECT_TRUE(Reconfigure(File(config_)).ok());
  EXPECT_EQ(Get().file_error, "");
}

TEST_F(ExternalPluginTest, AFileThatGoesIsWaitedForVolumes) {
  const Server server(socket_);
  held_by_ = {"volume v by web"};
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  const PluginFile none{.path = "", .id = "ext", .config = absl::NotFoundError("gone")};
  const absl::StatusOr<Reconfigured> refused = Reconfigure(none);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("volume v by web"));
  EXPECT_TRUE(Registered());
  held_by_.clear();
  EXPECT_EQ(*Reconfigure(none), Reconfigured::kStopped);
  EXPECT_TRUE(RunUntil([this] { return plugin_->gone(); }));
  EXPECT_EQ(registry_.Find("ext"), nullptr);
  EXPECT_TRUE(server.Runs());
}

TEST_F(ExternalPluginTest, ItIsDisabledAndEnabledByItsFile) {
  const Server server(socket_);
  Begin();
  ASSERT_TRUE(RunUntil([this] { return Registered(); }));
  config_.enabled = false;
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kStopped);
  EXPECT_EQ(Get().state, PluginState::kStopped);
  EXPECT_THAT(prober_->gone_, ElementsAre(1));
  EXPECT_EQ(RunOn(loop_, plugin_->Start(Soon())).code(), absl::StatusCode::kFailedPrecondition);
  config_.enabled = true;
  EXPECT_EQ(*Reconfigure(File(config_)), Reconfigured::kStarted);
  EXPECT_TRUE(RunUntil([this] { return Registered(); }));
}

}  // namespace
}  // namespace berth
