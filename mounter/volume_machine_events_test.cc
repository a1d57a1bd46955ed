// Every event in every state that a volume can reach, with a model of what the plugin truly holds: each step
// may have had its effect whatever its answer was, berthd may end at any point, and the node too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sanitizer.h"
#include "mounter/volume_machine.h"

namespace berth {
namespace {

constexpr WallTime kWallNow{std::chrono::seconds(1'000'000)};
// When a publication was requested, when a lease was granted after one had ended, and when it was confirmed.
constexpr BootTime kRequested{std::chrono::hours(1)};
constexpr BootTime kGrantedAgain{std::chrono::hours(2)};
constexpr BootTime kConfirmed{std::chrono::hours(3)};
const PublicationKey kFirst{.consumer = "web", .name = ""};
const PublicationKey kSecond{.consumer = "db", .name = ""};

struct Kind {
  const char* name = "";
  bool stages = true;
  bool ephemeral = false;
  bool remount = false;
  bool secrets = false;
  bool two = false;  // another consumer of the same volume
  // Staged with a mount, which others take away; then without what has nothing to do with that.
  bool meddled = false;
  Origin origin = Origin::kCaller;
  // The scheduler may ask for it, too, and has it from then on.
  bool taken_over = false;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// What the plugin has done and not undone.
struct Books {
  bool staged = false;
  // Whether the staging's mount was unmounted: then its directory is bare.
  bool bare = false;
  std::set<std::string> published;
  // Publications that were acknowledged, and those to be undone since.
  std::set<std::string> acknowledged;
  // A lease has ended: the one that holds began later.
  bool granted_again = false;
  // Another node may have it since: what its scheduler has not requested or confirmed after a reboot, or
  // after a lease had ended.
  std::set<std::string> elsewhere;
};

struct Place {
  VolumeMachine machine;
  Books books;
};

std::string Describe(const Place& place) {
  const VolumeRecord& r = place.machine.record();
  std::string text = fmt::format("{}{}{}{} pending {}", place.machine.present() ? "present " : "gone ",
                                 static_cast<int>(r.stage_state), r.stage_uncertain ? "?" : "",
                                 r.stage_sent ? "s" : "", r.pending_expansion_bytes);
  for (const PublicationRecord& p : r.publications) {
    text += fmt::format(
        " {}{}{}{}{}{}{}{}{}{}{}{}{}", p.key.consumer, static_cast<int>(p.origin), static_cast<int>(p.state),
        p.uncertain ? "?" : "", p.sent ? "s" : "", p.secrets_at_hand ? "h" : "", p.blocked.empty() ? "" : "H",
        p.forward_blocked.empty() ? "" : "W", p.unconfirmed ? "U" : "",
        p.confirmed_at ? p.confirmed_at->time_since_epoch().count() : 0, p.remount_after_undo ? "A" : "",
        p.dead.empty() ? (p.hung.empty() ? "" : "G") : "D", p.published_at ? "P" : "");
  }
  text += fmt::format("{}{}", r.staging_mount_id != 0 ? " mount" : "", r.staging_lost ? " lost" : "");
  text += place.books.staged ? " books: staged" : " books:";
  text += place.books.bare ? " bare" : "";
  for (const std::string& consumer : place.books.published) text += " " + consumer;
  text += " acknowledged:";
  for (const std::string& consumer : place.books.acknowledged) text += " " + consumer;
  text += place.books.granted_again ? " granted again, elsewhere:" : " elsewhere:";
  for (const std::string& consumer : place.books.elsewhere) text += " " + consumer;
  // What it keeps to itself shows in what it would do.
  text += fmt::format(" next {} {} {}", static_cast<int>(place.machine.plan().NextFor(kFirst).kind),
                      static_cast<int>(place.machine.plan().NextExpansion().kind),
                      place.machine.plan().Unsettled());
  return text;
}

// Two consumers have many more states than that. Under the sanitizers the nearest are looked at: all of them
// take minutes there.
constexpr size_t kMostPlaces = kAddressSanitizer ? 5'000 : SIZE_MAX;

class Explorer {
 public:
  explicit Explorer(const Kind& kind) : kind_(kind) {}

