// FAULTS, rows 35 and 36, on berthd's own socket, to which everybody may connect: a peer without rights, and
// peers that say nothing sensible, or nothing, or without end. They get nothing, cost no more than a bound,
// and others are served.
#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <thread>
#include <vector>

#include "base/sanitizer.h"
#include "rpc/testing/unix_client.h"
#include "tests/harness/fault_test.h"

namespace berth {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::AnyOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::Not;
using testing::SizeIs;

constexpr uid_t kStranger = 65534;

// How much more berthd may have had in memory meanwhile: gRPC's buffers for this socket are limited to 64
// MiB, all connections together.
constexpr int64_t kMostGrowth = (kAddressSanitizer ? 512 : 96) * kMiB;

// HTTP/2: how a client begins, and a frame's header.
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
std::string FrameHeader(uint32_t length, uint8_t type, uint8_t flags, uint8_t stream) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value & 0xff); };
  return {byte(length >> 16), byte(length >> 8), byte(length), byte(type), byte(flags), 0, 0, 0,
          byte(stream)};
}
std::string Frame(uint8_t type, uint8_t flags, uint8_t stream, const std::string& payload) {
  return FrameHeader(static_cast<uint32_t>(payload.size()), type, flags, stream) + payload;
}
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kContinuation = 9;

