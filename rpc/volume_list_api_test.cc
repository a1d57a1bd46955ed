// What NodeApi shows of volumes: pages, declared ones, one volume in depth, and a consumer's mounts.
#include <fmt/format.h>

#include "rpc/testing/node_api_fixture.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class NodeApiListTest : public NodeApiTest {
 protected:
  v1::ListVolumesResponse Page(const v1::ListVolumesRequest& request) {
    auto page = Call(&VolumeListApi::ListVolumes, request);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : v1::ListVolumesResponse();
  }
  // "plugin/volume" of every page.
  std::vector<std::string> AllPages(v1::ListVolumesRequest request) {
    std::vector<std::string> names;
    for (int pages = 0; pages < 100; ++pages) {
      const v1::ListVolumesResponse page = Page(request);
      if (request.page_size() > 0) EXPECT_LE(page.volumes_size(), request.page_size());
      for (const v1::Volume& volume : page.volumes()) {
        names.push_back(volume.plugin_id() + "/" + volume.volume_id());
      }
      if (page.next_page_token().empty()) return names;
      request.set_page_token(page.next_page_token());
    }
    ADD_FAILURE() << "the pages do not end";
    return names;
  }
};

TEST_F(NodeApiListTest, PagesComeInOrder) {
  mounter_.Add("q", "a", "c");
  mounter_.Add("p", "v2", "c");
  mounter_.Add("p", "v10", "c");
  mounter_.Add("p", "v1", "c");
  v1::ListVolumesRequest request;
  for (const int size : {0, 1, 2, 3, 4, 100}) {
    request.set_page_size(size);
    EXPECT_THAT(AllPages(request), ElementsAre("p/v1", "p/v10", "p/v2", "q/a")) << size;
  }
}

TEST_F(NodeApiListTest, APageHoldsAtMostAThousandVolumes) {
  for (int i = 0; i < 1500; ++i) mounter_.Add("p", fmt::format("v{:04}", i), "c");
  for (const int size : {0, 5000}) {
    v1::ListVolumesRequest request;
    request.set_page_size(size);
    const v1::ListVolumesResponse first = Page(request);
    EXPECT_EQ(first.volumes_size(), 1000);
    request.set_page_token(first.next_page_token());
    const v1::ListVolumesResponse second = Page(request);
    EXPECT_EQ(second.volumes_size(), 500);
    EXPECT_EQ(second.volumes(0).volume_id(), "v1000");
    EXPECT_EQ(second.next_page_token(), "");
  }
}

TEST_F(NodeApiListTest, APageFitsIntoAMessage) {
  for (int i = 0; i < 1000; ++i) {
    mounter_.Add("p", fmt::format("{:04}{}", i, std::string(4000, 'v')), "c").last_error =
        std::string(4000, 'e');
  }
  const v1::ListVolumesResponse first = Page({});
  EXPECT_LT(first.ByteSizeLong(), size_t{3} << 20);
  EXPECT_FALSE(first.next_page_token().empty());
  EXPECT_THAT(AllPages({}), SizeIs(1000));
}

TEST_F(NodeApiListTest, VolumesThatComeOrGoBetweenPagesHideNoOther) {
  for (const char* id : {"b", "d", "f", "h"}) mounter_.Add("p", id, "c");
  v1::ListVolumesRequest request;
  request.set_page_size(2);
  const v1::ListVolumesResponse first = Page(request);
  EXPECT_EQ(first.volumes(1).volume_id(), "d");
  std::erase_if(mounter_.volumes, [](const VolumeView& view) { return view.volume_id <= "d"; });
  mounter_.Add("p", "a", "c");
  mounter_.Add("p", "e", "c");
  request.set_page_token(first.next_page_token());
  EXPECT_THAT(AllPages(request), ElementsAre("p/e", "p/f", "p/h"));
}

