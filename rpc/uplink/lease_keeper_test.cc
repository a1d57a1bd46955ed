// The keeper with a real mounter, real mounts and real consumers; its rows in memory, which is where a power
// cut would leave them.
#include "rpc/uplink/lease_keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/testing/sleeper.h"
#include "mounter/testing/mounter_test_base.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Rows that outlive their writers. At the boundary that a test names, nothing goes on any more.
class FakeRows : public LinkRows {
 public:
  explicit FakeRows(asio::any_io_executor executor) : changed_(std::move(executor)) {}

  Awaitable<absl::Status> Put(std::string key, std::string value) override {
    co_await Pass();
    if (failures > 0) {
      --failures;
      co_return absl::ResourceExhaustedError("the disk is full");
    }
    rows[std::move(key)] = std::move(value);
    co_await Pass();
    co_return absl::OkStatus();
  }
  void PutSoon(std::string key, std::string value) override { rows[std::move(key)] = std::move(value); }
  void DeleteSoon(std::string key) override { rows.erase(key); }
  void GoOn() {
    stop_at = -1;
    changed_.NotifyAll();
  }

  std::map<std::string, std::string> rows;
  int failures = 0;
  int stop_at = -1;  // the boundary, counted from 0; before and after each write there is one
  int passed = 0;
  bool stopped = false;

 private:
  Awaitable<void> Pass() {
    stopped = passed++ == stop_at;
    if (stopped) (void)co_await changed_.WaitUntil([this] { return stop_at < 0; }, TimePoint::max());
  }
  Condition changed_;
};

class LeaseKeeperTest : public MounterTestBase {
 protected:
  LeaseKeeperTest() {
    keeper_options_.state_dir = directory_ + "/state";
    keeper_options_.runtime_dir = directory_ + "/run";
    keeper_options_.retry_limit = milliseconds(20);
    keeper_options_.on_change = [this] { ++changes_; };
    mkdir(keeper_options_.runtime_dir.c_str(), 0755);
    options_.consumer_end.grace = seconds(5);
  }

  void SetUp() override {
    Open();
    Begin();
  }
  void TearDown() override {
    End();
    MounterTestBase::TearDown();
  }
  void Begin() {
    keeper_ = std::make_unique<LeaseKeeper>(loop_.executor(), keeper_options_, *mounter_, events_, rows_);
    keeper_->Start(rows_.rows);
  }
  void End() {
    if (keeper_ == nullptr) return;
    loop_.RunVoid(keeper_->Shutdown());
    keeper_.reset();
  }
  // As a berthd that ends at once, and the next one.
  void Restart() {
    End();
    loop_.RunVoid(mounter_->Shutdown(Clock::now()));
    mounter_.reset();
    plugin_.Release();
    rows_.GoOn();
    Open();
    Begin();
  }

