// File systems that hang and die, targets that are busy, mounts that others change (FAULTS rows 24 to 26,
// 41), on a whole node: a real FUSE file system under a volume, real processes and mount namespaces that hold
// one.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include "base/statmount.h"
#include "base/unique_fd.h"
#include "mounts/testing/fuse_server.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class FaultKernelTest : public FaultTest {
 protected:
  // `settings`: of [volumes]. Where something hangs its step has to end soon.
  explicit FaultKernelTest(const std::string& settings = "health_interval = \"1s\"\nrpc_timeout = \"2s\"\n") {
    node_.WriteBerthdToml("[volumes]\n" + settings);
  }

  v1::PublishVolumeRequest UseOf(const std::string& volume) const {
    v1::PublishVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    request.set_consumer("job");
    return request;
  }
  grpc::Status TryUndo(const std::string& volume,
                       const std::function<void(v1::UnpublishVolumeRequest*)>& with,
                       std::chrono::milliseconds timeout, v1::UnpublishVolumeResponse* response = nullptr) {
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    request.set_consumer("job");
    if (with) with(&request);
    v1::UnpublishVolumeResponse ignored;
    return node_.stub().UnpublishVolume(Node::Context(timeout).get(), request,
                                        response != nullptr ? response : &ignored);
  }
  [[nodiscard]] std::string DataOf(const std::string& volume) const {
    return fmt::format("{}/volumes/{}/data", fault_.dir(), volume);
  }
};

// --- 24: a dead file system ------------------------------------------------------------------------------

class FaultFuseTest : public FaultKernelTest {
 protected:
  void TearDown() override {
    fuse_.reset();  // What is dead cannot be looked through for secrets.
    FaultKernelTest::TearDown();
  }
  // A volume on a FUSE file system, in use.
  void PublishFuse(const std::string& sections = "") {
    StartReady(sections);
    volume_ = CreateVolume("fuse");
    MountFuse();
    target_ = node_.Publish(UseOf(volume_));
    ASSERT_EQ(MountsAt(target_), 1);
  }
  void MountFuse() {
    auto server = FuseServer::Mount(DataOf(volume_));
    ASSERT_TRUE(server.ok()) << server.status();
    fuse_ = *std::move(server);
  }
  // Another volume of the same plugin goes its whole way, well within the time that the hanging one takes.
  void ExpectOthersWork(const std::string& name) {
    const auto begin = std::chrono::steady_clock::now();
    ExpectWorks(name);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15));
  }

  std::string volume_;
  std::string target_;
  std::unique_ptr<FuseServer> fuse_;
};

