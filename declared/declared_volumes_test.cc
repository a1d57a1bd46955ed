// Declared volumes on real files, with a mounter that keeps its books in memory and a controller on a real
// socket.
#include "declared/declared_volumes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <memory>

#include "base/status.h"
#include "base/testing/loop_runner.h"
#include "base/testing/temp_dir.h"
#include "csi/testing/fake_plugin.h"
#include "rpc/testing/fakes.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
using ControllerRpc = ::csi::v1::ControllerServiceCapability::RPC;
using Service = ::csi::v1::PluginCapability::Service;

// Publications, each by itself.
class Books final : public FakeMounter {
 public:
  Books(asio::any_io_executor executor, EventLog* events)
      : FakeMounter(executor), events_(events), go_(std::move(executor)) {}

  std::vector<std::string> calls;  // "publish V C", "unpublish V C"
  std::deque<absl::Status> publish_errors;
  PublishRequest last;
  bool hangs = false;

  void Go() {
    hangs = false;
    go_.NotifyAll();
  }

  void Add(const PublishRequest& request) {
    VolumeView* view = nullptr;
    for (VolumeView& each : volumes) {
      if (each.plugin_id == request.plugin_id && each.volume_id == request.volume_id) view = &each;
    }
    if (view == nullptr) {
      view = &volumes.emplace_back();
      view->plugin_id = request.plugin_id;
      view->volume_id = request.volume_id;
    }
    for (const PublicationView& each : view->publications) {
      if (each.consumer == request.consumer && each.name == request.name) return;
    }
    view->publications.push_back({.consumer = request.consumer,
                                  .name = request.name,
                                  .state = PublicationState::kPublished,
                                  .origin = request.origin});
  }

  Awaitable<absl::StatusOr<std::string>> Publish(PublishRequest request, TimePoint deadline) override {
    calls.push_back("publish " + request.volume_id + " " + request.consumer);
    last = request;
    if (hangs) {
      auto go = [this] { return !hangs; };
      if (!co_await go_.WaitUntil(std::move(go), deadline)) co_return absl::DeadlineExceededError("hangs");
    }
    if (!publish_errors.empty()) {
      const absl::Status error = publish_errors.front();
      publish_errors.pop_front();
      co_return error;
    }
    Add(request);
    Emit(request.volume_id);
    co_return "/target";
  }
  Awaitable<absl::StatusOr<UnpublishResult>> Unpublish(UnpublishRequest request, TimePoint) override {
    calls.push_back("unpublish " + request.volume_id + " " + request.consumer);
    Remove(request.volume_id, request.consumer);
    Emit(request.volume_id);
    co_return UnpublishResult{.was_published = true};
  }
  // By whomever.
  void Remove(const std::string& volume_id, const std::string& consumer) {
    for (VolumeView& view : volumes) {
      if (view.volume_id != volume_id) continue;
      std::erase_if(view.publications,
                    [&](const PublicationView& each) { return each.consumer == consumer; });
    }
    std::erase_if(volumes, [](const VolumeView& view) { return view.publications.empty(); });
  }
  void Emit(const std::string& volume_id) {
    events_->Append({.type = "volume.test", .volume_id = volume_id, .message = "something happened"});
  }

 private:
  EventLog* events_;
  Condition go_;
};

class Controllers final : public ControllerDirectory {
 public:
  Controllers(asio::any_io_executor executor, const FakePluginControl& control)
      : changed_(std::move(executor)), control_(control) {}

  std::shared_ptr<CsiClient> client;

  const std::map<std::string, PluginSnapshot>& plugins() const override { return control_.plugins(); }
  std::shared_ptr<CsiClient> ClientOf(const std::string& /*plugin_id*/) override { return client; }
  Awaitable<void> WaitChange(TimePoint deadline) override {
    const uint64_t seen = version_;
    auto changed = [this, seen] { return version_ != seen; };
    [[maybe_unused]] const bool woken = co_await changed_.WaitUntil(std::move(changed), deadline);
  }
  void Change() {
    ++version_;
    changed_.NotifyAll();
  }

 private:
  uint64_t version_ = 0;
  Condition changed_;
  const FakePluginControl& control_;
};