TEST_F(NodeApiListTest, ATokenOfAnotherKindIsRefused) {
  v1::ListVolumesRequest request;
  request.set_page_token("next");
  const auto page = Call(&VolumeListApi::ListVolumes, request);
  EXPECT_EQ(page.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(page.status()), HasSubstr("page_token"));
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_EQ(Call(&VolumeListApi::ListVolumes, request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeApiListTest, DeclaredVolumesAreShownWhetherTheyAreHereOrNot) {
  control_.Add("p");
  mounter_.Add("p", "here", "web");
  declared_.Add("driver.test", "here", "web");
  declared_.Add("driver.test", "waiting", "db").last_error = "plugin p is not ready";
  declared_.Add("", "", "").error_in_file = "a broken file has no volume";
  const v1::ListVolumesResponse page = Page({});
  ASSERT_EQ(page.volumes_size(), 2);
  EXPECT_EQ(page.volumes(0).volume_id(), "here");
  EXPECT_EQ(page.volumes(0).state(), v1::PUBLISHED);
  EXPECT_EQ(page.volumes(0).declared_in(), "/etc/berth/volumes.d/here.toml");
  EXPECT_EQ(page.volumes(0).last_error(), "");
  EXPECT_EQ(page.volumes(1).plugin_id(), "p") << "under the id of the plugin that its driver is";
  EXPECT_EQ(page.volumes(1).volume_id(), "waiting");
  EXPECT_EQ(page.volumes(1).state(), v1::ABSENT);
  EXPECT_EQ(page.volumes(1).declared_in(), "/etc/berth/volumes.d/waiting.toml");
  EXPECT_EQ(page.volumes(1).last_error(), "plugin p is not ready");

  v1::ListVolumesRequest request;
  request.set_consumer("db");
  EXPECT_THAT(AllPages(request), ElementsAre("p/waiting"));
  request.set_plugin_id("p");
  request.set_page_size(1);
  request.clear_consumer();
  EXPECT_THAT(AllPages(request), ElementsAre("p/here", "p/waiting"));
}

TEST_F(NodeApiListTest, AVolumeWhoseFileIsGoneIsShownAsLeavingUntilItIsDetached) {
  control_.Add("p");
  declared_.Add("p", "v", "db").withdrawn = true;
  const v1::ListVolumesResponse page = Page({});
  ASSERT_EQ(page.volumes_size(), 1);
  EXPECT_EQ(page.volumes(0).state(), v1::UNSTAGING);
}

TEST_F(NodeApiListTest, AVolumeThatIsDeclaredForAPluginThatIsNotThereIsShownAllTheSame) {
  declared_.Add("missing", "v", "c").last_error = "no such plugin";
  EXPECT_THAT(AllPages({}), ElementsAre("missing/v"));
  auto request = ForVolume<v1::GetVolumeRequest>();
  request.set_plugin_id("missing");
  const auto volume = Call(&VolumeListApi::GetVolume, request);
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->state(), v1::ABSENT);
  EXPECT_EQ(volume->last_error(), "no such plugin");
}

TEST_F(NodeApiListTest, ErrorsInDeclaredFilesAreProblemsOfTheNode) {
  declared_.Add("p", "good", "c");
  declared_.Add("p", "late", "c").last_error = "plugin p is not ready";
  declared_.Add("p", "bad", "c").error_in_file = "bad.toml:3: colour: unknown key\nbad.toml:4: x\n";
  mounter_.problems = {"the journal was rebuilt"};
  declared_.problems = {"volumes.d cannot be read"};
  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->problems(), ElementsAre("the journal was rebuilt", "volumes.d cannot be read",
                                              "/etc/berth/volumes.d/late.toml: plugin p is not ready",
                                              "bad.toml:3: colour: unknown key", "bad.toml:4: x"));
}