  // To the last heartbeat, with a lease.
  [[nodiscard]] v1::HeartbeatAnswer Answer(uint64_t epoch, Duration duration) const {
    v1::HeartbeatAnswer answer;
    answer.set_number(heartbeat_);
    answer.mutable_lease()->set_epoch(epoch);
    *answer.mutable_lease()->mutable_duration() = google::protobuf::util::TimeUtil::NanosecondsToDuration(
        std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
    return answer;
  }
  // A heartbeat is sent and answered with a lease.
  void Grant(uint64_t epoch = 3, Duration duration = seconds(60)) {
    keeper_->OnHeartbeat(++heartbeat_);
    EXPECT_EQ(loop_.Run(keeper_->OnAnswer(Answer(epoch, duration))), absl::OkStatus());
  }
  [[nodiscard]] std::string EpochPath() const { return keeper_options_.state_dir + "/scheduler/lease_epoch"; }
  [[nodiscard]] bool LeaseIsNoted() {
    return loop_.RunUntil([&] { return ReadFile(keeper_options_.runtime_dir + "/lease", 200).ok(); });
  }
  [[nodiscard]] bool Arrives(const std::string& volume = "v1") {
    return loop_.RunUntil(
        [&] { return View(volume).publications.at(0).state == PublicationState::kPublished; });
  }
  [[nodiscard]] std::vector<PublicationRef> Confirm(const std::vector<std::string>& volumes) {
    std::vector<PublicationRef> wanted;
    for (const std::string& volume : volumes) wanted.push_back({"hp", volume, "web", ""});
    const auto confirmed = loop_.Run(mounter_->Confirm(wanted, Soon()));
    EXPECT_TRUE(confirmed.ok()) << confirmed.status();
    return confirmed.ok() ? *confirmed : wanted;
  }
  // A publish of the scheduler's that does not come to its end.
  void BeginPublish(const Sleeper& process) {
    plugin_.FailNext("NodePublishVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
    publish_ = loop_.Start(mounter_->Publish(For(process), Soon()));
    ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") > 0; }));
  }
  // Nothing more is sent for it, however long one waits: another volume comes and goes meanwhile.
  void ExpectBlocked() {
    const int before = plugin_.Calls("NodePublishVolume");
    for (int others = 1; others <= 3; ++others) {
      ASSERT_TRUE(Publish(Request("other", "web")).ok());
      ASSERT_TRUE(Unpublish(Request("other", "web")).ok());
      EXPECT_EQ(plugin_.Calls("NodePublishVolume"), before + others);
    }
    EXPECT_TRUE(View().publications.at(0).blocked.has_value());
  }

  // An earlier berthd has left a lease of `epoch` that ends then. The next Begin finds it.
  void Leave(BootTime ends, uint64_t epoch = 3) const {
    const LeaseStore store(keeper_options_.state_dir, keeper_options_.runtime_dir, BootId());
    ASSERT_EQ(store.WriteEpoch(epoch), absl::OkStatus());
    ASSERT_EQ(store.WriteLease({.epoch = epoch, .ends = ends}), absl::OkStatus());
  }
  [[nodiscard]] PublishRequest For(const Sleeper& process, const std::string& volume = "v1") const {
    PublishRequest request = Request(volume, "web");
    request.origin = Origin::kScheduler;
    request.life = ProcessLife(process.pid());
    return request;
  }
  [[nodiscard]] size_t Told(const std::string& type) const {
    return static_cast<size_t>(std::ranges::count(EventTypes(), type));
  }
  [[nodiscard]] std::string LastMessage(const std::string& type) const {
    std::string message;
    for (const Event& event : events_.After(0, 1000).events) {
      if (event.type == type) message = event.message;
    }
    return message;
  }
  [[nodiscard]] bool Becomes(v1::LeaseState standing) {
    return loop_.RunUntil([this, standing] { return keeper_->state() == standing; });
  }
  // "1 v1 released" of each, in order.
  [[nodiscard]] std::vector<std::string> ForcedRelease() const {
    std::vector<std::string> shown;
    for (const v1::ForcedRelease& g : keeper_->forced_release()) {
      shown.push_back(fmt::format("{} {} {}", g.number(), g.volume_id(),
                                  g.progress() == v1::ForcedRelease::RELEASED ? "released" : "releasing"));
    }
    return shown;
  }
  [[nodiscard]] bool AllReleased() {
    return loop_.RunUntil([this] {
      const std::vector<v1::ForcedRelease> list = keeper_->forced_release();
      return !list.empty() && std::ranges::all_of(list, [](const v1::ForcedRelease& g) {
        return g.progress() == v1::ForcedRelease::RELEASED;
      });
    });
  }

  LeaseKeeperOptions keeper_options_;
  FakeRows rows_{loop_.executor()};
  std::unique_ptr<LeaseKeeper> keeper_;
  std::shared_ptr<std::optional<absl::StatusOr<std::string>>> publish_;
  uint64_t heartbeat_ = 0;
  int changes_ = 0;
};

TEST_F(LeaseKeeperTest, AValidLeaseLetsTheMounterGoForwardOnce) {
  EXPECT_EQ(keeper_->state(), v1::LEASE_NONE);
  EXPECT_EQ(keeper_->Judge(7, true), v1::LEASE_EPOCH);
  Grant(7);
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
  EXPECT_THAT(*ReadFile(EpochPath(), 100), testing::StartsWith("epoch 7 ")) << "before it is obeyed";
  EXPECT_EQ(rows_.rows.at("lease_epoch"), "7");
  EXPECT_EQ(keeper_->Judge(7, true), v1::REFUSAL_NONE);
  EXPECT_EQ(keeper_->Judge(6, true), v1::LEASE_EPOCH);
  const Sleeper process;
  EXPECT_TRUE(Publish(For(process)).ok());
  Grant(7);
  EXPECT_EQ(Told("lease.granted"), 1U);
  EXPECT_EQ(Told("lease.epoch"), 1U);
  EXPECT_GT(keeper_->left(), seconds(30));
  EXPECT_TRUE(loop_.RunUntil([&] { return changes_ > 0; }));
}

TEST_F(LeaseKeeperTest, Fault38WhileTheLeaseHoldsARestartAndANewEpochChangeNothing) {
  Grant(3);
  const Sleeper process;
  BeginPublish(process);
  ASSERT_TRUE(LeaseIsNoted());
  Restart();
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID) << "before the scheduler is heard";
  EXPECT_EQ(keeper_->Judge(3, true), v1::REFUSAL_NONE);
  EXPECT_FALSE(View().publications.at(0).blocked.has_value());
  const int before = plugin_.Calls("NodePublishVolume");
  ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodePublishVolume") > before; })) << "it goes on";
  Grant(4);
  EXPECT_FALSE(View().publications.at(0).blocked.has_value());
  plugin_.ClearFaults();
  EXPECT_TRUE(Arrives());
}

TEST_F(LeaseKeeperTest, Fault38ALeaseThatEndedResumesNothingWhenItIsGrantedAgain) {
  Grant(3, seconds(1));
  const Sleeper process;
  BeginPublish(process);
  ASSERT_TRUE(Becomes(v1::LEASE_EXPIRED));
  ASSERT_TRUE(loop_.RunUntil([&] { return publish_->has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable((*publish_)->status())) << (*publish_)->status();
  plugin_.ClearFaults();
  ExpectBlocked();
  Grant(3);
  EXPECT_EQ(Told("lease.granted"), 2U);
  EXPECT_THAT(LastMessage("lease.granted"), HasSubstr("1 publications"));
  ExpectBlocked();
  // Nor when berthd is restarted under the new lease.
  ASSERT_TRUE(loop_.RunUntil([&] {
    const LeaseStore store(keeper_options_.state_dir, keeper_options_.runtime_dir, BootId());
    const auto kept = store.Load(BootClock::now());
    return kept.lease && kept.lease->ends > BootClock::now() + seconds(30);
  }));
  Restart();
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
  ExpectBlocked();
  EXPECT_THAT(Confirm({"v1", "v2"}), ElementsAre(PublicationRef{"hp", "v2", "web", ""}));
  EXPECT_TRUE(Arrives());
  EXPECT_FALSE(View().publications.at(0).blocked.has_value());
}

TEST_F(LeaseKeeperTest, Fault38WhatIsPublishedAgainNeedsNoConfirmation) {
  Grant(3, seconds(1));
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  ASSERT_TRUE(Publish(For(process, "v2")).ok());
  ASSERT_TRUE(Becomes(v1::LEASE_EXPIRED));
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("lease.expired") == 1; }));
  EXPECT_TRUE(absl::IsUnavailable(loop_.Run(mounter_->Confirm({{"hp", "v1", "web", ""}}, Soon())).status()))
      << "not without a lease";
  Grant(3);
  EXPECT_THAT(View().publications.at(0).blocked->text, HasSubstr("has not confirmed it"))
      << "though it is mounted";
  ASSERT_TRUE(Publish(For(process)).ok());
  EXPECT_FALSE(View().publications.at(0).blocked.has_value());
  EXPECT_THAT(View("v2").publications.at(0).blocked->text, HasSubstr("has not confirmed it"));
  ASSERT_TRUE(LeaseIsNoted());
  ASSERT_TRUE(Unpublish(For(process, "v2")).ok()) << "reverse steps need nothing";
}