class DeclaredVolumesTest : public testing::Test {
 protected:
  DeclaredVolumesTest() {
    std::filesystem::create_directories(dir_.Path("etc/volumes.d"));
    std::filesystem::create_directories(dir_.Path("state"));
    plugin_.Start();
    controllers_.client = CsiClient::Connect(plugin_.socket_path());
    control_.Add("nfs").facts->node_id = "node-7";
  }
  ~DeclaredVolumesTest() override { End(); }

  void Write(const std::string& name, const std::string& text) { dir_.Write("etc/volumes.d/" + name, text); }
  void Declare(const std::string& name, const std::string& volume, const std::string& more = "") {
    Write(name + ".toml", "plugin = \"nfs\"\nvolume = \"" + volume + "\"\n" + more);
  }
  void Withdraw(const std::string& name) { dir_.Remove("etc/volumes.d/" + name + ".toml"); }

  // As berthd's start and its end, orderly or not: nothing is released by either.
  void Begin() {
    declared_ = std::make_unique<DeclaredVolumes>(
        loop_.executor(), DeclaredOptions{.config_dir = dir_.Path("etc"), .state_dir = dir_.Path("state")},
        books_, controllers_, access_, events_);
    EXPECT_EQ(loop_.Run(declared_->Start()), absl::OkStatus());
  }
  void End() {
    if (declared_ == nullptr) return;
    loop_.RunVoid(declared_->Shutdown());
    declared_.reset();
  }
  static UnpublishRequest ByHand(const std::string& volume, const std::string& consumer) {
    return {.plugin_id = "nfs", .volume_id = volume, .consumer = consumer};
  }
  // The keeper of a volume is woken many times.
  void LetEventsPass() {
    for (int i = 0; i < 10; ++i) {
      books_.Emit("v1");
      Spin();
    }
  }
  void Spin() {
    EXPECT_FALSE(loop_.RunUntil([] { return false; }, std::chrono::milliseconds(10)));
  }
  DeclaredReload Reload() {
    auto report = loop_.Run(declared_->Reload(Clock::now() + std::chrono::seconds(15)));
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(DeclaredReload{});
  }
  [[nodiscard]] std::string StateOf(const std::string& name) {
    for (const DeclaredView& view : declared_->List()) {
      if (!view.file.ends_with("/" + name + ".toml")) continue;
      return view.state == "waiting" ? "waiting: " + view.last_error : view.state;
    }
    return "none";
  }
  [[nodiscard]] bool Becomes(const std::string& name, const std::string& state) {
    return loop_.RunUntil([&] { return StateOf(name).starts_with(state); });
  }
  [[nodiscard]] size_t Notes() const {
    const std::filesystem::path notes = dir_.Path("state/declared");
    if (!std::filesystem::exists(notes)) return 0;
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(notes), {}));
  }
  // The plugin attaches volumes from now on.
  void NeedAttach() {
    PluginFacts& facts = *control_.plugins_by_id["nfs"].facts;
    facts.plugin_services.insert(Service::CONTROLLER_SERVICE);
    facts.controller_capabilities.insert(ControllerRpc::PUBLISH_UNPUBLISH_VOLUME);
    ::csi::v1::ControllerPublishVolumeResponse attached;
    (*attached.mutable_publish_context())["device"] = "/dev/x";
    plugin_.Answer("ControllerPublishVolume", attached);
    plugin_.Answer("ControllerUnpublishVolume", ::csi::v1::ControllerUnpublishVolumeResponse());
  }

  TempDir dir_;
  LoopRunner loop_;
  FakePlugin plugin_{dir_.Path("csi.sock")};
  EventLog events_{loop_.executor(), 1000};
  Books books_{loop_.executor(), &events_};
  FakePluginControl control_;
  Controllers controllers_{loop_.executor(), control_};
  ControllerAccess access_{loop_.executor(), controllers_, books_};
  std::unique_ptr<DeclaredVolumes> declared_;
};

