// What berthd keeps, come to harm (FAULTS rows 18, 19, 21 and 22), on a whole node: a journal of a newer
// version, a reboot, a damaged journal, a full disk. The journal's own cases: journal/journal_test.cc.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/unique_fd.h"
#include "tests/harness/fault_test.h"
#include "tests/harness/reboot.h"

namespace berth {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

std::string ReadBytes(const std::string& path) {
  const std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class FaultStateTest : public FaultTest {
 protected:
  [[nodiscard]] std::string Journal() const { return node_.state_dir() + "/journal.db"; }
};

// --- 18: a newer version -----------------------------------------------------------------------------------

TEST_F(FaultStateTest, Fault18AJournalOfANewerVersionIsRefusedAndNothingChanged) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  node_.Stop();
  const std::string before = ReadBytes(Journal());
  ASSERT_GT(before.size(), 100U);
  // The schema's number in SQLite's header.
  std::string newer = before;
  newer[63] = static_cast<char>(newer[63] + 50);
  std::ofstream(Journal(), std::ios::binary) << newer << std::flush;
  EXPECT_NE(node_.RunAnother(), 0);
  EXPECT_THAT(node_.log(), HasSubstr("newer"));
  EXPECT_EQ(ReadBytes(Journal()), newer);
  std::ofstream(Journal(), std::ios::binary) << before << std::flush;
  node_.Start();
  node_.WaitReady(fault_.id());
  Unpublish(volume, "job");
}

// --- 19: a reboot ------------------------------------------------------------------------------------------

class FaultRebootTest : public FaultStateTest {
 protected:
  // All processes end, all mounts go, and the kernel is another one.
  void RebootNode() {
    reboot_.emplace(node_);
    node_.Start();
    node_.WaitReady(fault_.id());
  }

 private:
  std::optional<Reboot> reboot_;
};

TEST_F(FaultRebootTest, Fault19MountsAreVoidAndObligationsAreKept) {
  StartReady();
  const std::string held = CreateVolume("held");
  const std::string wanted = CreateVolume("wanted");
  const std::string unwanted = CreateVolume("unwanted");
  Publish(held, "job");
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(wanted);
  request.set_consumer("job");
  request.set_remount(true);
  const std::string target = node_.Publish(request);
  Publish(unwanted, "job");
  // It was being undone when the machine went down.
  fault_.Play({"rpc = \"NodeUnpublishVolume\"\nvolume = \"" + unwanted + "\"\naction = \"hang\""});
  EXPECT_FALSE(TryUnpublish(unwanted, "job", seconds(1)).ok());
  fault_.WaitActed("NodeUnpublishVolume");
  const int64_t asked = Calls("NodeUnpublishVolume", unwanted);
  Forget(held, "job");
  fault_.Play();
  RebootNode();

  WaitFor("what was being undone is undone with the plugin", [&] { return !VolumeOf(unwanted).has_value(); });
  EXPECT_GE(Calls("NodeUnpublishVolume", unwanted), asked);
  EXPECT_GE(Calls("NodeUnstageVolume", unwanted), 1);

  WaitFor("what is to be mounted again is", [&] { return MountsAt(target) == 1; });
  const std::optional<v1::Volume> shown = VolumeOf(held);
  ASSERT_TRUE(shown.has_value());
  ASSERT_EQ(shown->publications_size(), 1);
  EXPECT_FALSE(shown->publications(0).blocked().empty()) << shown->DebugString();
  EXPECT_EQ(Calls("NodeStageVolume", held), 1) << "another node may have it by now";
  EXPECT_EQ(MountsAt(shown->publications(0).target_path()), 0);
  // The same request takes it up again, and its end lets it go.
  EXPECT_EQ(Publish(held, "job"), shown->publications(0).target_path());
  Unpublish(held, "job");
  RepublishBystander();
}

// Seen as three: repeat the publish, repeat what failed, and nothing, for it is repeated by itself.
TEST_F(FaultRebootTest, Fault19ABlockedAndAWorkingUseOfOneVolumeShowOneInstruction) {
  StartReady();
  const std::string volume = CreateVolume("shared");
  v1::PublishVolumeRequest web;
  web.set_plugin_id(fault_.id());
  web.set_volume_id(volume);
  web.set_consumer("web");
  web.set_remount(true);
  const std::string target = node_.Publish(web);
  Publish(volume, "db");
  Forget(volume, "db");
  RebootNode();
  WaitFor("one use is mounted again", [&] { return MountsAt(target) == 1; });
  const v1::Volume shown = WaitVolume(volume, "at rest", [](const v1::Volume& v) {
    return v.state() == v1::PUBLISHED && v.running().empty() && !v.has_next_retry_at();
  });
  const std::string advice = shown.advice();
  EXPECT_THAT(advice, AllOf(HasSubstr("Publish it again for db"), HasSubstr("--consumer db"),
                            HasSubstr("The other uses of the volume are not affected")));
  EXPECT_FALSE(shown.uncertain()) << "nothing is being found out";
  EXPECT_EQ(shown.last_error(), "") << "nothing has failed";

  // Whatever else is shown says facts.
  const auto expect_fact = [](const std::string& text) {
    EXPECT_EQ(text.find("ublish it"), std::string::npos) << text;
    EXPECT_EQ(text.find("epeat"), std::string::npos) << text;
  };
  v1::ExplainVolumeRequest explain;
  explain.set_plugin_id(fault_.id());
  explain.set_volume_id(volume);
  v1::ExplainVolumeResponse explained;
  ASSERT_TRUE(node_.stub().ExplainVolume(Node::Context().get(), explain, &explained).ok());
  EXPECT_EQ(explained.volume().advice(), advice);
  for (const std::string& remark : explained.remarks()) expect_fact(remark);
  v1::ExamineResponse examined;
  ASSERT_TRUE(node_.stub().Examine(Node::Context().get(), v1::ExamineRequest(), &examined).ok());
  int findings = 0;
  for (const v1::Finding& finding : examined.findings()) {
    if (finding.volume_id() != volume) continue;
    ++findings;
    EXPECT_EQ(finding.advice(), advice) << finding.code();
    expect_fact(finding.text());
  }
  EXPECT_EQ(findings, 1) << examined.DebugString();
  Unpublish(volume, "db");
  EXPECT_TRUE(TryUnpublish(volume, "web").ok());
  RepublishBystander();
}

TEST_F(FaultRebootTest, Fault19WhatIsUnwantedAfterwardsIsUndoneWithThePlugin) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  Forget(volume, "job");
  RebootNode();
  Unpublish(volume, "job");
  EXPECT_FALSE(VolumeOf(volume).has_value());
  EXPECT_EQ(Calls("NodeUnpublishVolume", volume), 1);
  EXPECT_EQ(Calls("NodeUnstageVolume", volume), 1);
  RepublishBystander();
}

