// Random walks: a scheduler's records and decisions, nodes that keep the protocol, and everything that can
// happen between them. After each step the invariants are checked; after each walk everything has to settle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/decide/admit.h"
#include "scheduler/decide/claim_machine.h"
#include "scheduler/links/node_operations.h"

namespace berth::scheduler {
namespace {

using std::chrono::minutes;
using ::testing::IsEmpty;

constexpr v1::AccessMode kWalkedModes[] = {v1::SINGLE_NODE_WRITER, v1::SINGLE_NODE_SINGLE_WRITER,
                                           v1::SINGLE_NODE_MULTI_WRITER, v1::MULTI_NODE_SINGLE_WRITER,
                                           v1::MULTI_NODE_MULTI_WRITER};

// A node with one volume, which keeps the rules of docs/protocol.md.
class SimulatedNode {
 public:
  // What is mounted, and what it has a record of: a reboot ends the first alone.
  std::set<std::string> mounted;
  struct Use {
    bool blocked = false;
  };
  std::map<std::string, Use> uses;
  // A use that the scheduler does not know: a file in volumes.d.
  bool declared = false;
  // The kernel has the volume, although nothing of it is published.
  bool held = false;
  int boot = 1;
  int run = 1;
  std::map<uint64_t, v1::OperationResult> results;
  std::map<uint64_t, std::string> ended;  // consumers, by number

  void Reboot() {
    mounted.clear();
    held = false;
    ++boot;
    Restart();
    for (auto& [key, use] : uses) use.blocked = true;
  }
  void Restart() {
    ++run;
    // A publish that had begun is in the journal; what has not is lost.
    std::erase_if(queue_, [](const Queued& queued) { return !queued.begun; });
    for (Queued& queued : queue_) queued.answered = true;
    cancelled_.clear();
  }
  void LoseLease() {
    for (auto& [key, use] : uses) use.blocked = true;
  }
  void EndConsumer(const std::string& key) {
    if (!uses.contains(key)) return;
    uses.erase(key);
    mounted.erase(key);
    ended[++number_] = key;
  }

  // What it says at once, if anything.
  std::optional<v1::OperationResult> Take(const v1::SchedulerMessage& message, std::mt19937& random) {
    if (message.has_cancel()) {
      const uint64_t id = message.cancel().operation_id();
      cancelled_.insert(id);
      for (Queued& queued : queue_) {
        if (queued.operation.id() == id && !queued.begun) return Drop(id);
      }
      return std::nullopt;
    }
    if (message.has_acknowledge()) {
      for (const uint64_t id : message.acknowledge().operation_ids()) results.erase(id);
      for (const uint64_t id : message.acknowledge().operation_ids()) acknowledged_.insert(id);
      settled_below_ = std::max(settled_below_, message.acknowledge().settled_below());
      return std::nullopt;
    }
    const v1::Operation& operation = message.operation();
    const uint64_t id = operation.id();
    const auto known = results.find(id);
    if (known != results.end()) return known->second;
    if (id < settled_below_ || acknowledged_.contains(id)) return Refuse(id, v1::SETTLED);
    for (const Queued& queued : queue_) {
      if (queued.operation.id() == id && !queued.answered) return std::nullopt;
    }
    if (operation.has_publish() && random() % 20 == 0) return Refuse(id, v1::LEASE_NOT_VALID);
    if (cancelled_.contains(id)) return std::nullopt;
    queue_.push_back({.operation = operation});
    return std::nullopt;
  }

  // One step of the volume's queue, in order of arrival.
  std::optional<v1::OperationResult> Work(std::mt19937& random) {
    if (queue_.empty()) return std::nullopt;
    Queued& queued = queue_.front();
    if (!queued.begun) {
      queued.begun = true;
      if (queued.operation.has_publish()) uses.try_emplace(KeyOf(queued.operation));
    }
    if (!queued.answered && random() % 4 == 0) {
      // Its timeout: the work continues.
      queued.answered = true;
      return Keep(queued.operation.id(), v1::OUTCOME_UNCERTAIN);
    }
    const Queued done = queued;
    queue_.pop_front();
    return done.operation.has_publish() ? Publish(done, random) : Unpublish(done, random);
  }