TEST_F(FaultFuseTest, Fault24AHungFileSystemCostsOnlyItsOwnVolume) {
  PublishFuse();
  fuse_->Hang();
  EXPECT_EQ(TryUndo(volume_, {}, seconds(3)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectOthersWork("a");
  WaitVolume(volume_, "shown as stuck", [](const v1::Volume& volume) {
    return volume.has_stuck() && !volume.stuck().on().empty() && volume.stuck().has_since();
  });

  // berthd itself is not held by it.
  node_.Kill();
  node_.Start();
  node_.WaitReady(fault_.id());
  ExpectOthersWork("b");
  ASSERT_TRUE(VolumeOf(volume_).has_value()) << "it is not called free while it hangs";
  EXPECT_EQ(MountsAt(target_), 1);
  node_.Stop();
  node_.Start();

  fuse_->Resume();
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(target_), 0);
}

// A chosen name, on the same kind of file system.
TEST_F(FaultFuseTest, Fault54APluginsCommandThatHangsHarmsItsPluginAlone) {
  StartReady();
  volume_ = CreateVolume("fuse");
  MountFuse();
  fuse_->Hang();
  const std::string hung = fuse_->path() + "/hello";
  node_.WritePlugin("hung", fmt::format("kind = \"node\"\ncommand = \"{}\"\n", hung));

  // Restarted with it: it is launched in vain, the others serve.
  node_.Kill();
  node_.Start();
  node_.WaitReady(fault_.id());
  ExpectOthersWork("a");

  v1::SwapPluginRequest swap;
  swap.set_id(fault_.id());
  swap.set_command(hung);
  v1::Plugin swapped;
  const grpc::Status refused = node_.stub().SwapPlugin(Node::Context(seconds(2)).get(), swap, &swapped);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << refused.error_message();

  // The other files are applied while it is looked at.
  node_.WritePlugin("other", "kind = \"node\"\ncommand = \"/bin/true\"\nenabled = false\n");
  v1::ReloadResponse reloaded;
  const grpc::Status status = node_.stub().Reload(Node::Context(seconds(3)).get(), {}, &reloaded);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(reloaded.pending(), testing::ElementsAre(HasSubstr("hung")));
  EXPECT_THAT(node_.Plugin("other").reason(), HasSubstr("disabled"));
  EXPECT_TRUE(node_.Plugin(fault_.id()).ready());
  ExpectOthersWork("b");

  // berthd is not held by it, and says what is wrong once that is known.
  node_.Stop();
  fuse_->Resume();
  node_.Start();
  node_.WaitPlugin("hung", "named", [](const v1::Plugin& plugin) {
    return plugin.reason().find("/hello: Permission denied") != std::string::npos;
  });
}

TEST_F(FaultFuseTest, Fault24WhatHangsIsReleasedByForce) {
  PublishFuse();
  fuse_->Hang();
  EXPECT_FALSE(TryUndo(volume_, {}, seconds(3)).ok());
  v1::UnpublishVolumeResponse response;
  const grpc::Status forced = TryUndo(
      volume_, [](v1::UnpublishVolumeRequest* request) { request->set_force(true); }, seconds(40), &response);
  EXPECT_TRUE(forced.ok()) << forced.error_message();
  EXPECT_FALSE(response.still_in_use()) << "nothing was detached";
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(target_), 0);
  ExpectOthersWork("a");
}

TEST_F(FaultFuseTest, Fault24AHungFileSystemIsShownAsHungAndWhenItAnswersAgain) {
  PublishFuse();
  fuse_->Hang();
  const v1::Volume hung = WaitVolume(volume_, "shown as hung", [](const v1::Volume& volume) {
    return volume.publications_size() == 1 && !volume.publications(0).hung().empty();
  });
  EXPECT_EQ(hung.publications(0).dead(), "");
  EXPECT_THAT(hung.advice(), HasSubstr("bring its server back"));
  fuse_->Resume();
  const v1::Volume well = WaitVolume(volume_, "shown as well", [](const v1::Volume& volume) {
    return volume.publications_size() == 1 && volume.publications(0).hung().empty();
  });
  EXPECT_EQ(well.advice(), "");
  WaitEvent("volume.alive");
  EXPECT_EQ(Calls("NodeUnpublishVolume"), 0) << "nothing was repaired";
}

