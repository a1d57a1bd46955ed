// Plugins that flood their output (FAULTS row 15): they are never held up, and neither berthd's memory nor
// the disk grows with what they write.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/sanitizer.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

// It keeps what was freed, up to its quarantine's size, and much more.
constexpr int64_t kMostMemory = (kAddressSanitizer ? 512 : 48) * kMiB;

class FaultOutputTest : public FaultTest {
 protected:
  // Lets the plugin write while it serves, until all is written and read, and checks the bounds.
  void Flood(const std::string& output, int64_t least_written) {
    StartReady("[log]\nkeep = \"1MiB\"\nmax_unread = \"32MiB\"\n");
    const std::string volume = CreateVolume("v");
    Publish(volume, "job");
    const pid_t berthd = BerthdPid();
    const int64_t memory_before = PeakBytes(berthd);

    fault_.Play(
        {"rpc = \"NodeGetVolumeStats\"\naction = \"output\"\nbackground = true\ncall = 1\n" + output});
    v1::GetVolumeStatsRequest stats;
    stats.set_plugin_id(fault_.id());
    stats.set_volume_id(volume);
    v1::GetVolumeStatsResponse ignored;
    ASSERT_TRUE(node_.stub().GetVolumeStats(Node::Context().get(), stats, &ignored).ok());
    int64_t most_on_disk = 0;
    WaitFor("all is written", [&] {
      most_on_disk = std::max(most_on_disk, OnDisk());
      return fault_.Count([](const FaultEvent& e) { return e.event == "written"; }) == 1;
    });
    EXPECT_GE(Written(), least_written);
    WaitFor("what was read is given back", [&] { return OnDisk() < 8 * kMiB; }, std::chrono::seconds(90));
    EXPECT_LT(most_on_disk, 256 * kMiB) << "of " << Written() / kMiB << " MiB";
    EXPECT_LT(PeakBytes(berthd) - memory_before, kMostMemory);
    EXPECT_TRUE(Get().ready());
    Unpublish(volume, "job");
    ExpectWorks("w");
  }

  [[nodiscard]] std::string Log() const {
    return fmt::format("{}/logs/{}.log", node_.state_dir(), fault_.id());
  }

 private:
  [[nodiscard]] int64_t Written() const {
    struct stat info{};
    return stat(Log().c_str(), &info) == 0 ? info.st_size : 0;
  }
  [[nodiscard]] int64_t OnDisk() const {
    int64_t bytes = 0;
    for (const std::string& name : Node::Tree(node_.state_dir() + "/logs")) {
      struct stat info{};
      const std::string path = node_.state_dir() + "/logs/" + name;
      if (stat(path.c_str(), &info) == 0) bytes += info.st_blocks * 512;
    }
    return bytes;
  }
};

TEST_F(FaultOutputTest, Fault15AGibibyteOfLines) { Flood("bytes = 1073741824\nlength = 1000", 1024 * kMiB); }
TEST_F(FaultOutputTest, Fault15ALineWithoutEnd) { Flood("bytes = 201326592\nline_ends = false", 192 * kMiB); }
// Slow to be made printable, and in short lines.
TEST_F(FaultOutputTest, Fault15BinaryOutput) { Flood("bytes = 10485760\nbinary = true", 10 * kMiB); }

TEST_F(FaultOutputTest, Fault15OutputWhileBerthdIsAwayHoldsNobodyUp) {
  StartReady("[log]\nkeep = \"1MiB\"\nmax_unread = \"32MiB\"\n");
  const pid_t plugin = Get().pid();
  fault_.Play({"rpc = \"Probe\"\naction = \"output\"\nbackground = true\ncall = 1\nbytes = 134217728"});
  fault_.WaitActed("Probe");
  node_.Kill();
  fault_.WaitHistory("all is written", [](const FaultEvent& e) { return e.event == "written"; });
  node_.Start();
  EXPECT_EQ(node_.WaitReady(fault_.id()).pid(), plugin);
  ExpectWorks("v");
}

}  // namespace
}  // namespace berth