  void Explore() {
    VolumeRecord record;
    record.plugin_id = "hp";
    record.volume_id = "v1";
    record.stages = kind_.stages;
    Reach({VolumeMachine::Fresh(record), {}}, "", "fresh");
    while (!waiting_.empty() && seen_.size() < kMostPlaces && !::testing::Test::HasFailure()) {
      const auto [place, name] = std::move(waiting_.front());
      waiting_.pop_front();
      Requests(place, name);
      Steps(place, name);
      Renewals(place, name);
      Outside(place, name);
      Ends(place, name);
    }
  }

  [[nodiscard]] size_t places() const { return seen_.size(); }
  [[nodiscard]] size_t renewals() const { return renewals_; }

 private:
  [[nodiscard]] std::vector<PublicationKey> Keys() const {
    return kind_.two ? std::vector{kFirst, kSecond} : std::vector{kFirst};
  }

  [[nodiscard]] PublicationRecord Wanted(const PublicationKey& key) const {
    PublicationRecord p;
    p.key = key;
    p.ephemeral = kind_.ephemeral;
    p.remount = kind_.remount;
    p.origin = kind_.origin;
    if (p.origin == Origin::kScheduler) p.confirmed_at = kRequested;
    p.had_secrets = kind_.secrets;
    p.secrets_at_hand = kind_.secrets;
    return p;
  }

  void Requests(const Place& from, const std::string& name) {
    for (const PublicationKey& key : Keys()) {
      const PublicationRecord* known = from.machine.record().Find(key);
      const bool undoing = (known != nullptr && known->state != PublicationState::kPublishing) ||
                           from.machine.plan().NextTeardown().kind != StepKind::kNone;
      if (!undoing) {
        Place to = from;
        PublicationRecord wanted = Wanted(key);
        // Under the lease that holds now.
        if (from.books.granted_again && wanted.confirmed_at) wanted.confirmed_at = kConfirmed;
        to.machine.RequestPublish(wanted);
        to.books.elsewhere.erase(key.consumer);
        Reach(std::move(to), name, "want " + key.consumer);
        Withdrawals(from, Wanted(key), name);
      }
      if (kind_.taken_over) TakeOver(from, key, name);
      Place to = from;
      to.machine.RequestUnpublish(key);
      to.books.acknowledged.erase(key.consumer);
      if (to.machine.record().Find(key) == nullptr) to.books.elsewhere.erase(key.consumer);
      Reach(std::move(to), name, "unwant " + key.consumer);
    }
    if (from.machine.present() && from.machine.record().pending_expansion_bytes == 0 && !kind_.meddled) {
      Place to = from;
      to.machine.SetPendingExpansion(10);
      Reach(std::move(to), name, "expansion");
    }
    Place to = from;
    to.machine.RetryExpansion();
    Reach(std::move(to), name, "retry the expansion");
  }

  void TakeOver(const Place& from, const PublicationKey& key, const std::string& name) {
    const PublicationRecord* known = from.machine.record().Find(key);
    if (known == nullptr || known->state == PublicationState::kUnpublishing) return;
    PublicationRecord wanted = Wanted(key);
    wanted.origin = Origin::kScheduler;
    wanted.confirmed_at = from.books.granted_again ? kConfirmed : kRequested;
    Place to = from;
    if (known->state == PublicationState::kPublishing) {
      to.machine.RequestPublish(wanted);
      to.books.elsewhere.erase(key.consumer);
      Withdrawals(from, wanted, name);
    } else {
      EXPECT_EQ(to.machine.UpdateRequest(wanted), known->origin == Origin::kCaller) << name;
      Place back = to;
      back.machine.RollBackUpdate(*known);
      EXPECT_EQ(Describe(back), Describe(from)) << name << ": taken over in vain";
    }
    EXPECT_EQ(to.machine.record().Find(key)->origin, Origin::kScheduler) << name;
    Reach(std::move(to), name, "taken over " + key.consumer);
  }

