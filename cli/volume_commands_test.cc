// The built berthctl's commands about volumes: list, publish, mounts, stats, explain.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class VolumeCommandsTest : public testing::Test {
 protected:
  VolumeCommandsTest() {
    node_.published.set_target_path("/run/berth/t1");
    node_.volume.set_plugin_id("nfs");
    node_.volume.set_volume_id("v1");
    node_.volume.set_state(v1::PUBLISHED);
    v1::Publication* use = node_.volume.add_publications();
    use->set_consumer("job-1");
    use->set_state(v1::PUBLISHED);
    *node_.volumes.add_volumes() = node_.volume;
  }

  Ended Ctl(std::vector<std::string> arguments, RunOptions options = {}) {
    arguments.insert(arguments.begin(), {"--socket", node_.socket()});
    return RunBerthctl(std::move(arguments), std::move(options));
  }

  FakeNode node_;
};

v1::ListDeclaredVolumesResponse Declared(v1::DeclaredState state, const std::string& error = "") {
  v1::ListDeclaredVolumesResponse answer;
  v1::DeclaredVolume& volume = *answer.add_volumes();
  volume.set_name("my-db");
  volume.set_path("/srv/db");
  volume.set_state(state);
  volume.set_status(state == v1::DECLARED_PENDING ? "waiting" : "published");
  volume.set_last_error(error);
  return answer;
}

