#include "rpc/convert_volume.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

VolumeView View(StageState stage, const std::vector<PublicationState>& publications) {
  VolumeView view;
  view.stage_state = stage;
  for (const PublicationState state : publications) view.publications.push_back({.state = state});
  return view;
}

TEST(ConvertVolumeTest, ShowsTheFurthestState) {
  using P = PublicationState;
  EXPECT_EQ(ToProto(View(StageState::kAbsent, {}), true).state(), v1::VOLUME_STATE_UNKNOWN);
  EXPECT_EQ(ToProto(View(StageState::kStaging, {}), true).state(), v1::STAGING);
  EXPECT_EQ(ToProto(View(StageState::kStaged, {}), true).state(), v1::STAGED);
  EXPECT_EQ(ToProto(View(StageState::kUnstaging, {}), true).state(), v1::UNSTAGING);
  EXPECT_EQ(ToProto(View(StageState::kStaged, {P::kUnpublishing}), true).state(), v1::UNPUBLISHING);
  EXPECT_EQ(ToProto(View(StageState::kStaged, {P::kUnpublishing, P::kPublishing}), true).state(),
            v1::PUBLISHING);
  EXPECT_EQ(ToProto(View(StageState::kAbsent, {P::kPublishing, P::kPublished}), true).state(), v1::PUBLISHED);
}

TEST(ConvertVolumeTest, HidesMountFlagsFromThoseWhoMayNotChange) {
  VolumeView view;
  view.use.mount_flags = {"noatime", "password=hush"};
  EXPECT_THAT(ToProto(view, true).capability().mount_flags(), ElementsAre("noatime", "password=hush"));
  EXPECT_THAT(ToProto(view, false).capability().mount_flags(), ElementsAre("(hidden)"));
  view.use.mount_flags.clear();
  EXPECT_TRUE(ToProto(view, false).capability().mount_flags().empty()) << "nothing to hide";
}

TEST(ConvertVolumeTest, KeepsAnIdThatIsText) {
  VolumeView view;
  view.volume_id = "a\nb\xc3\xa9";
  EXPECT_EQ(ToProto(view, true).volume_id(), "a\nb\xc3\xa9");
  view.volume_id = "\xff";
  EXPECT_EQ(ToProto(view, true).volume_id(), "\\xff");
}

TEST(ConvertVolumeTest, CarriesWhatIsKnownOfAVolume) {
  VolumeView view;
  view.plugin_id = "p";
  view.volume_id = "v";
  view.use.volume_mount_group = "500";
  view.awaiting_secrets = true;
  view.stuck = StuckView{.on = "umount /x", .pid = 12, .since = WallTime(seconds(4))};
  view.pending_expansion_bytes = 4096;
  const v1::Volume volume = ToProto(view, true);
  EXPECT_EQ(volume.capability().volume_mount_group(), "500");
  EXPECT_TRUE(volume.awaiting_secrets());
  EXPECT_EQ(volume.stuck().on(), "umount /x");
  EXPECT_EQ(volume.stuck().pid(), 12);
  EXPECT_EQ(volume.stuck().since().seconds(), 4);
  EXPECT_EQ(volume.pending_expansion_bytes(), 4096);
  view.stuck.reset();
  EXPECT_FALSE(ToProto(view, true).has_stuck());
}

