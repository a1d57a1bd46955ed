// Random operations, faults, foreign changes and kills, against a model of what was acknowledged.
//
// The model is pure and small: of each use of each volume it knows only what the mounter has acknowledged,
// and nothing of how it got there. After each step the invariants are compared with the plugin's own history
// and the kernel; now and then the faults cease, and the rest must be what the mounter shows.
//
// BERTH_MODEL_SEED makes the same choices again, as long as the same answers come; BERTH_MODEL_OPERATIONS
// makes it longer (./dev test --model).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "base/safe_path.h"
#include "base/testing/test_bound.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

using ::testing::IsEmpty;

constexpr int kVolumes = 6;
constexpr int kConsumers = 3;
constexpr int kOperations = 300;
// So long a call that hangs takes. While other tests run, a census takes a second, and has to end in this
// time.
constexpr Duration kRpcTimeout = std::chrono::seconds(3);
constexpr const char* kBystander = "bystander";

// --- the model -------------------------------------------------------------------------------------------

// A volume's use by a consumer.
struct Use {
  std::string volume;
  std::string consumer;
  auto operator<=>(const Use&) const = default;
};

enum class Known {
  kGone,       // never published, or its unpublish was acknowledged
  kPublished,  // its publish was acknowledged, and nothing was asked since
  kOpen,       // the last answer was an error, or there was none: either, or on the way
};

struct UseModel {
  Known known = Known::kGone;
  std::string target;    // once known
  bool meddled = false;  // the test unmounted it, or mounted over it
};

class Model {
 public:
  void Asked(const Use& use, bool publish) {
    UseModel& model = uses_[use];
    // What is published stays so while it is asked for again.
    if (publish && model.known == Known::kPublished) return;
    if (!publish && model.known == Known::kGone) return;
    model.known = Known::kOpen;
  }
  void Published(const Use& use, const std::string& target) {
    uses_[use] = {.known = Known::kPublished, .target = target, .meddled = false};
  }
  void Gone(const Use& use) {
    uses_[use].known = Known::kGone;
    uses_[use].meddled = false;
  }
  void Meddled(const Use& use) { uses_[use].meddled = true; }
  // Several requests were under way, and it is not known which was the last.
  void Forget(const Use& use) { uses_[use].known = Known::kOpen; }
  [[nodiscard]] const std::map<Use, UseModel>& uses() const { return uses_; }
  [[nodiscard]] std::vector<Use> Those(Known known) const {
    std::vector<Use> found;
    for (const auto& [use, model] : uses_) {
      if (model.known == known && !model.meddled) found.push_back(use);
    }
    return found;
  }

 private:
  std::map<Use, UseModel> uses_;
};

// A volume is of the same kind each time, in the berthds that die too: v0 takes secrets, v1 is mounted again
// of itself, v3 is ephemeral.
PublishRequest RequestFor(const std::string& volume, const std::string& consumer) {
  PublishRequest request;
  request.plugin_id = "hp";
  request.volume_id = volume;
  request.consumer = consumer;
  if (volume == "v0") request.secrets = {{"password", "hunter2"}};
  request.remount = volume == "v1";
  request.ephemeral = volume == "v3";
  return request;
}

// --- the run ---------------------------------------------------------------------------------------------

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoll(value, nullptr, 10) : otherwise;
}