// --- 21: a damaged journal ---------------------------------------------------------------------------------

class FaultDamageTest : public FaultStateTest {
 protected:
  // As it is shown.
  [[nodiscard]] bool InJournal(const std::string& volume) {
    v1::ExplainVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    v1::ExplainVolumeResponse told;
    const grpc::Status status = node_.stub().ExplainVolume(Node::Context().get(), request, &told);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return told.in_journal();
  }
  void ExpectRebuilt(const std::function<void()>& damage) {
    StartReady();
    const std::string volume = CreateVolume("v");
    const std::string target = Publish(volume, "job");
    node_.Stop();
    damage();
    node_.Start();
    node_.WaitReady(fault_.id());
    EXPECT_THAT(node_.Problems(), Contains(HasSubstr("journal")));
    bool set_aside = false;
    for (const auto& entry : std::filesystem::directory_iterator(node_.state_dir())) {
      set_aside = set_aside || entry.path().filename().string().starts_with("journal.db.corrupt-");
    }
    EXPECT_TRUE(set_aside) << "it is kept for a person to look at";
    const std::optional<v1::Volume> shown = VolumeOf(volume);
    ASSERT_TRUE(shown.has_value()) << "from its identity file and the kernel";
    EXPECT_EQ(shown->plugin_id(), fault_.id());
    ASSERT_EQ(shown->publications_size(), 1);
    EXPECT_EQ(shown->publications(0).target_path(), target);
    EXPECT_EQ(shown->publications(0).consumer(), "job");
    EXPECT_EQ(MountsAt(target), 1) << "it was not touched for it";
    // Published once more it is known whole, and the next berthd knows it, too.
    EXPECT_EQ(Publish(volume, "job"), target);
    EXPECT_TRUE(InJournal(volume));
    Unpublish(volume, "job");
    EXPECT_FALSE(VolumeOf(volume).has_value());
    ExpectWorks("w");
  }
};

TEST_F(FaultDamageTest, Fault21ACorruptJournalIsSetAsideAndRebuilt) {
  ExpectRebuilt([this] {
    std::string bytes = ReadBytes(Journal());
    for (size_t i = 200; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31);
    std::ofstream(Journal(), std::ios::binary) << bytes << std::flush;
  });
}