// A driver that hangs in the volume and keeps its own lock: its call does not return, whatever becomes of the
// file system, before its process ends.
class FaultHungPluginTest : public FaultFuseTest, public testing::WithParamInterface<const char*> {
 protected:
  [[nodiscard]] static bool Lazy() { return std::string_view(GetParam()) == "lazy"; }
  void HangInUnpublish() {
    fuse_->Hang();
    // The plugin has it mounted nowhere else: it looks at its data whenever it starts.
    ASSERT_EQ(umount2(DataOf(volume_).c_str(), MNT_DETACH), 0);
    fault_.Play({"rpc = \"NodeUnpublishVolume\"\naction = \"hang\""});
    old_ = static_cast<pid_t>(Get().pid());
  }
  // The answer says what was done. On a loaded machine a first one may say that the helper could not be
  // launched in time; where the plugin is restarted by itself, a later one may say that all is done.
  void ForceRelease() {
    const std::string done = Lazy() ? "a mount of it was detached" : "its file system was aborted";
    WaitFor(
        "an answer that says what was done",
        [&] {
          const grpc::Status gave_up = TryUndo(
              volume_,
              [](v1::UnpublishVolumeRequest* request) {
                request->set_lazy(Lazy());
                request->set_force(!Lazy());
              },
              seconds(20));
          const std::string& said = gave_up.error_message();
          return gave_up.ok() || (gave_up.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                                  said.find(done) != std::string::npos &&
                                  said.find("NodeUnpublishVolume") != std::string::npos);
        },
        seconds(60));
  }
  // By a process that did not hang.
  void ExpectReleasedByANewProcess() {
    WaitFor(
        "the plugin has taken it back",
        [&] {
          const std::optional<v1::Volume> volume = VolumeOf(volume_);
          return !volume || (volume->publications().empty() && volume->state() != v1::UNSTAGING &&
                             volume->state() != v1::STAGED);
        },
        seconds(30));
    // What was detached may still be in use, by a process that waits for an answer.
    if (Lazy()) fuse_->Resume();
    WaitReleased(volume_);
    EXPECT_EQ(MountsAt(target_), 0);
    EXPECT_GT(fault_.Count([this](const FaultEvent& event) {
      return event.event == "call" && event.rpc == "NodeUnpublishVolume" && event.pid != old_;
    }),
              0);
  }

  pid_t old_ = -1;
};

INSTANTIATE_TEST_SUITE_P(Levers, FaultHungPluginTest, testing::Values("force", "lazy"),
                         [](const auto& lever) { return std::string(lever.param); });

TEST_P(FaultHungPluginTest, Fault24AStuckVolumeIsReleasedOnceItsPluginIsRestarted) {
  PublishFuse();
  HangInUnpublish();
  ForceRelease();
  const v1::Volume stuck = WaitVolume(volume_, "its plugin hangs", [](const v1::Volume& volume) {
    return volume.has_stuck() && volume.stuck().plugin_hangs();
  });
  EXPECT_EQ(stuck.has_detached_at(), Lazy());
  EXPECT_EQ(stuck.has_aborted_at(), !Lazy());
  EXPECT_THAT(stuck.advice(), HasSubstr("berthctl plugin restart " + fault_.id()));
  v1::RestartPluginRequest restart;
  restart.set_id(fault_.id());
  v1::Plugin restarted;
  const grpc::Status status = node_.stub().RestartPlugin(Node::Context().get(), restart, &restarted);
  ASSERT_TRUE(status.ok()) << status.error_message();
  fault_.Play();  // what hung in the old process has ended with it
  ExpectReleasedByANewProcess();
}

TEST_P(FaultHungPluginTest, Fault24AStuckVolumeIsReleasedWithoutAPersonWhereThePluginsFileAllowsIt) {
  PublishFuse("[health]\ninterval = \"100ms\"\ntimeout = \"5s\"\nrestart_after_hung_call = \"3s\"\n");
  HangInUnpublish();
  ForceRelease();
  WaitEvent("plugin.hung", "NodeUnpublishVolume");
  fault_.Play();
  ExpectReleasedByANewProcess();
}

TEST_F(FaultFuseTest, Fault24ADeadFileSystemIsShownAndCanBeLetGo) {
  PublishFuse();
  fuse_->Die();
  WaitVolume(volume_, "shown as dead", [](const v1::Volume& volume) {
    return volume.publications_size() == 1 && !volume.publications(0).dead().empty();
  });
  ExpectOthersWork("a");
  const grpc::Status undone = TryUndo(volume_, {}, seconds(40));
  EXPECT_TRUE(undone.ok()) << undone.error_message();
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(target_), 0);
}

