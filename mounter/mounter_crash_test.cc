// berthd killed with SIGKILL at every boundary between it, the journal and the plugin: the next one must come
// to the same end.
//
// The berthd that dies is this program run again (testing/crash_child.h), in the same mount namespace and
// with the same plugin, which runs on in the test's process and remembers what it did.
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/safe_path.h"
#include "base/sanitizer.h"
#include "mounter/testing/crash_child.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// What berthd is in the middle of when it dies.
//
//   publish  two uses of one volume begin
//   round    and end
//   secrets  they take secrets that a reference leads to
//   expand   and an expansion is pending
//   remount  and one is unmounted by others, and mounted again
//   forced   and both are unpublished by force
//   path     they are mounted at paths of their own, and one of them moves to another
//   pending  as round, of a volume with a pending expansion, which fails
// Where the scenario "path" mounts the volume too; set before anything is requested.
std::string& PathsDirectory() {
  static std::string directory;
  return directory;
}
std::string PathFor(const std::string& consumer) { return PathsDirectory() + "/at-" + consumer; }

PublishRequest ChildRequest(const std::string& consumer, const std::string& scenario) {
  PublishRequest request;
  request.plugin_id = "hp";
  request.volume_id = "v1";
  request.consumer = consumer;
  request.remount = scenario == "remount";
  if (scenario == "path") {
    request.origin = Origin::kDeclared;
    request.path.path = PathFor(consumer);
  }
  if (scenario == "secrets") {
    request.secrets_reference.set_credential("token");
  }
  return request;
}

UnpublishRequest ChildUndo(const std::string& consumer, const std::string& scenario) {
  UnpublishRequest undo;
  undo.plugin_id = "hp";
  undo.volume_id = "v1";
  undo.consumer = consumer;
  undo.force = scenario == "forced";
  return undo;
}

// Everything is published, as the mounter and the kernel say.
bool AllPublished(const Mounter& mounter) {
  const auto view = mounter.Find("hp", "v1");
  return view && !view->uncertain && std::ranges::all_of(view->publications, [](const PublicationView& p) {
           return p.state == PublicationState::kPublished && LookAt(p.target_path)->mount_root;
         });
}

bool Ends(const std::string& scenario) {
  return scenario == "round" || scenario == "forced" || scenario == "pending";
}

bool DoScenario(LoopRunner& loop, Mounter& mounter, const std::string& scenario) {
  const TimePoint soon = Clock::now() + std::chrono::seconds(15);
  bool ok = true;
  for (const char* consumer : {"web", "db"}) {
    ok = loop.Run(mounter.Publish(ChildRequest(consumer, scenario), soon)).ok() && ok;
  }
  if (scenario == "expand") {
    ok = loop.Run(mounter.SetPendingExpansion("hp", "v1", 1 << 20)).ok() && ok;
    ok = loop.RunUntil([&] { return mounter.Find("hp", "v1")->pending_expansion_bytes == 0; }) && ok;
  }
  if (scenario == "remount") {
    const std::string target = mounter.Find("hp", "v1")->publications.at(0).target_path;
    ok = umount2(target.c_str(), UMOUNT_NOFOLLOW) == 0 && ok;
    ok = loop.RunUntil([&] { return AllPublished(mounter); }) && ok;
  }
  if (scenario == "path") {
    PublishRequest moved = ChildRequest("web", scenario);
    moved.path.path = PathFor("moved");
    ok = loop.Run(mounter.Publish(moved, soon)).ok() && ok;
    // And back: the directory that was left is free again.
    ok = loop.Run(mounter.Publish(ChildRequest("web", scenario), soon)).ok() && ok;
    const auto view = mounter.Find("hp", "v1");
    for (const PublicationView& p : view->publications) ok = p.path_mounted && ok;
  }
  if (Ends(scenario)) {
    for (const char* consumer : {"web", "db"}) {
      ok = loop.Run(mounter.Unpublish(ChildUndo(consumer, scenario), soon)).ok() && ok;
    }
  }
  return ok;
}

