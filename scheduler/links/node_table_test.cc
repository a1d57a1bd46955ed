#include "scheduler/links/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::scheduler {
namespace {

using Kind = HelloDecision::Kind;
using ::testing::HasSubstr;

v1::Hello Hello(const std::string& instance, const std::string& boot, uint64_t connection = 5) {
  v1::Hello hello;
  hello.mutable_protocol()->set_major(1);
  hello.set_node_id("n1");
  hello.set_instance_id(instance);
  hello.set_boot_id(boot);
  hello.set_run_id("r");
  hello.set_connection_number(connection);
  return hello;
}
NodeRecord Record(const std::string& instance, const std::string& boot, const std::string& previous = "") {
  return {.name = "n1", .instance_id = instance, .boot_id = boot, .previous_boot_id = previous};
}

TEST(NodeTableTest, AFirstHelloIsRecorded) {
  const HelloDecision decision = DecideHello(std::nullopt, nullptr, Hello("i", "b"));
  EXPECT_EQ(decision.kind, Kind::kWelcome);
  EXPECT_EQ(decision.record, Record("i", "b"));
}

TEST(NodeTableTest, TheSameMachineIsWelcomeAgain) {
  const v1::Hello there = Hello("i", "b", 4);
  for (const v1::Hello* const current : {static_cast<const v1::Hello*>(nullptr), &there}) {
    const HelloDecision decision = DecideHello(Record("i", "b"), current, Hello("i", "b"));
    EXPECT_EQ(decision.kind, Kind::kWelcome);
    EXPECT_FALSE(decision.record.has_value()) << "nothing is new";
  }
}

TEST(NodeTableTest, ARestartedMachineIsTheSame) {
  const v1::Hello there = Hello("i", "b1", 4);
  for (const v1::Hello* const current : {static_cast<const v1::Hello*>(nullptr), &there}) {
    const HelloDecision decision = DecideHello(Record("i", "b1", "b0"), current, Hello("i", "b2"));
    EXPECT_EQ(decision.kind, Kind::kWelcome);
    EXPECT_EQ(decision.record, Record("i", "b2", "b1"));
  }
}

TEST(NodeTableTest, ABootThatComesBackIsASecondMachine) {
  const v1::Hello there = Hello("i", "b2", 4);
  for (const v1::Hello* const current : {static_cast<const v1::Hello*>(nullptr), &there}) {
    HelloDecision decision = DecideHello(Record("i", "b2", "b1"), current, Hello("i", "b1"));
    EXPECT_EQ(decision.kind, Kind::kRefuse);
    EXPECT_TRUE(absl::IsAlreadyExists(decision.why));
    ASSERT_TRUE(decision.record.has_value() && decision.record->two_machines);
    // Neither of them gets in, whichever boot it says.
    for (const char* boot : {"b1", "b2", "b3"}) {
      EXPECT_EQ(DecideHello(decision.record, current, Hello("i", boot)).kind, Kind::kRefuse) << boot;
    }
    EXPECT_NE(DecideHello(decision.record, current, Hello("other", "b2")).kind, Kind::kWelcome);
  }
}

// Both lay in our queue while we stood still: the machine was restarted meanwhile.
TEST(NodeTableTest, AHelloThatWasOvertakenByALaterOneIsNoSecondMachine) {
  const v1::Hello current = Hello("i", "b2", 7);
  for (const char* boot : {"b1", "b2"}) {
    const HelloDecision decision = DecideHello(Record("i", "b2", "b1"), &current, Hello("i", boot, 6));
    EXPECT_EQ(decision.kind, Kind::kRefuse);
    EXPECT_TRUE(absl::IsUnavailable(decision.why)) << decision.why;
    EXPECT_FALSE(decision.record.has_value());
  }
}

TEST(NodeTableTest, AStateDirectoryThatWasLostIsTheSameMachinesByItsBoot) {
  const v1::Hello there = Hello("i", "b", 4);
  for (const v1::Hello* const current : {static_cast<const v1::Hello*>(nullptr), &there}) {
    const HelloDecision decision = DecideHello(Record("i", "b", "a"), current, Hello("i2", "b"));
    EXPECT_EQ(decision.kind, Kind::kWelcome);
    NodeRecord adopted = Record("i2", "b", "a");
    adopted.earlier_instance_ids = {"i"};
    EXPECT_EQ(decision.record, adopted);
    EXPECT_TRUE(adopted.IsInstance("i") && adopted.IsInstance("i2"));
    const auto restarted = DecideHello(adopted, nullptr, Hello("i2", "b2")).record;
    ASSERT_TRUE(restarted.has_value());
    EXPECT_TRUE(restarted->IsInstance("i")) << "its claims stay its claims";
    EXPECT_FALSE(restarted->IsInstance("i3"));
  }
}

TEST(NodeTableTest, AnotherMachineIsAStrangerOrRefused) {
  const HelloDecision away = DecideHello(Record("i", "b"), nullptr, Hello("i2", "b2"));
  EXPECT_EQ(away.kind, Kind::kOtherMachine);
  EXPECT_FALSE(away.record.has_value()) << "the name stays the recorded machine's";
  const v1::Hello current = Hello("i", "b", 9);
  const HelloDecision there = DecideHello(Record("i", "b"), &current, Hello("i2", "b2"));
  EXPECT_EQ(there.kind, Kind::kRefuse);
  EXPECT_TRUE(absl::IsAlreadyExists(there.why));
}

TEST(NodeTableTest, AHelloThatSaysTooLittleIsRefusedByField) {
  EXPECT_TRUE(CheckHello(Hello("i", "b")).ok());
  v1::Hello other = Hello("i", "b");
  other.mutable_protocol()->set_major(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckHello(other)));
  EXPECT_THAT(std::string(CheckHello(Hello("", "b")).message()), HasSubstr("hello.instance_id"));
  EXPECT_THAT(std::string(CheckHello(Hello("i", std::string(200, 'x'))).message()),
              HasSubstr("hello.boot_id"));
  other = Hello("i", "b");
  other.clear_node_id();
  EXPECT_THAT(std::string(CheckHello(other).message()), HasSubstr("hello.node_id"));
}

}  // namespace
}  // namespace berth::scheduler