  // A publish that cannot be written down leaves what came to pass meanwhile, and nothing else.
  void Withdrawals(const Place& from, const PublicationRecord& wanted, const std::string& name) {
    const auto block = [](VolumeMachine& m) { m.BlockForward(Origin::kScheduler, "no valid lease"); };
    const auto allow = [](VolumeMachine& m) { m.UnblockForward(Origin::kScheduler, BootTime{}); };
    const auto allow_again = [](VolumeMachine& m) { m.UnblockForward(Origin::kScheduler, kGrantedAgain); };
    const auto confirm = [&wanted](VolumeMachine& m) { m.Confirm(wanted.key, kConfirmed); };
    // Only what there is can be confirmed: a publish that was taken back may not have been there before.
    const PublicationRecord* before = from.machine.record().Find(wanted.key);
    const bool there = before != nullptr && before->origin == wanted.origin;
    std::vector<std::vector<std::function<void(VolumeMachine&)>>> meanwhile = {
        {}, {block}, {allow}, {allow_again}, {block, allow}, {block, allow_again}, {allow, block}};
    if (there) {
      meanwhile.insert(meanwhile.end(),
                       {{confirm}, {confirm, allow_again}, {allow_again, confirm}, {block, confirm}});
    }
    for (size_t i = 0; i < meanwhile.size(); ++i) {
      Place without = from;
      Place withdrawn = from;
      withdrawn.machine.RequestPublish(wanted);
      for (const auto& event : meanwhile[i]) {
        event(without.machine);
        event(withdrawn.machine);
      }
      withdrawn.machine.RollBackRequest(wanted.key, from.machine);
      EXPECT_EQ(Describe(withdrawn), Describe(without)) << name << ": wanted in vain, meanwhile " << i;
    }
  }

  void Steps(const Place& from, const std::string& name) {
    std::vector<Step> steps = {from.machine.plan().NextTeardown(), from.machine.plan().NextExpansion()};
    for (const PublicationKey& key : Keys()) steps.push_back(from.machine.plan().NextFor(key));
    for (const Step& step : steps) {
      if (step.kind == StepKind::kNone) continue;
      CheckStep(from, step, name);
      // Nothing was sent: the plugin was away, or the wait was cut short.
      for (const CallOutcome outcome : {CallOutcome::kRetry, CallOutcome::kFinal}) {
        if (step.kind == StepKind::kForget) continue;
        Place to = from;
        to.machine.OnOutcome(step, outcome, absl::UnavailableError("not sent"), false, kWallNow);
        Reach(std::move(to), name, fmt::format("step {} not sent", static_cast<int>(step.kind)));
      }
      for (const bool effect : {false, true}) {
        for (const CallOutcome outcome : {CallOutcome::kDone, CallOutcome::kFinal, CallOutcome::kRetry,
                                          CallOutcome::kUncertain, CallOutcome::kAbsent}) {
          Try(from, step, outcome, effect, name);
        }
        // It hangs, and berthd ends: the row may still be the one before it.
        Place to = from;
        if (effect) Effect(&to.books, step);
        Crash(std::move(to), false, name, fmt::format("killed in step {}", static_cast<int>(step.kind)));
      }
    }
  }

