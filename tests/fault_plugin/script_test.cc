#include "tests/fault_plugin/script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fault_plugin/deeds.h"

namespace berth::fault {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Script Parse(const std::string& text) {
  absl::StatusOr<Script> script = ParseScript("s.toml", text);
  EXPECT_TRUE(script.ok()) << script.status();
  return script.value_or(Script());
}

std::string Mistake(const std::string& text) {
  return std::string(ParseScript("s.toml", text).status().message());
}

// The calls, of five, that the one rule in `text` acts on.
std::vector<int> Acts(const std::string& text) {
  const Script script = Parse("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\n" + text);
  RuleCounts counts;
  std::vector<int> acts;
  for (int call = 1; call <= 5; ++call) {
    const auto matches = counts.Meet(script, "Probe", "");
    if (matches.size() == 1 && matches[0].acts) acts.push_back(call);
  }
  return acts;
}

TEST(ScriptTest, ReadsEveryKindOfRule) {
  const Script script = Parse(R"(
[[rule]]
name = "lost answer"
rpc = "NodePublishVolume"
volume = "v1"
call = 2
when = "after"
action = "fail"
code = "UNAVAILABLE"
text = "gone"

[[rule]]
name = "another name"
rpc = "GetPluginInfo"
action = "answer"
answer = 'name: "other.example"'
pad = 4096

[[rule]]
name = "chatty"
rpc = "start"
background = true
delay_ms = 20
action = "output"
lines = 10
per_second = 100
)");
  ASSERT_EQ(script.rules.size(), 3U);
  const Rule& lost = script.rules[0];
  EXPECT_EQ(lost.volume, "v1");
  EXPECT_EQ(lost.from, 2);
  EXPECT_EQ(lost.count, 1);
  EXPECT_EQ(lost.when, When::kAfter);
  EXPECT_EQ(lost.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(lost.status.error_message(), "gone");
  EXPECT_EQ(script.rules[1].when, When::kAfter) << "there is no answer before";
  EXPECT_EQ(script.rules[1].pad, 4096);
  EXPECT_TRUE(script.rules[2].background);
  EXPECT_EQ(script.rules[2].delay, std::chrono::milliseconds(20));
  EXPECT_EQ(script.rules[2].output.lines, 10);
  EXPECT_NE(script.Find("chatty"), nullptr);
  EXPECT_EQ(script.Find("quiet"), nullptr);
}

TEST(ScriptTest, AnEmptyScriptIsAPluginWithoutFaults) { EXPECT_TRUE(Parse("").rules.empty()); }

TEST(ScriptTest, NamesEveryMistakeWithItsLine) {
  EXPECT_THAT(Mistake("[[rule]]\nrpc = \"Probe\"\naction = \"hang\"\n"), HasSubstr("rule.name: is missing"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Prob\"\naction = \"hang\"\n"), HasSubstr("\"Prob\""));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"sulk\"\n"),
              AllOf(HasSubstr("\"sulk\""), HasSubstr("hang, delay")));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\ncode = \"ABORTED\"\n"),
              AllOf(HasSubstr("s.toml:5"), HasSubstr("no such key")));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"fail\"\ncode = \"MAYBE\"\n"),
              HasSubstr("rule.code"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"signal\"\nsignal = \"TERM\"\n"),
              HasSubstr("rule.signal"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"start\"\naction = \"lie\"\n"),
              HasSubstr("nothing to answer"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"lie\"\nwhen = \"after\"\n"),
              HasSubstr("no meaning"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\nbackground = true\n"),
              HasSubstr("cannot go on"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\ncall = 1\nfrom = 2\n"),
              HasSubstr("cannot have `from` or `count` with it"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\ncall = 0\n"),
              HasSubstr("must be 1"));
  EXPECT_THAT(
      Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"answer\"\nanswer = \"colour: 1\"\n"),
      HasSubstr("colour"));
  EXPECT_THAT(Mistake("[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\n"
                      "[[rule]]\nname = \"r\"\nrpc = \"Probe\"\naction = \"hang\"\n"),
              HasSubstr("given twice"));
  EXPECT_THAT(Mistake("colour = 1\n"), HasSubstr("unknown key"));
}

TEST(ScriptTest, CountsTheCallsThatARuleMeans) {
  EXPECT_THAT(Acts(""), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(Acts("call = 3\n"), ElementsAre(3));
  EXPECT_THAT(Acts("from = 4\n"), ElementsAre(4, 5));
  EXPECT_THAT(Acts("from = 2\ncount = 2\n"), ElementsAre(2, 3));
}

TEST(ScriptTest, CountsGoOnWhereAnEarlierRunLeftThem) {
  const Script script = Parse("[[rule]]\nname = \"r\"\nrpc = \"start\"\naction = \"exit\"\ncall = 3\n");
  RuleCounts counts;
  counts.Restore("r", 1);
  counts.Restore("r", 2);
  EXPECT_TRUE(counts.Meet(script, kStart, "")[0].acts);
}

TEST(ScriptTest, OnlyTheRulesOfTheCallMeetIt) {
  const Script script = Parse(
      "[[rule]]\nname = \"any\"\nrpc = \"*\"\naction = \"delay\"\ndelay_ms = 1\n"
      "[[rule]]\nname = \"v\"\nrpc = \"NodeStageVolume\"\nvolume = \"v\"\naction = \"hang\"\n");
  RuleCounts counts;
  EXPECT_EQ(counts.Meet(script, kStart, "").size(), 0U) << "the start is no RPC";
  EXPECT_EQ(counts.Meet(script, "Probe", "").size(), 1U);
  EXPECT_EQ(counts.Meet(script, "NodeStageVolume", "w").size(), 1U);
  EXPECT_EQ(counts.Meet(script, "NodeStageVolume", "v").size(), 2U);
}

TEST(ScriptTest, ALineKnowsItsNumberAndItsLength) {
  EXPECT_EQ(NumberedLine(7, 12), "line 7 xxxx\n");
  EXPECT_EQ(NumberedLine(1234567, 4), "line 1234567 \n");
}

}  // namespace
}  // namespace berth::fault