  [[nodiscard]] v1::Volume Say() const {
    v1::Volume volume;
    for (const auto& [key, use] : uses) {
      v1::Publication& publication = *volume.add_publications();
      publication.set_consumer("ns/" + key);
      publication.set_origin(v1::SCHEDULER);
      publication.set_state(mounted.contains(key) ? v1::PUBLISHED : v1::STAGED);
      if (use.blocked) publication.set_blocked("its lease has expired");
    }
    volume.set_still_in_use(held);
    return volume;
  }

 private:
  struct Queued {
    v1::Operation operation;
    bool begun = false;
    bool answered = false;
  };

  static std::string KeyOf(const v1::Operation& operation) {
    return operation.has_publish() ? operation.publish().request().consumer()
                                   : operation.unpublish().request().consumer();
  }
  static v1::OperationResult Refuse(uint64_t id, v1::Refusal refusal) {
    v1::OperationResult result;
    result.set_id(id);
    result.set_outcome(v1::OUTCOME_REFUSED);
    result.set_refusal(refusal);
    return result;
  }
  v1::OperationResult Keep(uint64_t id, v1::Outcome outcome) {
    v1::OperationResult& result = results[id];
    result.set_id(id);
    result.set_outcome(outcome);
    if (outcome != v1::OUTCOME_DONE) result.set_code(14);
    result.set_boot_id(std::to_string(boot));
    return result;
  }
  v1::OperationResult Drop(uint64_t id) {
    std::erase_if(queue_, [id](const Queued& queued) { return queued.operation.id() == id; });
    return Keep(id, v1::OUTCOME_RETRY);
  }
  std::optional<v1::OperationResult> Publish(const Queued& queued, std::mt19937& random) {
    const std::string key = KeyOf(queued.operation);
    const uint64_t id = queued.operation.id();
    const auto answer = [&](v1::Outcome outcome) -> std::optional<v1::OperationResult> {
      if (queued.answered) return std::nullopt;
      return Keep(id, outcome);
    };
    const uint64_t chance = random() % 20;
    if (chance < 3 && !mounted.contains(key)) {
      uses.erase(key);
      return answer(chance == 0 ? v1::OUTCOME_REFUSED : v1::OUTCOME_RETRY);
    }
    uses[key].blocked = false;
    mounted.insert(key);
    if (!queued.answered) {
      Keep(id, v1::OUTCOME_DONE);
      results[id].mutable_publish()->set_target_path("/target/" + key);
      return results[id];
    }
    return std::nullopt;
  }
  std::optional<v1::OperationResult> Unpublish(const Queued& queued, std::mt19937& random) {
    const std::string key = KeyOf(queued.operation);
    const uint64_t id = queued.operation.id();
    const uint64_t chance = random() % 20;
    if (chance == 0) return queued.answered ? std::nullopt : std::optional(Keep(id, v1::OUTCOME_RETRY));
    const bool was_there = uses.contains(key);
    uses.erase(key);
    mounted.erase(key);
    if (was_there && uses.empty() && chance == 1) held = true;
    if (queued.answered) return std::nullopt;
    Keep(id, v1::OUTCOME_DONE);
    v1::UnpublishVolumeResponse& answer = *results[id].mutable_unpublish();
    answer.set_still_in_use(held && uses.empty());
    answer.set_uses_left(static_cast<uint32_t>(uses.size()) + (declared ? 1 : 0) +
                         (held && uses.empty() ? 1 : 0));
    return results[id];
  }

