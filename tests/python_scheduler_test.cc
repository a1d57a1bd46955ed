// docs/examples/scheduler.py as it is, with two real nodes: what a scheduler in another language can do with
// nothing but the protos and docs/protocol.md.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rpc/uplink/testing/certificates.h"
#include "tests/harness/node.h"
#include "tests/harness/proxy.h"

namespace berth {
namespace {

using ::testing::IsEmpty;

// Debian's own: its packages are found by it, and by no other one in PATH.
constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kVolume = "vol-1";

// A program that is talked to by its standard input and output.
class Talk {
 public:
  // `error_path`: where its standard error goes.
  Talk(std::vector<std::string> command, const std::string& error_path) {
    int in[2];
    int out[2];
    // A socket, since its writer can do without SIGPIPE.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || pipe2(out, O_CLOEXEC) != 0) {
      throw std::runtime_error("socketpair, pipe2");
    }
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::string modules = "PYTHONPATH=" BERTH_PYTHON_MODULES;
    char* const environment[] = {modules.data(), nullptr};
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(open(error_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
      execve(argv[0], argv.data(), environment);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Talk() {
    Kill();
    close(in_);
    close(out_);
  }
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // What follows `beginning` on the first line from here on that begins so.
  std::string Await(const std::string& beginning) {
    while (true) {
      const std::string line = NextLine(beginning);
      if (line.starts_with(beginning)) return line.substr(beginning.size());
    }
  }
  void PressEnter() const {
    if (send(in_, "\n", 1, MSG_NOSIGNAL) != 1) throw std::runtime_error("the scheduler has ended");
  }
  // Its exit status, once it has ended by itself.
  int Wait() {
    int status = -1;
    WaitFor("the scheduler to end", [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    pid_ = -1;
    return status;
  }

 private:
  std::string NextLine(const std::string& wanted) {
    constexpr int kPatience = 60'000;  // milliseconds
    size_t end = 0;
    while ((end = said_.find('\n')) == std::string::npos) {
      pollfd wait{.fd = out_, .events = POLLIN};
      char buffer[4096];
      const ssize_t size = poll(&wait, 1, kPatience) == 1 ? read(out_, buffer, sizeof buffer) : 0;
      if (size <= 0) throw std::runtime_error("the scheduler never said: " + wanted);
      said_.append(buffer, static_cast<size_t>(size));
    }
    std::string line = said_.substr(0, end);
    said_.erase(0, end + 1);
    return line;
  }

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string said_;
};

class PythonSchedulerTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string look = fmt::format("{} -c 'import grpc, google.protobuf' 2>/dev/null", kPython);
    ASSERT_EQ(system(look.c_str()), 0)
        << "Debian's python3-grpcio and python3-protobuf are needed: ./dev setup installs them";
    for (const char* name : {"", "/volumes", "/volumes/vol-1", "/attached"}) {
      ASSERT_EQ(mkdir((store_ + name).c_str(), 0755), 0);
    }
  }
  void TearDown() override {
    if (HasFailure()) std::cerr << "--- the scheduler's errors ---\n" << ReadText(errors_) << std::endl;
  }

  void StartScheduler(const std::vector<std::string>& options = {}) {
    std::vector<std::string> command = {kPython,    BERTH_SCHEDULER_PY, "--listen", listen_,
                                        "--plugin", "shared",           "--volume", kVolume};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"node-a", "node-b"});
    scheduler_ = std::make_unique<Talk>(std::move(command), errors_);
    port_ = scheduler_->Await("listening at " + listen_ + " port ");
  }
  static void StartNode(Node& node, const std::string& id, const std::string& store,
                        const std::string& settings) {
    node.WritePlugin("shared", fmt::format(R"(id = "shared"
kind = "monolith"
command = "{}"
args = ["{}", "{}"]
)",
                                           SHARED_PLUGIN, store, "storage-" + id));
    node.WriteBerthdToml("[scheduler]\n" + settings);
    node.Start();
  }
  void StartNodes() {
    const std::string settings = fmt::format("addresses = [\"{}\"]\n", listen_);
    StartNode(a_, "a", store_, settings);
    StartNode(b_, "b", store_, settings);
  }