TEST_F(LeaseKeeperTest, Fault38ALeaseThatIsNotKnownAfterARestartHasEnded) {
  Grant(3);
  const Sleeper process;
  BeginPublish(process);
  ASSERT_TRUE(LeaseIsNoted());
  ASSERT_EQ(unlink((keeper_options_.runtime_dir + "/lease").c_str()), 0);
  Restart();
  plugin_.ClearFaults();
  Grant(3);
  ExpectBlocked();
  EXPECT_THAT(Confirm({"v1"}), IsEmpty());
  EXPECT_TRUE(Arrives());
}

TEST_F(LeaseKeeperTest, ACallerDoesNotPublishWhatIsBlockedForItsScheduler) {
  Grant(3, seconds(1));
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  ASSERT_TRUE(Becomes(v1::LEASE_EXPIRED));
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("lease.expired") == 1; }));
  PublishRequest by_hand = For(process);
  by_hand.origin = Origin::kCaller;
  const auto refused = Publish(by_hand);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(MessageOf(refused.status())), HasSubstr("unpublish it first"));
  ASSERT_TRUE(Unpublish(by_hand).ok());
  EXPECT_TRUE(Publish(by_hand).ok());
}

TEST_F(LeaseKeeperTest, WhenItRunsOutNothingNewIsBegunAndAllStays) {
  const Sleeper process;
  Grant(3, seconds(1));
  ASSERT_TRUE(Publish(For(process)).ok());
  ASSERT_TRUE(Becomes(v1::LEASE_EXPIRED));
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("lease.expired") == 1; }));
  EXPECT_EQ(Told("node.awaiting_scheduler"), 1U);
  EXPECT_EQ(keeper_->Judge(3, true), v1::LEASE_NOT_VALID);
  EXPECT_EQ(keeper_->Judge(3, false), v1::REFUSAL_NONE);
  EXPECT_EQ(keeper_->left(), std::nullopt);
  EXPECT_THAT(ForcedRelease(), IsEmpty());
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(waitpid(process.pid(), nullptr, WNOHANG), 0) << "its consumer runs on";
  Grant(3);
  EXPECT_EQ(Told("lease.granted"), 2U);
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
}

