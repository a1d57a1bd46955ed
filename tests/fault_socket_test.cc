// FAULTS, rows 35, 36 and 39, on berthd's own sockets. The kernel refuses users without rights, whatever they
// do. Peers that may connect, and send nothing sensible, or nothing, or without end, cost no more than a
// bound; root is served on his socket.
#include <absl/cleanup/cleanup.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
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

constexpr uid_t kNobody = 65534;
constexpr gid_t kReaders = 4242;

// How much more berthd may have had in memory meanwhile: gRPC's buffers for this socket are limited to 64
// MiB, all connections together. AddressSanitizer keeps what was freed for a while.
// Flooders take all processors; the sanitizer makes each round some twenty times as long.
constexpr auto kServedWithin = std::chrono::seconds(kAddressSanitizer ? 60 : 10);
constexpr int kRounds = kAddressSanitizer ? 5 : 20;
constexpr int64_t kMostGrowth = (kAddressSanitizer ? 1024 : 96) * kMiB;

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
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;

class FaultSocketTest : public FaultTest {
 protected:
  void StartWithReaders() {
    node_.WriteBerthdToml(fmt::format("[access]\nread_group = {}\n", kReaders));
    ASSERT_EQ(chmod(node_.dir().c_str(), 0755), 0);
    StartReady();
  }
  [[nodiscard]] std::string ReadSocket() const { return node_.runtime_dir() + "/berthd-ro.sock"; }
  // A user who may read.
  [[nodiscard]] UniqueFd Connect(uid_t uid) const { return ConnectAs(ReadSocket(), uid, kReaders); }
  [[nodiscard]] static std::unique_ptr<v1::Node::Stub> Client(UniqueFd connection) {
    EXPECT_TRUE(connection.valid());
    fcntl(connection.get(), F_SETFL, fcntl(connection.get(), F_GETFL) | O_NONBLOCK);
    return v1::Node::NewStub(grpc::CreateInsecureChannelFromFd("berthd", connection.Release()));
  }