  // Comes from without, only where it may, and changes nothing, however it ends.
  void Renewals(const Place& from, const std::string& name) {
    for (const PublicationKey& key : Keys()) {
      if (!from.machine.plan().MayRenew(key)) continue;
      const PublicationRecord& p = *from.machine.record().Find(key);
      EXPECT_EQ(p.state, PublicationState::kPublished) << name << ": renewed what is not published";
      EXPECT_EQ(p.origin, Origin::kScheduler) << name;
      EXPECT_TRUE(p.blocked.empty() && (p.forward_blocked.empty() || p.unconfirmed))
          << name << ": renewed in vain";
      if (kind_.stages && !kind_.ephemeral) {
        EXPECT_TRUE(from.books.staged && !from.books.bare) << name << ": renewed from what is not there";
      }
      for (const CallOutcome outcome : {CallOutcome::kDone, CallOutcome::kFinal, CallOutcome::kRetry,
                                        CallOutcome::kUncertain, CallOutcome::kAbsent}) {
        Place to = from;
        to.machine.OnSent({StepKind::kRenew, key});
        to.machine.OnOutcome({StepKind::kRenew, key}, outcome, absl::InternalError("no luck"), true,
                             kWallNow);
        EXPECT_EQ(EncodeRecord(to.machine.record()), EncodeRecord(from.machine.record())) << name;
        EXPECT_EQ(Describe(to), name) << "renewed with outcome " << static_cast<int>(outcome);
        ++renewals_;
      }
    }
  }

  void Try(const Place& from, const Step& step, CallOutcome outcome, bool effect, const std::string& name) {
    const bool reverse = step.kind == StepKind::kUnpublish || step.kind == StepKind::kUnstage;
    // Done is done; absent is believed only where the kernel agrees, and a reverse of what is not there.
    if (outcome == CallOutcome::kDone && !effect) return;
    if (outcome == CallOutcome::kAbsent && reverse && !effect) return;
    if (step.kind == StepKind::kForget && outcome != CallOutcome::kDone && effect) return;
    Place to = from;
    to.machine.OnSent(step);
    if (effect) Effect(&to.books, step);
    to.machine.OnOutcome(step, outcome, absl::InternalError("no luck"), false, kWallNow);
    if (step.kind == StepKind::kStage && outcome == CallOutcome::kDone && kind_.meddled)
      to.machine.SetStagingMount({.mount_id = 7});
    if (step.kind == StepKind::kPublish && outcome == CallOutcome::kDone) {
      to.books.acknowledged.insert(step.key.consumer);
    }
    Reach(std::move(to), name,
          fmt::format("step {}: outcome {}, {}", static_cast<int>(step.kind), static_cast<int>(outcome),
                      effect ? "done" : "not done"));
  }

  static void Effect(Books* books, const Step& step) {
    switch (step.kind) {
      case StepKind::kStage:
        books->staged = true;
        books->bare = false;
        return;
      case StepKind::kPublish:
        books->published.insert(step.key.consumer);
        return;
      case StepKind::kUnpublish:
        books->published.erase(step.key.consumer);
        return;
      case StepKind::kUnstage:
        books->staged = false;
        books->bare = false;
        return;
      case StepKind::kExpand:
      case StepKind::kRenew:
      case StepKind::kMountPath:
      case StepKind::kForget:
      case StepKind::kNone:
        return;
    }
  }