TEST_F(DeclaredVolumesTest, PublishedWithoutACallAndReleasedWithItsFile) {
  Declare("data", "v1", "readonly = true\n");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_THAT(books_.calls, ElementsAre("publish v1 declared/data"));
  EXPECT_EQ(books_.last.origin, Origin::kDeclared);
  EXPECT_TRUE(books_.last.readonly);
  EXPECT_FALSE(books_.last.publish_context.has_value());
  EXPECT_EQ(Notes(), 1);
  Withdraw("data");
  EXPECT_THAT(Reload().withdrawn, ElementsAre("data.toml"));
  EXPECT_TRUE(Becomes("data", "none"));
  EXPECT_THAT(books_.calls, ElementsAre("publish v1 declared/data", "unpublish v1 declared/data"));
  EXPECT_EQ(Notes(), 0);
}

TEST_F(DeclaredVolumesTest, WaitsForItsPlugin) {
  control_.plugins_by_id["nfs"].registered = false;
  Declare("data", "v1");
  Declare("other", "v2", "");
  Write("unknown.toml", "plugin = \"missing\"\nvolume = \"v3\"\n");
  Begin();
  ASSERT_TRUE(Becomes("data", "waiting: plugin nfs is"));
  EXPECT_THAT(StateOf("unknown"), HasSubstr("missing"));
  EXPECT_THAT(books_.calls, IsEmpty());
  control_.plugins_by_id["nfs"].registered = true;
  controllers_.Change();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_TRUE(Becomes("other", "published"));
  EXPECT_EQ(Notes(), 2);
}

TEST_F(DeclaredVolumesTest, NamedByTheDriver) {
  Write("data.toml", "plugin = \"driver.test\"\nvolume = \"v1\"\n");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.last.plugin_id, "nfs");
}

TEST_F(DeclaredVolumesTest, TriedAgainAndShownMeanwhile) {
  books_.publish_errors = {absl::InternalError("mkfs failed"), absl::InternalError("mkfs failed")};
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "retrying"));
  const DeclaredView view = declared_->List().at(0);
  EXPECT_EQ(view.last_error, "mkfs failed");
  EXPECT_TRUE(view.next_retry_at.has_value());
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 3);
  EXPECT_EQ(declared_->List().at(0).last_error, "");
}

TEST_F(DeclaredVolumesTest, ANewBerthdPublishesNothingTwice) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  End();
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 1);
}

TEST_F(DeclaredVolumesTest, FileThatWentMeanwhileIsReleasedAtTheStart) {
  NeedAttach();
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  End();
  Withdraw("data");
  Begin();
  ASSERT_TRUE(Becomes("data", "none"));
  EXPECT_EQ(books_.calls.back(), "unpublish v1 declared/data");
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 1);
  EXPECT_EQ(Notes(), 0);
}

TEST_F(DeclaredVolumesTest, DeclaredPublicationWithoutANoteIsReleasedAtTheStart) {
  PublishRequest request;
  request.plugin_id = "nfs";
  request.volume_id = "v9";
  request.consumer = "declared/lost";
  request.origin = Origin::kDeclared;
  books_.Add(request);
  request.consumer = "web";
  request.origin = Origin::kCaller;
  books_.Add(request);
  Begin();
  EXPECT_TRUE(loop_.RunUntil([&] { return !books_.calls.empty(); }));
  EXPECT_THAT(books_.calls, ElementsAre("unpublish v9 declared/lost"));
}

TEST_F(DeclaredVolumesTest, AttachedFirstAndDetachedLast) {
  NeedAttach();
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  ::csi::v1::ControllerPublishVolumeRequest attach;
  ASSERT_TRUE(plugin_.LastRequest("ControllerPublishVolume", &attach));
  EXPECT_EQ(attach.volume_id(), "v1");
  EXPECT_EQ(attach.node_id(), "node-7");
  ASSERT_TRUE(books_.last.publish_context.has_value());
  EXPECT_EQ(books_.last.publish_context->at("device"), "/dev/x");
  Withdraw("data");
  Reload();
  ASSERT_TRUE(Becomes("data", "none"));
  ::csi::v1::ControllerUnpublishVolumeRequest detach;
  ASSERT_TRUE(plugin_.LastRequest("ControllerUnpublishVolume", &detach));
  EXPECT_EQ(detach.node_id(), "node-7");
  EXPECT_EQ(books_.calls.back(), "unpublish v1 declared/data");
}

