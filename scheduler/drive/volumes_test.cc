#include "scheduler/drive/volumes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/testing/run_on.h"
#include "scheduler/store/memory_store.h"

namespace berth::scheduler {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Fails at one commit, before or after carrying it out.
class FailingStore final : public Store {
 public:
  FailingStore(const asio::any_io_executor& executor, Store& real) : real_(real), never_(executor) {}
  // kDiesBefore, kDiesAfter: the scheduler is killed at that moment.
  enum class Fault { kNone, kBefore, kAfter, kDiesBefore, kDiesAfter };
  Fault next_commit = Fault::kNone;
  int failing_reads = 0;
  int commits = 0;
  int fail_at = -1;  // this commit, with `next_commit`
  bool is_dead = false;

  Awaitable<absl::StatusOr<Snapshot>> Read(std::vector<KeyRange> ranges) override {
    if (failing_reads > 0 && failing_reads-- > 0) co_return absl::InternalError("the disk is gone");
    co_return co_await real_.Read(std::move(ranges));
  }
  Awaitable<absl::StatusOr<uint64_t>> Commit(Transaction transaction) override {
    const bool fails = ++commits == fail_at;
    if (fails && next_commit == Fault::kBefore) co_return absl::InternalError("the disk is full");
    if (fails && next_commit == Fault::kDiesBefore) co_await Die();
    auto committed = co_await real_.Commit(std::move(transaction));
    if (fails && next_commit == Fault::kDiesAfter) co_await Die();
    if (fails && next_commit == Fault::kAfter && committed.ok())
      co_return absl::InternalError("it may have been written");
    co_return committed;
  }
  Awaitable<absl::StatusOr<std::vector<Change>>> Changes(uint64_t revision, TimePoint deadline) override {
    co_return co_await real_.Changes(revision, deadline);
  }

 private:
  Awaitable<void> Die() {
    is_dead = true;
    co_await never_.WaitUntil([] { return false; }, TimePoint::max());
  }

  Store& real_;
  Condition never_;
};

// A node that speaks the protos alone: it publishes whatever it is asked for.
class StandInNode final : public NodeLinks::Stream {
 public:
  StandInNode(const asio::any_io_executor& executor, const std::string& name, const std::string& instance,
              const std::string& boot)
      : boot_(boot), changed_(executor) {
    v1::Hello& hello = *Say().mutable_hello();
    hello.mutable_protocol()->set_major(1);
    hello.set_node_id(name);
    hello.set_instance_id(instance);
    hello.set_boot_id(boot);
    hello.set_run_id("r");
    hello.set_connection_number(1);
    v1::State& state = *Say().mutable_state();
    state.set_full(true);
    state.set_synced(true);
    v1::Plugin& plugin = *state.add_objects()->mutable_plugin();
    plugin.set_id("nfs");
    plugin.set_kind("node");
    plugin.set_state(v1::READY);
    plugin.set_registered(true);
    plugin.mutable_fingerprint()->set_driver_name("nfs.example");
    Say().mutable_heartbeat()->set_number(1);
  }

  std::set<std::string> mounted;  // consumers
  std::vector<std::string> deeds;
  std::set<uint64_t> ended_acknowledged;
  // Not acknowledged yet.
  std::map<uint64_t, v1::OperationResult> results;
  bool answers = true;

  void Inherit(const StandInNode& before) {
    mounted = before.mounted;
    results = before.results;
    for (const auto& [id, result] : results) *Say().mutable_result() = result;
  }
  [[nodiscard]] bool all_is_heard() const { return to_scheduler_.empty(); }
  v1::NodeMessage& Say() {
    changed_.NotifyAll();
    return to_scheduler_.emplace_back();
  }

  Awaitable<absl::StatusOr<std::optional<v1::NodeMessage>>> Read(TimePoint deadline) override {
    if (!co_await changed_.WaitUntil([this] { return !to_scheduler_.empty(); }, deadline))
      co_return absl::DeadlineExceededError("nothing was said");
    v1::NodeMessage message = std::move(to_scheduler_.front());
    to_scheduler_.pop_front();
    co_return std::optional(std::move(message));
  }
  Awaitable<absl::Status> Write(v1::SchedulerMessage message, TimePoint /*deadline*/) override {
    for (const uint64_t id : message.acknowledge().operation_ids()) results.erase(id);
    for (const uint64_t number : message.acknowledge().ended_consumers()) ended_acknowledged.insert(number);
    if (message.has_operation() && answers) CarryOut(message.operation());
    co_return absl::OkStatus();
  }