class MounterCrashTest : public MounterTestBase, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    options_.credentials_dir = directory_;
    PathsDirectory() = directory_;
    std::ofstream(directory_ + "/token") << "k=hunter2\n";
    ASSERT_EQ(chmod((directory_ + "/token").c_str(), 0400), 0);
  }

  // Before the volume is here; until the faults are cleared the plugin refuses it.
  void SetExpansionAndClose() {
    Open();
    ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
    Close();
    plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  }

  // Runs the child; true if it was killed at the boundary, false if there are fewer.
  [[nodiscard]] bool KillAt(int boundary) const {
    const std::string self = "/proc/self/exe";
    const std::string count = std::to_string(boundary);
    const pid_t child = fork();
    if (child == 0) {
      execl(self.c_str(), "mounter_test", "crash-child", options_.state_dir.c_str(),
            plugin_.socket_path().c_str(), GetParam(), count.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return false;
    }
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }

  [[nodiscard]] std::vector<Mount> MountsAt(const std::string& name) const {
    auto mounts = MountsBeneath(fmt::format("{}/{}", directory_, name), 100);
    EXPECT_TRUE(mounts.ok()) << mounts.status();
    return mounts.ok() ? *std::move(mounts) : std::vector<Mount>();
  }

  [[nodiscard]] bool Settled() const {
    for (const VolumeView& view : mounter_->List({})) {
      if (view.stage_state == StageState::kStaging || view.stage_state == StageState::kUnstaging)
        return false;
      for (const PublicationView& publication : view.publications) {
        if (publication.state != PublicationState::kPublished) return false;
      }
    }
    return true;
  }
};

TEST_P(MounterCrashTest, ComesToTheSameEndFromEveryBoundary) {
  const std::string scenario = GetParam();
  // The sanitizers make each helper process slow to start: every third boundary then.
  constexpr int kStep = kAddressSanitizer ? 3 : 1;
  int boundary = 1;
  for (bool killed = true; killed; boundary += kStep) {
    SCOPED_TRACE(fmt::format("boundary {}", boundary));
    if (scenario == "pending") SetExpansionAndClose();
    killed = KillAt(boundary);
    const int expansions = plugin_.Calls("NodeExpandVolume");
    plugin_.ClearFaults();
    Open();
    ASSERT_TRUE(loop_.RunUntil([&] { return Settled(); })) << View().last_error;
    // The caller got no answer, and asks again.
    ASSERT_TRUE(DoScenario(loop_, *mounter_, scenario));
    if (scenario == "pending") {
      EXPECT_GT(plugin_.Calls("NodeExpandVolume"), expansions) << "it was forgotten";
    }
    if (!Ends(scenario)) {
      EXPECT_EQ(View().publications.size(), 2U);
      EXPECT_FALSE(View().uncertain);
      for (const PublicationView& publication : View().publications) {
        EXPECT_TRUE(LookAt(publication.target_path)->mount_root);
      }
      if (scenario == "path") {
        EXPECT_THAT(MountsAt("at-web"), SizeIs(1));
        EXPECT_THAT(MountsAt("at-db"), SizeIs(1));
        EXPECT_THAT(MountsAt("moved"), IsEmpty());
      }
      EXPECT_EQ(plugin_.PublishedCount(), 2U);
      EXPECT_EQ(plugin_.StagedCount(), 1U);
      for (const char* consumer : {"web", "db"}) {
        const auto unpublished = Unpublish(ChildRequest(consumer, scenario));
        ASSERT_TRUE(unpublished.ok()) << unpublished.status();
      }
    }
    EXPECT_TRUE(Gone());
    for (const char* name : {"at-web", "at-db"}) EXPECT_THAT(MountsAt(name), IsEmpty());
    EXPECT_EQ(plugin_.PublishedCount() + plugin_.StagedCount(), 0U);
    Close();
    // Not one directory is left of it.
    EXPECT_FALSE(IsMounted(options_.state_dir + "/volumes")) << "an empty tree is unmounted";
    EXPECT_TRUE(std::filesystem::is_empty(options_.state_dir + "/volumes"));
    EXPECT_TRUE(std::filesystem::is_empty(options_.state_dir + "/identities"));
    ASSERT_THAT(plugin_.Breaches(), IsEmpty());
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(boundary, 12) << "the scenario has that many boundaries at least";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, MounterCrashTest,
                         ::testing::Values("publish", "round", "secrets", "expand", "remount", "forced",
                                           "path", "pending"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace

int RunCrashChild(int argc, char** argv) {
  if (argc != 6) return 2;
  LoopRunner loop;
  EventLog events(loop.executor(), 1000, 1);
  TestDirectory plugins(loop.executor(), argv[3]);
  MounterOptions options;
  options.state_dir = argv[2];
  options.helper_path = BERTH_MOUNT_HELPER;
  options.credentials_dir = std::filesystem::path(argv[2]).parent_path();
  PathsDirectory() = std::filesystem::path(argv[2]).parent_path();
  int left = std::atoi(argv[5]);
  options.at_boundary = [&left](std::string_view) {
    if (--left == 0) kill(getpid(), SIGKILL);
  };
  auto mounter = Mounter::Open(loop.executor(), options, plugins, events);
  if (!mounter.ok() || !loop.Run((*mounter)->Recover()).ok()) return 3;
  const bool done = DoScenario(loop, **mounter, argv[4]);
  loop.RunVoid((*mounter)->Shutdown(Clock::now() + std::chrono::seconds(5)));
  return done ? 0 : 4;
}

}  // namespace berth