TEST_F(VolumeCommandsTest, WaitEndsOnceTheVolumeIsPublished) {
  node_.declared = {Declared(v1::DECLARED_PENDING), Declared(v1::DECLARED_PENDING),
                    Declared(v1::DECLARED_PUBLISHED)};
  const Ended run = Ctl({"volume", "wait", "my-db"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "my-db is published at /srv/db\n");
  EXPECT_EQ(node_.calls.size(), 3U);
  EXPECT_TRUE(node_.declared_request.wait());
  ExpectJson(Ctl({"volume", "wait", "my-db", "-o", "json"}).out, node_.declared.front());
}

TEST_F(VolumeCommandsTest, AVolumeOfWhichNothingIsHereIsAbsentInWords) {
  v1::Volume& volume = *node_.volumes.mutable_volumes(0);
  volume.set_state(v1::VOLUME_STATE_UNKNOWN);
  volume.clear_publications();
  volume.set_still_in_use(true);
  EXPECT_THAT(Ctl({"volumes"}).out,
              AllOf(HasSubstr("ABSENT"), HasSubstr("in use"), Not(HasSubstr("UNKNOWN"))));
  volume.set_state(static_cast<v1::VolumeState>(99));
  EXPECT_THAT(Ctl({"volumes"}).out, AllOf(HasSubstr("UNKNOWN"), Not(HasSubstr("STATE_"))));
}

TEST_F(VolumeCommandsTest, WaitSaysHowItFailed) {
  node_.declared = {Declared(v1::DECLARED_PENDING, "plugin nfs is not ready")};
  const Ended late = Ctl({"volume", "wait", "my-db", "--timeout", "100ms"});
  EXPECT_EQ(late.exit_code, 5);
  EXPECT_THAT(late.err, AllOf(HasSubstr("my-db"), HasSubstr("plugin nfs is not ready")));
  node_.declared = {Declared(v1::DECLARED_BROKEN, "my-db.toml:3: colour: unknown key")};
  const Ended broken = Ctl({"volume", "wait", "my-db"});
  EXPECT_EQ(broken.exit_code, 7);
  EXPECT_THAT(broken.err, AllOf(HasSubstr("my-db.toml:3"), HasSubstr("berthctl reload")));
  v1::ListDeclaredVolumesResponse unknown;
  unknown.add_not_declared("other");
  node_.declared = {unknown};
  const Ended none = Ctl({"volume", "wait", "other"});
  EXPECT_EQ(none.exit_code, 6);
  EXPECT_THAT(none.err, HasSubstr("no file in volumes.d declares other"));
  EXPECT_EQ(RunBerthctl({"--socket", node_.dir().Path("none"), "volume", "wait", "x", "--timeout", "100ms"})
                .exit_code,
            3);
}

TEST_F(VolumeCommandsTest, WaitOutlastsABerthdThatIsNotUpAndOneThatIsRestarted) {
  node_.Stop();
  node_.declared = {Declared(v1::DECLARED_PENDING), Declared(v1::DECLARED_PENDING)};
  RunningBerthctl run({"--socket", node_.socket(), "volume", "wait", "my-db"},
                      RunningBerthctl::Stderr::kTerminal);
  EXPECT_TRUE(run.TerminalShows("waiting for it"));
  node_.Serve();
  EXPECT_TRUE(run.TerminalShows("berthd is there"));
  EXPECT_TRUE(run.TerminalShows("my-db: waiting")) << "it was not asked";
  node_.Stop();
  EXPECT_TRUE(run.TerminalShows("berthd has gone"));
  node_.declared = {Declared(v1::DECLARED_PUBLISHED)};
  node_.Serve();
  EXPECT_EQ(run.ReadLine(), "my-db is published at /srv/db");
}

TEST_F(VolumeCommandsTest, WaitUnderstandsAnInstanceThatWasNotEscaped) {
  // berth-volume@my-db.service: systemd makes "my/db" of it.
  node_.declared = {Declared(v1::DECLARED_PUBLISHED)};
  node_.declared.front().add_not_declared("my/db");
  EXPECT_EQ(Ctl({"volume", "wait", "my/db"}).exit_code, 0);
  EXPECT_THAT(node_.declared_request.names(), testing::ElementsAre("my/db", "my-db"));
}

TEST_F(VolumeCommandsTest, EveryPageOfTheListIsFollowed) {
  for (int page = 0; page < 3; ++page) {
    v1::ListVolumesResponse& answer = node_.volume_pages.emplace_back();
    *answer.add_volumes() = node_.volume;
    answer.mutable_volumes(0)->set_volume_id("volume-" + std::to_string(page));
    if (page < 2) answer.set_next_page_token(std::to_string(page + 1));
  }
  const Ended table = Ctl({"volumes"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("volume-0"), HasSubstr("volume-1"), HasSubstr("volume-2")));
  v1::ListVolumesResponse all;
  for (const v1::ListVolumesResponse& page : node_.volume_pages) *all.add_volumes() = page.volumes(0);
  ExpectJson(Ctl({"volumes", "-o", "json"}).out, all);
  EXPECT_EQ(node_.calls.size(), 6U);
  // A page that leads to itself must not be followed for ever.
  node_.volume_pages[1].set_next_page_token("1");
  const Ended loop = Ctl({"volumes"});
  EXPECT_EQ(loop.exit_code, 1);
  EXPECT_THAT(loop.err, HasSubstr("same page twice"));
}

TEST_F(VolumeCommandsTest, TheListHasAWordForWhatIsTheMatter) {
  v1::Volume& volume = *node_.volumes.mutable_volumes(0);
  EXPECT_THAT(Ctl({"volumes"}).out, AllOf(HasSubstr("CONDITION"), HasSubstr("ok")));
  volume.mutable_stuck()->set_on("umount /t");
  EXPECT_THAT(Ctl({"volumes"}).out, AllOf(HasSubstr("stuck"), HasSubstr("umount /t does not return")));
}

TEST_F(VolumeCommandsTest, PublishSendsEveryOption) {
  const Ended run = Ctl({"volume",
                         "publish",
                         "--plugin",
                         "nfs",
                         "--volume",
                         "v1",
                         "--consumer",
                         "job-1",
                         "--fs",
                         "ext4",
                         "--label",
                         "my database",
                         "--mount-group",
                         "1000",
                         "--ephemeral",
                         "--owner",
                         "root",
                         "--group",
                         "7",
                         "--mode",
                         "2750",
                         "--recursive",
                         "--selinux-label",
                         "a:b",
                         "--unit",
                         "job.service",
                         "--remount",
                         "--secrets-reference",
                         "file:/etc/s",
                         "--runtime",
                         "podman"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "/run/berth/t1\n");
  v1::PublishVolumeRequest expected;
  expected.set_plugin_id("nfs");
  expected.set_volume_id("v1");
  expected.set_consumer("job-1");
  expected.mutable_capability()->set_fs_type("ext4");
  expected.mutable_capability()->set_volume_mount_group("1000");
  expected.set_label("my database");
  expected.set_ephemeral(true);
  v1::RootPermissions& permissions = *expected.mutable_permissions();
  permissions.set_owner(0);
  permissions.set_group(7);
  permissions.set_mode(02750);
  permissions.set_recursive(true);
  permissions.set_selinux_label("a:b");
  expected.mutable_life()->set_unit("job.service");
  expected.set_remount(true);
  expected.mutable_secrets_reference()->set_file("/etc/s");
  v1::RuntimeAbility& runtime = *expected.mutable_runtime();
  runtime.set_name("podman");
  runtime.set_mount(true);
  runtime.set_readonly(true);
  runtime.set_block(true);
  EXPECT_TRUE(MessageDifferencer::Equals(node_.publish_request, expected))
      << node_.publish_request.DebugString();
}

TEST_F(VolumeCommandsTest, PublishTakesAFileAndOptionsInItsPlace) {
  const std::string file = node_.dir().Write("volume.toml",
                                             "plugin = \"nfs\"\nvolume = \"v1\"\nconsumer = \"file\"\n"
                                             "readonly = true\n[context]\nshare = \"x\"\n",
                                             0600);
  EXPECT_EQ(Ctl({"volume", "publish", "--file", file}).exit_code, 0);
  EXPECT_EQ(node_.publish_request.consumer(), "file");
  EXPECT_TRUE(node_.publish_request.readonly());
  EXPECT_EQ(node_.publish_request.volume_context().at("share"), "x");
  EXPECT_EQ(Ctl({"volume", "publish", "--file", file, "--consumer", "job-1", "--readonly=false"}).exit_code,
            0);
  EXPECT_EQ(node_.publish_request.consumer(), "job-1");
  EXPECT_FALSE(node_.publish_request.readonly());
  const Ended doubtful = Ctl({"volume", "publish", "--file", file, "--readonly=maybe"});
  EXPECT_EQ(doubtful.exit_code, 2);
  EXPECT_THAT(doubtful.err, HasSubstr("--readonly: is true or false, not 'maybe'"));
  const Ended piped = Ctl({"volume", "publish", "--file", "-", "--consumer", "job-2"},
                          {.input = "plugin = \"nfs\"\nvolume = \"v9\"\n"});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(node_.publish_request.volume_id(), "v9");
}

TEST_F(VolumeCommandsTest, EveryMistakeOfAFileIsALineAndNobodyIsAsked) {
  const std::string file = node_.dir().Write("bad.toml", "plugin = 3\ncolour = 1\n", 0600);
  const Ended run = Ctl({"volume", "publish", "--file", file});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("bad.toml:1: plugin: is an integer, and must be a string\n"),
                             HasSubstr("bad.toml:2: colour: unknown key"),
                             HasSubstr("2 mistakes; nothing was asked"), HasSubstr("man berth-volume.toml")));
  const Ended json = Ctl({"volume", "publish", "--file", file, "-o", "json"});
  EXPECT_EQ(json.exit_code, 2);
  EXPECT_THAT(ErrorField(json, "message"),
              AllOf(HasSubstr("bad.toml:1:"), HasSubstr("; "), HasSubstr("bad.toml:2:")));
  EXPECT_EQ(Ctl({"volume", "publish", "--file", "/nonexistent/v.toml"}).exit_code, 2);
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(VolumeCommandsTest, ContradictoryOptionsAskNobody) {
  const std::vector<std::string> least = {"volume", "publish", "--plugin", "p", "v", "--consumer", "c"};
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--pid", "1", "--unit", "a.service"},
           {"--pid", "1", "--cgroup", "/x"},
           {"--secrets-file", "/dev/null", "--secrets-reference", "file:/x"},
           {"--secrets-reference", "nowhere"},
           {"--mode", "rwx"},
           {"--file", "-", "--secrets-file", "-"}}) {
    std::vector<std::string> arguments = least;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended run = Ctl(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(more) << run.err;
  }
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(VolumeCommandsTest, ARuntimeThatIsNotKnownHereIsBerthdsToFind) {
  node_.failure = {grpc::StatusCode::INVALID_ARGUMENT, "runtime.name: berthd.toml has no [[runtime]]"};
  const Ended run =
      Ctl({"volume", "publish", "--plugin", "p", "v", "--consumer", "c", "--runtime", "dokcer"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("has no [[runtime]]"), HasSubstr("did you mean docker?")));
  EXPECT_EQ(node_.publish_request.runtime().name(), "dokcer");
  EXPECT_FALSE(node_.publish_request.runtime().mount());
}

TEST_F(VolumeCommandsTest, HelpShowsOptionsInGroups) {
  const std::string help = RunBerthctl({"volume", "publish", "--help"}).out;
  size_t last = 0;
  for (const char* group :
       {"The volume and its consumer", "How it is used", "The root of its file system", "How long it is used",
        "Secrets for the plugin", "What the controller said", "What the consumer's runtime can use"}) {
    const size_t at = help.find(group);
    EXPECT_NE(at, std::string::npos) << group;
    EXPECT_GT(at, last) << group;
    last = at;
  }
}

TEST_F(VolumeCommandsTest, ARefusalIsFollowedByWhatToDoAboutTheVolume) {
  node_.failure = {grpc::StatusCode::UNAVAILABLE, "unpublish v1: it is busy"};
  const Ended blind = Ctl({"volume", "publish", "--plugin", "nfs", "v1", "--consumer", "job-1"});
  EXPECT_THAT(blind.err, HasSubstr("busy\n  Try again in a moment")) << "the volume is not to be seen";
  node_.volume_is_seen = true;
  const Ended busy = Ctl({"volume", "publish", "--plugin", "nfs", "v1", "--consumer", "job-1"});
  EXPECT_THAT(busy.err, HasSubstr("berthctl volume explain --plugin nfs --volume v1"));
  node_.volume.mutable_publications(0)->set_blocked("the node was restarted");
  node_.volume.set_advice("Publish it again for job-1");
  const Ended held = Ctl({"volume", "publish", "--plugin", "nfs", "v1", "--consumer", "job-1"});
  EXPECT_THAT(held.err, AllOf(HasSubstr("blocked: nothing is done for job-1: the node was restarted"),
                              HasSubstr("Publish it again for job-1")));
  EXPECT_EQ(held.exit_code, 1);
}

v1::ConsumerMount Mount(const std::string& volume, const std::string& source) {
  v1::ConsumerMount mount;
  mount.set_plugin_id("nfs");
  mount.set_volume_id(volume);
  mount.set_source_path(source);
  mount.set_propagation("rprivate");
  return mount;
}

TEST_F(VolumeCommandsTest, MountsAreInTheWordsOfTheRuntime) {
  *node_.mounts.add_mounts() = Mount("v1", "/srv/v1");
  *node_.mounts.add_mounts() = Mount("v2", "/srv/v2");
  const Ended table = Ctl({"volume", "mounts", "job-1"});
  EXPECT_THAT(table.out, AllOf(StartsWith("VOLUME"), HasSubstr("/srv/v1"), HasSubstr("/volumes/v2")));
  EXPECT_EQ(node_.mounts_request.consumer(), "job-1");
  EXPECT_EQ(Ctl({"volume", "mounts", "job-1", "--format", "podman", "--at", "v2=/data"}).out,
            "--mount type=bind,source=/srv/v1,target=/volumes/v1,bind-propagation=rprivate "
            "--mount type=bind,source=/srv/v2,target=/data,bind-propagation=rprivate\n");
  EXPECT_EQ(Ctl({"volume", "mounts", "job-1", "--format", "systemd"}).out,
            "[Service]\nBindPaths=/srv/v1:/volumes/v1:rbind\nBindPaths=/srv/v2:/volumes/v2:rbind\n");
  node_.mounts.mutable_mounts(0)->set_declared("my-db");
  node_.mounts.mutable_mounts(1)->set_declared("logs");
  EXPECT_THAT(Ctl({"volume", "mounts", "job-1", "--format", "systemd"}).out,
              StartsWith("[Unit]\n"
                         "Requires=berth-volume@my\\x2ddb.service berth-volume@logs.service\n"
                         "After=berth-volume@my\\x2ddb.service berth-volume@logs.service\n"
                         "[Service]\nBindPaths="));
  EXPECT_THAT(Ctl({"volume", "mounts", "job-1", "-o", "json"}).out,
              AllOf(StartsWith("{\"mounts\""), HasSubstr("\"destination\":\"/volumes/v1\"")));
  EXPECT_THAT(Ctl({"volume", "mounts", "job-1", "--format", "oci"}).out, HasSubstr("\"rbind\""));
}

TEST_F(VolumeCommandsTest, AFormatThatCannotExpressAMountPrintsNothing) {
  *node_.mounts.add_mounts() = Mount("v1", "/srv/v1");
  *node_.mounts.add_mounts() = Mount("v2", "/srv/a=b");
  const Ended run = Ctl({"volume", "mounts", "job-1", "--format", "podman"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, IsEmpty()) << "half an answer would be taken for a whole one";
  EXPECT_THAT(run.err, AllOf(HasSubstr("no way to write a '='"), HasSubstr("--at")));
  EXPECT_EQ(Ctl({"volume", "mounts", "job-1", "--format", "kubernetes"}).exit_code, 2);
}

TEST_F(VolumeCommandsTest, StatsOfAConsumerAreAVolumeALineAndTheSum) {
  v1::VolumeStats& one = *node_.consumer_stats.add_volumes();
  one.set_plugin_id("nfs");
  one.set_volume_id("v1");
  v1::VolumeUsage& usage = *one.add_usage();
  usage.set_unit("BYTES");
  usage.set_total(100 << 20);
  usage.set_used(50 << 20);
  one.mutable_condition()->set_abnormal(true);
  one.mutable_condition()->set_message("disk is dying");
  v1::VolumeStats& two = *node_.consumer_stats.add_volumes();
  two.set_plugin_id("nfs");
  two.set_volume_id("v2");
  two.set_error("the plugin does not report it");
  *node_.consumer_stats.add_total() = usage;
  const Ended run = Ctl({"volume", "stats", "--consumer", "job-1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("50%"), HasSubstr("the plugin does not report it"),
                    HasSubstr("each counted once"), HasSubstr("condition of v1: abnormal, disk is dying")));
  EXPECT_EQ(node_.consumer_stats_request.consumer(), "job-1");
  ExpectJson(Ctl({"volume", "stats", "--consumer", "job-1", "-o", "json"}).out, node_.consumer_stats);
  EXPECT_EQ(Ctl({"volume", "stats"}).exit_code, 2);
  EXPECT_EQ(Ctl({"volume", "stats", "v1", "--consumer", "job-1"}).exit_code, 2);
}

TEST_F(VolumeCommandsTest, ExplainFindsThePluginAndHasAShortName) {
  *node_.explained.mutable_volume() = node_.volume;
  node_.explained.add_remarks("the kernel has no mount");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"volume", "explain", "v1"}, {"explain", "v1"}}) {
    const Ended run = Ctl(command);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("v1 of plugin nfs"), HasSubstr("the kernel has no mount")));
    EXPECT_EQ(node_.explain_request.plugin_id(), "nfs");
  }
  ExpectJson(Ctl({"explain", "--plugin", "nfs", "v1", "-o", "json"}).out, node_.explained);
  EXPECT_THAT(Ctl({"explain", "v2"}).err, HasSubstr("no volume v2; did you mean v1?"));
}