  // Others are served within kServedWithin, on the connection that they have and on a new one.
  void ExpectServed(const std::string& name) {
    const auto began = steady_clock::now();
    v1::GetStatusResponse status;
    const grpc::Status answer =
        Client(ConnectTo(node_.socket()))->GetStatus(Node::Context().get(), {}, &status);
    EXPECT_TRUE(answer.ok()) << answer.error_message();
    ExpectWorks(name);
    EXPECT_LT(steady_clock::now() - began, kServedWithin);
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

TEST_F(FaultSocketTest, Fault35APeerWithoutRightsIsRefusedByTheKernelAndAReaderIsLoggedOnce) {
  StartWithReaders();
  const std::string volume = CreateVolume("payroll");
  for (const std::string& path : {node_.socket(), ReadSocket()}) {
    EXPECT_FALSE(ConnectAs(path, kNobody, kNobody).valid()) << path;
  }
  EXPECT_FALSE(ConnectAs(node_.socket(), kNobody, kReaders).valid());
  const auto reader = Client(Connect(kNobody));
  for (int i = 0; i < 10; ++i) {
    v1::PublishVolumeRequest request;
    request.set_plugin_id(fault_.id());
    request.set_volume_id(volume);
    request.set_consumer("thief");
    (*request.mutable_secrets())["password"] = kSecret;
    v1::PublishVolumeResponse response;
    const grpc::Status refused = reader->PublishVolume(Node::Context().get(), request, &response);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(refused.error_message(), Not(HasSubstr(volume)));
  }
  const std::vector<std::string> logged = LogLines("needs the right to");
  ASSERT_THAT(logged, SizeIs(1));
  EXPECT_THAT(logged[0], AllOf(HasSubstr("PublishVolume needs the right to change"),
                               HasSubstr(fmt::format("uid 65534, pid {}", getpid()))));
  EXPECT_THAT(logged[0], Not(AnyOf(HasSubstr(volume), HasSubstr("thief"))));
  EXPECT_EQ(Calls("NodePublishVolume", volume), 0);
}

// --- Row 39: a local user against everybody ---------------------------------------------------------------

// As `uid` and `gid`, in a process of its own, until it is killed: connects to `path` and closes, in a loop,
// and keeps every hundredth connection that it gets.
class Flooder {
 public:
  Flooder(const std::string& path, uid_t uid, gid_t gid) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (setgroups(0, nullptr) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
      _exit(1);
    for (unsigned i = 0;; ++i) {
      const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const int refused = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
      if (refused != 0 || i % 100 != 0) close(fd);
    }
  }
  ~Flooder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Flooder(const Flooder&) = delete;
  Flooder& operator=(const Flooder&) = delete;

 private:
  pid_t pid_;
};

TEST_F(FaultSocketTest, Fault39AUserWhoLocksAndFloodsKeepsNeitherBerthdNorRootNorReadersOut) {
  // He locks what he can open, before berthd starts.
  ASSERT_TRUE(mkdir(node_.runtime_dir().c_str(), 0755) == 0 || errno == EEXIST);
  const UniqueFd locked(open(node_.runtime_dir().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(locked.get(), LOCK_EX | LOCK_NB), 0);
  StartWithReaders();
  struct stat lock_file{};
  ASSERT_EQ(stat((node_.runtime_dir() + "/berthd.lock").c_str(), &lock_file), 0);
  EXPECT_EQ(lock_file.st_mode & 07777, 0600U);

  std::vector<std::unique_ptr<Flooder>> flooders;
  for (uid_t uid = kNobody; uid > kNobody - 4; --uid) {
    for (const std::string& path : {node_.socket(), ReadSocket()}) {
      flooders.push_back(std::make_unique<Flooder>(path, uid, uid));
    }
  }
  v1::GetStatusResponse status;
  for (int round = 0; round < kRounds; ++round) {
    ExpectServed(fmt::format("root-{}", round));
    EXPECT_TRUE(Client(Connect(kNobody - 9))->GetStatus(Node::Context().get(), {}, &status).ok());
  }
}

TEST_F(FaultSocketTest, Fault39AReaderWhoFloodsHisSocketKeepsRootServedAndTheLogShort) {
  StartWithReaders();
  ExpectServed("before");
  const int64_t before = PeakBytes(BerthdPid());
  {
    const Flooder first(ReadSocket(), kNobody, kReaders);
    const Flooder second(ReadSocket(), kNobody - 1, kReaders);
    for (int round = 0; round < kRounds; ++round) ExpectServed(fmt::format("root-{}", round));
  }
  EXPECT_LT(PeakBytes(BerthdPid()) - before, kMostGrowth);
  EXPECT_THAT(LogLines("connection closed"), SizeIs(Le(2U))) << "a line for each user";
  v1::GetStatusResponse status;
  WaitFor("readers to be served again",
          [&] { return Client(Connect(kNobody - 2))->GetStatus(Node::Context().get(), {}, &status).ok(); });
}

// --- Row 36: slow, silent and loud peers -----------------------------------------------------------------

TEST_F(FaultSocketTest, Fault36PeersThatSpeakByteByByteAndNeverFinishHoldUpNobody) {
  StartWithReaders();
  ExpectServed("before");
  const int64_t before = PeakBytes(BerthdPid());
  // Headers that are begun, and then come byte by byte.
  std::string said = kPreface + Frame(kSettings, 0, 0, "") + FrameHeader(16'000, kHeaders, 0, 1);
  said += std::string(20, '\0');
  std::array<UniqueFd, 32> slow;
  for (UniqueFd& peer : slow) peer = Connect(kNobody);
  for (size_t i = 0; i < said.size(); ++i) {
    for (const UniqueFd& peer : slow) {
      ASSERT_EQ(send(peer.get(), &said[i], 1, MSG_NOSIGNAL), 1) << "byte " << i;
    }
    if (i % 16 == 0) ExpectServed(fmt::format("others-{}", i));
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
  // gRPC 1.51 takes memory and time without a limit for a block of headers that never ends. A user who may
  // connect can do this; root is answered meanwhile, and everything goes on afterwards.
  bool bounded = true;
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
       Frame(kContinuation, 0, 1, std::string(16'384, '\0')), false},
  };
}

class FaultSocketFloodTest : public FaultSocketTest, public testing::WithParamInterface<Garbage> {};

TEST_P(FaultSocketFloodTest, Fault36HoldsUpNobodyAndGrowsNoMemory) {
  // Where gRPC takes all the time there is, the sanitizer leaves none for an answer within a minute.
  const size_t count = kAddressSanitizer && !GetParam().bounded ? 1 : 4;
  StartWithReaders();
  ExpectServed("before");
  const int64_t before = PeakBytes(BerthdPid());
  std::vector<UniqueFd> peers(count);
  for (UniqueFd& peer : peers) {
    peer = Connect(kNobody);
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
    for (int round = 0; GetParam().bounded && round < kRounds; ++round) {
      ExpectServed(fmt::format("meanwhile-{}", round));
    }
    for (int round = 0; !GetParam().bounded && round < 5; ++round) {
      v1::GetStatusResponse status;
      const grpc::Status answer =
          Client(ConnectTo(node_.socket()))->GetStatus(Node::Context().get(), {}, &status);
      EXPECT_TRUE(answer.ok()) << answer.error_message();
    }
  }
  threads.clear();  // joined
  if (GetParam().bounded) EXPECT_LT(PeakBytes(BerthdPid()) - before, kMostGrowth);
  node_.WaitReady(fault_.id());
  ExpectServed("afterwards");
}

// grpc-go measures its bandwidth so: a ping after each answer, hundreds of them on one connection.
TEST_F(FaultSocketTest, AClientThatPingsAfterEachAnswerIsNotCut) {
  constexpr int kCalls = 500;
  StartWithReaders();
  const UniqueFd peer = Connect(kNobody);
  timeval bound{.tv_sec = 20, .tv_usec = 0};
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  const auto say = [&](const std::string& bytes) {
    return send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  };
  // HPACK, literals that are not indexed (RFC 7541, section 6.2.2).
  const auto field = [](const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) +
           value;
  };
  const std::string headers = field(":method", "POST") + field(":scheme", "http") + field(":authority", "x") +
                              field(":path", "/berth.v1.Node/GetStatus") + field("te", "trailers") +
                              field("content-type", "application/grpc");
  ASSERT_TRUE(say(kPreface + Frame(kSettings, 0, 0, "")));
  std::string heard;
  // The type of the next frame, and its flags.
  const auto next = [&]() -> std::pair<int, int> {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(heard[i])); };
    while (true) {
      if (heard.size() >= 9) {
        const size_t whole = 9 + (byte(0) << 16 | byte(1) << 8 | byte(2));
        if (heard.size() >= whole) {
          const std::pair<int, int> frame(heard[3], heard[4]);
          heard.erase(0, whole);
          return frame;
        }
      }
      std::array<char, 16'384> piece{};
      const ssize_t count = recv(peer.get(), piece.data(), piece.size(), 0);
      if (count <= 0) return {-1, 0};
      heard.append(piece.data(), static_cast<size_t>(count));
    }
  };
  for (int call = 0; call < kCalls; ++call) {
    // Stream numbers are odd; FrameHeader has one byte for them.
    const uint32_t stream = 1 + 2 * static_cast<uint32_t>(call);
    const auto on_stream = [&](std::string frame) {
      frame[7] = static_cast<char>(stream >> 8);
      frame[8] = static_cast<char>(stream);
      return frame;
    };
    ASSERT_TRUE(
        say(on_stream(Frame(kHeaders, 0x4, 0, headers)) + on_stream(Frame(0, 0x1, 0, std::string(5, '\0')))));
    std::pair<int, int> frame;
    do {
      frame = next();
      ASSERT_NE(frame.first, -1) << "cut at call " << call;
      ASSERT_NE(frame.first, 7) << "GOAWAY at call " << call;
      // The answer's windows are given back at once, so that many answers fit.
    } while (frame.first != kHeaders || (frame.second & 0x1) == 0);
    // Twice, the second one without an answer in between.
    ASSERT_TRUE(say(Frame(kPing, 0, 0, "12345678") + Frame(kPing, 0, 0, "12345678") +
                    Frame(kWindowUpdate, 0, 0, std::string("\0\1\0\0", 4))));
  }
}

INSTANTIATE_TEST_SUITE_P(Garbage, FaultSocketFloodTest, testing::ValuesIn(EveryGarbage()),
                         [](const auto& garbage) { return std::string(garbage.param.name); });

TEST_F(FaultSocketTest, Fault36AsManySilentPeersAsThereMayBeLeaveRoomForOthersAndAFewLines) {
  constexpr size_t kOfOne = 64;
  constexpr size_t kOfAll = 256;
  StartWithReaders();
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
  EXPECT_EQ(crowd(kNobody, 100), kOfOne);
  ExpectServed("others-one");
  for (uid_t uid = kNobody - 1; uid > kNobody - 5; --uid) crowd(uid, 100);
  EXPECT_THAT(silent.size(), AllOf(Ge(kOfAll - 8), Le(kOfAll)));
  ExpectServed("others-all");
  EXPECT_LT(PeakBytes(berthd) - before, kMostGrowth);
  EXPECT_THAT(LogLines("connection closed"), SizeIs(AllOf(Ge(1U), Le(5U))));
  silent.clear();
  WaitFor("their descriptors to be closed", [&] { return Descriptors(berthd) <= descriptors; });
  const UniqueFd again = Connect(kNobody);
  EXPECT_TRUE(taken(again));
}

}  // namespace
}  // namespace berth