  void Outside(const Place& from, const std::string& name) {
    for (const PublicationKey& key : Keys()) {
      const std::vector<std::pair<const char*, std::function<void(VolumeMachine&)>>> events = {
          {"lost", [&](VolumeMachine& m) { m.MarkLost(key, "lost"); }},
          {"found", [&](VolumeMachine& m) { m.MarkFound(key); }},
          {"dead", [&](VolumeMachine& m) { m.OnVerdict(key, absl::UnavailableError("ENOTCONN")); }},
          {"hung", [&](VolumeMachine& m) { m.OnVerdict(key, absl::DeadlineExceededError("no answer")); }},
          {"alive", [&](VolumeMachine& m) { m.OnVerdict(key, absl::OkStatus()); }},
          {"repair", [&](VolumeMachine& m) { m.Repair(key, "lost"); }},
          {"unsettle", [&](VolumeMachine& m) { m.Unsettle(key, "disk full"); }},
      };
      for (const auto& [what, event] : events) {
        if (kind_.meddled && what != std::string_view("repair")) continue;
        Place to = from;
        event(to.machine);
        Reach(std::move(to), name, fmt::format("{} {}", what, key.consumer));
      }
    }
    Place staging = from;
    staging.machine.RepairStaging("ENOTCONN");
    Reach(std::move(staging), name, "the staging is dead");
    // A foreign unmount of the staging's mount, or a mount over it, and its end.
    if (from.machine.record().stage_state == StageState::kStaged &&
        from.machine.record().staging_mount_id != 0) {
      Place lost = from;
      lost.machine.MarkStagingLost("lost");
      lost.books.bare = true;
      Reach(std::move(lost), name, "the staging is lost");
      // Its very mount is seen again: the plugin has not taken it back.
      Place found = from;
      found.books.bare = false;
      found.machine.MarkStagingFound();
      if (from.books.staged && from.machine.record().staging_lost) {
        Reach(std::move(found), name, "the staging is found");
      }
    }
    if (kind_.origin == Origin::kScheduler || kind_.taken_over) {
      Place blocked = from;
      blocked.machine.BlockForward(Origin::kScheduler, "no valid lease");
      Reach(std::move(blocked), name, "block");
    }
    if (kind_.origin != Origin::kScheduler && !kind_.taken_over) return;
    Place allowed = from;
    allowed.machine.UnblockForward(Origin::kScheduler, from.books.granted_again ? kGrantedAgain : BootTime{});
    Reach(std::move(allowed), name, "the lease holds");
    Place again = from;
    again.books.granted_again = true;
    for (const PublicationRecord& p : from.machine.record().publications) {
      const bool older = !p.confirmed_at || *p.confirmed_at < kGrantedAgain;
      if (p.origin == Origin::kScheduler && older) again.books.elsewhere.insert(p.key.consumer);
    }
    again.machine.UnblockForward(Origin::kScheduler, kGrantedAgain);
    Reach(std::move(again), name, "a lease is granted again");
    for (const PublicationKey& key : Keys()) {
      Place confirmed = from;
      const bool done = confirmed.machine.Confirm(key, kConfirmed);
      if (done) confirmed.books.elsewhere.erase(key.consumer);
      if (!done) EXPECT_EQ(Describe(confirmed), Describe(from)) << name << ": confirmed in vain";
      Reach(std::move(confirmed), name, "confirm " + key.consumer);
    }
  }

  void Ends(const Place& from, const std::string& name) {
    if (!from.machine.present()) return;
    for (const bool rebooted : {false, true}) {
      // No mount, and so no foreign unmount, outlives that.
      if (rebooted && kind_.meddled && kind_.two) continue;
      Crash(from, rebooted, name, rebooted ? "reboot" : "killed");
    }
  }

  void Crash(Place to, bool rebooted, const std::string& name, const std::string& event) {
    if (!to.machine.present()) return;
    const auto record = DecodeRecord(EncodeRecord(to.machine.record()));
    ASSERT_TRUE(record.ok()) << record.status();
    to.machine = VolumeMachine::Recovered(*record, rebooted);
    if (rebooted) {
      for (const PublicationRecord& p : record->publications) {
        if (p.origin == Origin::kScheduler) to.books.elsewhere.insert(p.key.consumer);
      }
      for (const PublicationRecord& p : record->publications) {
        if (p.state == PublicationState::kUnpublishing) continue;
        if (kind_.remount && kind_.origin != Origin::kScheduler) {
          to.machine.Resume(p.key, "the node was restarted");
        } else {
          to.machine.Block(p.key, "the node was restarted");
        }
      }
    }
    Reach(std::move(to), name, event);
  }