TEST(ConvertVolumeTest, CarriesWhatIsKnownOfAPublication) {
  VolumeView view;
  view.publications.push_back({
      .consumer = "web",
      .name = "data",
      .target_path = "/t",
      .readonly = true,
      .state = PublicationState::kPublished,
      .last_error = "e",
      .published_at = WallTime(seconds(9)),
      .origin = Origin::kScheduler,
      .remount = true,
      .ephemeral = true,
      .life = ProcessLife(77, 5),
      .awaiting_secrets = true,
      .blocked = Blocked{.reason = Blocked::Reason::kRestart, .text = "the node was restarted"},
      .dead = "ENOTCONN",
      .hung = "no answer within 10 s",
  });
  view.publications.push_back({.origin = Origin::kDeclared,
                               .life = UnitLife("web.service"),
                               .blocked = Blocked{.reason = Blocked::Reason::kNoLease, .text = ""}});
  view.publications.push_back({.life = CgroupLife("/sys/fs/cgroup/a"),
                               .blocked = Blocked{.reason = Blocked::Reason::kUnconfirmed, .text = ""}});
  const v1::Volume volume = ToProto(view, true);
  ASSERT_EQ(volume.publications_size(), 3);
  const v1::Publication& use = volume.publications(0);
  EXPECT_EQ(use.consumer(), "web");
  EXPECT_EQ(use.name(), "data");
  EXPECT_EQ(use.target_path(), "/t");
  EXPECT_TRUE(use.readonly());
  EXPECT_EQ(use.last_error(), "e");
  EXPECT_EQ(use.published_at().seconds(), 9);
  EXPECT_EQ(use.origin(), v1::SCHEDULER);
  EXPECT_TRUE(use.remount());
  EXPECT_TRUE(use.ephemeral());
  EXPECT_EQ(use.life().pid(), 77);
  EXPECT_TRUE(use.awaiting_secrets());
  EXPECT_EQ(use.blocked(), "the node was restarted");
  EXPECT_EQ(use.blocked_reason(), v1::BLOCKED_SINCE_RESTART);
  EXPECT_EQ(use.dead(), "ENOTCONN");
  EXPECT_EQ(use.hung(), "no answer within 10 s");
  EXPECT_EQ(volume.publications(1).origin(), v1::DECLARED);
  EXPECT_EQ(volume.publications(1).life().unit(), "web.service");
  EXPECT_EQ(volume.publications(1).blocked_reason(), v1::BLOCKED_WITHOUT_LEASE);
  EXPECT_EQ(volume.publications(2).blocked_reason(), v1::BLOCKED_UNCONFIRMED);
  EXPECT_EQ(volume.publications(2).life().cgroup(), "/sys/fs/cgroup/a");
  EXPECT_FALSE(
      ToProto(View(StageState::kStaged, {PublicationState::kPublished}), true).publications(0).has_life());
}

TEST(ConvertConsumerMountTest, HidesOnlyItsFlagsFromReaders) {
  const ConsumerMount mount{.plugin_id = "p",
                            .volume_id = "v",
                            .consumer = "web",
                            .name = "data",
                            .source_path = "/t",
                            .access_type = AccessType::kBlock,
                            .readonly = true,
                            .fs_type = "xfs",
                            .mount_flags = {"password=hush"},
                            .propagation = "rslave",
                            .device_major = 8,
                            .device_minor = 17};
  const v1::ConsumerMount shown = ToProto(mount, true);
  EXPECT_EQ(shown.source_path(), "/t");
  EXPECT_EQ(shown.access_type(), v1::BLOCK);
  EXPECT_TRUE(shown.readonly());
  EXPECT_EQ(shown.propagation(), "rslave");
  EXPECT_EQ(shown.device_major(), 8U);
  EXPECT_EQ(shown.device_minor(), 17U);
  EXPECT_THAT(shown.mount_flags(), ElementsAre("password=hush"));
  v1::ConsumerMount hidden = ToProto(mount, false);
  EXPECT_THAT(hidden.mount_flags(), ElementsAre("(hidden)"));
  *hidden.mutable_mount_flags() = shown.mount_flags();
  EXPECT_EQ(hidden.SerializeAsString(), shown.SerializeAsString());
}

