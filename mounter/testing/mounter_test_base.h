// For tests: a Mounter on a state directory of its own, with one fake plugin behind a real socket.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/event_log.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "base/testing/loop_runner.h"
#include "base/testing/test_area.h"
#include "mounter/mounter.h"
#include "mounter/testing/fake_node.h"
#include "mounter/testing/test_directory.h"

namespace berth {

[[nodiscard]] inline bool IsMounted(const std::string& path) { return LookAt(path)->mount_root; }

class MounterTestBase : public ::testing::Test {
 protected:
  MounterTestBase() {
    plugin_.Start();
    options_.state_dir = directory_ + "/state";
    options_.helper_path = BERTH_MOUNT_HELPER;
    options_.rpc_timeout = std::chrono::seconds(20);
    options_.retry_limit = std::chrono::milliseconds(50);
  }

  void Open() {
    auto mounter = Mounter::Open(loop_.executor(), options_, plugins_, events_);
    ASSERT_TRUE(mounter.ok()) << mounter.status();
    mounter_ = *std::move(mounter);
    ASSERT_EQ(loop_.Run(mounter_->Recover()), absl::OkStatus());
  }

  // As an orderly end of berthd.
  void Close() {
    if (mounter_ == nullptr) return;
    loop_.RunVoid(mounter_->Shutdown(Clock::now() + std::chrono::seconds(5)));
    mounter_.reset();
  }

  void SetUp() override { Open(); }
  void TearDown() override {
    plugin_.Release();
    Close();
    EXPECT_THAT(plugin_.Breaches(), ::testing::IsEmpty());
  }

  static PublishRequest Request(const std::string& volume = "v1", const std::string& consumer = "web") {
    PublishRequest request;
    request.plugin_id = "hp";
    request.volume_id = volume;
    request.consumer = consumer;
    return request;
  }
  static UnpublishRequest Undo(const PublishRequest& request) {
    UnpublishRequest undo;
    undo.plugin_id = request.plugin_id;
    undo.volume_id = request.volume_id;
    undo.consumer = request.consumer;
    undo.name = request.name;
    return undo;
  }
  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(15); }
  // The deadline of a request that is to run into it: until then it has reached what it waits for, also on a
  // slow machine.
  static TimePoint Shortly() { return Clock::now() + std::chrono::seconds(1); }
  // The same for requests that are to wait: what follows a wait of this length finds them waiting.
  static constexpr Duration kAWhile = std::chrono::milliseconds(500);

  absl::StatusOr<std::string> Publish(const PublishRequest& request) {
    return loop_.Run(mounter_->Publish(request, Soon()));
  }
  absl::StatusOr<bool> Unpublish(const PublishRequest& request) {
    const auto result = loop_.Run(mounter_->Unpublish(Undo(request), Soon()));
    if (!result.ok()) return result.status();
    return result->was_published;
  }
  // berthd ends while a publish with secrets is in `rpc`, and is here again; the request is returned.
  PublishRequest CutOffWithSecrets(const std::string& rpc, Effect effect) {
    PublishRequest request = Request();
    request.secrets = {{"k", "hunter2"}};
    plugin_.HangNext(rpc, effect);
    const auto cut_off = loop_.Start(mounter_->Publish(request, Soon()));
    EXPECT_TRUE(loop_.RunUntil([&] { return plugin_.Calls(rpc) == 1; }));
    loop_.RunVoid(mounter_->Shutdown(Clock::now()));
    mounter_.reset();
    plugin_.Release();
    Open();
    return request;
  }
  [[nodiscard]] VolumeView View(const std::string& volume = "v1") {
    const auto view = mounter_->Find("hp", volume);
    return view ? *view : VolumeView{};
  }
  // Nothing is known of any volume any more, and nothing lies in the tree.
  [[nodiscard]] bool Gone() const { return mounter_->List({}).empty(); }
  [[nodiscard]] std::vector<std::string> EventTypes() const {
    std::vector<std::string> types;
    for (const Event& event : events_.After(0, 10'000).events) types.push_back(event.type);
    return types;
  }

  LoopRunner loop_;
  std::string directory_ = NewTestDirectory();
  EventLog events_{loop_.executor(), 10'000, 1};
  FakeNode plugin_{directory_ + "/csi.sock", directory_};
  TestDirectory plugins_{loop_.executor(), directory_ + "/csi.sock"};
  MounterOptions options_;
  std::unique_ptr<Mounter> mounter_;
};

}  // namespace berth