TEST_F(VolumeCommandsTest, ALabelSelectsWhereItIsAskedForAsOne) {
  *node_.explained.mutable_volume() = node_.volume;
  node_.volumes.mutable_volumes(0)->set_label("jobs/db");
  EXPECT_THAT(Ctl({"volumes"}).out, HasSubstr("v1 (jobs/db)"));
  EXPECT_EQ(Ctl({"explain", "--label", "jobs/db"}).exit_code, 0);
  EXPECT_EQ(node_.explain_request.plugin_id(), "nfs");
  EXPECT_EQ(node_.explain_request.volume_id(), "v1");
  EXPECT_EQ(
      Ctl({"volume", "unpublish", "--plugin", "nfs", "--label", "jobs/db", "--consumer", "c"}).exit_code, 0);
  EXPECT_EQ(node_.unpublish_request.volume_id(), "v1");
  EXPECT_THAT(Ctl({"explain", "--label", "jobs/dd"}).err,
              HasSubstr("no volume with the label jobs/dd; did you mean jobs/db?"));
  EXPECT_EQ(Ctl({"explain", "--label", "jobs/db", "--plugin", "other"}).exit_code, 1);
  EXPECT_EQ(Ctl({"explain", "--label", "jobs/db", "v1"}).exit_code, 2);
  EXPECT_THAT(Ctl({"explain"}).err, HasSubstr("no volume is named"));
}