  // What a step may never be.
  void CheckStep(const Place& from, const Step& step, const std::string& name) {
    const PublicationRecord* p = from.machine.record().Find(step.key);
    const bool forward = step.kind == StepKind::kStage || step.kind == StepKind::kPublish;
    if (forward) {
      ASSERT_NE(p, nullptr) << name;
      EXPECT_TRUE(p->blocked.empty()) << name << ": forward while it is held";
      EXPECT_TRUE(p->forward_blocked.empty()) << name << ": forward while it is blocked";
      EXPECT_FALSE(from.books.elsewhere.contains(p->key.consumer))
          << name << ": forward, and another node may have it";
      EXPECT_TRUE(!p->had_secrets || p->secrets_at_hand) << name << ": forward without its secrets";
      EXPECT_EQ(p->state, PublicationState::kPublishing) << name;
    }
    if (step.kind == StepKind::kPublish && kind_.stages && !kind_.ephemeral) {
      EXPECT_TRUE(from.books.staged) << name << ": published what is not staged";
      EXPECT_FALSE(from.books.bare) << name << ": published from a bare directory";
    }
    if (step.kind == StepKind::kExpand) {
      EXPECT_TRUE(p == nullptr || p->forward_blocked.empty()) << name << ": expanded while it is blocked";
      EXPECT_FALSE(from.books.elsewhere.contains(step.key.consumer))
          << name << ": expanded, and another node may have it";
    }
    if (kind_.ephemeral || !kind_.stages) {
      EXPECT_NE(step.kind, StepKind::kStage) << name;
    }
    if (step.kind == StepKind::kUnstage || step.kind == StepKind::kForget) {
      EXPECT_TRUE(from.books.published.empty()) << name << ": unstaged or forgotten while published";
    }
    if (step.kind == StepKind::kForget) {
      EXPECT_FALSE(from.books.staged) << name << ": forgotten while staged";
    }
    if (step.kind == StepKind::kUnpublish && kind_.ephemeral) {
      EXPECT_FALSE(from.books.acknowledged.contains(step.key.consumer))
          << name << ": an ephemeral volume is deleted, which was not requested";
    }
  }

  void CheckPlace(const Place& place, const std::string& name) {
    const VolumeRecord& record = place.machine.record();
    for (const PublicationRecord& p : record.publications) {
      EXPECT_TRUE(p.forward_blocked.empty() || p.origin == Origin::kScheduler)
          << name << ": waits for a scheduler that never asked for it";
    }
    for (const std::string& consumer : place.books.published) {
      EXPECT_NE(record.Find({.consumer = consumer, .name = ""}), nullptr)
          << name << ": the plugin has it published, and it is not known";
    }
    if (!place.machine.present()) {
      EXPECT_FALSE(place.books.staged) << name << ": the plugin has it staged, and it is not known";
    }
    if (place.books.staged) {
      EXPECT_NE(record.stage_state, StageState::kAbsent) << name << ": staged, and counts as absent";
    }
    if (kind_.remount || kind_.ephemeral) {
      for (const std::string& consumer : place.books.acknowledged) {
        EXPECT_NE(record.Find({.consumer = consumer, .name = ""}), nullptr)
            << name << ": published once, not unwanted, and gone";
      }
    }
  }

  // From anywhere everything comes to rest, once all calls succeed.
  void CheckRest(Place place, const std::string& name) {
    for (int steps = 0; place.machine.plan().Unsettled(); ++steps) {
      ASSERT_LT(steps, 30) << name << ": never comes to rest: " << Describe(place);
      place.machine.RetryExpansion();
      Step step = place.machine.plan().NextTeardown();
      for (const PublicationKey& key : place.machine.plan().Movable()) {
        if (step.kind == StepKind::kNone) step = place.machine.plan().NextFor(key);
      }
      if (step.kind == StepKind::kNone) step = place.machine.plan().NextExpansion();
      ASSERT_NE(step.kind, StepKind::kNone) << name << ": unsettled, and nothing to do: " << Describe(place);
      place.machine.OnSent(step);
      place.machine.OnOutcome(step, CallOutcome::kDone, absl::OkStatus(), true, kWallNow);
    }
  }