TEST_F(LeaseKeeperTest, ALeaseOfAnEarlierBerthdRunsOut) {
  Leave(BootClock::now() + milliseconds(50));
  Restart();
  ASSERT_TRUE(loop_.RunUntil([&] { return Told("lease.expired") == 1; }));
  EXPECT_EQ(keeper_->state(), v1::LEASE_EXPIRED);
  EXPECT_EQ(keeper_->Judge(3, true), v1::LEASE_NOT_VALID);
  // One that ended while berthd was away.
  Leave(BootClock::now());
  Restart();
  EXPECT_EQ(keeper_->state(), v1::LEASE_EXPIRED);
  EXPECT_EQ(Told("lease.expired"), 2U);
}

// Writes `content` in place of the epoch; none: takes the file away.
class LeaseEpochTest : public LeaseKeeperTest {
 protected:
  void Replace(const std::optional<std::string>& content) {
    ASSERT_EQ(unlink(EpochPath().c_str()), 0);
    if (content) ASSERT_EQ(WriteFileAtomic(EpochPath(), *content, 0600), absl::OkStatus());
  }
  void ExpectNobodyIsObeyed(const std::string& what) {
    for (const uint64_t epoch : {2, 3, 4}) {
      keeper_->OnStream();
      ASSERT_EQ(keeper_->OnWelcome(epoch), absl::OkStatus());
      Grant(epoch);
      EXPECT_NE(keeper_->state(), v1::LEASE_VALID);
      EXPECT_EQ(keeper_->Judge(epoch, true), v1::LEASE_NOT_VALID);
      EXPECT_EQ(keeper_->Judge(epoch, false), v1::REFUSAL_NONE);
    }
    EXPECT_THAT(keeper_->Problems(), ElementsAre(testing::AllOf(HasSubstr(EpochPath()), HasSubstr(what),
                                                                HasSubstr("restart berthd"),
                                                                HasSubstr("grants leases of epoch 4"))));
    EXPECT_THAT(keeper_->why_not_valid(), HasSubstr(what));
    EXPECT_EQ(Told("lease.epoch"), 1U) << "the one from the beginning";
  }
};