  std::deque<Queued> queue_;
  std::set<uint64_t> cancelled_;  // by this run
  std::set<uint64_t> acknowledged_;
  uint64_t settled_below_ = 0;
  uint64_t number_ = 0;
};

class Walk {
 public:
  explicit Walk(uint32_t seed) : random_(seed), mode_(kWalkedModes[seed % std::size(kWalkedModes)]) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !Failed(); ++i) {
      Happen();
      Check();
    }
    // Nothing goes wrong any more.
    calm_ = true;
    for (int i = 0; i < 4000 && !Failed(); ++i) {
      for (auto& [name, link] : links_) {
        link.node.declared = link.node.held = false;
        // A new stream shows which use an EndedConsumer is about.
        if (i == 2000) Disconnect(link);
      }
      Happen();
      Check();
    }
    for (const auto& [key, claim] : claims_) {
      EXPECT_EQ(claim.record.phase(), pb::ClaimRecord::HELD)
          << key << ": " << claim.record.ShortDebugString();
      EXPECT_TRUE(links_[claim.record.node()].node.mounted.contains(key)) << claim.record.ShortDebugString();
      EXPECT_TRUE(claim.record.has_mount());
    }
    for (const auto& [name, link] : links_) {
      EXPECT_EQ(link.operations->open(), 0U) << name;
      EXPECT_TRUE(link.node.results.empty()) << name;
      EXPECT_TRUE(link.node.ended.empty()) << name;
      EXPECT_EQ(link.node.uses.size(), Sent(name)) << name;
    }
  }

  int mounts = 0;    // that a caller would have got
  int releases = 0;  // that were confirmed

 private:
  struct Link {
    SimulatedNode node;
    std::unique_ptr<NodeOperations> operations = std::make_unique<NodeOperations>(7);
    uint64_t stream = 0;
    bool connected = false;
    bool synced = false;
    bool ready = false;
    std::string boot = "1";  // as the scheduler has recorded it
    std::string run;
    v1::Volume said;
    std::map<uint64_t, std::string> ended;
    std::deque<v1::SchedulerMessage> to_node;
    std::deque<v1::OperationResult> to_scheduler;
  };

  static bool Failed() { return ::testing::Test::HasFailure(); }
  uint32_t Any(uint32_t below) { return static_cast<uint32_t>(random_() >> 8U) % below; }
  Link& AnyLink() { return links_[Any(2) == 0 ? "a" : "b"]; }

  void Happen() {
    now_ += minutes(Any(20) == 0 ? 6 : 0);
    Link& link = AnyLink();
    const uint32_t what = calm_ ? 1000 : Any(1000);
    if (what < 55) return Claim();
    if (what < 60) return Release();
    if (what < 66) return Disconnect(link);
    if (what < 68) {
      link.node.Restart();
      return Disconnect(link);
    }
    if (what < 70) {
      link.node.Reboot();
      return Disconnect(link);
    }
    if (what < 73) return RestartScheduler();
    if (what < 75) return link.node.LoseLease();
    if (what < 77) return link.node.EndConsumer("w" + std::to_string(Any(3)));
    if (what < 79) {
      link.node.declared = Any(2) == 0;
      return;
    }
    if (what < 84) {
      link.node.held = false;
      return;
    }
    Progress(link);
  }

  // Everybody does their part.
  void Progress(Link& link) {
    switch (Any(7)) {
      case 0:
        if (!link.connected) Connect(link);
        return;
      case 1:
        if (link.connected) {
          if (!link.synced || Any(4) == 0) Sync(link);
          link.ready = link.ready || Any(2) == 0;
          if (link.ready) Send(link, link.operations->HeartbeatAnswered(link.synced));
        }
        return;
      case 2:
        if (!link.to_node.empty()) {
          const v1::SchedulerMessage message = link.to_node.front();
          link.to_node.pop_front();
          Say(link, link.node.Take(message, random_));
        }
        return;
      case 3:
        return Say(link, link.node.Work(random_));
      case 4:
        if (!link.to_scheduler.empty()) {
          const v1::OperationResult result = link.to_scheduler.front();
          link.to_scheduler.pop_front();
          Send(link, link.operations->Take(result));
        }
        return;
      case 5:
        return TakeAnswer();
      default:
        return Decide();
    }
  }