TEST_F(FaultFuseTest, Fault24ADeadFileSystemIsMountedAgainWhereThatIsAskedFor) {
  StartReady();
  volume_ = CreateVolume("fuse");
  MountFuse();
  v1::PublishVolumeRequest request = UseOf(volume_);
  request.set_remount(true);
  target_ = node_.Publish(request);
  // The plugin knows what it has mounted by where its data lie, so these come back after the mount was
  // undone, and before it is made again.
  fault_.Play({"rpc = \"NodeStageVolume\"\naction = \"fail\"\ncode = \"UNAVAILABLE\"\nwhen = \"before\""});
  fuse_->Die();
  fault_.WaitActed("NodeStageVolume");
  WaitFor("its target is undone", [&] { return MountsAt(target_) == 0; }, seconds(40));
  ASSERT_EQ(umount2(DataOf(volume_).c_str(), MNT_DETACH), 0);
  fuse_.reset();
  MountFuse();
  fault_.Play();
  WaitFor(
      "its target answers again",
      [&] { return std::ifstream(target_ + "/hello").good() && MountsAt(target_) == 1; }, seconds(40));
  const grpc::Status undone = TryUndo(volume_, {}, seconds(40));
  EXPECT_TRUE(undone.ok()) << undone.error_message();
}

// --- 25: a busy target -----------------------------------------------------------------------------------

class FaultBusyTest : public FaultKernelTest {
 protected:
  // It is asked for, is not had, and nothing is detached; the holder is named in the answer and on request,
  // with the consumer that it is a process of, if any.
  void ExpectBusy(const std::string& volume, const std::string& target, pid_t holder,
                  const std::string& consumer = "") {
    Forget(volume, "job");
    const grpc::Status busy = TryUndo(volume, {}, seconds(4));
    EXPECT_FALSE(busy.ok());
    EXPECT_EQ(MountsAt(target), 1) << "no lazy unmount unasked";
    WaitVolume(volume, "the holder is named", [&](const v1::Volume& shown) {
      return shown.last_error().find(std::to_string(holder)) != std::string::npos;
    });
    v1::ExplainVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    v1::ExplainVolumeResponse explained;
    const grpc::Status status = node_.stub().ExplainVolume(Node::Context().get(), request, &explained);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const auto& holders = explained.holders();
    EXPECT_TRUE(std::any_of(holders.begin(), holders.end(), [&](const v1::MountHolder& one) {
      return one.pid() == holder && one.consumer() == consumer && !one.command().empty() &&
             !one.how().empty();
    })) << explained.DebugString();
    ExpectWorks("other");
    EXPECT_EQ(MountsAt(target), 1);
  }
};

TEST_F(FaultBusyTest, Fault25ATargetThatIsBusyByAFileNamesItsHolder) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  UniqueFd held(open((target + "/marker").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  ExpectBusy(volume, target, getpid());
  held = UniqueFd();
  WaitReleased(volume);
}

TEST_F(FaultBusyTest, Fault25AMountInsideTheTargetIsNamed) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  const std::string inside = target + "/sub";
  ASSERT_EQ(mkdir(inside.c_str(), 0755), 0);
  ASSERT_EQ(mount("nested", inside.c_str(), "tmpfs", 0, nullptr), 0);
  Forget(volume, "job");
  EXPECT_FALSE(TryUndo(volume, {}, seconds(4)).ok());
  const v1::Volume shown = WaitVolume(volume, "the mount is named", [&](const v1::Volume& now) {
    return now.last_error().find("mounted inside it: " + inside + " (tmpfs)") != std::string::npos;
  });
  EXPECT_THAT(shown.advice(), HasSubstr("unmount what is mounted inside it"));
  ASSERT_EQ(umount2(inside.c_str(), MNT_DETACH), 0);
  WaitReleased(volume);
}