TEST_F(NodeApiListTest, Fault57AVolumeWhosePluginIsGoneIsCritical) {
  VolumeView& volume = mounter_.Add("p", "v", "c");
  volume.plugin_missing = true;
  auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->health(), v1::FAILING);
  ASSERT_EQ(status->findings_size(), 1);
  EXPECT_EQ(status->findings(0).code(), "plugin.missing");
  EXPECT_EQ(status->findings(0).severity(), v1::ERROR);
  EXPECT_THAT(status->findings(0).text(), HasSubstr("is not on this node any more"));
  EXPECT_THAT(status->findings(0).advice(), AllOf(HasSubstr("plugins.d"), HasSubstr("--consumer c --force")));
  // Released without it: that is pending, and not an emergency any more.
  volume.without_plugin = WithoutPlugin{.requested_by = "uid 0", .at = WallTime()};
  status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->health(), v1::DEGRADED);
  ASSERT_EQ(status->findings_size(), 1);
  EXPECT_EQ(status->findings(0).code(), "volume.without_plugin");
  EXPECT_THAT(status->findings(0).text(), AllOf(HasSubstr("uid 0"), HasSubstr("fenced")));
}

TEST_F(NodeApiListTest, StatusNamesWhatIsStuckDeadOrHeld) {
  control_.Add("p");
  mounter_.Add("p", "v1", "c").stuck = StuckView{.on = "umount /x", .pid = 12};
  mounter_.Add("p", "v2", "web").publications[0].dead = "ENOTCONN";
  mounter_.Add("p", "v3", "web").publications[0].blocked = Blocked{.text = "the node was restarted"};
  mounter_.Add("p", "v4", "web").publications[0].hung = "no answer within 10 s";
  const auto status = Call(&StatusApi::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->problems(),
              ElementsAre("volume v1 of plugin p is stuck in umount /x (process 12)",
                          "volume v2 of plugin p: its mount for consumer web is dead: ENOTCONN",
                          "volume v4 of plugin p: the file system of its mount for consumer web does not "
                          "answer: no answer within 10 s",
                          "volume v3 of plugin p, for consumer web: the node was restarted"));
}