TEST_F(DeclaredVolumesTest, WhatIsMountedWithoutARecordStaysAttached) {
  NeedAttach();
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.unrecorded = {{"nfs", "v1"}};
  Withdraw("data");
  Reload();
  EXPECT_TRUE(loop_.RunUntil([&] {
    return declared_->List().size() == 1 &&
           declared_->List().at(0).last_error.find("no record") != std::string::npos;
  }));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 0);
  books_.unrecorded.clear();
  EXPECT_TRUE(Becomes("data", "none"));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 1);
}

TEST_F(DeclaredVolumesTest, AttachWhoseAnswerWasLostIsUndone) {
  NeedAttach();
  plugin_.Fail("ControllerPublishVolume", grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "retrying: attaching"));
  EXPECT_THAT(declared_->List().at(0).last_error, HasSubstr("ControllerPublishVolume: gone"));
  End();
  Withdraw("data");
  Begin();
  ASSERT_TRUE(Becomes("data", "none"));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 1);
  EXPECT_THAT(books_.calls, IsEmpty());
}

TEST_F(DeclaredVolumesTest, VolumeThatOthersUseStaysAttached) {
  NeedAttach();
  Declare("one", "v1");
  Declare("two", "v1");
  Begin();
  ASSERT_TRUE(Becomes("one", "published"));
  ASSERT_TRUE(Becomes("two", "published"));
  Withdraw("one");
  Reload();
  ASSERT_TRUE(Becomes("one", "none"));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 0) << "the other file declares it attached";
  PublishRequest caller;
  caller.plugin_id = "nfs";
  caller.volume_id = "v1";
  caller.consumer = "web";
  books_.Add(caller);
  Withdraw("two");
  Reload();
  ASSERT_TRUE(Becomes("two", "releasing: to be detached once web has left"));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 0);
  books_.Remove("v1", "web");
  books_.Emit("v1");
  EXPECT_TRUE(Becomes("two", "none"));
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 1);
}

TEST_F(DeclaredVolumesTest, NoControllerHereIsSaidInWords) {
  NeedAttach();
  control_.plugins_by_id["nfs"].facts->controller_capabilities.clear();
  Declare("data", "v1", "attach = true\n");
  Begin();
  EXPECT_TRUE(Becomes("data", "waiting: the volume must be attached: plugin nfs cannot attach volumes"));
  EXPECT_THAT(books_.calls, IsEmpty());
}

TEST_F(DeclaredVolumesTest, ChangedFileIsReleasedAndPublishedAnew) {
  Declare("data", "v1");
  Declare("other", "v2");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  ASSERT_TRUE(Becomes("other", "published"));
  books_.calls.clear();
  Declare("data", "v1", "readonly = true\n");
  Declare("other", "v2", "# the same\n");
  EXPECT_THAT(Reload().changed, ElementsAre("data.toml"));
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() == 2; }));
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_THAT(books_.calls, ElementsAre("unpublish v1 declared/data", "publish v1 declared/data"));
  EXPECT_TRUE(books_.last.readonly);
}

TEST_F(DeclaredVolumesTest, FileChangedMeanwhileIsPublishedAnewAtTheStart) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  End();
  Declare("data", "v1", "readonly = true\n");
  Begin();
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() == 3; }));
  EXPECT_TRUE(books_.last.readonly);
}

TEST_F(DeclaredVolumesTest, WhatTakesNoMountIsOnlyTold) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.publish_errors = {absl::AlreadyExistsError("differs")};
  Declare("data", "v1", "remount = false\n");
  EXPECT_THAT(Reload().changed, IsEmpty());
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() == 2; }));
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_THAT(books_.calls, ElementsAre("publish v1 declared/data", "publish v1 declared/data"));
}