TEST_F(FaultBusyTest, Fault25AHolderThatIsTheConsumerItselfIsCalledSo) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  v1::PublishVolumeRequest anew = UseOf(volume);
  anew.mutable_life()->set_pid(getpid());
  ASSERT_EQ(node_.Publish(anew), target);
  UniqueFd held(open((target + "/marker").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(held.valid());
  ExpectBusy(volume, target, getpid(), "job");
  held = UniqueFd();
  WaitReleased(volume);
}

// A process that has a mount namespace of its own, to which our mounts propagate, and works in a target.
class Elsewhere {
 public:
  Elsewhere() {
    int ready[2];
    int work[2];
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(work, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      char path[4096] = {};
      if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
        _exit(1);
      if (write(ready[1], "r", 1) != 1 || read(work[0], path, sizeof path - 1) <= 0) _exit(2);
      if (chdir(path) != 0) _exit(3);
      if (write(ready[1], "w", 1) != 1) _exit(4);
      pause();
      _exit(0);
    }
    from_ = UniqueFd(ready[0]);
    to_ = UniqueFd(work[1]);
    close(ready[1]);
    close(work[0]);
    Await();
  }
  ~Elsewhere() { End(); }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

  void WorkIn(const std::string& path) {
    EXPECT_EQ(write(to_.get(), path.data(), path.size()), static_cast<ssize_t>(path.size()));
    Await();
  }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  void Await() const {
    pollfd wait{.fd = from_.get(), .events = POLLIN, .revents = 0};
    char said = 0;
    if (poll(&wait, 1, 20'000) != 1 || read(from_.get(), &said, 1) != 1) {
      throw std::runtime_error("the process in the other namespace does not answer");
    }
  }

  pid_t pid_ = -1;
  UniqueFd from_;
  UniqueFd to_;
};

TEST_F(FaultBusyTest, Fault25ATargetThatIsBusyInAnotherMountNamespaceNamesItsHolder) {
  StartReady();
  Elsewhere elsewhere;
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  elsewhere.WorkIn(target);
  ExpectBusy(volume, target, elsewhere.pid());
  elsewhere.End();
  WaitReleased(volume);
}

TEST_F(FaultBusyTest, Fault25OnlyAnOperatorsWordDetachesIt) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  const UniqueFd held(open((target + "/marker").c_str(), O_RDONLY | O_CLOEXEC));
  Forget(volume, "job");
  EXPECT_FALSE(TryUndo(volume, {}, seconds(3)).ok());
  v1::UnpublishVolumeResponse response;
  const grpc::Status lazily = TryUndo(
      volume, [](v1::UnpublishVolumeRequest* request) { request->set_lazy(true); }, seconds(40), &response);
  EXPECT_TRUE(lazily.ok()) << lazily.error_message();
  EXPECT_TRUE(response.still_in_use());
  EXPECT_EQ(MountsAt(target), 0);
}

// --- 26: others' hands -----------------------------------------------------------------------------------

// Nothing is polled meanwhile: the kernel reports what is noticed.
class FaultMeddlerTest : public FaultKernelTest {
 protected:
  FaultMeddlerTest() : FaultKernelTest("health_interval = \"0s\"\n") {}
};

TEST_F(FaultMeddlerTest, Fault26AForeignUnmountIsNoticedAndMendedByTheSameRequest) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  Forget(volume, "job");
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  WaitEvent("volume.lost");
  WaitVolume(volume, "shown as not mounted any more", [](const v1::Volume& shown) {
    return shown.publications_size() == 1 && shown.publications(0).uncertain() &&
           !shown.publications(0).last_error().empty();
  });
  EXPECT_EQ(Publish(volume, "job"), target);
  EXPECT_EQ(MountsAt(target), 1);
  Unpublish(volume, "job");
}

TEST_F(FaultMeddlerTest, Fault26AForeignUnmountIsRepairedWhereThatIsAskedFor) {
  StartReady();
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request = UseOf(volume);
  request.set_remount(true);
  const std::string target = node_.Publish(request);
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  WaitFor("mounted again", [&] { return MountsAt(target) == 1; }, seconds(40));
  WaitVolume(volume, "well again", [](const v1::Volume& shown) {
    return shown.state() == v1::PUBLISHED && !shown.publications(0).uncertain();
  });
  EXPECT_TRUE(TryUndo(volume, {}, seconds(40)).ok());
}