TEST_F(VolumeCommandsTest, ALabelIsNeverTakenForAnId) {
  node_.volumes.mutable_volumes(0)->set_label("jobs/db");
  EXPECT_THAT(Ctl({"explain", "jobs/db"}).err,
              AllOf(HasSubstr("this node has no volume jobs/db"), HasSubstr("label of v1: --label jobs/db")));
  EXPECT_EQ(
      Ctl({"volume", "unpublish", "--plugin", "nfs", "--volume", "jobs/db", "--consumer", "c"}).exit_code, 0);
  EXPECT_EQ(node_.unpublish_request.volume_id(), "jobs/db") << "the node decides by the id alone";
}

TEST_F(VolumeCommandsTest, OneOfSeveralVolumesWithALabelMustBeNamed) {
  *node_.volumes.add_volumes() = node_.volumes.volumes(0);
  node_.volumes.mutable_volumes(1)->set_volume_id("v2");
  for (v1::Volume& volume : *node_.volumes.mutable_volumes()) volume.set_label("jobs/db");
  const Ended run = Ctl({"volume", "show", "--label", "jobs/db"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("2 volumes with the label jobs/db"), HasSubstr("v1"), HasSubstr("v2")));
}

TEST_F(VolumeCommandsTest, ShowHasTheNewFacts) {
  node_.volume.set_declared_in("data.toml");
  node_.volume.mutable_publications(0)->mutable_life()->set_unit("job.service");
  node_.volume.mutable_publications(0)->set_dead("ENOTCONN");
  node_.volume.mutable_publications(0)->set_origin(v1::DECLARED);
  const Ended run = Ctl({"volume", "show", "--plugin", "nfs", "v1"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("data.toml"), HasSubstr("until unit job.service ends"),
                             HasSubstr("dead: ENOTCONN"), HasSubstr("declared"), Not(HasSubstr("\033"))));
}