  void Connect(Link& link) {
    link.connected = true;
    ++link.stream;
    link.boot = std::to_string(link.node.boot);
    link.run = std::to_string(link.node.run);
    link.operations->StreamBegins(link.run);
    for (const auto& [id, result] : link.node.results) link.to_scheduler.push_back(result);
  }
  void Disconnect(Link& link) {
    link.connected = link.synced = link.ready = false;
    link.operations->StreamEnds();
    link.to_node.clear();
    link.to_scheduler.clear();
    link.said.Clear();
    link.ended.clear();
  }
  void Sync(Link& link) {
    const bool first = !std::exchange(link.synced, true);
    link.said = link.node.Say();
    link.ended = link.node.ended;
    TakeEnded(link, first);
  }
  // Acknowledges those that are about no claim, or about one that is gone.
  void TakeEnded(Link& link, bool at_synced) {
    const std::map<uint64_t, std::string> ended = link.ended;
    for (const auto& [number, key] : ended) {
      const auto found = claims_.find(key);
      const bool here = found != claims_.end() && &links_[found->second.record.node()] == &link;
      const EndOf end =
          here ? IsEndOf(found->second, NodeOf(link), nullptr, at_synced, now_) : EndOf::kAnother;
      if (end == EndOf::kAnother) {
        link.ended.erase(number);
        link.node.ended.erase(number);
      } else if (end == EndOf::kThis && found->second.record.phase() == pb::ClaimRecord::HELD) {
        return Write(key, Leave(found->second, "its consumer has ended"));
      }
    }
  }
  void RestartScheduler() {
    answers_.clear();
    for (auto& [name, link] : links_) {
      Disconnect(link);
      link.operations = std::make_unique<NodeOperations>(7);
    }
    for (auto& [key, claim] : claims_) {
      claim = {.record = claim.record};
      if (claim.record.has_operation()) Add(key);
    }
  }
  static void Say(Link& link, std::optional<v1::OperationResult> result) {
    if (link.connected && result.has_value()) link.to_scheduler.push_back(*std::move(result));
  }
  static void Send(Link& link, const NodeOperations::Messages& messages) {
    if (link.connected) link.to_node.insert(link.to_node.end(), messages.begin(), messages.end());
  }

  [[nodiscard]] size_t Sent(const std::string& node, const std::string& but = "") const {
    return static_cast<size_t>(std::ranges::count_if(claims_, [&](const auto& entry) {
      return entry.first != but && entry.second.record.node() == node && entry.second.record.sent();
    }));
  }
  ClaimNode NodeOf(const Link& link) const {
    return {.synced = link.synced,
            .ready = link.synced && link.ready,
            .boot_id = link.boot,
            .run_id = link.run,
            .stream = link.stream,
            .volume = link.said.publications().empty() ? nullptr : &link.said};
  }

  void Claim() {
    const std::string key = "w" + std::to_string(Any(3));
    if (claims_.contains(key)) return;
    const std::string node = Any(2) == 0 ? "a" : "b";
    v1::Capability capability;
    capability.set_access_mode(mode_);
    const bool readonly = Any(2) == 0;
    std::vector<ClaimFacts> facts;
    for (const auto& [other, claim] : claims_) {
      facts.push_back({.consumer = other,
                       .node = claim.record.node(),
                       .writes = claim.record.writes(),
                       .phase = claim.record.phase() == pb::ClaimRecord::HELD ? ClaimFacts::Phase::kHeld
                                                                              : ClaimFacts::Phase::kLeaving});
    }
    const AdmitRequest request{.volume = "v", .node = node, .capability = capability, .readonly = readonly};
    if (!Admit(request, claims_.empty() ? nullptr : &capability, facts).ok()) return;
    pb::ClaimRecord& record = claims_[key].record;
    record.set_namespace_("ns");
    record.set_node(node);
    record.mutable_request()->set_consumer(key);
    record.set_writes(!readonly);
  }
  void Release() {
    const auto found = claims_.find("w" + std::to_string(Any(3)));
    if (found != claims_.end() && found->second.record.phase() == pb::ClaimRecord::HELD)
      Write(found->first, Leave(found->second, "released"));
  }