std::string Contents(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class MounterModelTest : public MounterTestBase {
 protected:
  MounterModelTest() {
    options_.rpc_timeout = kRpcTimeout;
    options_.retry_limit = std::chrono::milliseconds(20);
  }
  void TearDown() override {
    if (HasFailure()) {
      fmt::print(stderr, "--- BERTH_MODEL_SEED={}, after {} operations; the last of them:\n", seed_, done_);
      for (const std::string& line : recent_) fmt::print(stderr, "    {}\n", line);
      const std::vector<std::string> log = plugin_.Log();
      const size_t from = log.size() < 60 ? 0 : log.size() - 60;
      fmt::print(stderr, "--- the last calls of the plugin: {}\n",
                 fmt::join(log.begin() + static_cast<std::ptrdiff_t>(from), log.end(), ", "));
      fmt::print(stderr, "--- the last events:\n");
      const std::vector<Event> events = events_.After(0, 10'000).events;
      for (size_t i = events.size() < 60 ? 0 : events.size() - 60; i < events.size(); ++i) {
        fmt::print(stderr, "    {} {} {}: {}\n", events[i].type, events[i].volume_id, events[i].consumer,
                   events[i].message);
      }
    }
    MounterTestBase::TearDown();
  }

  int Random(int below) { return std::uniform_int_distribution(0, below - 1)(random_); }
  bool Chance(int percent) { return Random(100) < percent; }
  template <class T>
  const T& Any(const std::vector<T>& of) {
    return of[static_cast<size_t>(Random(static_cast<int>(of.size())))];
  }
  Use AnyUse() {
    return {.volume = fmt::format("v{}", Random(kVolumes)),
            .consumer = fmt::format("c{}", Random(kConsumers))};
  }
  void Note(std::string what) {
    recent_.push_back(fmt::format("{}: {}", done_, std::move(what)));
    if (recent_.size() > 80) recent_.pop_front();
  }

  void RunOperations(int64_t count);
  void Step();
  // Each of these is one step.
  void AskSome();
  void EndConsumer();
  void Expand();
  void ArmFault();
  void TakePluginAway();
  void BringPluginBack();
  void RestartPlugin();
  void Restart();
  void KillInTheMiddle();
  void Meddle();

  // One request of several at once.
  struct Asked {
    Use use;
    bool publish = false;
    std::shared_ptr<std::optional<absl::StatusOr<std::string>>> published;
    std::shared_ptr<std::optional<absl::StatusOr<UnpublishResult>>> unpublished;
    [[nodiscard]] bool Ended() const { return publish ? published->has_value() : unpublished->has_value(); }
  };
  Asked Ask(const Use& use, bool publish, TimePoint deadline);
  void Conclude(const std::vector<Asked>& asked);
  [[nodiscard]] TimePoint Patience() {
    const bool slow = hangs_ || away_ || Chance(20);
    return Clock::now() +
           (slow ? Duration(std::chrono::milliseconds(1 + Random(20))) : std::chrono::seconds(15));
  }

  void CheckInvariants();
  // Lets everything come to its end without faults, and compares it with the model.
  void Settle();
  [[nodiscard]] bool AtRest();
  [[nodiscard]] std::optional<PublicationView> PrintableName(const Use& use) const;
  [[nodiscard]] int MountsAt(const std::string& path);
  void CountMounts();

  const int64_t seed_ = FromEnvironment("BERTH_MODEL_SEED", std::random_device{}());
  std::mt19937_64 random_{static_cast<uint64_t>(seed_)};
  Model model_;
  std::map<std::string, int> mounts_;  // in the tree, as the kernel shows them, by path
  std::deque<std::string> recent_;
  int64_t done_ = 0;
  int64_t kills_ = 0;
  bool hangs_ = false;  // a call may hang
  bool away_ = false;   // the plugin is
  std::string bystander_target_;
  uint64_t bystander_mount_ = 0;
};

MounterModelTest::Asked MounterModelTest::Ask(const Use& use, bool publish, TimePoint deadline) {
  model_.Asked(use, publish);
  Asked asked{.use = use, .publish = publish, .published = {}, .unpublished = {}};
  if (publish) {
    asked.published = loop_.Start(mounter_->Publish(RequestFor(use.volume, use.consumer), deadline));
  } else {
    UnpublishRequest undo = Undo(RequestFor(use.volume, use.consumer));
    undo.force = Chance(10);
    asked.unpublished = loop_.Start(mounter_->Unpublish(undo, deadline));
  }
  return asked;
}

void MounterModelTest::Conclude(const std::vector<Asked>& asked) {
  ASSERT_TRUE(loop_.RunUntil(
      [&] { return std::all_of(asked.begin(), asked.end(), [](const Asked& one) { return one.Ended(); }); },
      std::chrono::seconds(60)));
  for (const Asked& one : asked) {
    const absl::Status status = one.publish ? (*one.published)->status() : (*one.unpublished)->status();
    Note(fmt::format("{} {} {} -> {}", one.publish ? "publish" : "unpublish", one.use.volume,
                     one.use.consumer, status.ok() ? "OK" : MessageOf(status)));
    const auto same = [&](const Asked& other) { return other.use == one.use; };
    const bool both = std::any_of(asked.begin(), asked.end(), [&](const Asked& other) {
      return same(other) && other.publish != one.publish;
    });
    if (both) {
      model_.Forget(one.use);
    } else if (status.ok() && one.publish) {
      model_.Published(one.use, one.published->value().value());
    } else if (status.ok()) {
      model_.Gone(one.use);
    }
  }
}

void MounterModelTest::AskSome() {
  const int count = Chance(70) ? 1 : 2 + Random(5);
  std::vector<Asked> asked;
  for (int i = 0; i < count; ++i) asked.push_back(Ask(AnyUse(), Chance(55), Patience()));
  Conclude(asked);
}

void MounterModelTest::EndConsumer() {
  const std::string consumer = fmt::format("c{}", Random(kConsumers));
  std::vector<Use> uses;
  for (const auto& [use, model] : model_.uses()) {
    if (use.consumer == consumer) uses.push_back(use);
  }
  for (const Use& use : uses) model_.Asked(use, false);
  const auto ended = loop_.Run(mounter_->ConsumerEnded(consumer, "said so", Patience()));
  Note(fmt::format("consumer {} ended -> {}", consumer, ended.ok() ? "OK" : MessageOf(ended.status())));
  if (!ended.ok()) return;
  for (const Use& use : uses) model_.Gone(use);
}

void MounterModelTest::Expand() {
  const std::string volume = AnyUse().volume;
  if (Chance(50)) {
    const absl::Status noted = loop_.Run(mounter_->SetPendingExpansion("hp", volume, 1 + Random(1'000'000)));
    return Note(
        fmt::format("{}: an expansion is pending -> {}", volume, noted.ok() ? "OK" : MessageOf(noted)));
  }
  ::csi::v1::CapacityRange range;
  range.set_required_bytes(1 + Random(1'000'000));
  const auto expanded = loop_.Run(mounter_->NodeExpand("hp", volume, range, {}, Patience()));
  Note(fmt::format("expand {} -> {}", volume, expanded.ok() ? "OK" : MessageOf(expanded.status())));
}

void MounterModelTest::ArmFault() {
  static const std::vector<std::string> kMethods = {"NodeStageVolume", "NodePublishVolume",
                                                    "NodeUnpublishVolume", "NodeUnstageVolume"};
  static const std::vector<grpc::StatusCode> kCodes = {
      grpc::StatusCode::ABORTED,           grpc::StatusCode::UNAVAILABLE,
      grpc::StatusCode::INTERNAL,          grpc::StatusCode::INVALID_ARGUMENT,
      grpc::StatusCode::NOT_FOUND,         grpc::StatusCode::FAILED_PRECONDITION,
      grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::RESOURCE_EXHAUSTED};
  const std::string& method = Any(kMethods);
  const int times = 1 + Random(3);
  int kind = Random(10);
  bool done = Chance(50);
  // A false OK to a stage cannot be found out: a mount at the staging path is not required.
  if (method == "NodeStageVolume" && kind >= 6) {
    kind = 8;
    done = true;
  }
  const Effect effect = done ? Effect::kDone : Effect::kNone;
  if (kind < 6) {
    const grpc::StatusCode code = Any(kCodes);
    // That it is not there, of what was just made, is a lie of a kind that nothing can be made of.
    if (code == grpc::StatusCode::NOT_FOUND && !method.starts_with("NodeUn")) return;
    plugin_.FailNext(method, code, effect, times);
    Note(fmt::format("{} fails with {} {} times, {} its effect", method, static_cast<int>(code), times,
                     effect == Effect::kDone ? "after" : "before"));
  } else if (kind < 8) {
    plugin_.LieNext(method, times);
    Note(fmt::format("{} lies {} times", method, times));
  } else {
    plugin_.HangNext(method, effect);
    hangs_ = true;
    Note(fmt::format("{} hangs {} its effect", method, effect == Effect::kDone ? "after" : "before"));
  }
}

void MounterModelTest::TakePluginAway() {
  plugins_.SetUsable(false);
  away_ = true;
  Note("the plugin is away");
}

void MounterModelTest::BringPluginBack() {
  plugins_.SetUsable(true);
  away_ = false;
  Note("the plugin is back");
}

void MounterModelTest::RestartPlugin() {
  plugin_.Stop();
  plugin_.Start();
  plugins_.Connect();
  Note("the plugin's server was restarted");
}

void MounterModelTest::Restart() {
  Close();
  Open();
  Note("the mounter was closed and opened");
}

// The berthd that dies is this program again, asked for one thing.
void MounterModelTest::KillInTheMiddle() {
  const Use use = AnyUse();
  const bool publish = Chance(50);
  const std::string boundary = std::to_string(1 + Random(14));
  model_.Asked(use, publish);
  if (away_) BringPluginBack();
  Close();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    execl("/proc/self/exe", "mounter_model_test", "model-child", options_.state_dir.c_str(),
          plugin_.socket_path().c_str(), publish ? "publish" : "unpublish", use.volume.c_str(),
          use.consumer.c_str(), boundary.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status);
  if (killed) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    ++kills_;
  } else {
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  Note(fmt::format("a child that was to {} {} {} {}", publish ? "publish" : "unpublish", use.volume,
                   use.consumer, killed ? "was killed at boundary " + boundary : "ended"));
  Open();
}

void MounterModelTest::Meddle() {
  const std::vector<Use> published = model_.Those(Known::kPublished);
  if (published.empty()) return;
  const Use use = Any(published);
  const std::string target = model_.uses().at(use).target;
  const bool over = Chance(50);
  // Else it would be over the volume's other uses too, and over the data themselves.
  if (over) ASSERT_EQ(mount(nullptr, target.c_str(), nullptr, MS_PRIVATE, nullptr), 0) << strerror(errno);
  const int done = over ? mount("meddler", target.c_str(), "tmpfs", 0, "size=4k")
                        : umount2(target.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH);
  ASSERT_EQ(done, 0) << strerror(errno);
  model_.Meddled(use);
  Note(fmt::format("others {} {} {}", over ? "mounted over" : "unmounted", use.volume, use.consumer));
}

void MounterModelTest::Step() {
  const int dice = Random(1000);
  if (dice < 640) return AskSome();
  if (dice < 680) return EndConsumer();
  if (dice < 710) return Expand();
  if (dice < 860) return ArmFault();
  if (dice < 900) {
    plugin_.Release();
    return Note("what hung goes on");
  }
  if (dice < 920) return away_ ? BringPluginBack() : TakePluginAway();
  if (dice < 930) return RestartPlugin();
  if (dice < 950) return Restart();
  if (dice < 970) return KillInTheMiddle();
  if (dice < 985) return Meddle();
  return Settle();
}

// --- what must hold --------------------------------------------------------------------------------------

std::optional<PublicationView> MounterModelTest::PrintableName(const Use& use) const {
  const auto view = mounter_->Find("hp", use.volume);
  if (!view) return std::nullopt;
  for (const PublicationView& publication : view->publications) {
    if (publication.consumer == use.consumer) return publication;
  }
  return std::nullopt;
}

void MounterModelTest::CountMounts() {
  mounts_.clear();
  const auto all = MountsBeneath(options_.state_dir + "/volumes", 10'000);
  ASSERT_TRUE(all.ok()) << all.status();
  for (const Mount& mount : *all) ++mounts_[mount.target];
}

int MounterModelTest::MountsAt(const std::string& path) {
  const auto found = mounts_.find(path);
  return found == mounts_.end() ? 0 : found->second;
}

void MounterModelTest::CheckInvariants() {
  ASSERT_THAT(plugin_.Breaches(), IsEmpty());
  CountMounts();
  for (const auto& [use, model] : model_.uses()) {
    SCOPED_TRACE(fmt::format("{} for {}", use.volume, use.consumer));
    if (model.meddled) continue;
    if (model.known == Known::kPublished) {
      ASSERT_EQ(MountsAt(model.target), 1) << "it was acknowledged as published";
    } else if (model.known == Known::kGone && !model.target.empty()) {
      ASSERT_EQ(MountsAt(model.target), 0) << "it was acknowledged as unpublished";
    }
  }
  for (int i = 0; i < kVolumes; ++i) {
    const std::string volume = fmt::format("v{}", i);
    ASSERT_EQ(Contents(plugin_.DataPath(volume) + "/marker"), volume) << "a volume's data";
  }
  ASSERT_EQ(Contents(bystander_target_ + "/marker"), kBystander);
  ASSERT_EQ(LookAt(bystander_target_)->mount_id, bystander_mount_) << "a volume that no request named";
}

// Nothing moves, and what is shown is what the kernel has.
bool MounterModelTest::AtRest() {
  CountMounts();
  for (const VolumeView& view : mounter_->List({})) {
    if (!view.running.empty()) return false;
    const bool unstaging = view.stage_state == StageState::kUnstaging;
    if (unstaging && !view.awaiting_secrets) return false;
    // That it is to be staged again moves nothing by itself where all that is left is lost.
    if (view.stage_state == StageState::kStaging && view.publications.empty()) return false;
    for (const PublicationView& publication : view.publications) {
      const int mounts = MountsAt(publication.target_path);
      if (publication.awaiting_secrets || view.awaiting_secrets) continue;
      if (publication.state != PublicationState::kPublished) return false;
      // Lost, or mounted over: it is shown so, and moves at a caller's request.
      if (!publication.uncertain && mounts != 1) return false;
    }
  }
  return true;
}

void MounterModelTest::Settle() {
  plugin_.ClearFaults();
  plugin_.Release();
  hangs_ = false;
  if (away_) BringPluginBack();
  // What callers have left behind is still in the volumes' queues: whatever has its turn after it ends after
  // it.
  std::vector<std::shared_ptr<std::optional<absl::StatusOr<int64_t>>>> last;
  for (int i = 0; i < kVolumes; ++i) {
    const TimePoint until = Clock::now() + std::chrono::seconds(60);
    last.push_back(loop_.Start(mounter_->NodeExpand("hp", fmt::format("v{}", i), {}, {}, until)));
  }
  ASSERT_TRUE(loop_.RunUntil(
      [&last] { return std::ranges::all_of(last, [](const auto& one) { return one->has_value(); }); },
      std::chrono::seconds(90)));
  std::string left;
  const bool rest = loop_.RunUntil([&] { return AtRest(); }, std::chrono::seconds(30));
  for (const VolumeView& view : mounter_->List({})) {
    left += fmt::format("{}: stage {} {} {} [", view.volume_id, static_cast<int>(view.stage_state),
                        view.running, view.last_error);
    for (const PublicationView& p : view.publications) {
      left += fmt::format(" {}: {}{}{} {} mounts", p.consumer, static_cast<int>(p.state),
                          p.uncertain ? " uncertain" : "", p.awaiting_secrets ? " awaiting secrets" : "",
                          MountsAt(p.target_path));
    }
    left += "]\n";
  }
  ASSERT_TRUE(rest) << left;
  Note("at rest");
  CheckInvariants();
  const std::map<Use, UseModel> uses = model_.uses();
  for (const auto& [use, model] : uses) {
    SCOPED_TRACE(fmt::format("{} for {}", use.volume, use.consumer));
    const std::optional<PublicationView> shown = PrintableName(use);
    if (model.meddled || (shown && (shown->uncertain || shown->awaiting_secrets))) {
      // By the same words as ever it can be had again, or taken away.
      // An ephemeral one that is mounted over is refused until that is gone.
      const bool again = model.known == Known::kPublished && use.volume != "v3" && Chance(50);
      const uint64_t before = events_.next_sequence() - 1;
      Conclude({Ask(use, again, Clock::now() + kTestBound)});
      // A plugin that lied about an unpublish believes that it is published, and answers OK to the first
      // repeat without doing a thing. That is found out, reported, and undone.
      const bool lied =
          std::ranges::count(events_.After(before, 1000).events, "plugin.lied", &Event::type) > 0;
      if (again && lied && MountsAt(model.target) == 0)
        Conclude({Ask(use, again, Clock::now() + kTestBound)});
      ASSERT_NE(model_.uses().at(use).known, Known::kOpen);
      CountMounts();
      if (!model.target.empty()) {
        ASSERT_EQ(MountsAt(model.target), model_.uses().at(use).known == Known::kPublished ? 1 : 0);
      }
      continue;
    }
    switch (model.known) {
      case Known::kPublished:
        ASSERT_TRUE(shown.has_value()) << "it was acknowledged as published\n" << left;
        ASSERT_EQ(shown->state, PublicationState::kPublished);
        ASSERT_EQ(shown->target_path, model.target);
        break;
      case Known::kGone:
        ASSERT_FALSE(shown.has_value()) << "it was acknowledged as unpublished\n" << left;
        break;
      case Known::kOpen:
        if (shown) {
          model_.Published(use, shown->target_path);
        } else {
          model_.Gone(use);
        }
        break;
    }
  }
}

void MounterModelTest::RunOperations(int64_t count) {
  for (int i = 0; i < kVolumes; ++i) {
    const std::string volume = fmt::format("v{}", i);
    ASSERT_EQ(mkdir(plugin_.DataPath(volume).c_str(), 0755), 0);
    std::ofstream(plugin_.DataPath(volume) + "/marker") << volume;
  }
  const auto bystander = Publish(Request(kBystander, "still"));
  ASSERT_TRUE(bystander.ok()) << bystander.status();
  bystander_target_ = *bystander;
  bystander_mount_ = LookAt(bystander_target_)->mount_id;
  std::ofstream(bystander_target_ + "/marker") << kBystander;

  for (done_ = 1; done_ <= count && !HasFatalFailure(); ++done_) {
    Step();
    if (HasFailure()) return;
    CheckInvariants();
    if (HasFailure()) return;
    if (done_ % 5'000 == 0) fmt::print(stderr, "    {} of {} operations, {} kills\n", done_, count, kills_);
  }
}

TEST_F(MounterModelTest, NothingAcknowledgedIsLostByRandomFaultsAndKills) {
  const int64_t count = FromEnvironment("BERTH_MODEL_OPERATIONS", kOperations);
  RecordProperty("seed", std::to_string(seed_));
  // Also for a run that does not come as far as TearDown.
  fmt::print(stderr, "    BERTH_MODEL_SEED={}, {} operations\n", seed_, count);
  RunOperations(count);
  if (HasFailure()) return;
  Settle();
  if (HasFailure()) return;
  // The end is clean. On a busy machine a try may take longer than kRpcTimeout: then it goes on unasked.
  for (int i = 0; i < kConsumers; ++i) {
    const auto ended = loop_.Run(mounter_->ConsumerEnded(fmt::format("c{}", i), "said so", Soon()));
    if (!ended.ok()) Note(ended.status().ToString());
  }
  const auto unpublished = Unpublish(Request(kBystander, "still"));
  if (!unpublished.ok()) Note(unpublished.status().ToString());
  ASSERT_TRUE(loop_.RunUntil([&] { return Gone(); }));
  CountMounts();
  EXPECT_LE(mounts_.size(), 1U) << "the tree's own mount: whatever the plugin's books say after its lies";
  Close();
  EXPECT_FALSE(IsMounted(options_.state_dir + "/volumes")) << "an empty tree is unmounted";
  EXPECT_TRUE(std::filesystem::is_empty(options_.state_dir + "/identities"));
  for (int i = 0; i < kVolumes; ++i) {
    const std::string volume = fmt::format("v{}", i);
    EXPECT_EQ(Contents(plugin_.DataPath(volume) + "/marker"), volume);
  }
}

// model-child STATE_DIR SOCKET publish|unpublish VOLUME CONSUMER BOUNDARY: one request, and SIGKILL to itself
// at the BOUNDARY-th boundary.
int RunModelChild(int argc, char** argv) {
  if (argc != 8) return 2;
  LoopRunner loop;
  EventLog events(loop.executor(), 1000, 1);
  TestDirectory plugins(loop.executor(), argv[3]);
  MounterOptions options;
  options.state_dir = argv[2];
  options.helper_path = BERTH_MOUNT_HELPER;
  options.rpc_timeout = kRpcTimeout;
  options.retry_limit = std::chrono::milliseconds(20);
  int left = std::atoi(argv[7]);
  options.at_boundary = [&left](std::string_view /*point*/) {
    if (--left == 0) kill(getpid(), SIGKILL);
  };
  auto mounter = Mounter::Open(loop.executor(), options, plugins, events);
  if (!mounter.ok() || !loop.Run((*mounter)->Recover()).ok()) return 3;
  const TimePoint soon = Clock::now() + std::chrono::seconds(1);
  const PublishRequest request = RequestFor(argv[5], argv[6]);
  if (std::strcmp(argv[4], "publish") == 0) {
    (void)loop.Run((*mounter)->Publish(request, soon));
  } else {
    UnpublishRequest undo;
    undo.plugin_id = request.plugin_id;
    undo.volume_id = request.volume_id;
    undo.consumer = request.consumer;
    (void)loop.Run((*mounter)->Unpublish(undo, soon));
  }
  loop.RunVoid((*mounter)->Shutdown(Clock::now() + std::chrono::seconds(5)));
  return 0;
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  spdlog::set_level(std::getenv("BERTH_TEST_LOG") != nullptr ? spdlog::level::debug : spdlog::level::off);
  if (argc > 1 && std::strcmp(argv[1], "model-child") == 0) return berth::RunModelChild(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  berth::EnterTestArea();
  const int result = RUN_ALL_TESTS();
  berth::LeaveTestArea();
  return result;
}
