// What a whole node says of its health, and what a reload waits for and refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/harness/fault_plugin.h"
#include "tests/harness/node.h"
#include "tests/harness/run_command.h"

namespace berth {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class HealthTest : public testing::Test {
 protected:
  [[nodiscard]] Ended Ctl(const std::string& arguments) const {
    return RunCommand(fmt::format("{} --socket {} {}", BERTHCTL, node_.socket(), arguments));
  }
  // The same node's files, checked by another berthd.
  [[nodiscard]] Ended Check() const {
    return RunCommand(fmt::format("{} --check --config {}/etc --state-dir {} --runtime-dir {}", BERTHD,
                                  node_.dir(), node_.state_dir(), node_.runtime_dir()));
  }
  [[nodiscard]] std::string File(const std::string& name) const {
    return fmt::format("{}/etc/plugins.d/{}.toml", node_.dir(), name);
  }
  void Declare(const std::string& name, const std::string& plugin) {
    mkdir((node_.dir() + "/etc/volumes.d").c_str(), 0755);
    std::ofstream(fmt::format("{}/etc/volumes.d/{}.toml", node_.dir(), name))
        << fmt::format("plugin = \"{}\"\nvolume = \"no-such-volume\"\n", plugin);
  }
  std::string CreateVolume(const std::string& plugin) {
    v1::CreateVolumeRequest request;
    request.set_plugin_id(plugin);
    request.set_name("v");
    (*request.mutable_parameters())["kind"] = "directory";
    return node_.CreateVolume(request);
  }

  Node node_;
  FaultPlugin fault_{node_};
};

TEST_F(HealthTest, AFailedPluginIsSaidByStatusDoctorAndHealth) {
  node_.WriteHostpath();
  node_.Start();
  node_.WaitReady("hostpath");
  for (const char* command : {"status", "status -o json", "doctor", "health", "health -o json"}) {
    const Ended well = Ctl(command);
    EXPECT_EQ(well.exit_code, 0) << command << ": " << well.said;
  }
  EXPECT_EQ(Check().exit_code, 0) << "while berthd runs";

  node_.WritePlugin("bad", "kind = \"node\"\ncolour = 3\n");
  const Ended checked = Check();
  EXPECT_EQ(checked.exit_code, 78);
  EXPECT_THAT(checked.said, HasSubstr("bad.toml:2: colour: unknown key"));
  const Ended reloaded = Ctl("reload");
  EXPECT_EQ(reloaded.exit_code, 1);
  EXPECT_THAT(reloaded.said, HasSubstr("bad.toml:2: colour: unknown key"));
  const Ended status = Ctl("status");
  EXPECT_EQ(status.exit_code, 4);
  EXPECT_THAT(status.said, AllOf(HasSubstr("plugin bad is failed"), HasSubstr("do: correct ")));
  EXPECT_EQ(Ctl("status -o json").exit_code, 4);
  const Ended doctor = Ctl("doctor");
  EXPECT_EQ(doctor.exit_code, 4);
  EXPECT_THAT(doctor.said, AllOf(HasSubstr("ERROR  plugin.failed  bad"), HasSubstr("do: correct ")));
  EXPECT_EQ(Ctl("doctor -o json").exit_code, 4);
  const Ended health = Ctl("health");
  EXPECT_EQ(health.exit_code, 2);
  EXPECT_THAT(health.said, testing::StartsWith("BERTH CRITICAL - node-1: plugin bad is failed"));

  ASSERT_EQ(unlink(File("bad").c_str()), 0);
  EXPECT_EQ(Ctl("reload").exit_code, 0);
  EXPECT_EQ(Ctl("status").exit_code, 0);
  EXPECT_EQ(Ctl("doctor").exit_code, 0);
  EXPECT_EQ(Ctl("health").exit_code, 0);
}

TEST_F(HealthTest, AReloadWaitsUntilWhatChangedIsReadyOrHasFailed) {
  node_.Start();
  fault_.Play({"rpc = \"start\"\naction = \"delay\"\ndelay_ms = 1000"});
  fault_.Write();
  const Ended reloaded = Ctl("reload");
  EXPECT_EQ(reloaded.exit_code, 0) << reloaded.said;
  EXPECT_THAT(reloaded.said, HasSubstr("fault  started; ready"));
  EXPECT_TRUE(node_.Plugin("fault").registered());

  // One that never says that it is ready, and its volume.
  fault_.Play({"rpc = \"Probe\"\naction = \"answer\"\nanswer = \"ready { value: false }\""});
  FaultPlugin never(node_, "never");
  never.Play({"rpc = \"Probe\"\naction = \"answer\"\nanswer = \"ready { value: false }\""});
  never.Write("start_timeout = \"1s\"\n");
  Declare("data", "never");
  const Ended failed = Ctl("reload");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.said, AllOf(HasSubstr("never: it is starting"), HasSubstr("data.toml: ")));
  EXPECT_THAT(node_.Problems(), Contains(HasSubstr("plugin never is starting")));
  EXPECT_NE(Ctl("health").exit_code, 0);
}