class FaultSocketTest : public FaultTest {
 protected:
  [[nodiscard]] UniqueFd Connect(uid_t uid) const { return ConnectAs(node_.socket(), uid, uid); }
  [[nodiscard]] std::unique_ptr<v1::Node::Stub> Client(uid_t uid) const {
    UniqueFd connection = Connect(uid);
    EXPECT_TRUE(connection.valid());
    fcntl(connection.get(), F_SETFL, fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
    return v1::Node::NewStub(grpc::CreateInsecureChannelFromFd("berthd", connection.Release()));
  }

  // Others are served within 10 s, on the connection that they have and on a new one.
  void ExpectServed(const std::string& name) {
    const auto began = steady_clock::now();
    v1::GetStatusResponse status;
    const grpc::Status answer = Client(0)->GetStatus(Node::Context().get(), {}, &status);
    EXPECT_TRUE(answer.ok()) << answer.error_message();
    ExpectWorks(name);
    EXPECT_LT(steady_clock::now() - began, seconds(10));
  }

  // The lines of berthd's log with `part` in them.
  [[nodiscard]] std::vector<std::string> LogLines(const std::string& part) const {
    std::istringstream lines(node_.log());
    std::vector<std::string> found;
    for (std::string line; std::getline(lines, line);) {
      if (line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }
};

// --- Row 35: a peer without rights -----------------------------------------------------------------------

TEST_F(FaultSocketTest, Fault35APeerWithoutRightsIsRefusedAndLoggedOnceAndLearnsNothing) {
  StartReady();
  const std::string volume = CreateVolume("payroll");
  const auto stranger = Client(kStranger);
  const auto publish = [&] {
    v1::PublishVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    request.set_consumer("thief");
    (*request.mutable_secrets())["password"] = kSecret;
    v1::PublishVolumeResponse response;
    return stranger->PublishVolume(Node::Context().get(), request, &response);
  };
  for (int i = 0; i < 10; ++i) {
    const grpc::Status refused = publish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("uid 65534"), Not(HasSubstr(volume))));
  }
  const std::vector<std::string> logged = LogLines("needs the right to");
  ASSERT_THAT(logged, SizeIs(1));
  EXPECT_THAT(logged[0], AllOf(HasSubstr("PublishVolume needs the right to change"),
                               HasSubstr(fmt::format("uid 65534, pid {}", getpid()))));
  EXPECT_THAT(logged[0], Not(AnyOf(HasSubstr(volume), HasSubstr("thief"))));
  EXPECT_EQ(Calls("NodePublishVolume", volume), 0);

  // What is there and what is not sound the same.
  const auto look = [&](const std::string& id) {
    v1::GetVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(id);
    v1::Volume shown;
    return stranger->GetVolume(Node::Context().get(), request, &shown);
  };
  const std::string target = Publish(volume, "web");
  EXPECT_EQ(look(volume).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(look(volume).error_message(), look("nothing").error_message());
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_THAT(LogLines("needs the right to"), SizeIs(1));
  Unpublish(volume, "web");
}

// --- Row 36: slow, silent and loud peers -----------------------------------------------------------------

TEST_F(FaultSocketTest, Fault36PeersThatSpeakByteByByteAndNeverFinishHoldUpNobody) {
  StartReady();
  ExpectServed("before");
  const int64_t before = PeakBytes(BerthdPid());
  // Headers that are begun, and of which a byte comes now and then.
  std::string said = kPreface + Frame(kSettings, 0, 0, "") + FrameHeader(16'000, kHeaders, 0, 1);
  said += std::string(20, '\0');
  std::array<UniqueFd, 32> slow;
  for (UniqueFd& peer : slow) peer = Connect(kStranger);
  for (size_t i = 0; i < said.size(); ++i) {
    for (const UniqueFd& peer : slow) {
      ASSERT_EQ(send(peer.get(), &said[i], 1, MSG_NOSIGNAL), 1) << "byte " << i;
    }
    if (i % 16 == 0) ExpectServed(fmt::format("beside-{}", i));
  }
  ExpectServed("afterwards");
  EXPECT_LT(PeakBytes(BerthdPid()) - before, kMostGrowth);
}

// Says `first` and then `again` as fast as it is taken, and reads nothing, until the connection has ended.
void Flood(const UniqueFd& peer, const std::string& first, const std::string& again) {
  std::string piece = first;
  while (true) {
    while (piece.size() < 64U << 10) piece += again;
    const ssize_t taken = send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (taken <= 0) return;
    piece.erase(0, static_cast<size_t>(taken));
  }
}

struct Garbage {
  const char* name;
  std::string first;
  std::string again;
};
void PrintTo(const Garbage& garbage, std::ostream* out) { *out << garbage.name; }

std::vector<Garbage> EveryGarbage() {
  const std::string hello = kPreface + Frame(kSettings, 0, 0, "");
  return {
      {"NoHttp", "", std::string(4096, '\xff')},
      {"BytesAfterTheGreeting", hello, std::string(4096, '\xff')},
      {"FramesThatThereAreNoneOf", hello, Frame(0x77, 0, 0, std::string(16'384, 'x'))},
      {"PingsWhoseAnswersAreNotRead", hello, Frame(kPing, 0, 0, "12345678")},
      {"SettingsWhoseAnswersAreNotRead", hello, Frame(kSettings, 0, 0, std::string("\0\4\0\0\0\1", 6))},
      {"HeadersWithoutEnd", hello + Frame(kHeaders, 0, 1, std::string(100, '\0')),
       Frame(kContinuation, 0, 1, std::string(16'384, '\0'))},
  };
}

class FaultSocketFloodTest : public FaultSocketTest, public testing::WithParamInterface<Garbage> {};

TEST_P(FaultSocketFloodTest, Fault36HoldsUpNobodyAndGrowsNoMemory) {
  constexpr size_t kPeers = 4;
  StartReady();
  ExpectServed("before");
  const int64_t before = PeakBytes(BerthdPid());
  std::array<UniqueFd, kPeers> peers;
  for (UniqueFd& peer : peers) {
    peer = Connect(kStranger);
    ASSERT_TRUE(peer.valid());
  }
  std::vector<std::jthread> threads;
  for (const UniqueFd& peer : peers) {
    threads.emplace_back([&] { Flood(peer, GetParam().first, GetParam().again); });
  }
  {
    // Also when a call throws: with their connections the threads end.
    const absl::Cleanup end = [&peers] {
      for (const UniqueFd& peer : peers) shutdown(peer.get(), SHUT_RDWR);
    };
    for (int round = 0; round < 20; ++round) ExpectServed(fmt::format("meanwhile-{}", round));
  }
  threads.clear();  // joined
  EXPECT_LT(PeakBytes(BerthdPid()) - before, kMostGrowth);
  ExpectServed("afterwards");
}

INSTANTIATE_TEST_SUITE_P(Garbage, FaultSocketFloodTest, testing::ValuesIn(EveryGarbage()),
                         [](const auto& garbage) { return std::string(garbage.param.name); });

TEST_F(FaultSocketTest, Fault36AsManySilentPeersAsThereMayBeLeaveRoomForOthersAndAFewLines) {
  constexpr size_t kOfOne = 64;
  constexpr size_t kOfAll = 256 - 32;
  StartReady();
  ExpectServed("before");
  const pid_t berthd = BerthdPid();
  const int64_t before = PeakBytes(berthd);
  const size_t descriptors = Descriptors(berthd);
  // One that is taken is greeted at once; one that is not, closed.
  const auto taken = [](const UniqueFd& peer) {
    char byte = 0;
    timeval bound{.tv_sec = 20, .tv_usec = 0};
    setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    return recv(peer.get(), &byte, 1, 0) == 1;
  };
  std::vector<UniqueFd> silent;
  const auto crowd = [&](uid_t uid, size_t tries) {
    size_t count = 0;
    for (size_t i = 0; i < tries; ++i) {
      UniqueFd peer = Connect(uid);
      if (!taken(peer)) continue;
      ++count;
      silent.push_back(std::move(peer));
    }
    return count;
  };
  EXPECT_EQ(crowd(kStranger, 100), kOfOne);
  ExpectServed("beside-one");
  for (uid_t uid = kStranger - 1; uid > kStranger - 5; --uid) crowd(uid, 100);
  // Those of this test and of root count, too, and what has ended may be counted a little longer.
  EXPECT_THAT(silent.size(), AllOf(Ge(kOfAll - 8), Le(kOfAll)));
  ExpectServed("beside-all");
  EXPECT_LT(PeakBytes(berthd) - before, kMostGrowth);
  EXPECT_THAT(LogLines("connection of uid"), SizeIs(AllOf(Ge(10U), Le(120U))));
  silent.clear();
  WaitFor("their descriptors to be closed", [&] { return Descriptors(berthd) <= descriptors; });
  const UniqueFd again = Connect(kStranger);
  EXPECT_TRUE(taken(again));
}

}  // namespace
}  // namespace berth