TEST_F(VolumeCommandsTest, ListShowsWhatTheStorageHas) {
  v1::ListStorageVolumesResponse& first = node_.storage[""];
  v1::StorageVolume& used = *first.add_volumes();
  used.set_volume_id("v1");
  used.set_capacity_bytes(int64_t{1} << 30);
  used.set_used_here(true);
  used.add_published_node_ids("node-7");
  used.mutable_condition()->set_abnormal(true);
  used.mutable_condition()->set_message("degraded");
  first.set_next_page_token("second");
  node_.storage["second"].add_volumes()->set_volume_id("v2");
  const Ended run = Ctl({"volume", "list", "--plugin", "nfs"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, testing::ContainsRegex("VOLUME +SIZE +USED HERE +ATTACHED TO +CONDITION\n"
                                              "v1 +1 GiB +yes +node-7 +abnormal, degraded\n"
                                              "v2 +- +no +- +-\n"));
  v1::ListStorageVolumesResponse all = first;
  all.clear_next_page_token();
  *all.add_volumes() = node_.storage["second"].volumes(0);
  ExpectJson(Ctl({"volume", "list", "--plugin", "nfs", "-o", "json"}).out, all);

  node_.storage["second"].set_next_page_token("second");
  EXPECT_THAT(Ctl({"volume", "list", "--plugin", "nfs"}).err, HasSubstr("the same page twice"));
  node_.storage = {{"", {}}};
  EXPECT_THAT(Ctl({"volume", "list", "--plugin", "nfs"}).err, HasSubstr("plugin nfs has no volumes"));
}

}  // namespace
}  // namespace berth::cli
