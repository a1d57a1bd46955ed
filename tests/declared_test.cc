// Volumes that files in volumes.d declare, on whole nodes, without a caller.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "tests/harness/fault_plugin.h"
#include "tests/harness/node.h"
#include "tests/harness/reboot.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeclaredNodeTest : public testing::Test {
 protected:
  // A node with a directory volume that is not in use yet.
  std::string StartWithVolume(const std::vector<std::string>& arguments = {}) {
    node_.WriteHostpath(arguments);
    node_.Start();
    node_.WaitReady("hostpath");
    return CreateVolume("v");
  }
  std::string CreateVolume(const std::string& name) {
    v1::CreateVolumeRequest request;
    request.set_name(name);
    (*request.mutable_parameters())["kind"] = "directory";
    return node_.CreateVolume(request);
  }
  [[nodiscard]] std::string File(const std::string& name) const {
    return fmt::format("{}/etc/volumes.d/{}.toml", node_.dir(), name);
  }
  void Declare(const std::string& name, const std::string& volume, const std::string& more = "",
               const std::string& plugin = "hostpath") {
    mkdir((node_.dir() + "/etc/volumes.d").c_str(), 0755);
    std::ofstream(File(name)) << fmt::format("plugin = \"{}\"\nvolume = \"{}\"\n{}", plugin, volume, more);
  }
  v1::ReloadResponse Reload() {
    v1::ReloadResponse report;
    const grpc::Status status = node_.stub().Reload(Node::Context().get(), {}, &report);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return report;
  }
  v1::Volume WaitVolume(const std::string& volume, const std::string& what,
                        const std::function<bool(const v1::Volume&)>& predicate) {
    v1::Volume found;
    WaitFor("volume " + volume + ": " + what, [&] {
      const v1::ListVolumesResponse all = node_.Volumes();
      for (const v1::Volume& each : all.volumes()) {
        if (each.volume_id() != volume) continue;
        found = each;
        return predicate(each);
      }
      return false;
    });
    return found;
  }
  v1::Volume WaitPublished(const std::string& volume) {
    return WaitVolume(volume, "published", [](const v1::Volume& each) {
      return each.state() == v1::PUBLISHED && !each.uncertain();
    });
  }
  void WaitGone() {
    WaitFor("all volumes to leave", [this] { return node_.Volumes().volumes().empty(); });
  }
  [[nodiscard]] static bool Mounted(const Node& node, const std::string& target) {
    const std::vector<std::string> mounts = node.Mounts();
    return std::find(mounts.begin(), mounts.end(), target) != mounts.end();
  }

  Node node_;
};

TEST_F(DeclaredNodeTest, PublishedAtTheStartWithoutAnyCall) {
  const std::string volume = StartWithVolume();
  node_.Stop();
  Declare("data", volume);
  node_.Start();
  const v1::Volume shown = WaitPublished(volume);
  EXPECT_EQ(shown.declared_in(), File("data"));
  ASSERT_EQ(shown.publications_size(), 1);
  EXPECT_EQ(shown.publications(0).consumer(), "declared/data");
  EXPECT_EQ(shown.publications(0).origin(), v1::DECLARED);
  EXPECT_TRUE(Mounted(node_, shown.publications(0).target_path()));
}

TEST_F(DeclaredNodeTest, PublishedOnceItsPluginIsReady) {
  const std::string volume = StartWithVolume();
  v1::StopPluginRequest stop;
  stop.set_id("hostpath");
  v1::Plugin plugin;
  ASSERT_TRUE(node_.stub().StopPlugin(Node::Context().get(), stop, &plugin).ok());
  Declare("data", volume);
  EXPECT_THAT(Reload().volumes_declared(), ElementsAre("data.toml"));
  const v1::Volume absent = WaitVolume(volume, "shown though it is not there", [](const v1::Volume& each) {
    return each.state() == v1::ABSENT && !each.last_error().empty();
  });
  EXPECT_EQ(absent.declared_in(), File("data"));
  EXPECT_THAT(absent.last_error(), HasSubstr("hostpath"));
  v1::StartPluginRequest start;
  start.set_id("hostpath");
  ASSERT_TRUE(node_.stub().StartPlugin(Node::Context().get(), start, &plugin).ok());
  WaitPublished(volume);
}