TEST_F(FaultDamageTest, Fault21ATruncatedJournalIsSetAsideAndRebuilt) {
  ExpectRebuilt([this] { ASSERT_EQ(truncate(Journal().c_str(), 5000), 0); });
}

TEST_F(FaultDamageTest, Fault21AJournalThatIsNoneIsSetAsideAndRebuilt) {
  ExpectRebuilt([this] { std::ofstream(Journal(), std::ios::binary) << "not a database" << std::flush; });
}

// --- 22: a full disk ---------------------------------------------------------------------------------------

class FaultFullDiskTest : public FaultStateTest {
 protected:
  // The state directory on a small file system, what plugins keep on another.
  FaultFullDiskTest() {
    const std::string state = node_.state_dir();
    if (mkdir(state.c_str(), 0711) != 0 ||
        mount("small", state.c_str(), "tmpfs", 0, "size=8m,mode=0711") != 0 ||
        mkdir((state + "/plugins").c_str(), 0700) != 0 ||
        mount("plugins", (state + "/plugins").c_str(), "tmpfs", 0, "size=64m,mode=0700") != 0) {
      throw std::runtime_error("mount a small file system");
    }
  }
  void Fill() { FillUp(Filler()); }
  static void FillUp(const std::string& path) {
    const UniqueFd filler(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::string block(4096, 'x');
    while (write(filler.get(), block.data(), block.size()) > 0) {
    }
    EXPECT_EQ(errno, ENOSPC);
  }
  [[nodiscard]] std::string Filler() const { return node_.state_dir() + "/filler"; }
};

TEST_F(FaultFullDiskTest, Fault22NewWorkIsRefusedAndReleaseStillWorks) {
  StartReady();
  std::vector<std::string> volumes;
  for (int i = 0; i < 8; ++i) {
    volumes.push_back(CreateVolume(fmt::format("v{}", i)));
    Publish(volumes.back(), "job");
  }
  const std::string other = CreateVolume("other");
  Fill();
  const grpc::Status refused = TryPublish(other, "job", nullptr, seconds(10));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  for (const std::string& volume : volumes) Unpublish(volume, "job");
  for (const std::string& volume : volumes) EXPECT_FALSE(VolumeOf(volume).has_value());
  // What let them go is remembered, too.
  node_.Kill();
  node_.Start();
  node_.WaitReady(fault_.id());
  for (const std::string& volume : volumes) EXPECT_FALSE(VolumeOf(volume).has_value());

  ASSERT_EQ(unlink(Filler().c_str()), 0);
  WaitFor("there is room again", [&] { return TryPublish(other, "job", nullptr, seconds(10)).ok(); });
  Unpublish(other, "job");
}

TEST_F(FaultFullDiskTest, Fault22ADeclaredVolumeThatIsAttachedLeaves) {
  // On a file system of its own: what the volume's directories give back would be room enough.
  const std::string notes = node_.state_dir() + "/declared";
  ASSERT_EQ(mkdir(notes.c_str(), 0700), 0);
  ASSERT_EQ(mount("notes", notes.c_str(), "tmpfs", 0, "size=64k,mode=0700"), 0);
  node_.WriteHostpath({"--attach"});
  node_.Start();
  node_.WaitReady("hostpath");
  v1::CreateVolumeRequest request;
  request.set_plugin_id("hostpath");
  request.set_name("v");
  (*request.mutable_parameters())["kind"] = "directory";
  const std::string volume = node_.CreateVolume(request);
  const std::string declaration = node_.dir() + "/etc/volumes.d/data.toml";
  ASSERT_TRUE(std::filesystem::create_directories(node_.dir() + "/etc/volumes.d"));
  std::ofstream(declaration) << fmt::format("plugin = \"hostpath\"\nvolume = \"{}\"\n", volume);
  node_.Reload();
  WaitVolume(volume, "published", [](const v1::Volume& each) {
    return each.publications_size() == 1 && each.publications(0).state() == v1::PUBLISHED;
  });
  ASSERT_EQ(Node::Tree(notes).size(), 1U);

  FillUp(notes + "/filler");
  ASSERT_EQ(unlink(declaration.c_str()), 0);
  node_.Reload();
  WaitFor("its note to go", [&] { return Node::Tree(notes).size() == 1; });
  // The note goes first: a berthd that ends in between has nothing left to do.
  WaitFor("the volume to be shown no more", [&] { return !VolumeOf(volume).has_value(); });
  // Only one that is attached nowhere may be deleted.
  node_.DeleteVolume(volume);
}

}  // namespace
}  // namespace berth