  // Certificates for the scheduler and each node, where `Tls` expects them.
  void WriteCertificates(const TestCa& ca, const std::string& name_of_b = "node-b") {
    Write(a_.dir() + "/ca.pem", ca.pem());
    WriteCertificate(a_.dir() + "/scheduler", ca.Issue({.names = {"DNS:s1.example"}}));
    WriteCertificate(a_.dir() + "/node", ca.Issue({.names = {"DNS:node-a"}}));
    WriteCertificate(b_.dir() + "/node", ca.Issue({.names = {"DNS:" + name_of_b}}));
  }
  static void WriteCertificate(const std::string& stem, const TestCertificate& certificate) {
    Write(stem + ".pem", certificate.pem);
    Write(stem + ".key", certificate.key_pem);
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  }
  void StartTlsScheduler() {
    listen_ = "127.0.0.1:0";
    const std::string stem = a_.dir() + "/scheduler";
    StartScheduler({"--certificate", stem + ".pem", "--key", stem + ".key", "--ca", a_.dir() + "/ca.pem"});
  }
  // `before`: where the first node looks for the scheduler before it dials its own address.
  void StartTlsNodes(const std::string& before = "") {
    const std::string address = fmt::format("\"127.0.0.1:{}\"", port_);
    StartTlsNode(a_, "a", before.empty() ? address : fmt::format("\"{}\", {}", before, address));
    StartTlsNode(b_, "b", address);
  }
  void StartTlsNode(Node& node, const std::string& id, const std::string& addresses) {
    StartNode(node, id, store_,
              fmt::format("addresses = [{0}]\nidentities = [\"s1.example\"]\nca = \"{1}/ca.pem\"\n"
                          "certificate = \"{2}/node.pem\"\nkey = \"{2}/node.key\"\n",
                          addresses, a_.dir(), node.dir()));
  }

  // The scheduler's story, from where the volume is published on the first node.
  void ExpectMoved() {
    const std::string on_a = scheduler_->Await("node-a published at ");
    std::ofstream(on_a + "/letter") << "from a";
    EXPECT_EQ(History(), "attach vol-1 storage-a\npublish vol-1 storage-a\n");
    scheduler_->PressEnter();
    FinishOnSecond(on_a);
  }
  void FinishOnSecond(const std::string& on_a) {
    const std::string on_b = scheduler_->Await("node-b published at ");
    EXPECT_TRUE(on_b.starts_with(b_.dir()));
    EXPECT_EQ(ReadText(on_b + "/letter"), "from a");
    EXPECT_FALSE(std::filesystem::exists(on_a));
    EXPECT_THAT(a_.Volumes().volumes(), IsEmpty());
    scheduler_->PressEnter();
    scheduler_->Await("released");
    EXPECT_EQ(scheduler_->Wait(), 0);
    ExpectNothingHeld();
    EXPECT_THAT(History(), testing::EndsWith("publish vol-1 storage-a\n"
                                             "unpublish vol-1 storage-a\n"
                                             "detach vol-1 storage-a\n"
                                             "attach vol-1 storage-b\n"
                                             "publish vol-1 storage-b\n"
                                             "unpublish vol-1 storage-b\n"
                                             "detach vol-1 storage-b\n"));
  }
  void ExpectNothingHeld() {
    for (Node* node : {&a_, &b_}) EXPECT_THAT(node->Volumes().volumes(), IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(store_ + "/attached"));
    EXPECT_EQ(ReadText(store_ + "/volumes/vol-1/letter"), "from a");
  }
  [[nodiscard]] std::string History() const { return ReadText(store_ + "/history"); }