TEST_F(DeclaredNodeTest, BrokenFileIsNamedAndHarmsNoOther) {
  const std::string volume = StartWithVolume();
  Declare("bad", "x", "colour = \"red\"\n");
  Declare("good", volume);
  const v1::ReloadResponse report = Reload();
  EXPECT_THAT(report.volumes_declared(), ElementsAre("good.toml"));
  EXPECT_THAT(report.broken(), Contains(HasSubstr("bad.toml:3: colour: unknown key")));
  WaitPublished(volume);
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("bad.toml:3: colour: unknown key")));
  ASSERT_EQ(unlink(File("bad").c_str()), 0);
  Reload();
  EXPECT_THAT(node_.Problems(), testing::Not(Contains(HasSubstr("bad.toml"))));
}

TEST_F(DeclaredNodeTest, FileThatIsGoneReleasesItsVolume) {
  const std::string volume = StartWithVolume();
  Declare("data", volume);
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  std::ofstream(target + "/file") << "kept" << std::flush;
  ASSERT_EQ(unlink(File("data").c_str()), 0);
  EXPECT_THAT(Reload().volumes_withdrawn(), ElementsAre("data.toml"));
  WaitGone();
  EXPECT_FALSE(Mounted(node_, target));
  EXPECT_THAT(Node::Tree(node_.state_dir() + "/declared"), IsEmpty());
}

TEST_F(DeclaredNodeTest, ChangedFileIsPublishedAnewAndAnUnchangedOneIsNot) {
  const std::string volume = StartWithVolume();
  const std::string other = CreateVolume("other");
  Declare("data", volume);
  Declare("other", other);
  Reload();
  WaitPublished(volume);
  const std::string published_at = WaitPublished(other).publications(0).published_at().SerializeAsString();
  Declare("data", volume, "readonly = true\n");
  Declare("other", other, "# a comment\n");
  EXPECT_THAT(Reload().volumes_changed(), ElementsAre("data.toml"));
  WaitVolume(volume, "published read-only", [](const v1::Volume& each) {
    return each.state() == v1::PUBLISHED && each.publications_size() == 1 && each.publications(0).readonly();
  });
  EXPECT_EQ(WaitPublished(other).publications(0).published_at().SerializeAsString(), published_at);
}

