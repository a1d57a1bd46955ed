// The built berthctl: doctor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/testing/expect_json.h"
#include "cli/testing/fake_node.h"
#include "cli/testing/run_berthctl.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class DoctorCommandTest : public testing::Test {
 protected:
  DoctorCommandTest() {
    v1::Finding& finding = *node_.examined.add_findings();
    finding.set_severity(v1::INFO);
    finding.set_code("volume.foreign");
    finding.set_text("A volume that is not Berth's; it is left alone.");
    finding.set_path("/mnt/x");
    v1::Finding& dead = *node_.examined.add_findings();
    dead.set_severity(v1::ERROR);
    dead.set_code("mount.dead");
    dead.set_plugin_id("nfs");
    dead.set_volume_id("v1");
    dead.set_consumer("job-1");
    dead.set_path("/t");
    dead.set_text("The file system has ended.");
    dead.set_advice("End job-1");
    v1::Finding& orphan = *node_.examined.add_findings();
    orphan.set_severity(v1::WARNING);
    orphan.set_code("directory.orphan");
    orphan.set_path("/var/lib/berth/volumes/zz");
    orphan.set_text("An empty directory that belongs to no volume.");
    orphan.set_repair("remove the empty directory");
    node_.repaired = node_.examined;
    node_.repaired.mutable_findings(2)->set_repaired(true);
  }

  Ended Doctor(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--socket", node_.socket(), "doctor"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunBerthctl(std::move(arguments));
  }

  FakeNode node_;
};

TEST_F(DoctorCommandTest, ANodeThatIsWellEndsWith0) {
  node_.examined.clear_findings();
  const Ended run = Doctor({});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "Journal, identity files, mounts and plugins fit together; no volume waits or fails.\n");
  EXPECT_THAT(run.err, IsEmpty());
}

TEST_F(DoctorCommandTest, WhatIsMerelyToldIsNoFinding) {
  node_.examined.mutable_findings()->DeleteSubrange(1, 2);
  const Ended run = Doctor({});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("it is left alone"));
}

TEST_F(DoctorCommandTest, FindingsAreExplainedTheWorstFirstWithThePlan) {
  const Ended run = Doctor({});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_EQ(run.out, R"(1. ERROR  mount.dead  nfs/v1 for job-1
   The file system has ended.
   at /t
   do: End job-1
2. WARNING  directory.orphan  /var/lib/berth/volumes/zz
   An empty directory that belongs to no volume.
3. INFO  volume.foreign  /mnt/x
   A volume that is not Berth's; it is left alone.

Repairs (no data is ever deleted):
   1. nothing that a repair may do: a person's matter
   2. remove the empty directory
)");
  EXPECT_THAT(run.err, AllOf(HasSubstr("2 findings are open; a repair can fix 1"),
                             HasSubstr("berthctl doctor --repair")));
  EXPECT_THAT(node_.calls, ElementsAre("Examine")) << "nothing is repaired unasked";
}

TEST_F(DoctorCommandTest, ARepairShowsThePlanAndThenWhatWasDone) {
  const Ended run = Doctor({"--repair", "--yes"});
  EXPECT_EQ(run.exit_code, 4) << "the dead mount is still there";
  const size_t plan = run.out.find("Repairs (no data");
  ASSERT_NE(plan, std::string::npos) << run.out;
  EXPECT_EQ(run.out.substr(run.out.find("1. ERROR", plan)), R"(1. ERROR  mount.dead  nfs/v1 for job-1
   The file system has ended.
   at /t
   do: End job-1

What was done:
   1. nothing that a repair may do: a person's matter
   2. /var/lib/berth/volumes/zz: remove the empty directory: done
)") << "what is open, and what was done";
  EXPECT_THAT(node_.calls, ElementsAre("Examine", "Examine repair"));
  EXPECT_THAT(run.err, HasSubstr("1 finding is open"));
}

TEST_F(DoctorCommandTest, WhenAllIsMendedItEndsWith0) {
  node_.examined.mutable_findings()->DeleteSubrange(1, 1);
  node_.repaired.mutable_findings()->DeleteSubrange(1, 1);
  EXPECT_EQ(Doctor({}).exit_code, 4);
  EXPECT_EQ(Doctor({"--repair", "--yes"}).exit_code, 0);
  node_.repaired.mutable_findings(1)->set_repaired(false);
  node_.repaired.mutable_findings(1)->set_repair_error("Directory not empty");
  const Ended failed = Doctor({"--repair", "--yes"});
  EXPECT_EQ(failed.exit_code, 4);
  EXPECT_THAT(failed.out, HasSubstr("failed: Directory not empty"));
}

TEST_F(DoctorCommandTest, AtATerminalARepairAsksFirst) {
  RunningBerthctl ctl({"--socket", node_.socket(), "doctor", "--repair"},
                      RunningBerthctl::Stderr::kTerminalWithInput);
  ASSERT_TRUE(ctl.TerminalShows("Go on? [y/N]"));
  ctl.Type("\n");
  EXPECT_TRUE(ctl.TerminalShows("nothing was done"));
  EXPECT_EQ(ctl.Wait(), 1);
  EXPECT_THAT(node_.calls, ElementsAre("Examine"));
}

TEST_F(DoctorCommandTest, JsonIsOneDocumentAlsoOfARepair) {
  const Ended found = Doctor({"-o", "json"});
  EXPECT_EQ(found.exit_code, 4);
  ExpectJson(found.out, node_.examined);
  EXPECT_EQ(ErrorField(found, "message"), "2 findings are open; a repair can fix 1");
  ExpectJson(Doctor({"-o", "json", "--repair"}).out, node_.repaired);
}

TEST_F(DoctorCommandTest, ANodeThatRefusesIsAFailureNotAFinding) {
  node_.failure = {grpc::StatusCode::PERMISSION_DENIED, "change is not allowed"};
  const Ended run = Doctor({"--repair"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, Not(HasSubstr("fit together")));
}

}  // namespace
}  // namespace berth::cli
