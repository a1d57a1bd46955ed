// For tests of what a volume's steps consist of: a MounterContext on a state directory of its own, without a
// Mounter, and a record of one volume, which a fake plugin behind a real socket mounts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/status.h"
#include "base/testing/loop_runner.h"
#include "base/testing/test_area.h"
#include "mounter/mounter_context.h"
#include "mounter/testing/fake_node.h"
#include "mounter/testing/test_directory.h"
#include "mounter/volume_record.h"
#include "mounter/volume_rpcs.h"
#include "mounts/mount_tree.h"

namespace berth {

class ContextTestBase : public ::testing::Test {
 protected:
  ContextTestBase() {
    plugin_.Start();
    record_.plugin_id = "hp";
    record_.volume_id = "v1";
    record_.stages = true;
    publication_.key = {.consumer = "web", .name = ""};
    publication_.component = VolumePaths::PublicationComponent(publication_.key);
  }

  void SetUp() override {
    const std::string tree = VolumePaths::TreeIn(directory_);
    auto journal = Journal::Open(loop_.executor(), {.path = directory_ + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_TRUE(SetUpMountTree(tree).ok());
    auto paths = VolumePaths::Open(directory_);
    ASSERT_TRUE(paths.ok()) << paths.status();
    MounterOptions options;
    options.state_dir = directory_;
    options.helper_path = BERTH_MOUNT_HELPER;
    context_ = std::make_unique<MounterContext>(loop_.executor(), std::move(options), plugins_, events_,
                                                *std::move(journal), *std::move(paths));
    context_->same_volumes = [](const VolumeRecord& /*record*/) {
      return std::vector<const VolumeRecord*>();
    };
    context_->leaves = [](const VolumeRecord& /*record*/) {};
    context_->volumes_through = [](const std::string& /*plugin_id*/) { return size_t{0}; };
    context_->uses = [](const std::string& /*consumer*/, const std::string& /*key*/, bool /*used*/) {};
    context_->consumer_ended = [](const std::string& /*consumer*/, const std::string& /*cause*/,
                                  Origin /*origin*/) {};
    context_->recorded_mounts = [](const std::set<dev_t>& /*devices*/) { return std::vector<uint64_t>(); };
    ASSERT_EQ(context_->paths->Make(record_, publication_), absl::OkStatus());
  }

  void TearDown() override {
    plugin_.Release();
    if (context_ == nullptr) return;
    context_->stopping = true;
    loop_.RunVoid(context_->consumers.Shutdown());
    loop_.RunVoid(context_->scope.Join());
    context_.reset();
    EXPECT_THAT(plugin_.Breaches(), ::testing::IsEmpty());
  }

  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(15); }

  // The plugin stages the volume and publishes it, and the record says so.
  void StageAndPublish() {
    const auto client = plugins_.Find("hp")->client;
    ASSERT_TRUE(loop_.Run(client->NodeStageVolume(StageRequest(record_, *context_->paths, {}), Soon())).ok());
    record_.stage_state = StageState::kStaged;
    record_.staging_mount_id = context_->paths->LookAtStaged(record_)->mount_id;
    auto request = NodePublishRequest(record_, publication_, *context_->paths, {});
    ASSERT_TRUE(loop_.Run(client->NodePublishVolume(std::move(request), Soon())).ok());
    publication_.state = PublicationState::kPublished;
    publication_.mount_id = context_->paths->LookAtTarget(record_, publication_)->mount_id;
    record_.publications = {publication_};
  }
  [[nodiscard]] std::string Target() const { return context_->paths->TargetPath(record_, publication_); }
  [[nodiscard]] bool TargetIsMounted() const {
    return context_->paths->LookAtTarget(record_, publication_)->mount_root;
  }
  [[nodiscard]] std::vector<Event> Events(const std::string& type) const {
    std::vector<Event> events;
    for (const Event& event : events_.After(0, 10'000).events) {
      if (event.type == type) events.push_back(event);
    }
    return events;
  }

  LoopRunner loop_;
  std::string directory_ = NewTestDirectory();
  EventLog events_{loop_.executor(), 10'000, 1};
  FakeNode plugin_{directory_ + "/csi.sock", directory_};
  TestDirectory plugins_{loop_.executor(), directory_ + "/csi.sock"};
  VolumeRecord record_;
  PublicationRecord publication_;
  std::unique_ptr<MounterContext> context_;
};

}  // namespace berth
