// For tests only: what the tests of a served node share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <future>
#include <string>
#include <utility>

#include "rpc/testing/served_node.h"

namespace berth {

inline constexpr uid_t kNobody = 65534;

// A call; the test waits for its end under a bound, whatever the server does.
struct Call {
  grpc::ClientContext context;
  Call() { context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(25)); }
};

inline grpc::Status GetStatus(v1::Node::Stub& stub) {
  Call call;
  v1::GetStatusResponse response;
  return stub.GetStatus(&call.context, {}, &response);
}

inline v1::PublishVolumeRequest PublishOf(const std::string& volume) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id(volume);
  request.set_consumer("job/1");
  request.mutable_capability()->add_mount_flags("password=hush");
  return request;
}

inline grpc::Status Publish(v1::Node::Stub& stub, const std::string& volume) {
  Call call;
  v1::PublishVolumeResponse response;
  return stub.PublishVolume(&call.context, PublishOf(volume), &response);
}

class NodeServerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, to connect as others";
    node_.OnLoop([this] { return node_.control().Add("p").ready; });
  }
  void Start(NodeServerOptions options = {}) {
    const absl::Status started = node_.Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started;
  }
  // Each event is a line of berthd's log, too: a flood of them would be all that ctest's log holds.
  void Append(int count, const std::string& message = "m") {
    node_.OnLoop([&] {
      spdlog::logger& log = *spdlog::default_logger_raw();
      const auto level = log.level();
      log.set_level(spdlog::level::off);
      for (int i = 0; i < count; ++i) node_.events().Append({.type = "t", .message = message});
      log.set_level(level);
      return true;
    });
  }
  // Begins a publish that hangs, on a thread of its own.
  std::future<grpc::Status> HangingPublish(v1::Node::Stub& stub, grpc::ClientContext* context) {
    node_.OnLoop([this] { return node_.mounter().hang = true; });
    auto result = std::async(std::launch::async, [&stub, context] {
      v1::PublishVolumeResponse response;
      return stub.PublishVolume(context, PublishOf("v"), &response);
    });
    EXPECT_TRUE(node_.Eventually([this] { return node_.mounter().publishing == 1; }));
    return result;
  }

  ServedNode node_;
};

}  // namespace berth
