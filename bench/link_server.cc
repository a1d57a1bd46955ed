#include "bench/link_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/status.h"
#include "bench/small_scheduler.h"
#include "berth/v1/scheduler.grpc.pb.h"

namespace berth {
namespace {

using berth::v1::NodeMessage;
using berth::v1::SchedulerMessage;

// --- The scheduler -----------------------------------------------------------------------------------------

// One node's stream. A message is answered, where it is to be, before the next one is read.
class LinkReactor final : public grpc::ServerBidiReactor<NodeMessage, SchedulerMessage> {
 public:
  explicit LinkReactor(SmallScheduler& scheduler) : link_(scheduler) { StartRead(&heard_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    said_.Clear();
    const auto answers = link_.Take(heard_, Clock::now(), &said_);
    heard_.Clear();  // what is left of a State is not kept until the next message
    if (!answers.ok()) {
      Finish(ToGrpc(answers.status()));
    } else if (*answers) {
      StartWrite(&said_);
    } else {
      StartRead(&heard_);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&heard_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

  NodeLink link_;
  NodeMessage heard_;
  SchedulerMessage said_;
};

class SchedulerService final : public berth::v1::SchedulerLink::CallbackService {
 public:
  grpc::ServerBidiReactor<NodeMessage, SchedulerMessage>* Connect(
      grpc::CallbackServerContext* /*context*/) override {
    return new LinkReactor(scheduler_);
  }

 private:
  SmallScheduler scheduler_{SchedulerTerms()};
};

// --- The floor ---------------------------------------------------------------------------------------------

class EmptyReactor final : public grpc::ServerGenericBidiReactor {
 public:
  EmptyReactor() { StartRead(&heard_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&nothing_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&heard_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

  const grpc::Slice no_bytes_;
  const grpc::ByteBuffer nothing_{&no_bytes_, 1};
  grpc::ByteBuffer heard_;
};

class EmptyService final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* /*context*/) override {
    return new EmptyReactor();
  }
};

// --- The process -------------------------------------------------------------------------------------------

constexpr Duration kServerIsUpWithin = std::chrono::seconds(30);

void WaitForEndOfInput() {
  char byte = 0;
  while (true) {
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count == 0 || (count < 0 && errno != EINTR)) return;
  }
}

// The first line that comes; UNAVAILABLE where there is none.
absl::StatusOr<std::string> ReadFirstLine(int fd, TimePoint deadline) {
  std::string line;
  while (Clock::now() < deadline) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, 100) <= 0) continue;
    char c = 0;
    if (read(fd, &c, 1) != 1) return absl::UnavailableError("the server of links ended: " + line);
    if (c == '\n') return line;
    line += c;
  }
  return absl::UnavailableError("the server of links does not come up");
}

}  // namespace

LinkServer::LinkServer(Child child, UniqueFd input, UniqueFd output, std::string address)
    : child_(std::move(child)),
      input_(std::move(input)),
      output_(std::move(output)),
      address_(std::move(address)) {}

absl::StatusOr<LinkServer> LinkServer::Start(const std::string& self, LinkService service, int links) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd child_in(in[0]);
  UniqueFd input(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd output(out[0]);
  const UniqueFd child_out(out[1]);
  const std::string what = service == LinkService::kScheduler ? "link-scheduler" : "link-floor";
  BERTH_ASSIGN_OR_RETURN(Child child,
                         Child::Start({self, what, std::to_string(links)}, child_in.get(), child_out.get()));
  BERTH_ASSIGN_OR_RETURN(const std::string line,
                         ReadFirstLine(output.get(), Clock::now() + kServerIsUpWithin));
  constexpr std::string_view kReady = "port ";
  if (!line.starts_with(kReady)) {
    return absl::UnavailableError(fmt::format("the server of links says: {}", line));
  }
  return LinkServer(std::move(child), std::move(input), std::move(output),
                    "127.0.0.1:" + line.substr(kReady.size()));
}

int LinkServerMain(LinkService service, int links) {
  if (const absl::Status status = AllowDescriptors(links); !status.ok()) {
    fmt::print(stderr, "{}\n", MessageOf(status));
    return 1;
  }
  SchedulerService scheduler;
  EmptyService floor;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  if (service == LinkService::kScheduler) {
    builder.RegisterService(&scheduler);
  } else {
    builder.RegisterCallbackGenericService(&floor);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    fmt::print(stderr, "cannot listen on 127.0.0.1\n");
    return 1;
  }
  fmt::print("port {}\n", port);
  std::fflush(stdout);
  WaitForEndOfInput();
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  return 0;
}

absl::Status AllowDescriptors(int links) {
  constexpr rlim_t kOthers = 512;
  const rlim_t wanted = static_cast<rlim_t>(links) + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "getrlimit RLIMIT_NOFILE");
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  limit.rlim_cur = wanted;
  limit.rlim_max = std::max(limit.rlim_max, wanted);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return ErrnoStatus(errno, fmt::format("allow this process {} descriptors", wanted));
  }
  return absl::OkStatus();
}

}  // namespace berth
