// Hostile names, and a host that refuses things (FAULTS rows 27 to 29), on a whole node.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/sanitizer.h"
#include "tests/harness/fault_test.h"
#include "tests/harness/host_faults.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FaultHostTest : public FaultTest {
 protected:
  // A step that does not succeed is repeated so long.
  FaultHostTest() { node_.WriteBerthdToml("[volumes]\nrpc_timeout = \"2s\"\n"); }
  [[nodiscard]] std::string Tree() const { return node_.state_dir() + "/volumes"; }
};

// --- 27: names --------------------------------------------------------------------------------------------

TEST_F(FaultHostTest, Fault27NamesOfConsumersAreOpaque) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::vector<std::string> names = {
      "..", "../../../etc",         "/etc/passwd", "a/b", "%s%n", std::string(1024, 'x'), "\u202egpj",
      ".",  "volumes/../../journal"};
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    const std::string target = Publish(volume, name);
    EXPECT_TRUE(target.starts_with(Tree() + "/")) << target;
    EXPECT_EQ(std::filesystem::path(target).lexically_normal().string(), target);
    EXPECT_EQ(std::count(targets.begin(), targets.end(), target), 0);
    targets.push_back(target);
  }
  for (const char* name : {"a\nb", "\x7f\x01"}) {
    EXPECT_EQ(TryPublish(volume, name).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (const std::string& name : names) Unpublish(volume, name);
}

TEST_F(FaultHostTest, Fault27IdsOfVolumesAreOpaqueUpToTheirLimit) {
  StartReady();
  const std::vector<std::string> before = Node::Tree(Tree());
  // It would refuse the longest on the way back, too.
  fault_.Play({"rpc = \"NodeUnstageVolume\"\naction = \"lie\""});
  for (const std::string& id : {std::string("../../../etc"), std::string("/"), std::string("a\nb"),
                                std::string(4096, 'x'), std::string("..")}) {
    // The plugin does not know it, and says so; on the way there and back nothing is left behind.
    const grpc::Status status = TryPublish(id, "job", nullptr, seconds(10));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  }
  const grpc::Status beyond = TryPublish(std::string(4097, 'x'), "job", nullptr, seconds(10));
  EXPECT_EQ(beyond.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << beyond.error_message();
  EXPECT_EQ(node_.Volumes().volumes_size(), 1) << "the bystander's";
  EXPECT_EQ(Node::Tree(Tree()), before);
}

TEST_F(FaultHostTest, Fault27ASymlinkSwappedInIsNotFollowed) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "one");
  const std::string publish = std::filesystem::path(target).parent_path().parent_path();
  const std::string outside = node_.dir() + "/outside";
  ASSERT_EQ(mkdir(outside.c_str(), 0755), 0);
  ASSERT_EQ(rename(publish.c_str(), (publish + ".away").c_str()), 0);
  ASSERT_EQ(symlink(outside.c_str(), publish.c_str()), 0);
  const grpc::Status status = TryPublish(volume, "two", nullptr, seconds(5));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(Node::Tree(outside), IsEmpty());
  ASSERT_EQ(unlink(publish.c_str()), 0);
  ASSERT_EQ(rename((publish + ".away").c_str(), publish.c_str()), 0);
  Unpublish(volume, "one");
  Unpublish(volume, "two");
  EXPECT_THAT(Node::Tree(outside), IsEmpty());
}

// --- 28: a private mount namespace ------------------------------------------------------------------------

TEST(FaultNamespaceTest, Fault28BerthdInAPrivateMountNamespaceRefusesToStartAndSaysWhy) {
  Node node;
  node.WriteHostpath();
  node.ForbidPrivateMounts();
  EXPECT_GT(node.RunAnother(), 0);
  EXPECT_THAT(node.log(), HasSubstr("mount namespace"));
  EXPECT_THAT(node.log(), HasSubstr("--allow-private-mounts"));
  EXPECT_THAT(node.Mounts(), testing::SizeIs(1)) << "nothing but the test's own is mounted";
}