TEST_F(DeclaredVolumesTest, BrokenFileUndoesNothing) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  Write("data.toml", "plugin = \n");
  EXPECT_THAT(Reload().broken, ElementsAre(HasSubstr("data.toml:1: not TOML")));
  EXPECT_THAT(declared_->List().at(0).error_in_file, HasSubstr("not TOML"));
  EXPECT_EQ(books_.calls.size(), 1);
  // Nor across a start, where nothing is known of it but the note.
  End();
  Begin();
  EXPECT_TRUE(Becomes("data", "left as it is"));
  ASSERT_THAT(declared_->List(), SizeIs(1));
  EXPECT_EQ(declared_->List().at(0).request.volume_id(), "v1") << "as the note has it";
  EXPECT_THAT(declared_->List().at(0).error_in_file, HasSubstr("not TOML"));
  EXPECT_EQ(books_.calls.size(), 1);
  Declare("data", "v1");
  Reload();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 1);
}

TEST_F(DeclaredVolumesTest, DirectoryThatVanishedUndoesNothing) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  const std::string directory = dir_.Path("etc/volumes.d");
  std::filesystem::rename(directory, directory + ".away");
  EXPECT_TRUE(
      absl::IsNotFound(loop_.Run(declared_->Reload(Clock::now() + std::chrono::seconds(15))).status()));
  EXPECT_THAT(declared_->Problems(), ElementsAre(HasSubstr("left as they are")));
  End();
  Begin();
  EXPECT_THAT(declared_->Problems(), ElementsAre(HasSubstr("left as they are")));
  EXPECT_TRUE(Becomes("data", "left as it is"));
  std::filesystem::rename(directory + ".away", directory);
  Reload();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_THAT(declared_->Problems(), IsEmpty());
  EXPECT_EQ(books_.calls.size(), 1);
}

TEST_F(DeclaredVolumesTest, NoDirectoryDeclaresNothing) {
  std::filesystem::remove(dir_.Path("etc/volumes.d"));
  Begin();
  EXPECT_THAT(declared_->List(), IsEmpty());
  EXPECT_THAT(declared_->Problems(), IsEmpty());
  Reload();
}

TEST_F(DeclaredVolumesTest, ReleasedByHandItStaysAwayUntilAReload) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.Remove("v1", "declared/data");
  books_.Emit("v1");
  ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
  EXPECT_EQ(books_.calls.size(), 1);
  Reload();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 2);
}

// The plugin takes its time, and each event of the volume meanwhile wakes its keeper.
TEST_F(DeclaredVolumesTest, Fault45AnEventInTheMiddleOfARelease) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.volumes[0].publications[0].state = PublicationState::kUnpublishing;
  books_.Emit("v1");
  ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
  books_.Remove("v1", "declared/data");
  books_.Emit("v1");
  LetEventsPass();
  EXPECT_EQ(books_.calls.size(), 1);
  Reload();
  EXPECT_TRUE(Becomes("data", "published"));
}

TEST_F(DeclaredVolumesTest, ARepairIsNoRelease) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.volumes[0].publications[0].state = PublicationState::kUnpublishing;
  books_.volumes[0].publications[0].remount_after_undo = true;
  books_.Emit("v1");
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() > 1; })) << "joined";
}

TEST_F(DeclaredVolumesTest, Fault45WhatIsReleasedWhileItIsPublishedStaysReleased) {
  books_.hangs = true;
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() == 1; }));
  declared_->OnUnpublish(ByHand("v1", "declared/other"));
  LetEventsPass();
  EXPECT_EQ(StateOf("data"), "publishing") << "it was another's";
  declared_->OnUnpublish(ByHand("v1", "declared/data"));
  ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
  books_.Go();
  LetEventsPass();
  EXPECT_EQ(books_.calls.size(), 1);
}

TEST_F(DeclaredVolumesTest, AnUnpublishThatIsNotBegunReleasesNothing) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  declared_->OnUnpublish(ByHand("v1", "declared/data"));
  LetEventsPass();
  EXPECT_EQ(StateOf("data"), "published") << "its consumer was waited for in vain, say";
  End();
  Begin();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 1);
}

