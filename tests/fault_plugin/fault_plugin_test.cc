// The program as a test of a CO meets it: real socket, real mounts, a script that changes under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <future>

#include "plugins/hostpath/testing/plugin_test.h"

namespace berth::fault {
namespace {

using hostpath::Mounted;
using hostpath::MountsBeneath;
using hostpath::PluginTest;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class FaultPluginTest : public PluginTest {
 protected:
  void SetUp() override {
    Script("");
    plugin_.RunBy({"/bin/sh", "-c",
                   "exec " BERTH_FAULT_PLUGIN " --script " + script_ + " --history " + history_ + " \"$@\""});
  }
  void Script(const std::string& text) {
    hostpath::WriteText(script_ + ".new", text);
    ASSERT_EQ(std::rename((script_ + ".new").c_str(), script_.c_str()), 0);
  }
  std::string History() { return hostpath::ReadText(history_); }
  std::string NewDirectoryVolume() { return MustCreate(CreateRequest("v", Mounted(), 0, "directory")); }
  grpc::Status Probe(::csi::v1::ProbeResponse* response) {
    return plugin_.Call(plugin_.identity(), &::csi::v1::Identity::Stub::Probe, {}, response);
  }

  const std::string script_ = workplace_.path() + "/script.toml";
  const std::string history_ = workplace_.path() + "/history";
};

TEST_F(FaultPluginTest, WithoutRulesItIsBerthHostpath) {
  plugin_.Start();
  const std::string volume = NewDirectoryVolume();
  const std::string staging = workplace_.NewStagingPath("v");
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  EXPECT_CALL_OK(Unstage(volume, staging));
  EXPECT_CALL_OK(Delete(volume));
  EXPECT_THAT(History(), HasSubstr("\"rpc\":\"NodeStageVolume\""));
  EXPECT_EQ(plugin_.Terminate(), 0);
}

TEST_F(FaultPluginTest, TheScriptIsReadAgainWhenItChanges) {
  plugin_.Start();
  ::csi::v1::ProbeResponse response;
  EXPECT_CALL_OK(Probe(&response));
  EXPECT_TRUE(response.ready().value());
  Script(
      "[[rule]]\nname = \"no\"\nrpc = \"Probe\"\naction = \"answer\"\nanswer = \"ready { value: false }\"\n");
  EXPECT_CALL_OK(Probe(&response));
  EXPECT_TRUE(response.has_ready());
  EXPECT_FALSE(response.ready().value());
  Script("[[rule]]\nname = \"unset\"\nrpc = \"Probe\"\naction = \"answer\"\nreplace = true\n");
  EXPECT_CALL_OK(Probe(&response));
  EXPECT_FALSE(response.has_ready());
  Script("a mistake");
  EXPECT_CALL_OK(Probe(&response));
  EXPECT_FALSE(response.has_ready()) << "the script before stays";
  EXPECT_THAT(History(), HasSubstr("not TOML"));
}

TEST_F(FaultPluginTest, ALieHasNoEffectAndALostAnswerHasOne) {
  plugin_.Start();
  const std::string volume = NewDirectoryVolume();
  const std::string staging = workplace_.NewStagingPath("v");
  Script(
      "[[rule]]\nname = \"lie\"\nrpc = \"NodeStageVolume\"\naction = \"lie\"\ncall = 1\n"
      "[[rule]]\nname = \"lost\"\nrpc = \"NodeStageVolume\"\naction = \"fail\"\nwhen = \"after\"\n"
      "call = 2\ncode = \"UNAVAILABLE\"\n");
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  EXPECT_THAT(MountsBeneath(workplace_.path()), IsEmpty());
  EXPECT_CODE(Stage(volume, staging, Mounted()), UNAVAILABLE);
  EXPECT_THAT(MountsBeneath(workplace_.path()), SizeIs(1));
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  EXPECT_CALL_OK(Unstage(volume, staging));
}

TEST_F(FaultPluginTest, WhatHangsGoesOnWhenItsRuleHasGone) {
  plugin_.Start();
  Script("[[rule]]\nname = \"hang\"\nrpc = \"Probe\"\naction = \"hang\"\n");
  auto probe = std::async(std::launch::async, [this] {
    ::csi::v1::ProbeResponse response;
    return Probe(&response);
  });
  while (History().find("\"hang\"") == std::string::npos) {
    ASSERT_EQ(probe.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  }
  Script("");
  EXPECT_CALL_OK(probe.get());
}

TEST_F(FaultPluginTest, ACrashComesOnceAlsoOverARestart) {
  Script(
      "[[rule]]\nname = \"crash\"\nrpc = \"NodeStageVolume\"\naction = \"signal\"\nsignal = \"SIGKILL\"\n"
      "when = \"after\"\ncall = 1\n");
  plugin_.Start();
  const std::string volume = NewDirectoryVolume();
  const std::string staging = workplace_.NewStagingPath("v");
  EXPECT_CODE(Stage(volume, staging, Mounted()), UNAVAILABLE);
  EXPECT_EQ(plugin_.Terminate(), 128 + SIGKILL);
  EXPECT_THAT(MountsBeneath(workplace_.path()), SizeIs(1)) << "the effect was had before";
  plugin_.Start();
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  EXPECT_CALL_OK(Unstage(volume, staging));
}

TEST_F(FaultPluginTest, ItCanForgetAndPadAndRepeat) {
  plugin_.Start();
  const std::string volume = NewDirectoryVolume();
  const std::string staging = workplace_.NewStagingPath("v");
  Script(
      "[[rule]]\nname = \"twice\"\nrpc = \"NodeStageVolume\"\naction = \"repeat\"\n"
      "[[rule]]\nname = \"forget\"\nrpc = \"NodeStageVolume\"\naction = \"forget\"\nrecord = \"staging\"\n"
      "when = \"after\"\n"
      "[[rule]]\nname = \"large\"\nrpc = \"GetPluginInfo\"\naction = \"answer\"\npad = 100000\n");
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  const std::string history = History();
  EXPECT_NE(history.find("\"effect\"", history.find("\"effect\"") + 1), std::string::npos);
  EXPECT_CODE(Publish(volume, staging, workplace_.Target("t"), Mounted()), FAILED_PRECONDITION);
  ::csi::v1::GetPluginInfoResponse info;
  EXPECT_CALL_OK(plugin_.Call(plugin_.identity(), &::csi::v1::Identity::Stub::GetPluginInfo, {}, &info));
  EXPECT_GT(info.ByteSizeLong(), 100000U);
  EXPECT_EQ(umount2(staging.c_str(), 0), 0) << "the plugin has forgotten it";
}

TEST_F(FaultPluginTest, ItCanStageBeneathTheStagingPath) {
  plugin_.Start();
  const std::string volume = NewDirectoryVolume();
  const std::string staging = workplace_.NewStagingPath("v");
  Script("[[rule]]\nname = \"beneath\"\nrpc = \"*\"\naction = \"beneath\"\ndirectory = \"mount\"\n");
  EXPECT_CALL_OK(Stage(volume, staging, Mounted()));
  EXPECT_THAT(MountsBeneath(staging), ElementsAre(HasSubstr(" " + staging + "/mount ")));
  EXPECT_CALL_OK(Publish(volume, staging, workplace_.Target("t"), Mounted()));
  EXPECT_CALL_OK(Unpublish(volume, workplace_.Target("t")));
  EXPECT_CALL_OK(Unstage(volume, staging));
  EXPECT_EQ(rmdir(staging.c_str()), 0) << "nothing is left in it";
}

TEST_F(FaultPluginTest, AWrongScriptAtTheStartIsRefused) {
  Script("colour = 1\n");
  EXPECT_EQ(plugin_.RunToItsEnd(
                {"--endpoint", workplace_.Socket(), "--node-id", "n", "--state-dir", workplace_.StateDir()}),
            1);
}

TEST_F(FaultPluginTest, ItEndsAtTheStartAsTheScriptSays) {
  Script("[[rule]]\nname = \"exit\"\nrpc = \"start\"\naction = \"exit\"\nexit_code = 7\n");
  EXPECT_EQ(plugin_.RunToItsEnd(
                {"--endpoint", workplace_.Socket(), "--node-id", "n", "--state-dir", workplace_.StateDir()}),
            7);
}

}  // namespace
}  // namespace berth::fault