TEST_F(HealthTest, AReloadGoesOnToItsEndWhereItsCallerHasGone) {
  fault_.Write();
  node_.Start();
  const v1::Plugin before = node_.WaitReady("fault");
  // The new process is slow: the caller leaves in the middle of the swap.
  fault_.Play({"rpc = \"start\"\naction = \"delay\"\ndelay_ms = 3000"});
  fault_.Write("umask = \"0027\"\n");
  Declare("data", "fault");
  const auto context = Node::Context();
  {
    const std::jthread caller([&stub = node_.stub(), &context] {
      v1::ReloadRequest request;
      request.set_wait(true);
      v1::ReloadResponse report;
      [[maybe_unused]] const grpc::Status left = stub.Reload(context.get(), request, &report);
    });
    const std::unique_ptr<grpc::ClientContext, void (*)(grpc::ClientContext*)> leaves(
        context.get(), [](grpc::ClientContext* call) { call->TryCancel(); });
    node_.WaitPlugin("fault", "no longer the old one", [&](const v1::Plugin& plugin) {
      return plugin.paused() || plugin.pid() != before.pid();
    });
  }
  WaitFor("the file that comes after the plugins", [&] {
    v1::ListDeclaredVolumesResponse volumes;
    const grpc::Status status = node_.stub().ListDeclaredVolumes(Node::Context().get(), {}, &volumes);
    return status.ok() && volumes.volumes_size() == 1;
  });
  node_.WaitPlugin("fault", "swapped", [&](const v1::Plugin& plugin) {
    return plugin.registered() && !plugin.paused() && plugin.pid() != before.pid();
  });
}

TEST_F(HealthTest, AReloadDoesNotTakeAPluginThatCanDoLessWhileAVolumeIsHeld) {
  fault_.Write();
  node_.Start();
  node_.WaitReady("fault");
  const std::string volume = CreateVolume("fault");
  v1::PublishVolumeRequest publish;
  publish.set_plugin_id("fault");
  publish.set_volume_id(volume);
  publish.set_consumer("job");
  node_.Publish(publish);

  // Another script, which only the new process plays.
  const std::string less = node_.dir() + "/less.toml";
  std::ofstream(less) << "[[rule]]\nname = \"less\"\nrpc = \"NodeGetCapabilities\"\naction = \"answer\"\n"
                         "answer = \"\"\nreplace = true\n";
  const std::string good = ReadText(File("fault"));
  std::string worse = good;
  worse.replace(worse.find("/fault.script.toml"), std::string("/fault.script.toml").size(), "/less.toml");
  node_.WritePlugin("fault", worse);
  const Ended refused = Ctl("reload");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.said,
              AllOf(HasSubstr("node capability STAGE_UNSTAGE_VOLUME is missing"),
                    HasSubstr("plugin swap --accept-changes"), HasSubstr("the old one serves")));
  const v1::Plugin old = node_.WaitReady("fault");
  EXPECT_THAT(old.fingerprint().node_capabilities(), Contains("STAGE_UNSTAGE_VOLUME"));
  EXPECT_THAT(old.command(), Not(HasSubstr("less.toml")));
  EXPECT_THAT(node_.Problems(), Contains(AllOf(HasSubstr("is not applied"), HasSubstr("accept-changes"))));
  EXPECT_EQ(Ctl("status").exit_code, 4);

  // An operator may use it nevertheless; and without volumes nothing depends on it.
  const Ended accepted = Ctl("plugin swap fault --accept-changes");
  EXPECT_EQ(accepted.exit_code, 0) << accepted.said;
  EXPECT_THAT(node_.Plugin("fault").fingerprint().node_capabilities(), Not(Contains("STAGE_UNSTAGE_VOLUME")));
  EXPECT_THAT(node_.Problems(), IsEmpty());
  node_.WritePlugin("fault", good);
  EXPECT_EQ(Ctl("reload").exit_code, 0) << "it can do more again";
  EXPECT_EQ(
      Ctl(fmt::format("volume unpublish --plugin fault --volume '{}' --consumer job", volume)).exit_code, 0);
  node_.WritePlugin("fault", worse);
  const Ended unused = Ctl("reload");
  EXPECT_EQ(unused.exit_code, 0) << unused.said;
  EXPECT_THAT(node_.Plugin("fault").fingerprint().node_capabilities(), Not(Contains("STAGE_UNSTAGE_VOLUME")));
}

}  // namespace
}  // namespace berth