 private:
  void CarryOut(const v1::Operation& operation) {
    const auto known = results.find(operation.id());
    if (known == results.end()) {
      v1::OperationResult& result = results[operation.id()];
      result.set_id(operation.id());
      result.set_outcome(v1::OUTCOME_DONE);
      result.set_boot_id(boot_);
      if (operation.has_publish()) {
        const std::string& consumer = operation.publish().request().consumer();
        deeds.push_back("publish " + consumer);
        mounted.insert(consumer);
        result.mutable_publish()->set_target_path("/target");
        result.mutable_publish()->mutable_mount()->set_source_path("/volumes/" + consumer);
      } else {
        const std::string& consumer = operation.unpublish().request().consumer();
        deeds.push_back("unpublish " + consumer);
        mounted.erase(consumer);
        result.mutable_unpublish()->set_uses_left(static_cast<uint32_t>(mounted.size()));
      }
    }
    *Say().mutable_result() = results[operation.id()];
  }

  std::string boot_;
  std::deque<v1::NodeMessage> to_scheduler_;
  Condition changed_;
};

class VolumesTest : public ::testing::Test {
 protected:
  VolumesTest() { Begin(); }
  ~VolumesTest() override { End(); }

  // A scheduler over what is stored.
  void Begin() {
    const auto term =
        RunOn(loop_, BeginTerm(real_, {.cluster_id = "c", .now = WallClock::now(), .holder = "t"}));
    ASSERT_TRUE(term.ok()) << term.status();
    nodes_ = std::make_unique<NodeRecords>(store_, *term);
    ids_ = std::make_unique<OperationIds>(store_, *term);
    const auto known = RunOn(loop_, nodes_->Load());
    ASSERT_TRUE(known.ok());
    links_ = std::make_unique<NodeLinks>(
        loop_.get_executor(),
        LinkSettings{.cluster_id = "c",
                     .epoch = term->epoch,
                     .lease = {.heartbeat_interval = seconds(60), .duration = seconds(240)}},
        LeaseClock(BootClock::now(), seconds(0)), *nodes_, *ids_, *known);
    volumes_ = std::make_unique<Volumes>(store_, *term, *nodes_, *links_, std::chrono::milliseconds(50));
    ASSERT_TRUE(RunOn(loop_, volumes_->Load()).ok());
  }
  void End() {
    RunOn(loop_, streams_->Join());
    RunOn(loop_, volumes_->Stop());
    volumes_ = nullptr;
    links_ = nullptr;
    streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
  }
  // `before`: the same machine, with what it has.
  StandInNode& Connect(const std::string& name, const std::string& instance = "i",
                       const std::string& boot = "b", const StandInNode* before = nullptr) {
    auto& node =
        stand_ins_.emplace_back(std::make_unique<StandInNode>(loop_.get_executor(), name, instance, boot));
    if (before != nullptr) node->Inherit(*before);
    streams_->Spawn("node", [](NodeLinks& links, StandInNode& its) -> Awaitable<void> {
      std::ignore = co_await links.Serve(its);
    }(*links_, *node));
    Until("the node has said everything", [&] { return node->all_is_heard(); });
    return *node;
  }
  void Until(const std::string& what, const std::function<bool()>& holds) {
    const TimePoint deadline = Clock::now() + seconds(20);
    while (!holds() && Clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(holds()) << what;
  }

  void Register() {
    v1::VolumeSpec spec;
    spec.set_namespace_("prod");
    spec.set_id("db");
    spec.set_driver("nfs.example");
    spec.add_access_modes(v1::SINGLE_NODE_WRITER);
    const auto done = RunOn(loop_, volumes_->Register(spec, Clock::now() + seconds(5)));
    ASSERT_TRUE(done.ok()) << done.status();
  }
  absl::StatusOr<v1::ClaimClusterVolumeResponse> Claim(const std::string& consumer, const std::string& node,
                                                       Duration within = seconds(10)) {
    v1::ClaimClusterVolumeRequest request;
    request.set_namespace_("prod");
    request.set_volume("db");
    request.set_consumer(consumer);
    request.set_node(node);
    return RunOn(loop_, volumes_->Claim(request, Clock::now() + within));
  }
  absl::Status Release(const std::string& consumer, Duration within = seconds(10)) {
    v1::ReleaseClusterClaimRequest request;
    request.set_namespace_("prod");
    request.set_volume("db");
    request.set_consumer(consumer);
    return RunOn(loop_, volumes_->Release(request, Clock::now() + within)).status();
  }
  absl::Status Deregister() {
    v1::DeregisterVolumeRequest request;
    request.set_namespace_("prod");
    request.set_id("db");
    return RunOn(loop_, volumes_->Deregister(request, Clock::now() + seconds(5))).status();
  }
  absl::Status Forget(const std::string& node) {
    return RunOn(loop_, volumes_->ForgetNode(node, Clock::now() + seconds(5))).status();
  }
  size_t Claims() {
    const auto claims = volumes_->ListClaims({});
    EXPECT_TRUE(claims.ok());
    return claims.ok() ? static_cast<size_t>(claims->claims_size()) : 0;
  }

  asio::io_context loop_;
  MemoryStore real_{loop_.get_executor()};
  FailingStore store_{loop_.get_executor(), real_};
  std::unique_ptr<NodeRecords> nodes_;
  std::unique_ptr<OperationIds> ids_;
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<Volumes> volumes_;
  std::vector<std::unique_ptr<StandInNode>> stand_ins_;
  std::unique_ptr<TaskScope> streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
};

TEST_F(VolumesTest, AClaimIsPublishedAndReleasedAndEachResultIsAcknowledged) {
  StandInNode& a = Connect("a");
  Connect("b");
  Register();
  const auto claim = Claim("web", "a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ(claim->claim().mount().source_path(), "/volumes/web");
  EXPECT_TRUE(absl::IsFailedPrecondition(Claim("batch", "b").status()));
  EXPECT_TRUE(Release("web").ok());
  EXPECT_TRUE(Claim("batch", "b").ok());
  EXPECT_THAT(a.deeds, ElementsAre("publish web", "unpublish web"));
  Until("all is acknowledged", [&] { return a.results.empty(); });
}

// Every commit of a claim's life in turn: it fails, carried out or not.
TEST_F(VolumesTest, AStoreThatFailsAtAnyCommitLosesAndDoublesNothing) {
  StandInNode& a = Connect("a");
  Register();
  for (const auto fault : {FailingStore::Fault::kBefore, FailingStore::Fault::kAfter}) {
    int commits = 1;
    for (int at = 1; at <= commits; ++at) {
      SCOPED_TRACE(fmt::format("fault {} at commit {}", static_cast<int>(fault), at));
      store_.next_commit = fault;
      store_.commits = 0;
      store_.fail_at = at;
      store_.failing_reads = at % 2;
      a.deeds.clear();
      while (!Claim("web", "a").ok() && !HasFailure()) {
      }
      EXPECT_THAT(a.mounted, ElementsAre("web"));
      while (!Release("web").ok() && !HasFailure()) {
      }
      EXPECT_EQ(Claims(), 0U);
      EXPECT_THAT(a.mounted, IsEmpty());
      Until("all is acknowledged", [&] { return a.results.empty(); });
      commits = store_.commits;
      store_.fail_at = -1;
    }
    EXPECT_GE(commits, 5);
  }
}

TEST_F(VolumesTest, WhatACallerBeganGoesOnWithoutItAndOutlivesTheScheduler) {
  StandInNode& silent = Connect("a");
  silent.answers = false;
  Register();
  const absl::Status late = Claim("web", "a", std::chrono::milliseconds(50)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(MessageOf(late), AllOf(HasSubstr("the claim is kept"), HasSubstr("node a to publish it")));
  End();
  Begin();
  EXPECT_EQ(Claims(), 1U);
  StandInNode& a = Connect("a");
  Until("it is mounted", [&] { return a.mounted.contains("web"); });
  EXPECT_TRUE(Claim("web", "a").ok());
  EXPECT_THAT(a.deeds, SizeIs(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded([&] {
    a.answers = false;
    return Release("web", std::chrono::milliseconds(50));
  }()));
  End();
  Begin();
  StandInNode& back = Connect("a");
  back.mounted.insert("web");
  EXPECT_TRUE(Release("web").ok());
  EXPECT_THAT(back.deeds, ElementsAre("unpublish web"));
  Until("all is acknowledged", [&] { return back.results.empty(); });
}

// The scheduler dies at every commit of a claim's life in turn, before it is carried out or after.
TEST_F(VolumesTest, Fault32ASchedulerThatDiesAtAnyCommitGoesOnWhereItWas) {
  Connect("a");
  Register();
  for (const auto fault : {FailingStore::Fault::kDiesBefore, FailingStore::Fault::kDiesAfter}) {
    int commits = 1;
    for (int at = 1; at <= commits; ++at) {
      SCOPED_TRACE(fmt::format("fault {} at commit {}", static_cast<int>(fault), at));
      End();
      Begin();
      StandInNode* node = &Connect("a");
      store_.next_commit = fault;
      store_.commits = 0;
      store_.fail_at = at;
      store_.is_dead = false;
      const auto with_a_successor = [&](const auto& call) {
        while (!call(std::chrono::milliseconds(100)).ok() && !HasFailure()) {
          if (!std::exchange(store_.is_dead, false)) continue;
          store_.fail_at = -1;
          End();
          Begin();
          node = &Connect("a", "i", "b", node);
        }
      };
      with_a_successor([this](Duration within) { return Claim("web", "a", within).status(); });
      EXPECT_THAT(node->mounted, ElementsAre("web"));
      with_a_successor([this](Duration within) { return Release("web", within); });
      EXPECT_EQ(Claims(), 0U);
      EXPECT_THAT(node->mounted, IsEmpty());
      Until("all is acknowledged", [&] { return node->results.empty(); });
      commits = std::max(commits, store_.commits);
      store_.fail_at = -1;
    }
    EXPECT_GE(commits, 5);
  }
}

TEST_F(VolumesTest, AnotherMachineWithTheNameHasNothingToDoWithTheClaimsOfTheFirst) {
  Connect("a");
  Register();
  ASSERT_TRUE(Claim("web", "a").ok());
  EXPECT_THAT(MessageOf(Forget("a")), HasSubstr("node a has 1 claim, of volume prod/db"));
  RunOn(loop_, streams_->Join());
  streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
  // It is another machine: another boot, another state directory.
  StandInNode& stranger = Connect("a", "other", "b2");
  EXPECT_TRUE(absl::IsDeadlineExceeded(Release("web", std::chrono::milliseconds(50))));
  EXPECT_THAT(stranger.deeds, IsEmpty());
  EXPECT_EQ(Claims(), 1U);
  RunOn(loop_, streams_->Join());
  streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
  // The first one again, with a new state directory: its boot shows that.
  StandInNode& same = Connect("a", "new", "b");
  same.mounted.insert("web");
  EXPECT_TRUE(Release("web").ok());
  EXPECT_THAT(same.deeds, ElementsAre("unpublish web"));
  EXPECT_THAT(MessageOf(Forget("a")), HasSubstr("node a is connected"));
  RunOn(loop_, streams_->Join());
  streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
  EXPECT_TRUE(Forget("a").ok());
  EXPECT_TRUE(Forget("a").ok()) << "again";
  Connect("a", "other", "b2");
  EXPECT_TRUE(Claim("web", "a").ok()) << "the other machine is node a now";
}

// The record of the machine was lost, and another one has its name now: it is not asked about the claims.
TEST_F(VolumesTest, AMachineThatIsRecordedInThePlaceOfAnotherIsNotAskedAboutItsClaims) {
  Connect("a");
  Register();
  ASSERT_TRUE(Claim("web", "a").ok());
  ASSERT_TRUE(RunOn(loop_, nodes_->Delete("a")).ok());
  End();
  Begin();
  StandInNode& another = Connect("a", "other", "b2");
  const absl::Status released = Release("web", std::chrono::milliseconds(50));
  EXPECT_THAT(MessageOf(released), HasSubstr("another one is node a now"));
  EXPECT_THAT(another.deeds, IsEmpty());
  EXPECT_EQ(Claims(), 1U);
}

TEST_F(VolumesTest, AnEndedConsumerIsAcknowledgedOnceItsClaimIsGone) {
  StandInNode& a = Connect("a");
  Register();
  ASSERT_TRUE(Claim("web", "a").ok());
  v1::State shown;
  v1::Volume& volume = *shown.add_objects()->mutable_volume();
  volume.set_plugin_id("nfs");
  volume.set_volume_id("db");
  v1::Publication& publication = *volume.add_publications();
  publication.set_consumer("prod/web");
  publication.set_origin(v1::SCHEDULER);
  publication.set_state(v1::PUBLISHED);
  *a.Say().mutable_state() = shown;
  v1::State ended;
  const auto end = [&ended](uint64_t number, const std::string& consumer) {
    v1::EndedConsumer& its = *ended.add_objects()->mutable_ended_consumer();
    its.set_number(number);
    its.set_namespace_("prod");
    its.set_consumer(consumer);
    its.set_cause("its process has ended");
  };
  end(1, "another");
  end(2, "web");
  *a.Say().mutable_state() = ended;
  Until("the other one is acknowledged", [&] { return a.ended_acknowledged.contains(1); });
  EXPECT_EQ(Claims(), 1U) << "State still shows it";
  publication.set_state(v1::UNPUBLISHING);
  *a.Say().mutable_state() = shown;
  Until("the claim is gone", [&] { return Claims() == 0; });
  Until("it is acknowledged", [&] { return a.ended_acknowledged.contains(2); });
}

// The records are of an earlier day: a node has a use that they do not know.
TEST_F(VolumesTest, AUseThatOnlyANodeKnowsKeepsOthersAwayAndIsReleased) {
  StandInNode& a = Connect("a");
  Connect("b");
  Register();
  a.mounted.insert("old");
  a.answers = false;
  v1::State shown;
  v1::Volume& volume = *shown.add_objects()->mutable_volume();
  volume.set_plugin_id("nfs");
  volume.set_volume_id("db");
  volume.set_driver_name("nfs.example");
  volume.mutable_capability()->set_access_mode(v1::SINGLE_NODE_WRITER);
  v1::Publication& publication = *volume.add_publications();
  publication.set_consumer("prod/old");
  publication.set_origin(v1::SCHEDULER);
  publication.set_state(v1::PUBLISHED);
  *volume.add_publications() = publication;
  volume.mutable_publications(1)->set_consumer("declared/other");
  volume.mutable_publications(1)->set_origin(v1::DECLARED);
  *a.Say().mutable_state() = shown;
  Until("it is a claim", [&] { return Claims() == 1; });
  const absl::Status refused = Claim("web", "b").status();
  EXPECT_THAT(MessageOf(refused), HasSubstr("old on a, which writes, and is being released"));
  RunOn(loop_, streams_->Join());
  streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
  StandInNode& back = Connect("a", "i", "b", &a);
  Until("it is released", [&] { return Claims() == 0; });
  EXPECT_THAT(back.deeds, ElementsAre("unpublish old"));
}

// Release, deregister, the plugin stops, the node goes: in each order. It ends free, or says who has to do
// what.
TEST_F(VolumesTest, WhateverIsTakenAwayFirstItEndsFreeOrSaysWhatItWaitsFor) {
  std::vector<std::string> order = {"deregister", "node", "plugin", "release"};
  do {
    SCOPED_TRACE(fmt::format("{}", fmt::join(order, ", ")));
    End();
    Begin();
    StandInNode* node = &Connect("a");
    Register();
    ASSERT_TRUE(Claim("web", "a").ok());
    for (const std::string& what : order) {
      if (what == "deregister") std::ignore = Deregister();
      if (what == "release") std::ignore = Release("web", std::chrono::milliseconds(10));
      if (what == "plugin") {
        node->answers = false;
        v1::Plugin& plugin = *node->Say().mutable_state()->add_objects()->mutable_plugin();
        plugin.set_id("nfs");
        plugin.set_state(v1::STOPPED);
        plugin.mutable_fingerprint()->set_driver_name("nfs.example");
        Until("the node is heard", [&] { return node->all_is_heard() || !links_->Now("a").synced; });
      }
      if (what == "node") {
        RunOn(loop_, streams_->Join());
        streams_ = std::make_unique<TaskScope>(loop_.get_executor(), "streams");
      }
      const auto claims = volumes_->ListClaims({});
      for (const v1::ClusterClaim& claim : claims->claims()) {
        if (claim.phase() == v1::ClusterClaim::LEAVING) EXPECT_NE(claim.waits_for(), "");
      }
      if (Claims() > 0) EXPECT_THAT(MessageOf(Deregister()), HasSubstr("prod/db is claimed by web on a"));
    }
    Connect("a", "i", "b", node);
    EXPECT_TRUE(Release("web").ok());
    EXPECT_TRUE(Deregister().ok());
    EXPECT_EQ(Claims(), 0U);
  } while (std::ranges::next_permutation(order).found && !HasFailure());
}

// Another scheduler has begun a term: nothing is decided any more.
TEST_F(VolumesTest, ASchedulerWhoseTermIsOverWritesAndSendsNothing) {
  StandInNode& a = Connect("a");
  Register();
  ASSERT_TRUE(
      RunOn(loop_, BeginTerm(real_, {.cluster_id = "c", .now = WallClock::now(), .holder = "other"})).ok());
  EXPECT_TRUE(absl::IsAborted(Claim("web", "a").status()));
  EXPECT_THAT(a.deeds, IsEmpty());
}

}  // namespace
}  // namespace berth::scheduler
