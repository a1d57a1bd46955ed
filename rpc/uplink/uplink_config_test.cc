#include "rpc/uplink/uplink_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using testing::HasSubstr;

TEST(UplinkAddressTest, ReadsHostsAddressesAndUnixSockets) {
  EXPECT_EQ(*ParseUplinkAddress("scheduler-1.example:7443"),
            (UplinkAddress{"scheduler-1.example:7443", "scheduler-1.example", "7443", ""}));
  EXPECT_EQ(*ParseUplinkAddress("192.0.2.1:1"), (UplinkAddress{"192.0.2.1:1", "192.0.2.1", "1", ""}));
  EXPECT_EQ(*ParseUplinkAddress("[2001:db8::1]:65535"),
            (UplinkAddress{"[2001:db8::1]:65535", "2001:db8::1", "65535", ""}));
  EXPECT_EQ(*ParseUplinkAddress("[fe80::1%eth0]:7443"),
            (UplinkAddress{"[fe80::1%eth0]:7443", "fe80::1%eth0", "7443", ""}));
  EXPECT_EQ(*ParseUplinkAddress("unix:/run/s.sock"),
            (UplinkAddress{"unix:/run/s.sock", "", "", "/run/s.sock"}));
  EXPECT_TRUE(ParseUplinkAddress("unix:/run/s.sock")->is_unix());
  EXPECT_FALSE(ParseUplinkAddress("h:1")->is_unix());
}

TEST(UplinkAddressTest, SaysWhatIsWrong) {
  const auto why = [](std::string_view text) {
    return std::string(ParseUplinkAddress(text).status().message());
  };
  EXPECT_THAT(why("scheduler"), HasSubstr("\"scheduler\" has no port"));
  EXPECT_THAT(why(""), HasSubstr("has no port"));
  EXPECT_THAT(why("2001:db8::1:7443"), HasSubstr("in brackets"));
  EXPECT_THAT(why(":7443"), HasSubstr("no valid host"));
  EXPECT_THAT(why("https://h:7443"), HasSubstr("in brackets"));
  EXPECT_THAT(why("a b:7443"), HasSubstr("no valid host"));
  EXPECT_THAT(why(std::string(254, 'h') + ":1"), HasSubstr("no valid host"));
  for (const char* port : {"h:", "h:0", "h:65536", "h:-1", "h:7443x", "h:+1"}) {
    EXPECT_THAT(why(port), HasSubstr("no valid port")) << port;
  }
  EXPECT_THAT(why("unix:run/s.sock"), HasSubstr("absolute path"));
  EXPECT_THAT(why("unix:/" + std::string(107, 'x')), HasSubstr("108 bytes"));
  EXPECT_TRUE(ParseUplinkAddress("unix:/" + std::string(106, 'x')).ok());
}

}  // namespace
}  // namespace berth
