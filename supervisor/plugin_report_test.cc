#include "supervisor/plugin_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <string>
#include <vector>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PluginReportTest : public ::testing::Test {
 protected:
  static PluginFacts Facts(const std::string& name) {
    PluginFacts facts;
    facts.name = name;
    facts.vendor_version = "1";
    return facts;
  }
  [[nodiscard]] std::vector<std::string> Events() const {
    std::vector<std::string> told;
    for (const Event& event : events_.After(0, 100).events) told.push_back(event.type + " " + event.message);
    return told;
  }

  asio::io_context loop_;
  EventLog events_{loop_.get_executor(), 100, 1};
  Registry registry_{loop_.get_executor()};
  ReportContext context_{.held_by = nullptr, .events = events_, .registry = registry_};
  PluginReport report_{context_, "nfs"};
};

TEST_F(PluginReportTest, JoinsOnceAndLeavesOnce) {
  report_.Accept(Facts("nfs.example"), "class");
  report_.Accept(Facts("nfs.example"), "class");
  report_.Leave("it ended");
  report_.Leave("it was stopped");
  EXPECT_THAT(Events(), ElementsAre("plugin.joined is nfs.example 1", "plugin.left it ended"));
  EXPECT_FALSE(report_.snapshot().registered);
  EXPECT_TRUE(report_.snapshot().facts.has_value()) << "what it was is still shown";
}

TEST_F(PluginReportTest, ARefusalIsReportedOncePerReasonAndEndsTheRegistration) {
  report_.Accept(Facts("nfs.example"), "class");
  report_.Refuse("no name");
  report_.Refuse("no name");
  report_.Refuse("no version");
  EXPECT_THAT(Events(), ElementsAre("plugin.joined is nfs.example 1", "plugin.refused no name",
                                    "plugin.left refused: no name", "plugin.refused no version"));
  report_.Publish("", {});
  EXPECT_EQ(registry_.Find("nfs")->reason, "no version");
}

TEST_F(PluginReportTest, ANewInstanceIsRefusedForNothingYet) {
  report_.Refuse("no name");
  report_.snapshot().health.error = "timed out";
  report_.BeginInstance(2);
  EXPECT_EQ(report_.refused(), "");
  EXPECT_EQ(report_.snapshot().health, PluginHealth());
  EXPECT_EQ(report_.snapshot().instance, 2U);
}

TEST_F(PluginReportTest, ShowsTheReasonOfTheStateTheRefusalAndTheNotes) {
  report_.Refuse("no name");
  report_.Publish("starting", {"", "its file has changed"});
  EXPECT_EQ(registry_.Find("nfs")->reason, "starting; no name; its file has changed");
  EXPECT_EQ(report_.NotServing("is refused").message(),
            "plugin nfs is refused: starting; no name; its file has changed");
}

TEST_F(PluginReportTest, WhatWasRemovedIsNotPublishedAgain) {
  report_.Publish("", {});
  report_.Remove();
  report_.Publish("", {});
  EXPECT_THAT(registry_.plugins(), IsEmpty());
}

TEST_F(PluginReportTest, NobodyHasVolumesWhereThatIsNotKnown) { EXPECT_THAT(report_.Holders(), IsEmpty()); }

}  // namespace
}  // namespace berth
