// The built berthctl against a node on a real socket: what goes over the wire, what is printed, how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <thread>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

v1::WatchEventsResponse Happened(uint64_t sequence, const std::string& type) {
  v1::WatchEventsResponse response;
  response.mutable_event()->set_sequence(sequence);
  response.mutable_event()->set_type(type);
  response.mutable_event()->set_plugin_id("hostpath");
  response.mutable_event()->mutable_time()->set_seconds(1'700'000'000);
  response.mutable_event()->set_message("something about " + type);
  return response;
}

class BerthctlTest : public testing::Test {
 protected:
  BerthctlTest() {
    node_.status.set_node_id("node-1");
    node_.status.set_version("9.8.7");
    node_.status.set_plugins(2);
    node_.status.set_plugins_ready(1);
    node_.status.add_problems("plugin nfs is FAILED: gone");
    v1::Finding& failed = *node_.status.add_findings();
    failed.set_severity(v1::ERROR);
    failed.set_text("plugin nfs is FAILED: gone");
    failed.set_advice("berthctl plugin logs nfs");

    node_.plugin.set_id("hostpath");
    node_.plugin.set_state(v1::READY);
    node_.plugin.set_pid(4242);
    node_.plugin.mutable_fingerprint()->set_driver_name("hostpath.berth");
    node_.plugin.add_last_output("the last words");
    *node_.plugins.add_plugins() = node_.plugin;

    node_.volume.set_plugin_id("hostpath");
    node_.volume.set_volume_id("vol-1");
    node_.volume.set_state(v1::PUBLISHED);
    v1::Publication* use = node_.volume.add_publications();
    use->set_consumer("job-1");
    use->set_target_path("/run/berth/targets/t1");
    use->set_state(v1::PUBLISHED);
    *node_.volumes.add_volumes() = node_.volume;
    node_.published.set_target_path("/run/berth/targets/t1");
    node_.created.set_volume_id("vol-1");
    node_.created.set_capacity_bytes(64 << 20);
  }

  Ended Ctl(std::vector<std::string> arguments, RunOptions options = {}) {
    arguments.insert(arguments.begin(), {"--socket", node_.socket()});
    return RunBerthctl(std::move(arguments), std::move(options));
  }

  FakeNode node_;
};

// ---- what is asked and shown ----

TEST_F(BerthctlTest, StatusIsATableForPeopleAndJsonForPrograms) {
  const Ended table = Ctl({"status"});
  EXPECT_EQ(table.exit_code, 4);
  EXPECT_THAT(table.out, AllOf(HasSubstr("node-1"), HasSubstr("1 of 2 ready"), HasSubstr("nfs is FAILED")));
  EXPECT_THAT(table.err, AllOf(HasSubstr("1 problem"), HasSubstr("berthctl doctor")));
  EXPECT_THAT(table.out, Not(HasSubstr("\033"))) << "no colour where no terminal is";
  const Ended json = Ctl({"status", "-o", "json"});
  EXPECT_EQ(json.exit_code, 4);
  EXPECT_EQ(ErrorField(json, "code"), "FAILED_PRECONDITION");
  ExpectJson(json.out, node_.status);
  EXPECT_THAT(json.out, HasSubstr("\"publications\":0")) << "defaults are printed: keys are stable";
}

TEST_F(BerthctlTest, StatusNamesWhatIsWrongAndTheNextCommand) {
  v1::Finding& starting = *node_.status.add_findings();
  starting.set_severity(v1::INFO);
  starting.set_text("plugin ceph is starting");
  const Ended run = Ctl({"status"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.out, AllOf(testing::ContainsRegex("problems +plugin nfs is FAILED: gone\n"),
                             testing::ContainsRegex(" +  do: berthctl plugin logs nfs\n"),
                             testing::ContainsRegex("in progress +plugin ceph is starting\n")));
  node_.status.clear_problems();
  node_.status.mutable_findings()->DeleteSubrange(0, 1);
  const Ended well = Ctl({"status"});
  EXPECT_EQ(well.exit_code, 0) << well.err;
  EXPECT_THAT(well.out, AllOf(testing::ContainsRegex("problems +none\n"), HasSubstr("ceph is starting")));
}

TEST_F(BerthctlTest, TheSocketMayComeFromTheEnvironment) {
  node_.status.clear_problems();
  const Ended run = RunBerthctl({"status"}, {.environment = {"BERTH_SOCKET=" + node_.socket()}});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("node-1"));
}

TEST_F(BerthctlTest, PluginsAreListedAndShown) {
  const Ended list = Ctl({"plugins"});
  EXPECT_THAT(list.out, AllOf(StartsWith("ID"), HasSubstr("hostpath.berth"), HasSubstr("READY")));
  ExpectJson(Ctl({"plugins", "-o", "json"}).out, node_.plugins);
  const Ended show = Ctl({"plugin", "show", "hostpath"});
  EXPECT_THAT(show.out, AllOf(HasSubstr("pid 4242"), HasSubstr("the last words")));
  ExpectJson(Ctl({"-o", "json", "plugin", "show", "hostpath"}).out, node_.plugin);
  EXPECT_EQ(node_.calls.back(), "GetPlugin hostpath");
}

TEST_F(BerthctlTest, PluginsAreStartedStoppedAndRestarted) {
  EXPECT_EQ(Ctl({"plugin", "start", "hostpath"}).out, "hostpath: READY, pid 4242\n");
  EXPECT_EQ(Ctl({"plugin", "stop", "hostpath"}).exit_code, 0);
  EXPECT_FALSE(node_.stop_request.force());
  EXPECT_EQ(Ctl({"plugin", "stop", "hostpath", "--force"}).exit_code, 0);
  EXPECT_TRUE(node_.stop_request.force());
  EXPECT_EQ(Ctl({"plugin", "restart", "--force", "hostpath"}).exit_code, 0);
  EXPECT_TRUE(node_.restart_request.force());
  EXPECT_THAT(node_.calls, ElementsAre("StartPlugin hostpath", "StopPlugin hostpath", "StopPlugin hostpath",
                                       "RestartPlugin hostpath"));
}

TEST_F(BerthctlTest, VolumesAreListedAndFiltered) {
  const Ended list = Ctl({"volumes", "--plugin", "hostpath", "--consumer", "job-1"});
  EXPECT_THAT(list.out,
              AllOf(StartsWith("PLUGIN"), HasSubstr("vol-1"), HasSubstr("PUBLISHED"), HasSubstr("job-1")));
  EXPECT_EQ(node_.list_request.plugin_id(), "hostpath");
  EXPECT_EQ(node_.list_request.consumer(), "job-1");
  ExpectJson(Ctl({"volumes", "-o", "json"}).out, node_.volumes);
  node_.volumes.clear_volumes();
  const Ended none = Ctl({"volumes"});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.out, IsEmpty());
}