VolumeExplanation Explained() {
  VolumeExplanation explanation;
  explanation.view.plugin_id = "p";
  explanation.journal_key = "k";
  explanation.in_journal = true;
  explanation.identity = "plugin p, volume v";
  explanation.directory = "/d";
  explanation.mounts.push_back(
      {.target = "/t", .source = "//host/share", .fs_type = "cifs", .options = "rw,password=hush", .id = 9});
  explanation.holders.push_back({.pid = 3, .command = "vi", .consumer = "web", .how = "open file /t/x"});
  explanation.rpcs.push_back({.rpc = "NodeStageVolume",
                              .started_at = WallTime(seconds(2)),
                              .took = std::chrono::milliseconds(1500),
                              .code = absl::StatusCode::kDeadlineExceeded,
                              .error = "slow\n"});
  explanation.remarks = {"it is tried again"};
  return explanation;
}

TEST(ConvertExplanationTest, CarriesEverything) {
  const v1::ExplainVolumeResponse shown = ToProto(Explained(), true);
  EXPECT_EQ(shown.volume().plugin_id(), "p");
  EXPECT_EQ(shown.journal_key(), "k");
  EXPECT_TRUE(shown.in_journal());
  EXPECT_EQ(shown.identity(), "plugin p, volume v");
  EXPECT_EQ(shown.directory(), "/d");
  ASSERT_EQ(shown.mounts_size(), 1);
  EXPECT_EQ(shown.mounts(0).source(), "//host/share");
  EXPECT_EQ(shown.mounts(0).options(), "rw,password=hush");
  EXPECT_EQ(shown.mounts(0).id(), 9U);
  ASSERT_EQ(shown.holders_size(), 1);
  EXPECT_EQ(shown.holders(0).pid(), 3);
  EXPECT_EQ(shown.holders(0).how(), "open file /t/x");
  ASSERT_EQ(shown.rpcs_size(), 1);
  EXPECT_EQ(shown.rpcs(0).code(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(shown.rpcs(0).took().seconds(), 1);
  EXPECT_EQ(shown.rpcs(0).took().nanos(), 500'000'000);
  EXPECT_EQ(shown.rpcs(0).error(), "slow\\x0a");
  EXPECT_THAT(shown.remarks(), ElementsAre("it is tried again"));
}

TEST(ConvertExplanationTest, HidesTheKernelsMountOptionsFromReaders) {
  const v1::ExplainVolumeResponse shown = ToProto(Explained(), false);
  EXPECT_EQ(shown.mounts(0).options(), "(hidden)");
  EXPECT_EQ(shown.SerializeAsString().find("hush"), std::string::npos);
}

TEST(ConvertExplanationTest, IsBounded) {
  VolumeExplanation explanation;
  explanation.mounts.resize(300);
  explanation.remarks.assign(300, std::string(100'000, 'x'));
  const v1::ExplainVolumeResponse shown = ToProto(explanation, true);
  EXPECT_EQ(shown.mounts_size(), 200);
  EXPECT_EQ(shown.remarks_size(), 201);
  EXPECT_THAT(shown.remarks(200), HasSubstr("200 mounts, holders or remarks are left out"));
  EXPECT_LT(shown.ByteSizeLong(), size_t{2} << 20);
}

TEST(ConvertFindingsTest, TheWorstComeFirst) {
  const std::vector<Finding> findings = {
      {.severity = Finding::Severity::kInfo, .code = "a"},
      {.severity = Finding::Severity::kError, .code = "b", .path = "/x", .repair = "r", .repaired = true},
      {.severity = Finding::Severity::kWarning, .code = "c", .repair_error = "no"},
      {.severity = Finding::Severity::kError, .code = "d"}};
  const v1::ExamineResponse shown = ToProto(findings);
  ASSERT_EQ(shown.findings_size(), 4);
  EXPECT_EQ(shown.findings(0).code(), "b");
  EXPECT_EQ(shown.findings(0).severity(), v1::ERROR);
  EXPECT_EQ(shown.findings(0).path(), "/x");
  EXPECT_EQ(shown.findings(0).repair(), "r");
  EXPECT_TRUE(shown.findings(0).repaired());
  EXPECT_EQ(shown.findings(1).code(), "d");
  EXPECT_EQ(shown.findings(2).repair_error(), "no");
  EXPECT_EQ(shown.findings(3).severity(), v1::INFO);
}

TEST(ConvertFindingsTest, FitIntoOneMessage) {
  const Finding finding{.code = "a", .volume_id = std::string(4096, 'v'), .text = std::string(4096, 't')};
  const v1::ExamineResponse shown = ToProto(std::vector<Finding>(5000, finding));
  EXPECT_LT(shown.ByteSizeLong(), size_t{4} << 20);
  const v1::Finding& last = shown.findings(shown.findings_size() - 1);
  EXPECT_EQ(last.code(), "findings.more");
  EXPECT_THAT(last.text(), HasSubstr(fmt::format("{} more", 5000 - (shown.findings_size() - 1))));
}

DeclaredView Declared(const std::string& file) {
  DeclaredView view;
  view.file = file;
  view.request.set_consumer("web");
  return view;
}

TEST(ConvertDeclaredTest, AVolumeThatIsOnlyDeclaredIsAbsent) {
  DeclaredView file = Declared("/v/data.toml");
  file.request.mutable_capability()->set_fs_type("ext4");
  file.request.mutable_capability()->add_mount_flags("noatime");
  file.request.mutable_mount_options()->set_fs_type("xfs");
  file.request.mutable_mount_options()->mutable_mount_flags()->add_values("password=hush");
  file.last_error = "UNAVAILABLE";
  file.next_retry_at = WallTime(seconds(3));
  const v1::Volume shown = DeclaredVolume("p", "v", {file}, true);
  EXPECT_EQ(shown.plugin_id(), "p");
  EXPECT_EQ(shown.volume_id(), "v");
  EXPECT_EQ(shown.state(), v1::ABSENT);
  EXPECT_EQ(shown.capability().access_mode(), v1::SINGLE_NODE_MULTI_WRITER);
  EXPECT_EQ(shown.capability().fs_type(), "xfs");
  EXPECT_THAT(shown.capability().mount_flags(), ElementsAre("password=hush"));
  EXPECT_EQ(shown.declared_in(), "/v/data.toml");
  EXPECT_EQ(shown.last_error(), "UNAVAILABLE");
  EXPECT_EQ(shown.next_retry_at().seconds(), 3);
  EXPECT_THAT(DeclaredVolume("p", "v", {file}, false).capability().mount_flags(), ElementsAre("(hidden)"));
}

TEST(ConvertDeclaredTest, TheVolumesOwnErrorComesFirst) {
  DeclaredView good = Declared("/v/a.toml");
  DeclaredView bad = Declared("/v/b.toml");
  bad.error_in_file = "b.toml:3: colour: unknown key\nb.toml:4: x";
  v1::Volume volume;
  volume.set_state(v1::PUBLISHED);
  AddDeclared({bad}, &volume);
  EXPECT_EQ(volume.last_error(), "") << "it stays as the file had it";
  volume.set_state(v1::ABSENT);
  AddDeclared({good, bad}, &volume);
  EXPECT_EQ(volume.declared_in(), "/v/a.toml, /v/b.toml");
  EXPECT_EQ(volume.last_error(), "b.toml:3: colour: unknown key; b.toml:4: x");
  volume.set_last_error("its own");
  AddDeclared({bad}, &volume);
  EXPECT_EQ(volume.last_error(), "its own");
}

TEST(ConvertDeclaredTest, IsDescribedInOneLine) {
  DeclaredView file = Declared("/v/a.toml");
  EXPECT_EQ(DescribeDeclared(file), "/v/a.toml declares it for consumer web");
  file.state = "waiting";
  file.last_error = "no\nway";
  EXPECT_EQ(DescribeDeclared(file), "/v/a.toml declares it for consumer web: waiting: no\\x0away");
}

}  // namespace
}  // namespace berth