TEST(FaultNamespaceTest, Fault28BerthdThatIsToStartAllTheSameShowsIt) {
  Node node;
  node.WriteHostpath();
  node.Start();
  v1::GetStatusResponse status;
  ASSERT_TRUE(node.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  EXPECT_THAT(status.problems(), IsEmpty()) << "it was asked for";
  const auto& findings = status.findings();
  const auto note = std::ranges::find(findings, "node.private_mounts", &v1::Finding::code);
  ASSERT_NE(note, findings.end());
  EXPECT_EQ(note->severity(), v1::INFO);
  EXPECT_THAT(note->text(), HasSubstr("is not seen by the host"));
}

// --- How a program begins
// -----------------------------------------------------------------------------------

// The core files in berthd's working directory once it was killed by SIGSEGV.
size_t CoresOf(const std::string& flag) {
  Node node;
  node.WriteHostpath();
  node.RunThrough(
      {"/bin/sh", "-c", fmt::format("ulimit -c unlimited; cd {} && exec \"$@\" {}", node.dir(), flag), "sh"});
  node.Start();
  v1::GetStatusResponse status;
  EXPECT_TRUE(node.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  EXPECT_EQ(kill(static_cast<pid_t>(status.pid()), SIGSEGV), 0);
  WaitFor("its end", [&status] {
    std::ifstream file(fmt::format("/proc/{}/stat", status.pid()));
    std::string text;
    std::getline(file, text);
    return text.find(") Z ") != std::string::npos;
  });
  node.Kill();
  size_t cores = 0;
  for (const auto& entry : std::filesystem::directory_iterator(node.dir())) {
    const std::string name = entry.path().filename();
    cores += name.starts_with("core") ? 1 : 0;
  }
  return cores;
}

TEST(FaultStartTest, BerthdLeavesNoCoreWhichCouldHoldSecretsUnlessItIsAskedFor) {
  if (kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer ends it without one";
  EXPECT_EQ(CoresOf(""), 0U);
  std::ifstream pattern("/proc/sys/kernel/core_pattern");
  std::string where;
  pattern >> where;
  if (!where.starts_with("core")) GTEST_SKIP() << "cores go to " << where;
  EXPECT_EQ(CoresOf("--allow-core"), 1U);
}

TEST(FaultStartTest, DescriptorsThatAreClosedAreOpenedOnNothing) {
  Node node;
  node.WriteHostpath();
  // Standard error is the log, so that this test hears of it.
  node.RunThrough({"/bin/sh", "-c", "exec \"$@\" <&- >&-", "sh"});
  node.Start();
  v1::GetStatusResponse status;
  ASSERT_TRUE(node.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  for (const int fd : {0, 1}) {
    EXPECT_EQ(std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", status.pid(), fd)), "/dev/null");
  }
  node.WaitReady("hostpath");
}

// --- 29: too much -----------------------------------------------------------------------------------------

// One mount namespace may hold so many mounts (fs.mount-max, 100,000), and this test's own is filled up.
TEST_F(FaultHostTest, Fault29TooManyMountsIsAnErrorAndNothingIsHalfDone) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string kept = Publish(CreateVolume("kept"), "job");
  const std::string filler = node_.dir() + "/filler";
  const std::string single = node_.dir() + "/single";
  for (const std::string& path : {filler, single}) {
    ASSERT_EQ(mkdir(path.c_str(), 0755), 0);
    ASSERT_EQ(mount("filler", path.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(mount(nullptr, path.c_str(), nullptr, MS_PRIVATE, nullptr), 0);
  }
  // Each time as many again; where there is no room for that any more, one by one.
  bool doubling = true;
  for (int made = 0;; ++made) {
    const std::string next = fmt::format("{}/{}", filler, made);
    ASSERT_EQ(mkdir(next.c_str(), 0755), 0);
    const std::string& source = doubling ? filler : single;
    if (mount(source.c_str(), next.c_str(), nullptr, MS_BIND | (doubling ? MS_REC : 0), nullptr) == 0)
      continue;
    ASSERT_EQ(errno, ENOSPC);
    if (!doubling) break;
    doubling = false;
  }
  const grpc::Status refused = TryPublish(volume, "job");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  ASSERT_EQ(umount2(filler.c_str(), MNT_DETACH), 0);
  EXPECT_EQ(MountsAt(kept), 1);
  Unpublish(volume, "job");
  Publish(volume, "job");
  Unpublish(volume, "job");
}

TEST_F(FaultHostTest, Fault29NoDescriptorsIsAnErrorAndNothingIsHalfDone) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer needs descriptors of its own to look at an object";
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string kept = Publish(CreateVolume("kept"), "job");
  const pid_t berthd = BerthdPid();
  rlimit before{};
  ASSERT_EQ(prlimit(berthd, RLIMIT_NOFILE, nullptr, &before), 0);
  // Fewer than it has open by now: it keeps those.
  const rlimit none{.rlim_cur = 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(prlimit(berthd, RLIMIT_NOFILE, &none, nullptr), 0);
  const grpc::Status refused = TryPublish(volume, "job", nullptr, seconds(5));
  ASSERT_EQ(prlimit(berthd, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(MountsAt(kept), 1);
  EXPECT_EQ(BerthdPid(), berthd) << "it lives";
  Publish(volume, "job");
  Unpublish(volume, "job");
}

class FaultMemoryTest : public FaultHostTest {
 protected:
  FaultMemoryTest() : host_(node_) {}
  HostFaults host_;
};

TEST_F(FaultMemoryTest, Fault43WithoutAnInotifyInstancePluginsStartAndComeBack) {
  host_.FailWatches();
  const pid_t before = StartReady().pid();
  ASSERT_EQ(kill(before, SIGKILL), 0);
  Wait("ready again", [&](const v1::Plugin& p) { return p.registered() && p.pid() != before; });
  ExpectWorks("v");
  EXPECT_THAT(node_.log(), HasSubstr("fs.inotify.max_user_instances"));
}

// A publication that gives its root another mode needs a helper process.
TEST_F(FaultMemoryTest, Fault29NoMemoryForAHelperIsAnErrorAndNothingIsHalfDone) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::string kept = Publish(CreateVolume("kept"), "job");
  const std::vector<std::string> mounts = node_.Mounts();
  host_.FailLaunches();
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer("job");
  request.mutable_permissions()->set_mode(0750);
  v1::PublishVolumeResponse response;
  const grpc::Status refused = node_.stub().PublishVolume(Node::Context().get(), request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  host_.Heal();
  const grpc::Status again = node_.stub().PublishVolume(Node::Context().get(), request, &response);
  ASSERT_TRUE(again.ok()) << again.error_message();
  struct stat info{};
  ASSERT_EQ(stat(response.target_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0750U);
  Unpublish(volume, "job");
  EXPECT_FALSE(VolumeOf(volume).has_value());
  EXPECT_EQ(node_.Mounts(), mounts);
}

TEST_F(FaultMemoryTest, Fault29NoMemoryForAPluginIsToldAndTriedAgain) {
  StartReady("[restart]\ninitial_backoff = \"50ms\"\nmax_backoff = \"100ms\"\nburst = 1000\n");
  const std::string volume = CreateVolume("v");
  const std::string target = Publish(volume, "job");
  host_.FailLaunches();
  ASSERT_EQ(kill(Get().pid(), SIGKILL), 0);
  const v1::Plugin away = Wait("the reason why it is not there", [](const v1::Plugin& plugin) {
    return plugin.reason().find("Cannot allocate memory") != std::string::npos;
  });
  EXPECT_FALSE(away.alive());
  EXPECT_EQ(MountsAt(target), 1);
  host_.Heal();
  node_.WaitReady(fault_.id());
  Unpublish(volume, "job");
}

}  // namespace
}  // namespace berth
