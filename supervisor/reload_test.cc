#include "supervisor/reload.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/run_on.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PluginFile Good(const std::string& path, const std::string& id, bool external = false) {
  PluginConfig config;
  config.file = path;
  config.id = id;
  if (external) config.socket = "/run/x.sock";
  return {.path = path, .id = id, .config = config};
}
PluginFile Broken(const std::string& path, const std::string& id) {
  return {.path = path, .id = id, .config = absl::InvalidArgumentError(path + ":1: not TOML")};
}

// "reconfigure nfs a.toml", "remove nfs", and "(broken)" behind what is.
std::vector<std::string> Show(const std::vector<ReloadStep>& steps) {
  std::vector<std::string> shown;
  for (const ReloadStep& step : steps) {
    std::string_view what;
    switch (step.what) {
      case ReloadStep::What::kBegin:
        what = "begin";
        break;
      case ReloadStep::What::kReconfigure:
        what = "reconfigure";
        break;
      case ReloadStep::What::kRemove:
        what = "remove";
        break;
      case ReloadStep::What::kReplace:
        what = "replace";
        break;
    }
    const bool broken = step.what != ReloadStep::What::kRemove && !step.file.config.ok();
    shown.push_back(fmt::format("{} {}{}{}{}", what, step.file.id, step.file.path.empty() ? "" : " ",
                                step.file.path, broken ? " (broken)" : ""));
  }
  return shown;
}

TEST(PlanReloadTest, EachPluginGetsWhatItsFileSaysNow) {
  EXPECT_THAT(
      Show(PlanReload({Good("a", "a"), Good("b", "b"), Good("c", "c"), Broken("d", "d")},
                      {{"a", {"a", false}}, {"c", {"c", false}}, {"z", {"z", false}}})),
      ElementsAre("remove z", "reconfigure a a", "begin b b", "reconfigure c c", "begin d d (broken)"));
  EXPECT_THAT(PlanReload({}, {}), IsEmpty());
}

TEST(PlanReloadTest, AnIdMayGetAnotherFileAndAFileAnotherId) {
  EXPECT_THAT(Show(PlanReload({Good("new", "nfs")}, {{"nfs", {"old", false}}})),
              ElementsAre("reconfigure nfs new"));
  EXPECT_THAT(Show(PlanReload({Good("a", "b")}, {{"a", {"a", false}}})),
              ElementsAre("remove a", "begin b a"));
}

TEST(PlanReloadTest, FromACommandToASocketIsAnotherOwner) {
  EXPECT_THAT(Show(PlanReload({Good("a", "a", true), Good("b", "b"), Good("c", "c", true)},
                              {{"a", {"a", false}}, {"b", {"b", true}}, {"c", {"c", true}}})),
              ElementsAre("replace a a", "replace b b", "reconfigure c c"));
}

TEST(PlanReloadTest, WhatIsGoneAlreadyIsNotRemovedAgain) {
  EXPECT_THAT(PlanReload({}, {{"a", {"", false}}}), IsEmpty());
}

// Answers Reconfigure as the test says.
class FakeOwner final : public PluginOwner {
 public:
  Awaitable<void> Run() override { co_return; }
  Awaitable<void> WaitBegun() override { co_return; }
  Awaitable<void> LetGo() override { co_return; }
  Awaitable<absl::Status> Start(TimePoint) override { co_return absl::OkStatus(); }
  Awaitable<absl::Status> Stop(bool, TimePoint) override { co_return absl::OkStatus(); }
  Awaitable<absl::Status> Restart(bool, TimePoint) override { co_return absl::OkStatus(); }
  Awaitable<absl::Status> Drain(TimePoint) override { co_return absl::OkStatus(); }
  Awaitable<absl::Status> Swap(SwapRequest, TimePoint) override { co_return absl::OkStatus(); }
  Awaitable<absl::StatusOr<Reconfigured>> Reconfigure(PluginFile file, TimePoint deadline) override {
    asked.push_back(file.path);
    if (slow) co_await SleepUntil(std::min(deadline, Clock::now() + std::chrono::milliseconds(30)));
    if (until != nullptr) (void)co_await until->WaitUntil([this] { return released; }, deadline);
    if (file.path.empty() && answer.ok()) is_gone = true;
    if (!file.path.empty() && !file.config.ok()) co_return file.config.status();
    co_return answer;
  }
  void OnHealth(uint64_t, const PluginHealth&) override {}
  void OnFacts(uint64_t, absl::StatusOr<PluginFacts>, const std::string&) override {}
  void OnIdle(uint64_t) override {}
  void OnHoldersChanged() override {}
  bool gone() const override { return is_gone; }

  absl::StatusOr<Reconfigured> answer = Reconfigured::kUnchanged;
  bool slow = false;
  std::unique_ptr<Condition> until;  // waits there until `released`
  bool released = false;
  bool is_gone = false;
  std::vector<std::string> asked;
};