TEST_F(DeclaredNodeTest, AChangedOwnerOrModeIsSetAtOnceAndAfterARestart) {
  const std::string volume = StartWithVolume();
  Declare("data", volume);
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  const auto mode = [&target]() -> mode_t {
    struct stat info{};
    return stat(target.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  };
  Declare("data", volume, "mode = \"0710\"\n");
  EXPECT_THAT(Reload().volumes_changed(), ElementsAre("data.toml"));
  WaitFor("the mode to be set", [&] { return mode() == 0710; });
  WaitPublished(volume);
  node_.Stop();
  Declare("data", volume, "mode = \"0701\"\n");
  node_.Start();
  WaitFor("the mode to be set", [&] { return mode() == 0701; });
  WaitPublished(volume);
  EXPECT_THAT(node_.Problems(), IsEmpty());
}

TEST_F(DeclaredNodeTest, AKilledBerthdComesBackToTheSameMounts) {
  FaultPlugin fault(node_);
  fault.Write();
  node_.Start();
  node_.WaitReady("fault");
  v1::CreateVolumeRequest create;
  create.set_plugin_id("fault");
  create.set_name("v");
  const std::string volume = node_.CreateVolume(create);
  Declare("data", volume, "", "fault");
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  // It is shown as published a moment before that is in the journal. Killed in between, berthd repeats the
  // step.
  WaitFor("the outcome to be durable",
          [this] { return node_.log().find("volume.published") != std::string::npos; });
  const auto publishes = [&] {
    return fault.Count([](const FaultEvent& event) {
      return event.event == "call" && (event.rpc == "NodePublishVolume" || event.rpc == "NodeStageVolume");
    });
  };
  const int64_t before = publishes();
  for (int round = 0; round < 3; ++round) {
    node_.Kill();
    node_.Start();
    node_.WaitReady("fault");
    EXPECT_EQ(WaitPublished(volume).publications(0).target_path(), target);
  }
  // An orderly end leaves it, too.
  node_.Stop();
  EXPECT_TRUE(Mounted(node_, target));
  node_.Start();
  node_.WaitReady("fault");
  WaitPublished(volume);
  EXPECT_EQ(publishes(), before);
}

TEST_F(DeclaredNodeTest, OnceAStopHasBegunNothingIsMountedAgain) {
  FaultPlugin fault(node_);
  fault.Write();
  node_.Start();
  node_.WaitReady("fault");
  v1::CreateVolumeRequest create;
  create.set_plugin_id("fault");
  create.set_name("v");
  const std::string volume = node_.CreateVolume(create);
  create.set_name("slow");
  const std::string slow = node_.CreateVolume(create);
  Declare("data", volume, "", "fault");
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  const auto publishes = [&] {
    return fault.Count([&](const FaultEvent& event) {
      return event.event == "call" && event.rpc == "NodePublishVolume" && event.volume == volume;
    });
  };
  const int64_t before = publishes();
  // A call that hangs keeps the stop going.
  fault.Play({"rpc = \"NodePublishVolume\"\naction = \"hang\""});
  v1::PublishVolumeRequest request;
  request.set_plugin_id("fault");
  request.set_volume_id(slow);
  request.set_consumer("job");
  grpc::Status answer;
  std::thread caller([&] {
    std::string ignored;
    answer = node_.TryPublish(request, &ignored);
  });
  fault.WaitActed("NodePublishVolume");
  const pid_t plugin = node_.Plugin("fault").pid();
  node_.BeginStop();
  WaitFor("the stop to begin", [&] { return node_.log().find("stopping: ") != std::string::npos; });
  EXPECT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  WaitFor("the loss to be noticed", [&] { return node_.log().find("volume.lost") != std::string::npos; });
  ASSERT_EQ(kill(plugin, SIGKILL), 0);
  node_.AwaitStopped();
  caller.join();
  EXPECT_FALSE(answer.ok());
  EXPECT_FALSE(Mounted(node_, target));
  EXPECT_EQ(publishes(), before);
  fault.Play();
  node_.Start();
  node_.WaitReady("fault");
  WaitPublished(volume);
  EXPECT_TRUE(Mounted(node_, target));
}

TEST_F(DeclaredNodeTest, FileThatWentWhileBerthdWasAwayIsReleasedAtTheStart) {
  const std::string volume = StartWithVolume();
  Declare("data", volume);
  Reload();
  WaitPublished(volume);
  node_.Kill();
  ASSERT_EQ(unlink(File("data").c_str()), 0);
  node_.Start();
  WaitGone();
}

TEST_F(DeclaredNodeTest, AttachedFirstAndDetachedLast) {
  const std::string volume = StartWithVolume({"--attach"});
  Declare("data", volume);
  Declare("again", volume, "readonly = true\n");
  Reload();
  WaitVolume(volume, "published twice", [](const v1::Volume& each) {
    return each.publications_size() == 2 && each.state() == v1::PUBLISHED &&
           each.publications(0).state() == v1::PUBLISHED && each.publications(1).state() == v1::PUBLISHED;
  });
  node_.Kill();
  ASSERT_EQ(unlink(File("data").c_str()), 0);
  node_.Start();
  WaitVolume(volume, "published once", [](const v1::Volume& each) { return each.publications_size() == 1; });
  ASSERT_EQ(unlink(File("again").c_str()), 0);
  Reload();
  WaitGone();
  // Only one that is attached nowhere may be deleted.
  WaitFor("the volume to be detached", [&] {
    v1::DeleteVolumeRequest request;
    request.set_plugin_id("hostpath");
    request.set_volume_id(volume);
    v1::DeleteVolumeResponse response;
    return node_.stub().DeleteVolume(Node::Context().get(), request, &response).ok();
  });
  EXPECT_THAT(Node::Tree(node_.state_dir() + "/declared"), IsEmpty());
}

TEST_F(DeclaredNodeTest, Fault19DeclaredVolumesComeBackAfterAReboot) {
  const std::string volume = StartWithVolume();
  const std::string gone = CreateVolume("gone");
  Declare("data", volume);
  Declare("gone", gone);
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  WaitPublished(gone);
  std::ofstream(target + "/file") << "kept" << std::flush;
  const Reboot reboot(node_);
  ASSERT_FALSE(Mounted(node_, target));
  ASSERT_EQ(unlink(File("gone").c_str()), 0);
  node_.Start();
  WaitPublished(volume);
  EXPECT_TRUE(Mounted(node_, target));
  struct stat info{};
  EXPECT_EQ(stat((target + "/file").c_str(), &info), 0);
  WaitFor("the one that is not declared any more to leave", [&] {
    const v1::ListVolumesResponse volumes = node_.Volumes();
    return volumes.volumes_size() == 1;
  });
}

// What a unit with BindPaths= finds that starts before berthd, after a power cut.
class DeclaredPowerCutTest : public DeclaredNodeTest {
 protected:
  // A volume that is declared, mounted and holds data, when the power goes.
  void PublishAndCutPower() {
    volume_ = StartWithVolume();
    Declare("data", volume_);
    Reload();
    target_ = WaitPublished(volume_).publications(0).target_path();
    std::ofstream(target_ + "/file") << "kept" << std::flush;
    reboot_.emplace(node_);
    const std::vector<std::string> left = node_.Mounts();
    ASSERT_THAT(left, ElementsAre(node_.dir())) << "not the tree either";
    ASSERT_FALSE(std::filesystem::exists(target_));
    ASSERT_THAT(Node::Tree(Tree()), IsEmpty()) << "no directory is left that could be taken for the volume";
  }
  void ExpectMountedOfItself() {
    node_.Start();
    WaitPublished(volume_);
    EXPECT_TRUE(Mounted(node_, target_));
    EXPECT_EQ(ReadText(target_ + "/file"), "kept");
  }
  [[nodiscard]] std::string Tree() const { return node_.state_dir() + "/volumes"; }
  // Sets or clears the immutable flag. False: the file system has none, or we may not.
  static bool SetImmutable(const std::string& directory, bool immutable) {
    const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int flags = 0;
    if (ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) == 0;
  }
  [[nodiscard]] bool CanProtect() const {
    const std::string other = node_.state_dir() + "/other";
    EXPECT_EQ(mkdir(other.c_str(), 0755), 0);
    const bool can = SetImmutable(other, true) && SetImmutable(other, false);
    EXPECT_EQ(rmdir(other.c_str()), 0);
    return can;
  }

  std::string volume_;
  std::string target_;
  std::optional<Reboot> reboot_;
};

TEST_F(DeclaredPowerCutTest, Fault46AUnitThatStartsBeforeBerthdWritesNothing) {
  PublishAndCutPower();
  if (!CanProtect()) GTEST_SKIP() << "the file system of the tests has no immutable flag";
  std::error_code error;
  EXPECT_FALSE(std::filesystem::create_directories(target_, error));
  EXPECT_EQ(error.value(), EPERM);
  EXPECT_FALSE(std::ofstream(Tree() + "/file").is_open());
  EXPECT_THAT(Node::Tree(Tree()), IsEmpty());
  ExpectMountedOfItself();
  EXPECT_THAT(node_.Problems(), IsEmpty());
}

TEST_F(DeclaredPowerCutTest, Fault46WhereNothingPreventsItTheVolumeIsMountedAndTheFilesAreNamed) {
  PublishAndCutPower();
  [[maybe_unused]] const bool unprotected = SetImmutable(Tree(), false);
  ASSERT_TRUE(std::filesystem::create_directories(target_));
  std::ofstream(target_ + "/precious") << "of the unit" << std::flush;
  ExpectMountedOfItself();
  EXPECT_FALSE(std::filesystem::exists(target_ + "/precious"));
  v1::ExamineResponse examined;
  ASSERT_TRUE(node_.stub().Examine(Node::Context().get(), {}, &examined).ok());
  const auto left =
      std::find_if(examined.findings().begin(), examined.findings().end(),
                   [](const v1::Finding& finding) { return finding.code() == "tree.leftover"; });
  ASSERT_NE(left, examined.findings().end()) << examined.DebugString();
  EXPECT_EQ(left->volume_id(), volume_);
  EXPECT_THAT(left->text(), HasSubstr("target/precious"));
  EXPECT_THAT(left->text(), HasSubstr("mount --bind " + node_.state_dir()));
}

// The plugin takes its time with the release, and other plugins come and go meanwhile, which wakes what
// keeps declared volumes.
TEST_F(DeclaredNodeTest, Fault45UnpublishedByHandItStaysReleasedUntilAReload) {
  FaultPlugin fault(node_);
  fault.Write();
  StartWithVolume();
  node_.WaitReady("fault");
  v1::CreateVolumeRequest create;
  create.set_plugin_id("fault");
  create.set_name("v");
  const std::string volume = node_.CreateVolume(create);
  Declare("data", volume, "", "fault");
  Reload();
  const std::string target = WaitPublished(volume).publications(0).target_path();
  const auto calls = [&](const std::string& rpc) {
    return fault.Count([&](const FaultEvent& event) { return event.event == "call" && event.rpc == rpc; });
  };
  const auto restart_hostpath = [&] {
    v1::RestartPluginRequest restart;
    restart.set_id("hostpath");
    v1::Plugin plugin;
    EXPECT_TRUE(node_.stub().RestartPlugin(Node::Context().get(), restart, &plugin).ok());
    node_.WaitReady("hostpath");
  };
  const auto expect_released = [&](const std::string& when) {
    SCOPED_TRACE(when);
    WaitVolume(volume, "released", [](const v1::Volume& each) {
      return each.state() == v1::ABSENT && each.last_error().find("released, by hand") != std::string::npos;
    });
    restart_hostpath();
    EXPECT_FALSE(Mounted(node_, target));
    EXPECT_EQ(calls("NodePublishVolume"), 1);
  };
  fault.Play({"rpc = \"NodeUnpublishVolume\"\naction = \"hang\""});
  std::thread by_hand([&] {
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id("fault");
    request.set_volume_id(volume);
    request.set_consumer("declared/data");
    v1::UnpublishVolumeResponse answer;
    const grpc::Status status = node_.stub().UnpublishVolume(Node::Context().get(), request, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(answer.was_published());
  });
  WaitFor("the plugin to be called", [&] { return calls("NodeUnpublishVolume") == 1; });
  restart_hostpath();
  fault.Play();
  by_hand.join();
  expect_released("after the release");
  node_.Kill();
  node_.Start();
  node_.WaitReady("fault");
  expect_released("after a restart of berthd");
  Reload();
  WaitPublished(volume);
  EXPECT_EQ(calls("NodePublishVolume"), 2);
}

class DeclaredPathTest : public DeclaredNodeTest {
 protected:
  [[nodiscard]] std::string PathLine() const { return fmt::format("path = \"{}\"\n", path_); }
  v1::Volume WaitMounted(const std::string& volume) {
    return WaitVolume(volume, "mounted at its path", [](const v1::Volume& each) {
      return each.state() == v1::PUBLISHED && each.publications_size() == 1 &&
             each.publications(0).path_mounted();
    });
  }
  [[nodiscard]] int MountsAt(const std::string& path) const {
    const std::vector<std::string> mounts = node_.Mounts();
    return static_cast<int>(std::count(mounts.begin(), mounts.end(), path));
  }
  v1::ListDeclaredVolumesResponse ListDeclared(const std::string& name, bool wait) {
    v1::ListDeclaredVolumesRequest request;
    request.add_names(name);
    request.set_wait(wait);
    v1::ListDeclaredVolumesResponse answer;
    const grpc::Status status = node_.stub().ListDeclaredVolumes(Node::Context().get(), request, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return answer;
  }
  // The file goes, and with it everything that its path was given.
  void Withdraw(const std::string& name) {
    ASSERT_EQ(unlink(File(name).c_str()), 0);
    Reload();
    WaitGone();
    WaitFor("the note to go", [this] { return Node::Tree(node_.state_dir() + "/declared").empty(); });
  }

  std::string path_ = node_.dir() + "/srv-db";
};

TEST_F(DeclaredPathTest, MountedThereAndFreedOnceTheFileIsGone) {
  const std::string volume = StartWithVolume();
  Declare("data", volume, PathLine());
  Reload();
  const v1::ListDeclaredVolumesResponse waited = ListDeclared("data", true);
  ASSERT_EQ(waited.volumes_size(), 1);
  EXPECT_EQ(waited.volumes(0).state(), v1::DECLARED_PUBLISHED) << waited.volumes(0).DebugString();
  EXPECT_EQ(waited.volumes(0).path(), path_);
  EXPECT_EQ(ListDeclared(volume, true).volumes(0).name(), "data");
  EXPECT_THAT(ListDeclared("none", true).not_declared(), ElementsAre("none"));
  EXPECT_EQ(MountsAt(path_), 1);
  Withdraw("data");
  EXPECT_EQ(MountsAt(path_), 0);
  EXPECT_LT(access(path_.c_str(), F_OK), 0) << "the directory that was made for it is left";
}

TEST_F(DeclaredPathTest, Fault46AKillAndARebootLeaveOneMount) {
  const std::string volume = StartWithVolume();
  Declare("data", volume, PathLine());
  Reload();
  WaitMounted(volume);
  node_.Kill();
  EXPECT_EQ(MountsAt(path_), 1);
  node_.Start();
  WaitMounted(volume);
  EXPECT_EQ(MountsAt(path_), 1);
  {
    const Reboot reboot(node_);
    ASSERT_EQ(MountsAt(path_), 0);
    // As a unit that does not wait for it.
    EXPECT_FALSE(std::ofstream(path_ + "/stray").is_open()) << "written to the root file system";
    node_.Start();
    WaitMounted(volume);
    EXPECT_EQ(MountsAt(path_), 1);
    EXPECT_TRUE(std::ofstream(path_ + "/file").is_open());
  }
  Withdraw("data");
}

TEST_F(DeclaredPathTest, FilesInTheWayAreNamedEverywhere) {
  const std::string volume = StartWithVolume();
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  std::ofstream(path_ + "/precious") << "other data" << std::flush;
  Declare("data", volume, PathLine());
  Reload();
  const auto names_them = AllOf(HasSubstr("precious"), HasSubstr("mv -T"));
  WaitFor("status to say so", [&] {
    const std::vector<std::string> problems = node_.Problems();
    return std::any_of(problems.begin(), problems.end(), [](const std::string& problem) {
      return problem.find("precious") != std::string::npos;
    });
  });
  v1::ExamineResponse examined;
  ASSERT_TRUE(node_.stub().Examine(Node::Context().get(), {}, &examined).ok());
  EXPECT_THAT(examined.findings(), Contains(testing::Property(&v1::Finding::text, names_them)));
  v1::ExplainVolumeRequest explain;
  explain.set_plugin_id("hostpath");
  explain.set_volume_id(volume);
  v1::ExplainVolumeResponse explained;
  ASSERT_TRUE(node_.stub().ExplainVolume(Node::Context().get(), explain, &explained).ok());
  EXPECT_THAT(explained.remarks(), Contains(names_them));
  EXPECT_EQ(ListDeclared("data", false).volumes(0).state(), v1::DECLARED_PENDING);
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".moved").c_str()), 0);
  Reload();
  WaitMounted(volume);
  EXPECT_EQ(access((path_ + ".moved/precious").c_str(), F_OK), 0);
  Withdraw("data");
}

