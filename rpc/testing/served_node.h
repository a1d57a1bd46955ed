// For tests only: a NodeServer over fakes on a real socket, with its loop on a thread of its own, so that the
// test's thread can be its client.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/testing/test_bound.h"
#include "berth/v1/node.grpc.pb.h"
#include "rpc/node_server.h"
#include "rpc/testing/fakes.h"
#include "rpc/testing/unix_client.h"

namespace berth {

class ServedNode {
 public:
  static constexpr gid_t kChangers = 4241;
  static constexpr gid_t kReaders = 4242;
  static constexpr gid_t kClaimers = 4243;
  static constexpr auto kBound = kTestBound;

  ServedNode() {
    chmod(directory_.c_str(), 0755);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~ServedNode() {
    if (!servers_.empty()) Shutdown(Clock::now());
    Await(drainer_.Shutdown());
    work_.reset();
    thread_.join();
    unlink((directory_ + "/node-drain.json").c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_;
  }
  ServedNode(const ServedNode&) = delete;
  ServedNode& operator=(const ServedNode&) = delete;

  // The options hold for each of the three sockets. `adopted`: in place of the one for changes.
  absl::Status Start(const NodeServerOptions& options = {},
                     std::optional<ListenSocket> adopted = std::nullopt) {
    return OnLoop([&]() -> absl::Status {
      for (const SocketAccess access : {SocketAccess{.right = Right::kChange, .group = kChangers},
                                        SocketAccess{.right = Right::kRead, .group = kReaders},
                                        SocketAccess{.right = Right::kClaim, .group = kClaimers}}) {
        NodeServerOptions one = options;
        one.directory = directory_;
        one.access = access;
        auto server = NodeServer::Start(loop_.get_executor(), std::move(one), api_,
                                        std::exchange(adopted, std::nullopt));
        if (!server.ok()) return server.status();
        servers_.push_back(*std::move(server));
      }
      return absl::OkStatus();
    });
  }
  // How long it took.
  Duration Shutdown(TimePoint grace) {
    const TimePoint began = Clock::now();
    for (auto& server : servers_) Await(server->Shutdown(grace));
    OnLoop([this] {
      servers_.clear();
      return true;
    });
    return Clock::now() - began;
  }

  // Runs `work` on the loop's thread and returns what it returns.
  template <class Work>
  std::invoke_result_t<Work> OnLoop(Work work) {
    std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
    auto result = task.get_future();
    asio::post(loop_, [&task] { task(); });
    if (result.wait_for(kBound) != std::future_status::ready) Fail("the loop does not run");
    return result.get();
  }
  void Await(Awaitable<void> work) {
    auto result = asio::co_spawn(loop_, std::move(work), asio::use_future);
    if (result.wait_for(kBound) != std::future_status::ready) Fail("the work does not end");
    result.get();
  }
  // Waits until `holds`, asked on the loop's thread, says so; false at the bound.
  [[nodiscard]] bool Eventually(std::function<bool()> holds) {
    std::promise<bool> told;
    asio::co_spawn(loop_, Poll(std::move(holds), Clock::now() + kTestBound),
                   [&told](const std::exception_ptr&, bool held) { told.set_value(held); });
    return told.get_future().get();
  }

  [[nodiscard]] std::string path(Right right = Right::kChange) const {
    return fmt::format("{}/{}", directory_, SocketName(right));
  }
  // On all sockets.
  [[nodiscard]] size_t connections() const {
    size_t count = 0;
    for (const auto& server : servers_) count += server->connections();
    return count;
  }
  // For OnLoop.
  NodeServer& server(Right right) {
    for (auto& each : servers_) {
      if (each->access().right == right) return *each;
    }
    Fail("there is no such socket");
  }

  // A client over `connection`, which was made by ConnectTo or ConnectAs.
  static std::unique_ptr<v1::Node::Stub> Client(UniqueFd connection) {
    EXPECT_TRUE(connection.valid());
    fcntl(connection.get(), F_SETFL, fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
    return v1::Node::NewStub(grpc::CreateInsecureChannelFromFd("berthd", connection.Release()));
  }
  [[nodiscard]] std::unique_ptr<v1::Node::Stub> Root() const { return Client(ConnectTo(path())); }
  [[nodiscard]] std::unique_ptr<v1::Node::Stub> Reader() const {
    return Client(ConnectAs(path(Right::kRead), 65534, kReaders));
  }

  [[nodiscard]] std::unique_ptr<v1::Node::Stub> Claimer() const {
    return Client(ConnectAs(path(Right::kClaim), 65534, kClaimers));
  }

  // For OnLoop and Eventually only.
  FakePluginControl& control() { return control_; }
  FakeMounter& mounter() { return mounter_; }
  FakeScheduler& scheduler() { return scheduler_; }
  EventLog& events() { return events_; }

  // What WatchLog serves: for InitLog, before Start.
  [[nodiscard]] const std::shared_ptr<LogFeed>& log() const { return log_; }

 private:
  static Awaitable<bool> Poll(std::function<bool()> holds, TimePoint deadline) {
    while (!holds()) {
      if (Clock::now() >= deadline) co_return false;
      co_await SleepUntil(Clock::now() + std::chrono::milliseconds(2));
    }
    co_return true;
  }
  [[noreturn]] static void Fail(const char* why) {
    ADD_FAILURE() << why;
    std::abort();
  }

  static std::string MakeDirectory() {
    char name[] = "/tmp/berth-rpc-XXXXXX";
    return mkdtemp(name);
  }

  std::string directory_ = MakeDirectory();
  asio::io_context loop_;
  FakePluginControl control_;
  FakeControllerDirectory controllers_{control_};
  FakeMounter mounter_{loop_.get_executor()};
  ControllerAccess access_{loop_.get_executor(), controllers_, mounter_};
  ControllerCalls calls_{loop_.get_executor(), access_, mounter_};
  FakeDeclared declared_;
  FakeScheduler scheduler_{loop_.get_executor()};
  EventLog events_{loop_.get_executor(), 100};
  NodeDrainer drainer_{loop_.get_executor(), directory_ + "/node-drain.json", mounter_, events_};
  std::shared_ptr<LogFeed> log_ = std::make_shared<LogFeed>();
  NodeApi api_{{.node_id = "n1"},
               {.control = control_,
                .access = access_,
                .controller_calls = calls_,
                .mounter = mounter_,
                .declared = declared_,
                .drainer = drainer_,
                .scheduler = scheduler_,
                .events = events_},
               log_};
  std::vector<std::unique_ptr<NodeServer>> servers_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{loop_.get_executor()};
  std::thread thread_;
};

}  // namespace berth