TEST_F(FaultMeddlerTest, Fault26AMountOverATargetIsNoticedAndUnwound) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  ASSERT_EQ(mount("meddler", target.c_str(), "tmpfs", 0, "size=4k"), 0);
  WaitEvent("volume.overmounted");
  EXPECT_TRUE(VolumeOf(volume)->uncertain());
  Unpublish(volume, "job");
  EXPECT_EQ(MountsAt(target), 0);
  WaitReleased(volume);
}

TEST_F(FaultMeddlerTest, Fault26AStagingThatSomebodyUnmountsIsMendedOrLetGo) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  const std::optional<v1::Volume> known = VolumeOf(volume);
  ASSERT_TRUE(known.has_value());
  ASSERT_EQ(umount2(known->staging_path().c_str(), UMOUNT_NOFOLLOW), 0);
  // The consumer's mount is another one, and is not touched for it.
  Publish(volume, "job");
  // The next one gets the volume, not the node's own disk.
  Publish(volume, "other");
  EXPECT_EQ(MountsAt(known->staging_path()), 1) << "staged again";
  ASSERT_EQ(umount2(known->staging_path().c_str(), UMOUNT_NOFOLLOW), 0);
  Unpublish(volume, "other");
  Unpublish(volume, "job");
  WaitReleased(volume);
  EXPECT_EQ(MountsAt(known->staging_path()), 0);
}

// --- 41: drivers that mount in their own way -------------------------------------------------------------

class FaultBeneathTest : public FaultMeddlerTest {
 protected:
  static constexpr const char* kBeneath = R"(rpc = "*"
action = "beneath"
directory = "mount")";

  // A volume in use, whose plugin mounts beneath the staging path.
  void PublishBeneath() {
    fault_.Play({kBeneath});
    StartReady();
    volume_ = CreateVolume("v");
    Publish(volume_, "job");
    staged_ = VolumeOf(volume_)->staging_path() + "/mount";
    ASSERT_EQ(MountsAt(staged_), 1);
  }
  // Somebody unmounts what is staged, and berthd reports it.
  void TakeStagingAway() {
    const size_t before = Events("volume.lost").size();
    ASSERT_EQ(umount2(staged_.c_str(), UMOUNT_NOFOLLOW), 0);
    WaitFor("the loss is reported", [&] { return Events("volume.lost").size() > before; });
  }

  std::string volume_;
  std::string staged_;
};

TEST_F(FaultBeneathTest, Fault41AMountBeneathTheStagingPathThatIsLostIsMadeAgain) {
  PublishBeneath();
  TakeStagingAway();
  WaitVolume(volume_, "shown as not staged any more", [](const v1::Volume& shown) {
    return shown.last_error().find("its staging is not mounted any more") != std::string::npos;
  });
  // The next consumer gets the volume, not the node's own disk.
  Publish(volume_, "other");
  EXPECT_EQ(MountsAt(staged_), 1) << "staged again";
  Unpublish(volume_, "other");
  Unpublish(volume_, "job");
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(staged_), 0);
}

TEST_F(FaultBeneathTest, Fault41WhatIsMountedOverTheWholeStagingPathIsUnmountedFirst) {
  PublishBeneath();
  const std::string staging = VolumeOf(volume_)->staging_path();
  for (const char* over : {staging.c_str(), staged_.c_str()}) {
    SCOPED_TRACE(over);
    const size_t before = Events("volume.overmounted").size();
    ASSERT_EQ(mount("meddler", over, "tmpfs", 0, "size=4k"), 0);
    WaitFor("it is reported", [&] { return Events("volume.overmounted").size() > before; });
    Publish(volume_, "other");
    EXPECT_EQ(MountsAt(over), over == staged_ ? 1 : 0);
    Unpublish(volume_, "other");
  }
  ASSERT_EQ(mount("meddler", staging.c_str(), "tmpfs", 0, "size=4k"), 0);
  Unpublish(volume_, "job");
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(staging), 0);
}