  // The scheduler, one of its claims: decides, writes, sends. It may die between any two.
  void Decide() {
    for (auto& [name, link] : links_) {
      if (link.synced) TakeEnded(link, /*at_synced=*/false);
    }
    if (claims_.empty()) return;
    const auto found = std::next(claims_.begin(), Any(static_cast<uint32_t>(claims_.size())));
    ClaimState& claim = found->second;
    Link& link = links_[claim.record.node()];
    const ClaimStep step = Next(claim, NodeOf(link), now_);
    if (step.kind == ClaimStep::Kind::kNone) {
      claim = step.after;
      return;
    }
    Write(found->first, step);
  }
  void TakeAnswer() {
    if (answers_.empty()) return;
    const auto [key, result] = answers_.front();
    answers_.pop_front();
    const auto found = claims_.find(key);
    if (found == claims_.end() || found->second.record.operation().id() != result.id()) return;
    const std::string node = found->second.record.node();
    Link& link = links_[node];
    const bool unpublish = found->second.record.operation().unpublish();
    const ClaimStep step = Apply(found->second, result, NodeOf(link), Sent(node, key) > 0, now_, 0.5);
    if (step.after.record.has_mount() && step.kind == ClaimStep::Kind::kWrite) {
      ++mounts;
      const bool same_boot = std::to_string(link.node.boot) == link.boot;
      EXPECT_TRUE(!same_boot || !link.connected || link.node.mounted.contains(key) || Ended(link, key))
          << key;
    }
    if (unpublish && step.kind == ClaimStep::Kind::kEnd) ++releases;
    Write(key, step);
    Send(link, link.operations->Close(result.id()));
  }
  static bool Ended(const Link& link, const std::string& key) {
    return std::ranges::any_of(link.node.ended, [&key](const auto& entry) { return entry.second == key; });
  }

  void Write(const std::string& key, const ClaimStep& step) {
    const pb::ClaimRecord before = claims_[key].record;
    Link& link = links_[before.node()];
    if (step.kind == ClaimStep::Kind::kEnd) {
      claims_.erase(key);
      return;
    }
    claims_[key] = step.after;
    pb::ClaimRecord& record = claims_[key].record;
    if (step.kind != ClaimStep::Kind::kWrite) record.mutable_operation()->set_id(++last_id_);
    if (!calm_ && Any(100) == 0) return RestartScheduler();
    if (record.retired().id() != before.retired().id())
      Send(link, link.operations->Close(record.retired().id()));
    if (step.kind != ClaimStep::Kind::kWrite) Add(key);
  }
  void Add(const std::string& key) {
    const pb::ClaimRecord& record = claims_[key].record;
    Link& link = links_[record.node()];
    Send(link, link.operations->Add({.operation = OperationOf(record),
                                     .cancel = record.operation().unpublish() ? record.retired().id() : 0,
                                     .cancel_run = record.retired().run_id(),
                                     .answered = [this, key](const v1::OperationResult& result) {
                                       answers_.emplace_back(key, result);
                                     }}));
  }

  void Check() {
    std::map<std::string, std::vector<std::string>> mounted;
    for (const auto& [name, link] : links_) {
      for (const std::string& key : link.node.mounted) {
        mounted[name].push_back(key);
        const auto found = claims_.find(key);
        ASSERT_TRUE(found != claims_.end() && found->second.record.node() == name)
            << key << " is mounted on " << name << ", without a claim";
      }
      if (!link.node.held) continue;
      // The kernel has the volume: it must not be free for others.
      ASSERT_GT(Sent(name), 0U) << "still in use on " << name << ", and free";
    }
    if (mode_ != v1::MULTI_NODE_SINGLE_WRITER && mode_ != v1::MULTI_NODE_MULTI_WRITER) {
      ASSERT_LE(mounted.size(), 1U) << "mounted on two nodes";
    }
  }

  std::mt19937 random_;
  v1::AccessMode mode_;
  bool calm_ = false;
  TimePoint now_{minutes(1)};
  std::map<std::string, Link> links_{};
  std::map<std::string, ClaimState> claims_;
  std::deque<std::pair<std::string, v1::OperationResult>> answers_;
  uint64_t last_id_ = 0;
};

TEST(ClaimWalkTest, NothingIsMountedWithoutAClaimAndEverythingSettlesWhateverHappens) {
  const char* const wanted = std::getenv("BERTH_WALKS");
  const auto walks = static_cast<uint32_t>(wanted == nullptr ? 250 : std::atoi(wanted));
  int mounts = 0;
  int releases = 0;
  for (uint32_t seed = 1; seed <= walks && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed);
    walk.Run(4000);
    mounts += walk.mounts;
    releases += walk.releases;
  }
  EXPECT_GT(mounts, static_cast<int>(walks) * 5);
  EXPECT_GT(releases, static_cast<int>(walks) * 5);
}

}  // namespace
}  // namespace berth::scheduler