TEST_F(DeclaredPathTest, PathThatLeavesTheFileLeavesTheVolumePublished) {
  const std::string volume = StartWithVolume();
  Declare("data", volume, PathLine() + "readonly = true\n");
  Reload();
  const v1::Publication before = WaitMounted(volume).publications(0);
  EXPECT_FALSE(std::ofstream(path_ + "/file").is_open()) << "it is read-only";
  Declare("data", volume, "readonly = true\n");
  EXPECT_THAT(Reload().volumes_changed(), ElementsAre("data.toml"));
  WaitVolume(volume, "without a path",
             [](const v1::Volume& each) { return each.publications(0).path().empty(); });
  WaitFor("the mount to go", [&] { return MountsAt(path_) == 0; });
  EXPECT_EQ(WaitPublished(volume).publications(0).published_at().SerializeAsString(),
            before.published_at().SerializeAsString());
  EXPECT_TRUE(Mounted(node_, before.target_path()));
  Withdraw("data");
  EXPECT_LT(access(path_.c_str(), F_OK), 0);
}

TEST_F(DeclaredPathTest, TwoFilesWithOnePathAreAnError) {
  const std::string volume = StartWithVolume();
  const std::string other = CreateVolume("other");
  Declare("a", volume, PathLine());
  Declare("b", other, PathLine());
  EXPECT_THAT(Reload().broken(), Contains(AllOf(HasSubstr("b.toml: path"), HasSubstr("a.toml"))));
  WaitMounted(volume);
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("b.toml: path")));
  EXPECT_EQ(ListDeclared("b", true).volumes(0).state(), v1::DECLARED_BROKEN);
  ASSERT_EQ(unlink(File("b").c_str()), 0);
  Withdraw("a");
}

}  // namespace
}  // namespace berth