TEST_F(NodeApiListTest, AConsumersMountsAreShownWithoutOptionsToReaders) {
  mounter_.mounts = {
      {.plugin_id = "p", .volume_id = "v", .consumer = "web", .source_path = "/t", .mount_flags = {"x=hush"}},
      {.plugin_id = "p", .volume_id = "w", .consumer = "db"}};
  v1::ListConsumerMountsRequest request;
  request.set_consumer("web");
  auto mounts = Call(&VolumeListApi::ListConsumerMounts, request);
  ASSERT_TRUE(mounts.ok()) << mounts.status();
  ASSERT_EQ(mounts->mounts_size(), 1);
  EXPECT_EQ(mounts->mounts(0).source_path(), "/t");
  EXPECT_THAT(mounts->mounts(0).mount_flags(), ElementsAre("x=hush"));
  EXPECT_THAT(Call(&VolumeListApi::ListConsumerMounts, request, false)->mounts(0).mount_flags(),
              ElementsAre("(hidden)"));
  request.set_consumer("missing");
  EXPECT_EQ(Call(&VolumeListApi::ListConsumerMounts, request).status().code(), absl::StatusCode::kNotFound);
  request.clear_consumer();
  EXPECT_EQ(Call(&VolumeListApi::ListConsumerMounts, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeApiListTest, MountsThatDoNotFitIntoOneAnswerAreNotCutShort) {
  const std::string path(4000, 'p');
  for (int i = 0; i < 1000; ++i) {
    mounter_.mounts.push_back({.plugin_id = "p", .volume_id = "v", .consumer = "web", .source_path = path});
  }
  v1::ListConsumerMountsRequest request;
  request.set_consumer("web");
  const absl::Status status = Call(&VolumeListApi::ListConsumerMounts, request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(NodeApiListTest, AVolumeIsExplained) {
  control_.Add("p");
  mounter_.Add("p", "v", "web");
  mounter_.explanation.mounts = {{.target = "/t", .options = "rw,password=hush"}};
  mounter_.explanation.remarks = {"it is tried again"};
  declared_.Add("p", "v", "web").state = "published";
  auto request = ForVolume<v1::ExplainVolumeRequest>();
  request.set_plugin_id("driver.test");
  auto told = Call(&VolumeListApi::ExplainVolume, request);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->volume().state(), v1::PUBLISHED);
  EXPECT_EQ(told->volume().declared_in(), "/etc/berth/volumes.d/v.toml");
  EXPECT_EQ(told->mounts(0).options(), "rw,password=hush");
  EXPECT_THAT(told->remarks(), ElementsAre("it is tried again"))
      << "and nothing of a declaration that is kept";
  declared_.files.back().state = "left as it is: its file cannot be read";
  told = Call(&VolumeListApi::ExplainVolume, request);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(told->remarks(),
              ElementsAre("it is tried again",
                          "/etc/berth/volumes.d/v.toml declares it for consumer web: left as it "
                          "is: its file cannot be read"));
  EXPECT_EQ(Call(&VolumeListApi::ExplainVolume, request, false)->mounts(0).options(), "(hidden)");
}

TEST_F(NodeApiListTest, AVolumeThatIsOnlyDeclaredIsExplainedToo) {
  control_.Add("p");
  declared_.Add("p", "v", "web").last_error = "plugin p is not ready";
  const auto told = Call(&VolumeListApi::ExplainVolume, ForVolume<v1::ExplainVolumeRequest>());
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->volume().state(), v1::ABSENT);
  EXPECT_EQ(told->volume().last_error(), "plugin p is not ready");
  EXPECT_THAT(told->remarks(), IsEmpty()) << "which says it all";
  EXPECT_EQ(Call(&VolumeListApi::ExplainVolume, ForVolume<v1::ExplainVolumeRequest>("w")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(NodeApiListTest, DeclaredVolumesThatAreNotHereAndBrokenFilesAreFindings) {
  control_.Add("p");
  declared_.Add("p", "well", "c").state = "published";
  DeclaredView& late = declared_.Add("driver.test", "late", "c");
  late.state = "waiting";
  late.last_error = "plugin p is not ready";
  late.next_retry_at = WallClock::now() + std::chrono::minutes(10);
  declared_.Add("p", "begun", "c").state = "publishing";
  declared_.Add("", "", "").error_in_file = "bad.toml:3: colour: unknown key\nbad.toml:4: x\n";
  declared_.files.back().file = "/etc/berth/volumes.d/bad.toml";
  declared_.problems = {"volumes.d cannot be read"};
  mounter_.findings = {{.severity = Finding::Severity::kError, .code = "mount.missing"}};
  const auto found = Call(&StatusApi::Examine, v1::ExamineRequest(), false);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->findings_size(), 6);
  EXPECT_EQ(found->findings(0).code(), "mount.missing") << "the worst first";
  EXPECT_EQ(found->findings(1).code(), "node.problem");
  EXPECT_EQ(found->findings(1).text(), "volumes.d cannot be read");

  const v1::Finding& waits = found->findings(2);
  EXPECT_EQ(waits.code(), "declared.pending");
  EXPECT_EQ(waits.severity(), v1::WARNING);
  EXPECT_EQ(waits.plugin_id(), "p") << "under the id of the plugin that its driver is";
  EXPECT_EQ(waits.volume_id(), "late");
  EXPECT_EQ(waits.path(), "/etc/berth/volumes.d/late.toml");
  EXPECT_EQ(waits.text(), "/etc/berth/volumes.d/late.toml: plugin p is not ready");

  const v1::Finding& broken = found->findings(3);
  EXPECT_EQ(broken.code(), "declared.broken");
  EXPECT_EQ(broken.severity(), v1::WARNING);
  EXPECT_EQ(broken.path(), "/etc/berth/volumes.d/bad.toml");
  EXPECT_EQ(broken.plugin_id(), "") << "it names none";
  EXPECT_EQ(broken.text(), "bad.toml:3: colour: unknown key");
  EXPECT_EQ(found->findings(4).text(), "bad.toml:4: x");

  EXPECT_EQ(found->findings(5).volume_id(), "begun");
  EXPECT_EQ(found->findings(5).severity(), v1::INFO) << "merely under way";
}

TEST_F(NodeApiListTest, ARepairTakesTheRightToChange) {
  mounter_.findings = {{.code = "mount.missing", .repair = "publish it again"}, {.code = "mount.orphan"}};
  v1::ExamineRequest request;
  auto found = Call(&StatusApi::Examine, request, false);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->findings_size(), 2);
  EXPECT_FALSE(found->findings(0).repaired());
  request.set_repair(true);
  EXPECT_EQ(Call(&StatusApi::Examine, request, false).status().code(), absl::StatusCode::kPermissionDenied);
  found = Call(&StatusApi::Examine, request);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->findings(0).repaired());
  EXPECT_FALSE(found->findings(1).repaired());
}

TEST_F(NodeApiListTest, TheEndOfAConsumerReleasesWhatItUsed) {
  mounter_.Add("p", "v", "web");
  mounter_.Add("p", "w", "db");
  v1::EndConsumerRequest request;
  request.set_consumer("web");
  EXPECT_EQ(Call(&VolumeApi::EndConsumer, request)->released(), 1);
  EXPECT_THAT(mounter_.ended_causes, ElementsAre(fmt::format("said by uid {}", getuid())));
  EXPECT_EQ(Call(&VolumeApi::EndConsumer, request)->released(), 0) << "again, with nothing left";
  EXPECT_THAT(mounter_.volumes, SizeIs(1));
  mounter_.next_error = absl::UnavailableError("busy");
  EXPECT_EQ(Call(&VolumeApi::EndConsumer, request).status().code(), absl::StatusCode::kUnavailable);
  request.clear_consumer();
  EXPECT_EQ(Call(&VolumeApi::EndConsumer, request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NodeApiListTest, DeclaredVolumesAreWaitedForUntilEachIsSettled) {
  declared_.Add("p", "v1", "declared/v1").path = "/srv/v1";
  declared_.Add("p", "v2", "declared/v2").error_in_file = "v2.toml:3: colour: unknown key";
  int waits = 0;
  declared_.on_wait = [&] { declared_.files[0].published = ++waits == 2; };
  v1::ListDeclaredVolumesRequest request;
  request.add_names("v1");
  request.add_names("none");
  const auto now = Call(&VolumeListApi::ListDeclaredVolumes, request);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->volumes(0).state(), v1::DECLARED_PENDING);
  EXPECT_EQ(waits, 0);
  request.set_wait(true);
  const auto settled = Call(&VolumeListApi::ListDeclaredVolumes, request);
  ASSERT_TRUE(settled.ok()) << settled.status();
  ASSERT_THAT(settled->volumes(), SizeIs(1));
  EXPECT_EQ(settled->volumes(0).name(), "v1");
  EXPECT_EQ(settled->volumes(0).path(), "/srv/v1");
  EXPECT_EQ(settled->volumes(0).state(), v1::DECLARED_PUBLISHED);
  EXPECT_THAT(settled->not_declared(), ElementsAre("none"));
  EXPECT_EQ(waits, 2);
  request.clear_names();
  const auto all = Call(&VolumeListApi::ListDeclaredVolumes, request);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_THAT(all->volumes(), SizeIs(2));
  EXPECT_EQ(all->volumes(1).state(), v1::DECLARED_BROKEN);
  EXPECT_THAT(all->volumes(1).last_error(), HasSubstr("colour"));
  request.add_names("");
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&VolumeListApi::ListDeclaredVolumes, request).status()));
}