  Node a_{"node-a"};
  Node b_{"node-b"};
  std::unique_ptr<Node> other_a_;
  std::string store_ = a_.dir() + "/store";
  std::string errors_ = a_.dir() + "/scheduler.err";
  std::string listen_ = "unix:" + a_.dir() + "/scheduler.sock";
  std::string port_;
  std::unique_ptr<Talk> scheduler_;
};

TEST_F(PythonSchedulerTest, MovesAVolumeFromNodeToNodeWithWhatWasWritten) {
  StartScheduler();
  StartNodes();
  ExpectMoved();
}

TEST_F(PythonSchedulerTest, DoesTheSameOverTls) {
  WriteCertificates(TestCa("storage"));
  StartTlsScheduler();
  StartTlsNodes();
  ExpectMoved();
}

TEST_F(PythonSchedulerTest, RefusesANodeWithAnothersCertificate) {
  WriteCertificates(TestCa("storage"), /*name_of_b=*/"node-c");
  StartTlsScheduler();
  StartTlsNodes();
  WaitFor("the second node to say why it is refused", [&] {
    v1::GetStatusResponse status;
    EXPECT_TRUE(b_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status.scheduler().last_error().find("the certificate has not the name node-b") !=
           std::string::npos;
  });
}

TEST_F(PythonSchedulerTest, IsKilledInTheMiddleAndTheNextOneReleasesWhatItLeft) {
  StartScheduler();
  StartNodes();
  std::ofstream(scheduler_->Await("node-a published at ") + "/letter") << "from a";
  scheduler_->Kill();
  StartScheduler();
  const std::string on_a = scheduler_->Await("node-a published at ");
  EXPECT_EQ(ReadText(on_a + "/letter"), "from a");
  EXPECT_THAT(History(), testing::EndsWith("publish vol-1 storage-a\n"
                                           "unpublish vol-1 storage-a\n"
                                           "detach vol-1 storage-a\n"
                                           "attach vol-1 storage-a\n"
                                           "publish vol-1 storage-a\n"));
  scheduler_->PressEnter();
  FinishOnSecond(on_a);
}

// It is asked while no scheduler listens, and does what it was asked once it is back.
TEST_F(PythonSchedulerTest, GoesOnWithANodeWhoseBerthdWasKilled) {
  StartScheduler();
  StartNodes();
  const std::string on_a = scheduler_->Await("node-a published at ");
  std::ofstream(on_a + "/letter") << "from a";
  a_.Kill();
  scheduler_->PressEnter();
  a_.Start();
  FinishOnSecond(on_a);
}

TEST_F(PythonSchedulerTest, LeavesAVolumeAloneThatIsAttachedElsewhereAndSaysWhere) {
  Write(store_ + "/attached/vol-1", "storage-x");
  StartScheduler();
  StartNodes();
  EXPECT_NE(scheduler_->Wait(), 0);
  EXPECT_THAT(ReadText(errors_), testing::HasSubstr("vol-1 is attached to storage-x"));
  EXPECT_EQ(ReadText(store_ + "/attached/vol-1"), "storage-x");
  EXPECT_EQ(History(), "");
  for (Node* node : {&a_, &b_}) EXPECT_THAT(node->Volumes().volumes(), IsEmpty());
}

// The node leaves a stream on which it hears nothing, and comes by another way before the scheduler has
// noticed.
TEST_F(PythonSchedulerTest, GoesOnOverANewStreamWhileTheOldOneHangs) {
  WriteCertificates(TestCa("storage"));
  StartTlsScheduler();
  TcpProxy proxy(static_cast<uint16_t>(std::stoi(port_)));
  StartTlsNodes(proxy.address());
  const std::string on_a = scheduler_->Await("node-a published at ");
  EXPECT_EQ(proxy.connections(), 1U);
  std::ofstream(on_a + "/letter") << "from a";
  proxy.Refuse(true);
  proxy.Stall(TcpProxy::Way::kUp);
  proxy.Stall(TcpProxy::Way::kDown);
  scheduler_->PressEnter();
  FinishOnSecond(on_a);
}

// Its machine may have lost its power: no one ends its stream.
TEST_F(PythonSchedulerTest, GivesTheNameOfANodeThatIsSilentToTheOneThatTakesItsPlace) {
  StartScheduler();
  StartNodes();
  scheduler_->Await("node-a published at ");
  v1::GetStatusResponse silent;
  ASSERT_TRUE(a_.stub().GetStatus(Node::Context().get(), {}, &silent).ok());
  ASSERT_EQ(kill(silent.pid(), SIGSTOP), 0);
  other_a_ = std::make_unique<Node>("node-a");
  StartNode(*other_a_, "a", store_, fmt::format("addresses = [\"{}\"]\n", listen_));
  const auto link = [this] {
    v1::GetStatusResponse status;
    EXPECT_TRUE(other_a_->stub().GetStatus(Node::Context().get(), {}, &status).ok());
    return status.scheduler();
  };
  WaitFor("the other node to be refused at first",
          [&] { return link().last_error().find("another node with this name") != std::string::npos; });
  WaitFor("the other node to be let in", [&] { return link().state() == v1::LinkStatus::SYNCED; });
}

}  // namespace
}  // namespace berth
