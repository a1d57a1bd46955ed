#include "plugins/hostpath/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace berth::hostpath {
namespace {

CommandLine ParseArguments(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "berth-hostpath");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(SocketPathTest, TakesTheSpellingsOfAUnixSocket) {
  for (const char* endpoint : {"unix:///run/x/csi.sock", "unix:/run/x/csi.sock", "/run/x/csi.sock"}) {
    const auto path = SocketPath(endpoint);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*path, "/run/x/csi.sock");
  }
}

TEST(SocketPathTest, RefusesWhatIsNoAbsoluteUnixSocket) {
  const std::string longest = "/" + std::string(106, 'x');
  EXPECT_TRUE(SocketPath("unix://" + longest).ok());
  for (const std::string& endpoint :
       std::vector<std::string>{"", "csi.sock", "unix://csi.sock", "tcp://127.0.0.1:10000", "unix:///run/",
                                "unix://" + longest + "x"}) {
    EXPECT_FALSE(SocketPath(endpoint).ok()) << endpoint;
  }
}

TEST(DriverNameTest, IsADomainName) {
  for (const char* name : {"a", "hostpath.berth.dev", "A-1.b"})
    EXPECT_TRUE(CheckDriverName(name).ok()) << name;
  for (const std::string& name :
       std::vector<std::string>{"", "-a", "a.", "a_b", "a/b", std::string(64, 'a')}) {
    EXPECT_FALSE(CheckDriverName(name).ok()) << name;
  }
}

TEST(TopologyTest, SegmentsFollowCsi) {
  EXPECT_TRUE(CheckTopologySegment("zone", "Z_1").ok());
  EXPECT_TRUE(CheckTopologySegment("topology.example.com/zone", "z1").ok());
  EXPECT_FALSE(CheckTopologySegment("Example.com/zone", "z1").ok());
  EXPECT_FALSE(CheckTopologySegment("a/b/c", "z1").ok());
  EXPECT_FALSE(CheckTopologySegment("", "z1").ok());
  EXPECT_FALSE(CheckTopologySegment("zone", "").ok());
  EXPECT_FALSE(CheckTopologySegment("zone", "-z").ok());
}

TEST(TopologyTest, TheDefaultIsValidWhateverTheNodeIsCalled) {
  for (const std::string& node : std::vector<std::string>{"node-1", "a/b c", std::string(200, 'n'), "ünï"}) {
    for (const std::string& driver : std::vector<std::string>{"hostpath.berth.dev", std::string(63, 'D')}) {
      for (const auto& [key, value] : DefaultTopology(driver, node)) {
        EXPECT_TRUE(CheckTopologySegment(key, value).ok()) << key << "=" << value;
      }
    }
  }
}

TEST(CommandLineTest, ReadsEveryOption) {
  const auto line = ParseArguments({"--endpoint",    "unix:///run/csi.sock",
                                    "--node-id",     "n1",
                                    "--state-dir",   "/var/lib//x/",
                                    "--driver-name", "d.example.com",
                                    "--max-volumes", "3",
                                    "--topology",    "zone=z1",
                                    "--topology",    "rack=r1",
                                    "--attach",      "--health",
                                    "--capacity",    "10GiB",
                                    "--kind",        "directory"});
  ASSERT_FALSE(line.exit_code.has_value());
  EXPECT_EQ(line.options.socket_path, "/run/csi.sock");
  EXPECT_EQ(line.options.state_dir, "/var/lib/x");
  EXPECT_EQ(line.options.max_volumes, 3);
  EXPECT_EQ(line.options.topology.at("rack"), "r1");
  EXPECT_TRUE(line.options.attach);
  EXPECT_TRUE(line.options.health);
  EXPECT_EQ(line.options.capacity, 10 * kGiB);
  EXPECT_EQ(line.options.default_kind, Kind::kDirectory);
}

TEST(CommandLineTest, TakesTheEndpointFromTheEnvironmentIfNoneIsGiven) {
  setenv("CSI_ENDPOINT", "unix:///run/from-environment.sock", 1);
  const auto from_environment = ParseArguments({"--node-id", "n1", "--state-dir", "/x"});
  const auto given =
      ParseArguments({"--endpoint", "/run/given.sock", "--node-id", "n1", "--state-dir", "/x"});
  unsetenv("CSI_ENDPOINT");
  EXPECT_EQ(from_environment.options.socket_path, "/run/from-environment.sock");
  EXPECT_EQ(given.options.socket_path, "/run/given.sock");
  EXPECT_EQ(ParseArguments({"--node-id", "n1", "--state-dir", "/x"}).exit_code, 2);
}

TEST(CommandLineTest, RefusesWhatMakesNoSense) {
  const std::vector<std::vector<const char*>> wrong = {{"--node-id", ""},
                                                       {"--state-dir", "relative"},
                                                       {"--driver-name", "-"},
                                                       {"--max-volumes", "-1"},
                                                       {"--topology", "zone"},
                                                       {"--topology", "zone=-"},
                                                       {"--kind", "tape"},
                                                       {"--capacity", "much"},
                                                       {"--topology", "a.com/x=1", "--topology", "b.com/y=2"},
                                                       {"--topology", "x=1", "--topology", "X=2"}};
  for (const auto& extra : wrong) {
    std::vector<const char*> arguments = {"--endpoint", "/run/csi.sock"};
    const std::string first = extra.front();
    if (first != "--node-id") arguments.insert(arguments.end(), {"--node-id", "n"});
    if (first != "--state-dir") arguments.insert(arguments.end(), {"--state-dir", "/x"});
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    EXPECT_EQ(ParseArguments(arguments).exit_code, 2) << first << " " << extra[1];
  }
}

}  // namespace
}  // namespace berth::hostpath