TEST_F(NodeApiTest, AVolumeIsFoundByItsDriverAlsoWhileItsPluginDoesNotRun) {
  mounter_.Add("p", "v", "c");
  mounter_.recorded_drivers["p"] = "driver.test";
  v1::GetVolumeRequest get;
  get.set_plugin_id("driver.test");
  get.set_volume_id("v");
  const auto volume = Call(&VolumeListApi::GetVolume, get);
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->plugin_id(), "p");

  v1::UnpublishVolumeRequest unpublish;
  unpublish.set_plugin_id("driver.test");
  unpublish.set_volume_id("v");
  unpublish.set_consumer("c");
  const auto gone = Call(&VolumeApi::UnpublishVolume, unpublish);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_TRUE(gone->was_published());
  EXPECT_EQ(gone->uses_left(), 0U);

  for (const char* plugin : {"a", "b"}) {
    mounter_.Add(plugin, "w", "c");
    mounter_.recorded_drivers[plugin] = "driver.test";
  }
  unpublish.set_volume_id("w");
  const absl::Status which = Call(&VolumeApi::UnpublishVolume, unpublish).status();
  EXPECT_EQ(which.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(which.message()), HasSubstr("a, b"));
}

TEST_F(NodeApiTest, ALabelIsNeverTakenForAnId) {
  control_.Add("p");
  mounter_.Add("p", "v1", "c").label = "jobs/db";
  mounter_.Add("p", "v2", "c").label = "jobs/logs";
  mounter_.Add("p", "jobs/logs", "c");
  v1::ListVolumesRequest list;
  list.set_label("jobs/d");
  const auto listed = Call(&VolumeListApi::ListVolumes, list);
  ASSERT_EQ(listed->volumes_size(), 1);
  EXPECT_EQ(listed->volumes(0).volume_id(), "v1");
  EXPECT_EQ(listed->volumes(0).label(), "jobs/db");

  v1::GetVolumeRequest get;
  get.set_plugin_id("p");
  get.set_volume_id("jobs/db");
  EXPECT_EQ(Call(&VolumeListApi::GetVolume, get).status().code(), absl::StatusCode::kNotFound);
  v1::ExplainVolumeRequest explain;
  explain.set_plugin_id("p");
  explain.set_volume_id("jobs/db");
  EXPECT_EQ(Call(&VolumeListApi::ExplainVolume, explain).status().code(), absl::StatusCode::kNotFound);
  v1::UnpublishVolumeRequest unpublish;
  unpublish.set_plugin_id("p");
  unpublish.set_volume_id("jobs/db");
  unpublish.set_consumer("c");
  const auto nothing = Call(&VolumeApi::UnpublishVolume, unpublish);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_FALSE(nothing->was_published());
  EXPECT_TRUE(mounter_.Find("p", "v1")) << "that is the volume with the label";
}

TEST_F(NodeApiTest, UsesLeftCountsAllUsesOfTheVolumeThroughEveryPluginOfTheDriver) {
  control_.Add("p").facts->name = "driver.test";
  control_.Add("q").facts->name = "driver.test";
  mounter_.Add("p", "v", "c");
  mounter_.Add("q", "v", "other");
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  request.set_consumer("c");
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 1U);
  mounter_.volumes.clear();
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 0U);
  mounter_.Add("q", "v", "other").publications.clear();
  mounter_.volumes.back().still_in_use = true;
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 1U) << "the kernel has it";
  control_.plugins_by_id["p"].facts.reset();
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 1U) << "q may be of the same driver";
  mounter_.volumes.clear();
  control_.Add("p").facts->name = "driver.test";
  declared_.Add("q", "v", "db").last_error = "plugin q is not ready";
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 0U);
  declared_.files.back().attached = true;
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 1U) << "it will be published";
  mounter_.Add("q", "v", "db");
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 1U) << "counted once";
  mounter_.volumes.clear();
  declared_.files.back().request.set_volume_id("another");
  EXPECT_EQ(Call(&VolumeApi::UnpublishVolume, request)->uses_left(), 0U);
}

}  // namespace
}  // namespace berth