TEST_F(LeaseEpochTest, Fault42AnEpochThatCannotBeReadObeysNobodyUntilItIsWritten) {
  Grant(3);
  const Sleeper process;
  BeginPublish(process);
  ASSERT_TRUE(LeaseIsNoted());
  for (const std::string content : {"", "x", "-3\n"}) {
    SCOPED_TRACE(content);
    Replace(content);
    Restart();
    plugin_.ClearFaults();
    ExpectNobodyIsObeyed(content.empty() ? "is empty" : "is damaged");
    EXPECT_EQ(*ReadFile(EpochPath(), 100), content) << "it stays as it is";
    ExpectBlocked();
  }
  Replace("3\n");
  Restart();
  EXPECT_THAT(keeper_->Problems(), IsEmpty());
  EXPECT_EQ(keeper_->epoch(), 3U);
  EXPECT_TRUE(Arrives()) << "the lease held all the time";
}

TEST_F(LeaseEpochTest, Fault42ADirectoryInItsPlaceObeysNobody) {
  Grant(3);
  Replace(std::nullopt);
  ASSERT_EQ(mkdir(EpochPath().c_str(), 0700), 0);
  Restart();
  ExpectNobodyIsObeyed("Is a directory");
  ASSERT_EQ(rmdir(EpochPath().c_str()), 0);
}

TEST_F(LeaseEpochTest, Fault42AMissingEpochObeysNobodyOnANodeThatHadAScheduler) {
  Grant(3);
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  ASSERT_TRUE(LeaseIsNoted());
  Replace(std::nullopt);
  Restart();
  ExpectNobodyIsObeyed("the last epoch known was 3");
  rows_.rows.clear();
  Restart();
  ExpectNobodyIsObeyed("the last lease was of epoch 3");
  ASSERT_EQ(unlink((keeper_options_.runtime_dir + "/lease").c_str()), 0);
  Restart();
  ExpectNobodyIsObeyed("which published volume v1");
  ASSERT_TRUE(Unpublish(For(process)).ok());
  Restart();
  EXPECT_THAT(keeper_->Problems(), IsEmpty()) << "as one that never had a scheduler";
  Grant(1);
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
}

TEST_F(LeaseEpochTest, Fault42AnOperatorMayLetTheNextSchedulerBeObeyed) {
  Grant(30);
  ASSERT_TRUE(LeaseIsNoted());
  Replace("0\n");
  Restart();
  EXPECT_THAT(keeper_->Problems(), IsEmpty());
  EXPECT_NE(keeper_->state(), v1::LEASE_VALID);
  Grant(1);
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
  EXPECT_THAT(*ReadFile(EpochPath(), 100), testing::StartsWith("epoch 1 "));
}

TEST_F(LeaseKeeperTest, ASchedulerThatWasOvertakenIsNotListenedTo) {
  Grant(4);
  keeper_->OnHeartbeat(++heartbeat_);
  const absl::Status answered = loop_.Run(keeper_->OnAnswer(Answer(3, seconds(60))));
  EXPECT_EQ(answered.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answered.message()), HasSubstr("epoch 3, and 4 is obeyed"));
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID) << "the lease of the other one runs on";
}