TEST_F(BerthctlTest, AVolumeIsShownAlsoWithoutItsPluginsName) {
  const Ended named = Ctl({"volume", "show", "--plugin", "hostpath", "--volume", "vol-1"});
  EXPECT_THAT(named.out, AllOf(HasSubstr("/run/berth/targets/t1"), HasSubstr("job-1")));
  EXPECT_THAT(node_.calls, ElementsAre("GetVolume vol-1"));
  const Ended unnamed = Ctl({"volume", "show", "vol-1", "-o", "json"});
  ExpectJson(unnamed.out, node_.volume);
  EXPECT_EQ(node_.get_request.plugin_id(), "hostpath");
  const Ended missing = Ctl({"volume", "show", "vol-2"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("NOT_FOUND: this node has no volume vol-2; did you mean vol-1?"));
}

TEST_F(BerthctlTest, CreateSendsWhatWasAskedAndPrintsTheId) {
  const Ended run =
      Ctl({"volume",      "create",     "--plugin",     "hostpath", "--name",          "data",
           "--size",      "64MiB",      "--limit",      "1Gi",      "--access",        "single-node-writer",
           "--fs",        "ext4",       "--mount-flag", "noatime",  "--mount-flag",    "ro",
           "--parameter", "kind=image", "--parameter",  "x=y=z",    "--from-snapshot", "snap-1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "vol-1\n");
  EXPECT_THAT(run.err, IsEmpty());
  v1::CreateVolumeRequest expected;
  expected.set_plugin_id("hostpath");
  expected.set_name("data");
  expected.set_required_bytes(64 << 20);
  expected.set_limit_bytes(1 << 30);
  v1::Capability* capability = expected.add_capabilities();
  capability->set_access_mode(v1::SINGLE_NODE_WRITER);
  capability->set_fs_type("ext4");
  capability->add_mount_flags("noatime");
  capability->add_mount_flags("ro");
  (*expected.mutable_parameters())["kind"] = "image";
  (*expected.mutable_parameters())["x"] = "y=z";
  expected.set_source_snapshot_id("snap-1");
  EXPECT_TRUE(MessageDifferencer::Equals(node_.create_request, expected))
      << node_.create_request.DebugString();
  ExpectJson(Ctl({"volume", "create", "--plugin", "hostpath", "data", "-o", "json"}).out, node_.created);
  EXPECT_EQ(node_.create_request.name(), "data");
  EXPECT_EQ(node_.create_request.capabilities_size(), 1) << "CSI demands at least one";
}

TEST_F(BerthctlTest, PublishSendsWhatWasAskedAndPrintsTheTargetAlone) {
  const Ended run =
      Ctl({"volume", "publish", "--plugin", "hostpath", "--volume", "vol-1", "--consumer", "job-1", "--name",
           "data", "--block", "--readonly", "--context", "a=b", "--publish-context", "lun=7"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "/run/berth/targets/t1\n");
  EXPECT_THAT(run.err, IsEmpty());
  v1::PublishVolumeRequest expected;
  expected.set_plugin_id("hostpath");
  expected.set_volume_id("vol-1");
  expected.set_consumer("job-1");
  expected.set_name("data");
  expected.mutable_capability()->set_access_type(v1::BLOCK);
  expected.set_readonly(true);
  (*expected.mutable_volume_context())["a"] = "b";
  (*expected.mutable_publish_context()->mutable_values())["lun"] = "7";
  EXPECT_TRUE(MessageDifferencer::Equals(node_.publish_request, expected))
      << node_.publish_request.DebugString();
  const Ended json =
      Ctl({"volume", "publish", "--plugin", "hostpath", "vol-1", "--consumer", "job-1", "-o", "json"});
  ExpectJson(json.out, node_.published);
  EXPECT_FALSE(node_.publish_request.has_publish_context());
}

TEST_F(BerthctlTest, AttachedMeansAnEmptyPublishContext) {
  EXPECT_EQ(Ctl({"volume", "publish", "--plugin", "p", "v", "--consumer", "c", "--attached"}).exit_code, 0);
  EXPECT_TRUE(node_.publish_request.has_publish_context());
  EXPECT_TRUE(node_.publish_request.publish_context().values().empty());
}

TEST_F(BerthctlTest, UnpublishEndsOneUseOrAll) {
  node_.unpublished.set_was_published(true);
  const Ended one =
      Ctl({"volume", "unpublish", "--plugin", "p", "--volume", "v", "--consumer", "c", "--name", "n"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.out, "unpublished v of c/n\n");
  EXPECT_EQ(node_.unpublish_request.name(), "n");
  EXPECT_FALSE(node_.unpublish_request.all_names());
  const Ended all = Ctl(
      {"volume", "unpublish", "--plugin", "p", "--volume", "v", "--consumer", "c", "--all", "-o", "json"});
  ExpectJson(all.out, node_.unpublished);
  EXPECT_TRUE(node_.unpublish_request.all_names());
}

TEST_F(BerthctlTest, ExpandDeleteAndStats) {
  node_.expanded.set_capacity_bytes(128 << 20);
  node_.expanded.set_node_expanded(true);
  const Ended expand = Ctl({"volume", "expand", "--plugin", "p", "--volume", "v", "--size", "128M"});
  EXPECT_EQ(expand.out, "v: 128 MiB, on the node too\n");
  EXPECT_EQ(node_.expand_request.required_bytes(), 128 << 20);
  node_.expanded.set_node_expanded(false);
  node_.expanded.set_node_expansion_pending(true);
  const std::vector<std::string> again = {"volume",   "expand", "--plugin", "p",
                                          "--volume", "v",      "--size",   "128M"};
  EXPECT_THAT(Ctl(again).out, HasSubstr("still to be done: repeat this where it is published"));
  node_.expanded.set_node_expansion_noted(true);
  EXPECT_THAT(Ctl(again).out, HasSubstr("done once it is published here"));

  EXPECT_EQ(Ctl({"volume", "delete", "--plugin", "p", "--volume", "v"}).out, "deleted: p has no volume v\n");
  EXPECT_EQ(node_.delete_request.volume_id(), "v");

  v1::VolumeUsage* usage = node_.stats.add_usage();
  usage->set_unit("BYTES");
  usage->set_total(100 << 20);
  usage->set_used(25 << 20);
  node_.stats.mutable_condition()->set_abnormal(true);
  node_.stats.mutable_condition()->set_message("disk is dying");
  const Ended stats = Ctl({"volume", "stats", "--plugin", "p", "--volume", "v"});
  EXPECT_THAT(stats.out, AllOf(HasSubstr("100 MiB"), HasSubstr("25%"), HasSubstr("abnormal, disk is dying")));
  ExpectJson(Ctl({"volume", "stats", "--plugin", "p", "--volume", "v", "-o", "json"}).out, node_.stats);
}

TEST_F(BerthctlTest, TextFromOutsideIsMadePrintable) {
  node_.plugins.mutable_plugins(0)->set_reason("\033]0;owned\007");
  node_.failure = grpc::Status::OK;
  EXPECT_THAT(Ctl({"plugins"}).out, Not(HasSubstr("\033")));
  node_.failure = {grpc::StatusCode::INTERNAL, "\033[2J\nfake: all is well"};
  const Ended run = Ctl({"plugins"});
  EXPECT_THAT(run.err, Not(HasSubstr("\033")));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 2) << "one line what failed, one what to do";
}

// ---- events ----

TEST_F(BerthctlTest, EventsThatAreKeptArePrinted) {
  node_.Append(Happened(7, "plugin.ready"));
  v1::WatchEventsResponse late = Happened(12, "volume.published");
  late.set_missed(4);
  node_.Append(late);
  const Ended table = Ctl({"events", "--since", "6", "--plugin", "hostpath", "--volume", "vol-1"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("plugin.ready"), HasSubstr("something about volume.published")));
  EXPECT_THAT(table.err, HasSubstr("4 events"));
  EXPECT_EQ(node_.watch_request.after_sequence(), 6U);
  EXPECT_EQ(node_.watch_request.plugin_id(), "hostpath");
  EXPECT_EQ(node_.watch_request.volume_id(), "vol-1");
  EXPECT_FALSE(node_.watch_request.follow());

  const Ended json = Ctl({"events", "-o", "json"});
  const size_t end = json.out.find('\n');
  ExpectJson(json.out.substr(0, end), Happened(7, "plugin.ready"));
  ExpectJson(json.out.substr(end + 1), late);
}

TEST_F(BerthctlTest, EventsBeginAtATime) {
  EXPECT_EQ(Ctl({"events", "--since", "2026-11-21T10:00:00.5Z"}).exit_code, 0);
  EXPECT_EQ(node_.watch_request.since().seconds(), 1'795'255'200);
  EXPECT_EQ(node_.watch_request.since().nanos(), 500'000'000);
  EXPECT_EQ(node_.watch_request.after_sequence(), 0U);
  const auto before = std::chrono::system_clock::now();
  EXPECT_EQ(Ctl({"events", "--since", "10m"}).exit_code, 0);
  const auto ten_minutes_ago = std::chrono::system_clock::to_time_t(before) - 600;
  EXPECT_GE(node_.watch_request.since().seconds(), ten_minutes_ago - 1);
  EXPECT_LE(node_.watch_request.since().seconds(), ten_minutes_ago + 60);
  const Ended wrong = Ctl({"events", "--since", "soon"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err,
              AllOf(HasSubstr("--since 'soon' is not a time"), HasSubstr("the number of the last event"),
                    HasSubstr("10m (ago)"), HasSubstr("2026-11-21T10:00:00Z")));
  EXPECT_EQ(Ctl({"events", "--since", "99999999999999999999"}).exit_code, 2);
}

TEST_F(BerthctlTest, FollowedEventsComeAtOnceAndCtrlCEndsThem) {
  node_.Append(Happened(1, "plugin.starting"));
  RunningBerthctl ctl({"--socket", node_.socket(), "events", "-f", "-o", "json"},
                      RunningBerthctl::Stderr::kNull);
  ExpectJson(ctl.ReadLine(), Happened(1, "plugin.starting"));
  node_.Append(Happened(2, "plugin.ready"));
  ExpectJson(ctl.ReadLine(), Happened(2, "plugin.ready"));
  ctl.Interrupt();
  EXPECT_EQ(ctl.Wait(), 130);
}

// ---- failures ----

TEST_F(BerthctlTest, ARefusalEndsWith1AndNamesTheCode) {
  node_.failure = {grpc::StatusCode::NOT_FOUND, "there is no plugin nfs; there are hostpath"};
  const Ended run = Ctl({"plugin", "show", "nfs"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, StartsWith("berthctl: NOT_FOUND: there is no plugin nfs; there are hostpath\n  "));
  const Ended json = Ctl({"plugin", "show", "nfs", "-o", "json"});
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_THAT(json.out, IsEmpty());
  EXPECT_EQ(ErrorField(json, "code"), "NOT_FOUND");
  EXPECT_THAT(ErrorField(json, "message"), HasSubstr("there is no plugin nfs"));
}

TEST_F(BerthctlTest, EveryCodeOfAnAnswerEndsWith1AndSaysWhatToDo) {
  for (int code = 1; code <= 16; ++code) {
    node_.failure = {static_cast<grpc::StatusCode>(code), "because"};
    const Ended run = Ctl({"volumes"});
    EXPECT_EQ(run.exit_code, 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr("because\n  ")) << "a hint for code " << code;
  }
}

TEST_F(BerthctlTest, ADeadlineSaysThatTheWorkGoesOn) {
  node_.publish_waits_for_looks = 1;
  const Ended run = Ctl({"volume", "publish", "--plugin", "p", "v", "--consumer", "c", "--timeout", "200ms"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("--timeout")));
}

TEST_F(BerthctlTest, WrongUsageEndsWith2AndAsksNobody) {
  const std::vector<std::vector<std::string>> wrong = {
      {"plugns"},
      {"plugin"},
      {"plugin", "shw"},
      {"plugin", "show"},
      {"plugin", "show", "a", "b"},
      {"plugin", "show", "a", "events"},
      {"status", "--nonsense"},
      {"status", "-o", "yaml"},
      {"status", "--timeout", "soon"},
      {"status", "--timeout", "0"},
      {"events", "--since", "now"},
      {"volume", "create", "--plugin", "p"},
      {"volume", "create", "n"},
      {"volume", "create", "--plugin", "p", "n", "--size", "big"},
      {"volume", "create", "--plugin", "p", "n", "--size", "2G", "--limit", "1G"},
      {"volume", "create", "--plugin", "p", "n", "--fs", "ext4", "--block"},
      {"volume", "create", "--plugin", "p", "n", "--block", "--mount-flag", "ro"},
      {"volume", "create", "--plugin", "p", "n", "--access", "writer"},
      {"volume", "create", "--plugin", "p", "n", "--parameter", "plain"},
      {"volume", "create", "--plugin", "p", "n", "--from-snapshot", "s", "--from-volume", "v"},
      {"volume", "create", "--plugin", "p", "n", "--secrets-file", "/nonexistent"},
      {"volume", "expand", "--plugin", "p", "--volume", "v"},
      {"volume", "publish", "--plugin", "p", "--volume", "v"},
      {"volume", "publish", "--plugin", "p", "--volume", "v", "--consumer", "c", "--context", "x=1",
       "--context", "x=2"},
      {"volume", "unpublish", "--plugin", "p", "--volume", "v", "--consumer", "c", "--name", "n", "--all"},
  };
  for (const auto& arguments : wrong) {
    const Ended run = Ctl(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(arguments) << run.err;
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, AllOf(StartsWith("berthctl: "), HasSubstr("\n  ")))
        << testing::PrintToString(arguments);
  }
  EXPECT_EQ(Ctl({}).exit_code, 2);
  EXPECT_THAT(node_.calls, IsEmpty());
}

TEST_F(BerthctlTest, ATypoGetsASuggestionAlsoInJson) {
  EXPECT_THAT(Ctl({"plugns"}).err, HasSubstr("there is no command 'plugns'; did you mean plugins?"));
  EXPECT_THAT(Ctl({"volume", "publsh"}).err, HasSubstr("did you mean publish?"));
  EXPECT_THAT(Ctl({"events", "--folow"}).err, HasSubstr("did you mean --follow?"));
  const Ended json = Ctl({"plugns", "-o", "json"});
  EXPECT_EQ(json.exit_code, 2);
  EXPECT_EQ(ErrorField(json, "code"), "INVALID_ARGUMENT");
}

TEST(UnreachableTest, AMissingSocketIsToldAtOnceWith3) {
  const auto began = std::chrono::steady_clock::now();
  const Ended run = RunBerthctl({"--socket", "/nonexistent/berthd.sock", "status"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(run.err,
            "berthctl: cannot reach berthd at /nonexistent/berthd.sock: No such file or directory\n"
            "  Is it running? systemctl status berthd; another node's socket: --socket PATH\n");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5)) << "no backoff is waited out";
  const Ended json = RunBerthctl({"--socket", "/nonexistent/berthd.sock", "status", "-o", "json"});
  EXPECT_EQ(json.exit_code, 3);
  EXPECT_EQ(ErrorField(json, "code"), "UNAVAILABLE");
}

// A listening socket on which no gRPC is spoken.
class DeafSocket {
 public:
  explicit DeafSocket(bool listening)
      : path_(dir_.Path("deaf.sock")), fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(static_cast<char*>(address.sun_path), path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (listening) EXPECT_EQ(listen(fd_, 8), 0);
  }
  ~DeafSocket() { close(fd_); }
  DeafSocket(const DeafSocket&) = delete;
  DeafSocket& operator=(const DeafSocket&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Takes one connection and drops it.
  void HangUp() const {
    const int peer = accept(fd_, nullptr, nullptr);
    EXPECT_GE(peer, 0);
    close(peer);
  }

 private:
  TempDir dir_;
  std::string path_;
  int fd_;
};

TEST(UnreachableTest, ASocketThatNobodyListensAtEndsWith3) {
  const DeafSocket socket(false);
  const Ended run = RunBerthctl({"--socket", socket.path(), "status"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("Connection refused"));
}

TEST(UnreachableTest, ANodeThatGoesAwayInTheMiddleEndsWith3) {
  const DeafSocket socket(true);
  std::thread peer([&] { socket.HangUp(); });
  const Ended run = RunBerthctl({"--socket", socket.path(), "status"});
  peer.join();
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_THAT(run.err, HasSubstr("lost berthd at"));
}

// ---- secrets ----

TEST_F(BerthctlTest, SecretsComeFromAFileOrStandardInput) {
  const std::string lines = node_.dir().Write("lines", "user=admin\npassword=hunter2\n", 0600);
  EXPECT_EQ(Ctl({"volume", "publish", "--plugin", "p", "v", "--consumer", "c", "--secrets-file", lines}).err,
            "");
  EXPECT_EQ(node_.publish_request.secrets().at("password"), "hunter2");
  const Ended piped = Ctl({"volume", "create", "--plugin", "p", "n", "--secrets-file", "-"},
                          {.input = R"({"key": "from a pipe"})"});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(node_.create_request.secrets().at("key"), "from a pipe");
  EXPECT_EQ(Ctl({"volume", "delete", "--plugin", "p", "v", "--secrets-file", lines}).exit_code, 0);
  EXPECT_EQ(node_.delete_request.secrets().at("user"), "admin");
}

TEST_F(BerthctlTest, AnErrorThatRepeatsASecretIsShownWithoutIt) {
  const std::string file = node_.dir().Write("secrets", "password=hunter2\n", 0644);
  node_.failure = {grpc::StatusCode::INTERNAL, "login with hunter2 failed"};
  for (const char* format : {"table", "json"}) {
    const Ended run = Ctl(
        {"volume", "publish", "--plugin", "p", "v", "--consumer", "c", "--secrets-file", file, "-o", format});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.err, AllOf(Not(HasSubstr("hunter2")), HasSubstr("login with *** failed")));
    EXPECT_THAT(run.err, HasSubstr("every user can read it"));
  }
}

// ---- a terminal, a full disk, help ----

TEST_F(BerthctlTest, LongWorkIsShownOnATerminal) {
  // What the first look saw is on the terminal before berthctl looks again.
  node_.publish_waits_for_looks = 2;
  node_.volume.set_running("NodeStageVolume");
  RunningBerthctl ctl(
      {"--socket", node_.socket(), "volume", "publish", "--plugin", "hostpath", "vol-1", "--consumer", "c"},
      RunningBerthctl::Stderr::kTerminal);
  EXPECT_TRUE(ctl.TerminalShows("NodeStageVolume"));
  EXPECT_EQ(ctl.ReadLine(), "/run/berth/targets/t1");
  EXPECT_EQ(ctl.Wait(), 0);
}

TEST_F(BerthctlTest, AnAnswerThatCannotBeWrittenIsAFailure) {
  const Ended run = RunBerthctl({"--socket", node_.socket(), "status"}, {.environment = {}});
  EXPECT_EQ(run.exit_code, 4) << "there is a problem";
  // The shell alone can hand a full device to it.
  const std::string command =
      std::string(BERTHCTL) + " --socket " + node_.socket() + " status > /dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(HelpTest, EveryCommandHasHelp) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"status"},
                                                          {"plugins"},
                                                          {"plugin"},
                                                          {"plugin", "show"},
                                                          {"plugin", "start"},
                                                          {"plugin", "stop"},
                                                          {"plugin", "restart"},
                                                          {"volumes"},
                                                          {"volume"},
                                                          {"volume", "show"},
                                                          {"volume", "create"},
                                                          {"volume", "delete"},
                                                          {"volume", "expand"},
                                                          {"volume", "stats"},
                                                          {"volume", "publish"},
                                                          {"volume", "explain"},
                                                          {"volume", "mounts"},
                                                          {"explain"},
                                                          {"consumer"},
                                                          {"consumer", "ended"},
                                                          {"doctor"},
                                                          {"volume", "unpublish"},
                                                          {"events"},
                                                          {"version"},
                                                          {"csi"}};
  for (auto arguments : commands) {
    arguments.emplace_back("--help");
    const Ended run = RunBerthctl(arguments);
    EXPECT_EQ(run.exit_code, 0) << testing::PrintToString(arguments);
    EXPECT_THAT(run.out, HasSubstr("Usage: berthctl")) << testing::PrintToString(arguments);
    EXPECT_THAT(run.err, IsEmpty());
  }
  EXPECT_THAT(RunBerthctl({"--help"}).out, HasSubstr("Exit codes: 0 done; 1 it failed; 2 wrong usage"));
}

TEST(HelpTest, TheVersionIsTold) {
  EXPECT_THAT(RunBerthctl({"--version"}).out, StartsWith("berthctl "));
  const Ended json = RunBerthctl({"version", "-o", "json"});
  google::protobuf::Struct document;
  ASSERT_TRUE(JsonStringToMessage(json.out, &document).ok()) << json.out;
  EXPECT_EQ(document.fields().at("csi_version").string_value(), "1.13.0");
}

}  // namespace
}  // namespace berth::cli