class CarryOutReloadTest : public ::testing::Test {
 protected:
  ~CarryOutReloadTest() override { RunOn(loop_, scope_.Join()); }
  ReloadTarget Target() {
    return {.registry = registry_,
            .find = [this](const std::string& id) -> PluginOwner* {
              const auto owner = owners_.find(id);
              return owner == owners_.end() ? nullptr : &owner->second;
            },
            .begin = [this](const PluginFile& file) -> PluginOwner& {
              begun_.push_back(file.path);
              return fresh_;
            },
            .check = [](const PluginConfig& config) { return Checked(config.file); }};
  }
  // The file "missing.toml" names a program that is not there.
  static Awaitable<absl::Status> Checked(std::string file) {
    co_return file == "missing.toml" ? absl::NotFoundError("execute /x: No such file") : absl::OkStatus();
  }
  ReloadReport CarryOut(std::vector<ReloadStep> steps) {
    const auto report = std::make_shared<ReloadReport>();
    RunOn(loop_, CarryOutReload(std::move(steps), Target(), scope_, Clock::now() + std::chrono::seconds(20),
                                report));
    return *report;
  }

  asio::io_context loop_;
  Registry registry_{loop_.get_executor()};
  TaskScope scope_{loop_.get_executor(), "test"};
  std::map<std::string, FakeOwner> owners_;
  FakeOwner fresh_;
  std::vector<std::string> begun_;
};

TEST_F(CarryOutReloadTest, TheReportSaysWhatBecameOfEach) {
  owners_["unchanged"].answer = Reconfigured::kUnchanged;
  owners_["updated"].answer = Reconfigured::kUpdated;
  owners_["swapped"].answer = Reconfigured::kSwapped;
  owners_["swapped"].slow = true;
  owners_["stopped"].answer = Reconfigured::kStopped;
  owners_["enabled"].answer = Reconfigured::kStarted;
  owners_["broken"].answer = absl::FailedPreconditionError("volumes are in use");
  owners_["missing"].answer = absl::InternalError("never asked");
  std::vector<ReloadStep> steps = {
      {.what = ReloadStep::What::kRemove,
       .file = {.path = "", .id = "stopped", .config = absl::NotFoundError("")}},
      {.what = ReloadStep::What::kBegin, .file = Good("new.toml", "new")},
      {.what = ReloadStep::What::kBegin, .file = Broken("odd.toml", "odd")},
      {.what = ReloadStep::What::kBegin, .file = Broken("second.toml", "second")}};
  for (const char* id : {"swapped", "unchanged", "updated", "enabled", "broken", "missing"}) {
    steps.push_back({.what = ReloadStep::What::kReconfigure, .file = Good(std::string(id) + ".toml", id)});
  }
  const ReloadReport report = CarryOut(std::move(steps));
  EXPECT_THAT(report.unchanged, ElementsAre("unchanged"));
  EXPECT_THAT(report.updated, ElementsAre("updated"));
  EXPECT_THAT(report.swapped, ElementsAre("swapped"));
  EXPECT_THAT(report.stopped, ElementsAre("stopped"));
  EXPECT_THAT(report.started, ElementsAre("enabled", "new"));
  EXPECT_THAT(report.broken, ElementsAre("broken: volumes are in use", "missing: execute /x: No such file",
                                         "odd: odd.toml:1: not TOML", "second: second.toml:1: not TOML"));
  EXPECT_THAT(begun_, ElementsAre("new.toml", "odd.toml", "second.toml"));
}

TEST_F(CarryOutReloadTest, AReplacedPluginGoesFirst) {
  owners_["a"].answer = Reconfigured::kStopped;
  owners_["held"].answer = absl::FailedPreconditionError("volumes are in use");
  const ReloadReport report =
      CarryOut({{.what = ReloadStep::What::kReplace, .file = Good("a.toml", "a", true)},
                {.what = ReloadStep::What::kReplace, .file = Good("held.toml", "held", true)}});
  EXPECT_THAT(owners_["a"].asked, ElementsAre(""));
  EXPECT_THAT(begun_, ElementsAre("a.toml"));
  EXPECT_THAT(report.swapped, ElementsAre("a"));
  EXPECT_THAT(report.broken, ElementsAre("held: volumes are in use"));
}

TEST_F(CarryOutReloadTest, ItGoesOnWhereNobodyWaits) {
  owners_["slow"].until = std::make_unique<Condition>(loop_.get_executor());
  owners_["slow"].answer = Reconfigured::kSwapped;
  TaskScope caller(loop_.get_executor(), "caller");
  const auto report = std::make_shared<ReloadReport>();
  const auto wait = [](ReloadTarget target, TaskScope& scope,
                       std::shared_ptr<ReloadReport> so_far) -> Awaitable<void> {
    std::vector<ReloadStep> steps = {
        {.what = ReloadStep::What::kReconfigure, .file = Good("slow.toml", "slow")}};
    co_await CarryOutReload(std::move(steps), std::move(target), scope,
                            Clock::now() + std::chrono::seconds(20), std::move(so_far));
    ADD_FAILURE() << "it was cancelled";
  };
  caller.Spawn("wait", wait(Target(), scope_, report));
  loop_.restart();
  loop_.poll();
  EXPECT_THAT(owners_["slow"].asked, ElementsAre("slow.toml"));
  RunOn(loop_, caller.Join());
  EXPECT_EQ(scope_.size(), 1U);
  EXPECT_THAT(report->pending, ElementsAre("slow"));
  owners_["slow"].released = true;
  owners_["slow"].until->NotifyAll();
  RunOn(loop_, scope_.WaitEmpty());
  EXPECT_THAT(report->swapped, ElementsAre("slow"));
  EXPECT_THAT(report->pending, IsEmpty());
}

}  // namespace
}  // namespace berth
