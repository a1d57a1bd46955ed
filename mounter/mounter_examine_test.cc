// Explain and Examine, of volumes that are really mounted.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/file.h"
#include "base/safe_path.h"
#include "base/unique_fd.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_paths.h"
#include "mounts/immutable.h"
#include "mounts/testing/fuse_server.h"

namespace berth {

void PrintTo(const Finding& finding, std::ostream* out) {
  *out << finding.code << " for \"" << finding.consumer << "\": " << finding.text << " (" << finding.repair
       << ")";
}

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class MounterExamineTest : public MounterTestBase {
 protected:
  [[nodiscard]] std::vector<Finding> Examine(bool repair) {
    auto findings = loop_.Run(mounter_->Examine(repair, Soon()));
    EXPECT_TRUE(findings.ok()) << findings.status();
    if (!findings.ok()) return {};
    // Of the tests' own file system, which may have no immutable flag.
    std::erase_if(*findings, [](const Finding& finding) { return finding.code == "tree.unprotected"; });
    return *std::move(findings);
  }
};

TEST_F(MounterExamineTest, AWellVolumeIsExplainedAndHasNoFindings) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  const UniqueFd held(open(target->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto explained = loop_.Run(mounter_->Explain("hp", "v1", Soon()));
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->view.publications.size(), 1U);
  EXPECT_EQ(explained->journal_key, VolumePaths::VolumeKey("hp", "v1"));
  EXPECT_TRUE(explained->in_journal);
  EXPECT_THAT(explained->identity, HasSubstr("volume v1 of plugin hp"));
  EXPECT_THAT(explained->mounts, Contains(Field(&KernelMount::target, *target)));
  EXPECT_THAT(explained->holders, Contains(Field(&MountHolder::pid, getpid())));
  EXPECT_THAT(explained->rpcs, Contains(AllOf(Field(&RpcTrace::rpc, HasSubstr("NodePublishVolume")),
                                              Field(&RpcTrace::code, absl::StatusCode::kOk))));
  EXPECT_THAT(explained->remarks, ElementsAre("next: nothing is to be done"));
  EXPECT_THAT(Examine(false), IsEmpty());
  EXPECT_EQ(loop_.Run(mounter_->Explain("hp", "unknown", Soon())).status().code(),
            absl::StatusCode::kNotFound);
}

// The loop itself would wait for the file system, and so would everybody.
TEST_F(MounterExamineTest, AMountInsideAFileSystemThatHangsDoesNotHangTheExplanation) {
  ASSERT_EQ(mkdir(plugin_.DataPath("v1").c_str(), 0755), 0);
  auto fuse = FuseServer::Mount(plugin_.DataPath("v1"));
  ASSERT_TRUE(fuse.ok()) << fuse.status();
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  const std::string inside = *target + "/hello";
  std::ofstream(directory_ + "/file") << "x";
  ASSERT_EQ(mount((directory_ + "/file").c_str(), inside.c_str(), nullptr, MS_BIND, nullptr), 0);
  (*fuse)->Hang();
  std::promise<void> explained_promise;
  std::atomic<bool> hung = false;
  std::thread watchdog([&, explained = explained_promise.get_future()] {
    if (explained.wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
    hung = true;
    (*fuse)->Resume();
  });
  const auto explained = loop_.Run(mounter_->Explain("hp", "v1", Soon()));
  explained_promise.set_value();
  watchdog.join();
  EXPECT_FALSE(hung);
  ASSERT_TRUE(explained.ok()) << explained.status();
  const auto at = [](const std::string& path, const auto& id) {
    return Contains(AllOf(Field(&KernelMount::target, path), Field(&KernelMount::id, id)));
  };
  EXPECT_THAT(explained->mounts, at(*target, Gt(0U)));
  EXPECT_THAT(explained->mounts, at(inside, 0U));
  (*fuse)->Resume();
  ASSERT_EQ(umount2(inside.c_str(), UMOUNT_NOFOLLOW), 0);
}

TEST_F(MounterExamineTest, AnEmptyStrangerIsRemovedAndOneWithDataStays) {
  const std::string tree = options_.state_dir + "/volumes";
  ASSERT_EQ(mkdir((tree + "/empty").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((tree + "/data").c_str(), 0755), 0);
  ASSERT_EQ(mkdir((tree + "/data/precious").c_str(), 0755), 0);
  EXPECT_THAT(Examine(false), ElementsAre(Field(&Finding::code, "directory.orphan"),
                                          Field(&Finding::code, "directory.orphan")));
  ASSERT_EQ(access((tree + "/empty").c_str(), F_OK), 0) << "nothing is repaired unasked";
  const auto findings = Examine(true);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.repaired, finding.path.ends_with("/empty")) << finding.path;
  }
  EXPECT_NE(access((tree + "/empty").c_str(), F_OK), 0);
  EXPECT_EQ(access((tree + "/data/precious").c_str(), F_OK), 0);
  ASSERT_EQ(rmdir((tree + "/data/precious").c_str()), 0);
  ASSERT_EQ(rmdir((tree + "/data").c_str()), 0);
}

TEST_F(MounterExamineTest, WhatAPluginLeftInATargetIsMovedAwayByTheCommandThatIsPrinted) {
  Close();
  plugin_.LeaveTargets(true);
  std::string target;
  options_.at_boundary = [&target](std::string_view point) {
    if (point == "rpc NodeUnpublishVolume: answered") std::ofstream(target + "/.driver-lock") << "x";
  };
  Open();
  target = *Publish(Request());
  EXPECT_TRUE(Unpublish(Request()).ok());
  plugin_.LeaveTargets(false);
  EXPECT_FALSE(Publish(Request()).ok()) << "it would be hidden";
  const auto findings = Examine(false);
  ASSERT_THAT(findings, ElementsAre(Field(&Finding::code, "directory.orphan")));
  EXPECT_THAT(findings[0].text, HasSubstr("of plugin"));
  EXPECT_THAT(findings[0].advice, StartsWith("mv -T "));
  ASSERT_EQ(std::system(findings[0].advice.c_str()), 0);
  EXPECT_THAT(Examine(false), IsEmpty());
  const std::string moved = findings[0].advice.substr(findings[0].advice.rfind(' ') + 1);
  EXPECT_TRUE(std::filesystem::exists(moved + target.substr(findings[0].path.size()) + "/.driver-lock"));
  EXPECT_TRUE(Publish(Request()).ok());
  EXPECT_TRUE(Unpublish(Request()).ok());
  for (std::string path = target.substr(findings[0].path.size()) + "/.driver-lock";;
       path.resize(path.rfind('/'))) {
    ASSERT_EQ(std::remove((moved + path).c_str()), 0) << path;
    if (path.empty()) break;
    std::remove((moved + path.substr(0, path.rfind('/')) + "/staging").c_str());
  }
}

TEST_F(MounterExamineTest, ALostIdentityFileIsWrittenAnew) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  const std::string file =
      fmt::format("{}/identities/{}.json", options_.state_dir, VolumePaths::VolumeKey("hp", "v1"));
  const auto wrong = [](bool repaired) {
    return ElementsAre(AllOf(Field(&Finding::code, "identity.wrong"), Field(&Finding::repaired, repaired)));
  };
  const std::string right = *ReadFile(file, 10'000);
  ASSERT_EQ(unlink(file.c_str()), 0);
  EXPECT_THAT(Examine(true), wrong(true));
  EXPECT_EQ(ReadFile(file, 10'000).value_or("none"), right);
  for (const std::string_view said : {"\"stages\":true", "\"consumer\":\"web\""}) {
    SCOPED_TRACE(said);
    std::string other = right;
    std::erase(other, ' ');
    ASSERT_NE(other.find(said), std::string::npos) << other;
    other.replace(other.find(said), said.size(),
                  said.ends_with("true") ? "\"stages\":false" : "\"consumer\":\"x\"");
    std::ofstream(file) << other;
    EXPECT_THAT(Examine(false), wrong(false));
    EXPECT_THAT(Examine(true), wrong(true));
    EXPECT_EQ(ReadFile(file, 10'000).value_or("none"), right);
    EXPECT_THAT(Examine(false), IsEmpty());
  }
}

// The disk beneath the tree's mount, as its owner would reach it.
TEST_F(MounterExamineTest, FilesBeneathTheTreesMountAreNamedAndWayToMoveThemTold) {
  ASSERT_TRUE(Publish(Request()).ok());
  const std::string beneath = directory_ + "/beneath";
  MakeDirectory(beneath);
  ASSERT_EQ(mount(options_.state_dir.c_str(), beneath.c_str(), nullptr, MS_BIND, nullptr), 0);
  const std::string covered = beneath + "/volumes";
  const UniqueFd fd(open(covered.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  [[maybe_unused]] const absl::Status opened = MakeMutable(fd.get());  // where there is such a flag
  const std::string key = VolumePaths::VolumeKey("hp", "v1");
  std::filesystem::create_directories(covered + "/" + key + "/publish/x/target");
  std::ofstream(covered + "/" + key + "/publish/x/target/a.db") << "precious";
  std::ofstream(covered + "/notes") << "precious";
  const auto findings = Examine(true);
  const auto left = [&](const std::string& volume, const std::string& what) {
    return Contains(AllOf(Field(&Finding::code, "tree.leftover"), Field(&Finding::volume_id, volume),
                          Field(&Finding::text, AllOf(HasSubstr(what), HasSubstr("mount --bind"))),
                          Field(&Finding::repaired, false)));
  };
  EXPECT_THAT(findings, left("v1", "publish/x/target/a.db"));
  EXPECT_THAT(findings, left("", "notes"));
  const auto all = loop_.Run(mounter_->Examine(false, Soon()));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(*all, Contains(Field(&Finding::code, "tree.unprotected")));
  const auto explained = loop_.Run(mounter_->Explain("hp", "v1", Soon()));
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_THAT(explained->remarks, Contains(HasSubstr("a.db")));
  ASSERT_EQ(umount2(beneath.c_str(), MNT_DETACH), 0);
}

TEST_F(MounterExamineTest, AnUnpublishThatThePluginRefusesForGoodIsAFinding) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::FAILED_PRECONDITION, Effect::kNone, 1000);
  EXPECT_FALSE(Unpublish(Request()).ok());
  EXPECT_THAT(Examine(false),
              ElementsAre(AllOf(Field(&Finding::code, "volume.failing"), Field(&Finding::consumer, "web"),
                                Field(&Finding::severity, Finding::Severity::kWarning))));
  plugin_.ClearFaults();
  EXPECT_TRUE(Unpublish(Request()).ok());
  EXPECT_THAT(Examine(false), IsEmpty());
}

TEST_F(MounterExamineTest, AMountThatSomebodyTookAwayIsMountedAgainWhenAsked) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_EQ(umount2(target->c_str(), UMOUNT_NOFOLLOW), 0);
  // A volume that moves while it is examined is reported only next time.
  ASSERT_TRUE(loop_.RunUntil([&] { return std::ranges::count(EventTypes(), "volume.lost") == 1; }));
  const auto told = Examine(false);
  EXPECT_THAT(told, Contains(AllOf(Field(&Finding::code, "mount.missing"), Field(&Finding::consumer, "web"),
                                   Field(&Finding::repair, Not(IsEmpty())))));
  EXPECT_THAT(Examine(true),
              Contains(AllOf(Field(&Finding::code, "mount.missing"), Field(&Finding::repaired, true))));
  EXPECT_TRUE(LookAt(*target)->mount_root);
}

}  // namespace
}  // namespace berth