// The link may break while a new epoch is written down.
TEST_F(LeaseKeeperTest, NothingGoesOnForTheOldOneOnceAHigherEpochIsHeard) {
  const Sleeper process;
  Grant(3);
  ASSERT_TRUE(Publish(For(process)).ok());
  keeper_->OnHeartbeat(++heartbeat_);
  {
    TaskScope link(loop_.executor(), "link");
    const auto answer = [this]() -> Awaitable<void> {
      (void)co_await keeper_->OnAnswer(Answer(4, seconds(60)));
    };
    link.Spawn("answer", answer());
    ASSERT_TRUE(loop_.RunUntil([&] { return keeper_->epoch() == 4; }));
    loop_.RunVoid(link.Join());
  }
  EXPECT_NE(keeper_->state(), v1::LEASE_VALID);
  EXPECT_EQ(Told("node.awaiting_scheduler"), 1U);
  Grant(4);
  EXPECT_EQ(keeper_->state(), v1::LEASE_VALID);
}

TEST_F(LeaseKeeperTest, AnEpochThatCannotBeWrittenDownIsNotObeyed) {
  Grant(3);
  const std::string directory = options_.state_dir + "/scheduler";
  ASSERT_EQ(rename(directory.c_str(), (directory + ".away").c_str()), 0);
  const UniqueFd in_the_way(open(directory.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(in_the_way.valid());
  Grant(4);
  EXPECT_EQ(keeper_->state(), v1::LEASE_NONE);
  EXPECT_EQ(keeper_->Judge(3, false), v1::LEASE_EPOCH) << "it was heard";
  EXPECT_EQ(keeper_->Judge(4, false), v1::LEASE_NOT_VALID);
  EXPECT_EQ(keeper_->OnWelcome(4), absl::OkStatus());
  EXPECT_EQ(keeper_->Judge(4, false), v1::REFUSAL_NONE) << "from who sent the Welcome";
  EXPECT_THAT(keeper_->Problems(), ElementsAre(HasSubstr("epoch 4 cannot be written down")));
  ASSERT_EQ(unlink(directory.c_str()), 0);
  Grant(4);
  EXPECT_EQ(keeper_->Judge(4, true), v1::REFUSAL_NONE);
  EXPECT_THAT(keeper_->Problems(), IsEmpty());
  EXPECT_EQ(Told("lease.granted"), 2U) << "the mounter had to stop in between";
}

TEST_F(LeaseKeeperTest, AnEpochIsWrittenDownOnADiskThatIsFull) {
  const std::string directory = directory_ + "/small";
  MakeDirectory(directory);
  ASSERT_EQ(mount("small", directory.c_str(), "tmpfs", 0, "size=64k"), 0);
  End();
  keeper_options_.state_dir = directory;
  Begin();
  Grant(2);
  {
    const UniqueFd filler(open((directory + "/filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    ASSERT_FALSE(WriteAll(filler.get(), std::string(100'000, 'x'), "fill").ok()) << "it is full";
  }
  ASSERT_FALSE(WriteFileAtomic(directory + "/more", "x", 0600).ok());
  for (const uint64_t epoch : {3, 4, 500}) {
    Grant(epoch);
    EXPECT_EQ(keeper_->Judge(epoch, false), v1::REFUSAL_NONE) << epoch;
    EXPECT_THAT(*ReadFile(directory + "/scheduler/lease_epoch", 100),
                testing::StartsWith(fmt::format("epoch {} ", epoch)));
  }
  End();
  ASSERT_EQ(umount2(directory.c_str(), MNT_DETACH), 0);
}

class LeaseReleaseTest : public LeaseKeeperTest {
 protected:
  LeaseReleaseTest() { keeper_options_.on_expiry = v1::RELEASE; }
};

TEST_F(LeaseReleaseTest, VolumesOfOneWriterAreForcedReleaseAndOthersStay) {
  const Sleeper writer;
  ASSERT_TRUE(Publish(For(writer)).ok());
  const Sleeper sharer;
  PublishRequest shared = For(sharer, "shared");
  shared.consumer = "sharer";
  shared.use.access_mode = ::csi::v1::VolumeCapability::AccessMode::MULTI_NODE_MULTI_WRITER;
  ASSERT_TRUE(Publish(shared).ok());
  ASSERT_TRUE(Publish(Request("own", "person")).ok());
  Leave(BootClock::now() + milliseconds(20));
  Restart();
  ASSERT_TRUE(AllReleased());
  EXPECT_THAT(ForcedRelease(), ElementsAre("1 v1 released"));
  EXPECT_EQ(keeper_->forced_release().at(0).lease_epoch(), 3U);
  EXPECT_FALSE(keeper_->forced_release().at(0).still_in_use());
  EXPECT_EQ(waitpid(writer.pid(), nullptr, WNOHANG), writer.pid()) << "it has ended";
  EXPECT_EQ(waitpid(sharer.pid(), nullptr, WNOHANG), 0);
  EXPECT_TRUE(View().volume_id.empty());
  EXPECT_EQ(View("shared").publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(View("own").publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(Told("volume.forced_release"), 2U) << "that it began, and that it left";

  keeper_->AcknowledgeForcedRelease(2);
  EXPECT_EQ(ForcedRelease().size(), 1U);
  keeper_->AcknowledgeForcedRelease(1);
  EXPECT_THAT(ForcedRelease(), IsEmpty());
  EXPECT_THAT(rows_.rows, Not(Contains(::testing::Key("forced_release/1"))));
}

TEST_F(LeaseReleaseTest, ANumberIsNeverGivenTwice) {
  for (const char* expected : {"1 v1 released", "2 v1 released"}) {
    const Sleeper process;
    ASSERT_TRUE(Publish(For(process)).ok());
    Leave(BootClock::now());
    Restart();
    ASSERT_TRUE(AllReleased());
    EXPECT_THAT(ForcedRelease(), ElementsAre(expected));
    keeper_->AcknowledgeForcedRelease(keeper_->forced_release().at(0).number());
    EXPECT_THAT(ForcedRelease(), IsEmpty());
  }
}

TEST_F(LeaseReleaseTest, WhatIsNotReleasedYetSaysWhyAndIsNotForgotten) {
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  keeper_options_.give_up_timeout = milliseconds(100);
  Leave(BootClock::now());
  Restart();
  ASSERT_TRUE(loop_.RunUntil([&] {
    return !keeper_->forced_release().empty() && !keeper_->forced_release()[0].last_error().empty();
  }));
  EXPECT_TRUE(keeper_->force_releasing("hp", "v1"));
  EXPECT_FALSE(keeper_->force_releasing("hp", "v2"));
  keeper_->AcknowledgeForcedRelease(1);
  EXPECT_THAT(ForcedRelease(), ElementsAre("1 v1 releasing"));
  // The scheduler is back: what was begun is finished nevertheless.
  Grant();
  plugin_.ClearFaults();
  ASSERT_TRUE(AllReleased());
  EXPECT_TRUE(keeper_->forced_release()[0].last_error().empty());
  EXPECT_FALSE(keeper_->force_releasing("hp", "v1"));
}

TEST_F(LeaseReleaseTest, OnceTheVolumeIsFreeTheSchedulerIsToldAtOnce) {
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  plugin_.FailNext("NodeUnpublishVolume", grpc::StatusCode::INTERNAL, Effect::kNone, 1000);
  keeper_options_.give_up_timeout = milliseconds(100);
  keeper_options_.first_pause = keeper_options_.retry_limit = std::chrono::hours(1);
  Leave(BootClock::now());
  Restart();
  ASSERT_TRUE(loop_.RunUntil([&] {
    return !keeper_->forced_release().empty() && !keeper_->forced_release()[0].last_error().empty();
  }));
  plugin_.ClearFaults();
  EXPECT_TRUE(AllReleased());
}

TEST_F(LeaseReleaseTest, ALeaseThatComesBackStopsWhatWasNotBegun) {
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  rows_.stop_at = 0;
  Leave(BootClock::now());
  End();
  Begin();
  ASSERT_TRUE(loop_.RunUntil([&] { return rows_.stopped; }));
  Grant();
  rows_.GoOn();
  // What was being written is written, and taken back.
  ASSERT_TRUE(loop_.RunUntil([&] { return rows_.passed == 6 && !rows_.rows.contains("forced_release/1"); }));
  EXPECT_THAT(ForcedRelease(), IsEmpty());
  EXPECT_EQ(View().publications.at(0).state, PublicationState::kPublished);
  EXPECT_EQ(waitpid(process.pid(), nullptr, WNOHANG), 0);
  EXPECT_THAT(rows_.rows, Not(Contains(::testing::Key("forced_release/1"))));
  EXPECT_EQ(Told("volume.forced_release"), 0U);
}

TEST_F(LeaseReleaseTest, AFullDiskDelaysItAndStopsNothing) {
  const Sleeper process;
  ASSERT_TRUE(Publish(For(process)).ok());
  rows_.failures = 3;
  Leave(BootClock::now());
  Restart();
  ASSERT_TRUE(AllReleased());
  EXPECT_EQ(rows_.failures, 0);
}

// berthd ends before or after each write: whatever it was, the next one comes to the same end.
TEST_F(LeaseReleaseTest, AKillAtEachBoundaryComesToTheSameEnd) {
  bool reached = true;
  for (int boundary = 0; reached; ++boundary) {
    SCOPED_TRACE(boundary);
    const Sleeper process;
    ASSERT_TRUE(Publish(For(process)).ok());
    Leave(BootClock::now());
    End();
    rows_.rows.clear();
    rows_.passed = 0;
    rows_.stopped = false;
    rows_.stop_at = boundary;
    Begin();
    const auto ended = [this] {
      return rows_.stopped || (ForcedRelease().size() == 1 && !keeper_->force_releasing("hp", "v1"));
    };
    ASSERT_TRUE(loop_.RunUntil(ended));
    reached = rows_.stopped;
    Restart();
    ASSERT_TRUE(AllReleased());
    EXPECT_EQ(ForcedRelease().size(), 1U);
    EXPECT_EQ(waitpid(process.pid(), nullptr, WNOHANG), process.pid());
    EXPECT_TRUE(Gone());
    EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
    if (!reached) EXPECT_EQ(boundary, 6) << "two for each of three rows";
  }
}

TEST_F(LeaseReleaseTest, AKillWhileThePluginUnpublishesComesToTheSameEnd) {
  for (const Effect effect : {Effect::kNone, Effect::kDone}) {
    const Sleeper process;
    ASSERT_TRUE(Publish(For(process)).ok());
    Leave(BootClock::now());
    const int before = plugin_.Calls("NodeUnpublishVolume");
    plugin_.HangNext("NodeUnpublishVolume", effect);
    End();
    Begin();
    ASSERT_TRUE(loop_.RunUntil([&] { return plugin_.Calls("NodeUnpublishVolume") > before; }));
    Restart();
    ASSERT_TRUE(AllReleased());
    EXPECT_TRUE(Gone());
    EXPECT_EQ(plugin_.StagedCount() + plugin_.PublishedCount(), 0U);
  }
}

TEST_F(LeaseReleaseTest, RowsThatAreDamagedAreToldAndLeft) {
  rows_.rows["forced_release/1"] = "\xff\xff";
  rows_.rows["forced_release/x"] = "?";
  rows_.rows["forced_release/2"] = "";
  rows_.rows["forced_release_last"] = "7";
  rows_.rows["operation/1"] = "not a record";
  End();
  Begin();
  EXPECT_THAT(ForcedRelease(), IsEmpty());
  EXPECT_THAT(keeper_->Problems(), ElementsAre(HasSubstr("damaged"), HasSubstr("damaged")));
  EXPECT_EQ(rows_.rows.size(), 5U);
}

}  // namespace
}  // namespace berth