  // Once it is leaving nothing goes forward, and what is being undone comes to its end.
  void CheckLeaving(Place place, const std::string& name) {
    VolumeMachine& machine = place.machine;
    machine.BeginShutdown("berthd is stopping");
    const auto forward = [](const Step& step) {
      return step.kind == StepKind::kStage || step.kind == StepKind::kPublish ||
             step.kind == StepKind::kExpand || step.kind == StepKind::kRenew ||
             step.kind == StepKind::kMountPath;
    };
    for (const PublicationRecord& p : machine.record().publications) {
      EXPECT_FALSE(machine.Confirm(p.key, BootTime(std::chrono::hours(1)))) << name;
    }
    EXPECT_FALSE(machine.RepairStaging("dead", true)) << name;
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, 30) << name << ": never comes to rest: " << Describe(place);
      EXPECT_FALSE(forward(machine.plan().NextExpansion())) << name;
      for (const PublicationRecord& p : machine.record().publications) {
        EXPECT_FALSE(forward(machine.plan().NextFor(p.key))) << name << ": forward while it is leaving";
        EXPECT_FALSE(machine.plan().MayRenew(p.key)) << name;
      }
      const std::vector<PublicationRecord> publications = machine.record().publications;
      for (const PublicationRecord& p : publications)
        EXPECT_FALSE(machine.Repair(p.key, "lost", true)) << name;
      if (!machine.plan().Unsettled()) break;
      Step step = machine.plan().NextTeardown();
      for (const PublicationKey& key : machine.plan().Movable()) {
        if (step.kind == StepKind::kNone) step = machine.plan().NextFor(key);
      }
      ASSERT_NE(step.kind, StepKind::kNone) << name << ": unsettled, and nothing to do: " << Describe(place);
      machine.OnSent(step);
      machine.OnOutcome(step, CallOutcome::kDone, absl::OkStatus(), true, kWallNow);
    }
    // What is released while it is leaving leaves altogether.
    const std::vector<PublicationRecord> publications = machine.record().publications;
    for (const PublicationRecord& p : publications) machine.RequestUnpublish(p.key);
    CheckRest(place, name);
  }

  void Reach(Place place, const std::string& from, const std::string& event) {
    std::string name = Describe(place);
    if (!seen_.insert(name).second) return;
    const std::string how = fmt::format("{} --{}--> {}", from, event, name);
    CheckPlace(place, how);
    CheckRest(place, how);
    CheckLeaving(place, how);
    waiting_.emplace_back(std::move(place), std::move(name));
  }

  Kind kind_;
  std::set<std::string> seen_;
  size_t renewals_ = 0;
  std::deque<std::pair<Place, std::string>> waiting_;
};

class VolumeMachineEvents : public ::testing::TestWithParam<Kind> {};

TEST_P(VolumeMachineEvents, KeepTheRulesInEveryState) {
  Explorer explorer(GetParam());
  explorer.Explore();
  EXPECT_GT(explorer.places(), 30U) << "that many states at least can be reached";
  EXPECT_EQ(explorer.renewals() > 0, GetParam().origin == Origin::kScheduler || GetParam().taken_over);
  RecordProperty("states", static_cast<int>(explorer.places()));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, VolumeMachineEvents,
    ::testing::Values(
        Kind{.name = "Staged"}, Kind{.name = "Unstaged", .stages = false},
        Kind{.name = "Secrets", .secrets = true}, Kind{.name = "Remount", .remount = true},
        Kind{.name = "Scheduler", .origin = Origin::kScheduler},
        Kind{.name = "SchedulerRemount", .remount = true, .origin = Origin::kScheduler},
        Kind{.name = "SchedulerEphemeral", .ephemeral = true, .origin = Origin::kScheduler},
        Kind{.name = "TakenOver", .taken_over = true}, Kind{.name = "Ephemeral", .ephemeral = true},
        Kind{.name = "EphemeralRemount", .ephemeral = true, .remount = true},
        Kind{.name = "TwoConsumers", .remount = true, .two = true},
        Kind{.name = "StagingLost", .meddled = true},
        Kind{.name = "StagingLostUnderTwoConsumers", .remount = true, .two = true, .meddled = true}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace berth
