#include "mounter/holder_names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace berth {
namespace {

TEST(HolderNamesTest, SaysWhoHowAndOfWhichConsumer) {
  EXPECT_EQ(DescribeHolders({}), "");
  EXPECT_EQ(DescribeHolders({{.pid = 12, .command = "postgres", .consumer = "db", .how = "open file /x"},
                             {.pid = 14, .command = "ba\nsh", .consumer = "", .how = "working directory"}}),
            "pid 12 (postgres) of consumer db: open file /x; pid 14 (ba\\x0ash): working directory");
}

TEST(HolderNamesTest, NamesAFewOfMany) {
  const std::string text =
      DescribeHolders(std::vector<MountHolder>(9, {.pid = 1, .command = "c", .consumer = "", .how = "h"}));
  EXPECT_TRUE(text.ends_with("; and 4 more")) << text;
}

TEST(HolderNamesTest, AConsumersProcessIsKnown) {
  VolumeRecord record;
  PublicationRecord publication;
  publication.key.consumer = "other";
  publication.life = ProcessLife(1);
  record.publications.push_back(publication);
  publication.key.consumer = "web";
  publication.life = ProcessLife(getpid());
  record.publications.push_back(publication);
  std::vector<MountHolder> holders = {{.pid = getpid(), .command = "", .consumer = "", .how = ""},
                                      {.pid = getppid(), .command = "", .consumer = "", .how = ""}};
  NameConsumers(record, &holders);
  EXPECT_EQ(holders[0].consumer, "web");
  EXPECT_EQ(holders[1].consumer, "");
}

// Every process is in some cgroup, at or beneath the root.
TEST(HolderNamesTest, AProcessInAConsumersCgroupIsKnown) {
  VolumeRecord record;
  PublicationRecord publication;
  publication.key.consumer = "web";
  publication.life = CgroupLife("/sys/fs/cgroup/");
  record.publications.push_back(publication);
  std::vector<MountHolder> holders = {{.pid = getpid(), .command = "", .consumer = "", .how = ""}};
  NameConsumers(record, &holders);
  EXPECT_EQ(holders[0].consumer, "web");
  holders[0].consumer.clear();
  record.publications[0].life = CgroupLife("/sys/fs/cgroup/no-such-group-here");
  NameConsumers(record, &holders);
  EXPECT_EQ(holders[0].consumer, "");
}

// systemd's own name for the group of a unit is the unit's, so any group of ours serves.
TEST(HolderNamesTest, AProcessInAConsumersUnitIsKnown) {
  std::ifstream groups("/proc/self/cgroup");
  std::string unit;
  for (std::string line; unit.empty() && std::getline(groups, line);) {
    const std::string path = line.substr(line.find('/') + 1);
    unit = path.substr(0, path.find('/'));
  }
  if (unit.empty()) GTEST_SKIP() << "this process is in no group but the root";
  VolumeRecord record;
  PublicationRecord publication;
  publication.key.consumer = "web";
  publication.life = UnitLife(unit);
  record.publications.push_back(publication);
  std::vector<MountHolder> holders = {{.pid = getpid(), .command = "", .consumer = "", .how = ""}};
  NameConsumers(record, &holders);
  EXPECT_EQ(holders[0].consumer, "web");
  for (const std::string& other : {unit + "x", unit.substr(1)}) {
    holders[0].consumer.clear();
    record.publications[0].life = UnitLife(other);
    NameConsumers(record, &holders);
    EXPECT_EQ(holders[0].consumer, "") << other;
  }
}

}  // namespace
}  // namespace berth