TEST_F(FaultBeneathTest, Fault41AMountBeneathTheStagingPathIsKnownToTheNextBerthd) {
  PublishBeneath();
  node_.Kill();
  node_.Start();
  node_.WaitReady(fault_.id());
  TakeStagingAway();
  // What happens while no berthd runs is seen, too.
  Publish(volume_, "other");
  node_.Kill();
  ASSERT_EQ(umount2(staged_.c_str(), UMOUNT_NOFOLLOW), 0);
  node_.Start();
  node_.WaitReady(fault_.id());
  Publish(volume_, "third");
  EXPECT_EQ(MountsAt(staged_), 1) << "staged again";
  for (const char* consumer : {"job", "other", "third"}) Unpublish(volume_, consumer);
  WaitReleased(volume_);
}

TEST_F(FaultBeneathTest, Fault41AMountBeneathTheStagingPathThatThePluginLeavesIsOursToUnmount) {
  PublishBeneath();
  fault_.Play({kBeneath, "rpc = \"NodeUnstageVolume\"\naction = \"lie\""});
  Unpublish(volume_, "job");
  WaitEvent("plugin.lied", "NodeUnstageVolume");
  WaitReleased(volume_);
  EXPECT_EQ(MountsAt(staged_), 0);
}

// Before Linux 6.8 berthd cannot ask what a mount shows, and reports a driver's own as another one.
bool MountsCanBeAsked() {
  const auto asked = StatMount(1);
  return !asked.ok() || asked->has_value();
}

// The test does what such a driver does: it unmounts the target, and mounts the same again.
TEST_F(FaultMeddlerTest, Fault41ADriversOwnRepairIsReportedAndTakenOver) {
  if (!MountsCanBeAsked()) GTEST_SKIP() << "this kernel has no statmount(2)";
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  const std::string staging = VolumeOf(volume)->staging_path();
  Forget(volume, "job");
  ASSERT_EQ(umount2(target.c_str(), UMOUNT_NOFOLLOW), 0);
  ASSERT_EQ(mount(staging.c_str(), target.c_str(), nullptr, MS_BIND, nullptr), 0);
  WaitEvent("volume.remounted", "its plugin has mounted it again");
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_EQ(Publish(volume, "job"), target);
  EXPECT_EQ(Calls("NodePublishVolume", volume), 1);
  EXPECT_EQ(MountsAt(target), 1);
  Unpublish(volume, "job");
  EXPECT_EQ(MountsAt(target), 0);
  WaitReleased(volume);
}

// Whichever comes first: the driver's repair may come before ours, between its steps, and over its mount.
TEST_F(FaultMeddlerTest, Fault41ADriversOwnRepairAndOursLeaveTheVolumeWell) {
  if (!MountsCanBeAsked()) GTEST_SKIP() << "this kernel has no statmount(2)";
  StartReady();
  const std::string volume = CreateVolume("v");
  v1::PublishVolumeRequest request = UseOf(volume);
  request.set_remount(true);
  const std::string target = node_.Publish(request);
  const std::string staging = VolumeOf(volume)->staging_path();
  for (int round = 0; round < 10; ++round) {
    const size_t repairs = Events("volume.remounted").size();
    while (umount2(target.c_str(), UMOUNT_NOFOLLOW) == 0) {
    }
    // ENOENT: berthd has unmounted it, too, and removed its directory.
    const bool late = round % 3 == 2;
    if (late) WaitFor("berthd's repair", [&] { return Events("volume.remounted").size() > repairs; });
    const bool made = mount(staging.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0;
    ASSERT_TRUE(made || errno == ENOENT) << errno;
    WaitFor("the volume to be mounted again",
            [&] { return Events("volume.remounted").size() > repairs + (late ? 1 : 0); });
    WaitVolume(volume, "well again", [](const v1::Volume& shown) {
      return shown.state() == v1::PUBLISHED && !shown.publications(0).uncertain();
    });
    EXPECT_GE(MountsAt(target), 1) << "round " << round;
  }
  EXPECT_TRUE(TryUndo(volume, {}, seconds(40)).ok());
  EXPECT_EQ(MountsAt(target), 0);
}

}  // namespace
}  // namespace berth