TEST_F(DeclaredVolumesTest, Fault45AReloadInTheMiddle) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  // Requested before the release, and done after it.
  Spin();
  const auto reload = loop_.Start(declared_->Reload(Clock::now() + std::chrono::seconds(15)));
  int handlers = 0;
  ASSERT_TRUE(loop_.RunUntil([&] { return handlers++ > 0; }));
  ASSERT_FALSE(reload->has_value()) << "the files are being read";
  declared_->OnUnpublish(ByHand("v1", "declared/data"));
  books_.Remove("v1", "declared/data");
  ASSERT_TRUE(loop_.RunUntil([&] { return reload->has_value(); }));
  ASSERT_TRUE((*reload)->ok()) << (*reload)->status();
  ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
  LetEventsPass();
  EXPECT_EQ(books_.calls.size(), 1);
  // Requested while it is being released: it is published once that is done.
  Reload();
  ASSERT_TRUE(Becomes("data", "published"));
  books_.volumes[0].publications[0].state = PublicationState::kUnpublishing;
  declared_->OnUnpublish(ByHand("v1", "declared/data"));
  Reload();
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.calls.size() == 3; }));
}

TEST_F(DeclaredVolumesTest, Fault45ItStaysReleasedOverARestartOfBerthd) {
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  declared_->OnUnpublish(ByHand("v1", "declared/data"));
  books_.Remove("v1", "declared/data");
  ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
  for (int starts = 0; starts < 2; ++starts) {
    End();
    Begin();
    ASSERT_TRUE(Becomes("data", "waiting: released, by hand"));
    LetEventsPass();
    EXPECT_EQ(books_.calls.size(), 1);
  }
  Reload();
  ASSERT_TRUE(Becomes("data", "published"));
  End();
  Begin();
  EXPECT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(books_.calls.size(), 2);
}

TEST_F(DeclaredVolumesTest, AllAreReleasedWithTheMachine) {
  NeedAttach();
  for (int i = 0; i < 20; ++i) Declare("d" + std::to_string(i), "v" + std::to_string(i));
  Begin();
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.volumes.size() == 20; }));
  books_.hangs = true;
  Declare("late", "late");
  Reload();
  ASSERT_TRUE(loop_.RunUntil([&] { return books_.last.volume_id == "late"; }));
  // Nor does one that hangs in its publish keep the machine.
  EXPECT_EQ(loop_.Run(declared_->ReleaseAll(Clock::now() + std::chrono::seconds(15))), 0);
  EXPECT_THAT(books_.volumes, IsEmpty());
  EXPECT_EQ(Notes(), 0);
  EXPECT_EQ(plugin_.Calls("ControllerUnpublishVolume"), 21);
  EXPECT_TRUE(absl::IsUnavailable(loop_.Run(declared_->Reload(Clock::now())).status()));
  books_.Go();
  // Declared as before for the next start.
  End();
  Begin();
  EXPECT_TRUE(loop_.RunUntil([&] { return books_.volumes.size() == 21; }));
}

TEST_F(DeclaredVolumesTest, WhatDoesNotLeaveIsCounted) {
  NeedAttach();
  plugin_.Fail("ControllerUnpublishVolume", grpc::Status(grpc::StatusCode::NOT_FOUND, "what node?"));
  Declare("data", "v1");
  Begin();
  ASSERT_TRUE(Becomes("data", "published"));
  EXPECT_EQ(loop_.Run(declared_->ReleaseAll(Clock::now() + std::chrono::milliseconds(300))), 1);
  EXPECT_EQ(Notes(), 1);
  std::string reported;
  for (const Event& event : events_.After(0, 10'000).events) {
    if (event.type == "volume.not_released") reported = event.message;
  }
  EXPECT_THAT(reported,
              AllOf(HasSubstr("declared in data.toml"), HasSubstr("detaching"), HasSubstr("what node?")));
}

// Mounter::Leave, without a release: a mere stop of berthd.
TEST_F(DeclaredVolumesTest, OnceAStopHasBegunNothingIsPublishedOrAttached) {
  NeedAttach();
  Begin();
  books_.BeginShutdown("berthd is stopping");
  Declare("data", "v1");
  Reload();
  ASSERT_TRUE(Becomes("data", "waiting"));
  EXPECT_THAT(books_.volumes, IsEmpty());
  EXPECT_EQ(Notes(), 0);
  EXPECT_EQ(plugin_.Calls("ControllerPublishVolume"), 0);
}

}  // namespace
}  // namespace berth
