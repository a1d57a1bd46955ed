#include "bench/csi_probe.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>

#include "base/grpc_call.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "csi/csi.grpc.pb.h"

namespace berth {
namespace {

using csi::v1::Identity;

int MillisecondsUntil(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

bool Accepts(const std::string& path) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::unique_ptr<Identity::Stub> MakeStub(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Identity::NewStub(
      grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments));
}

absl::Status Probe(Identity::Stub& stub, TimePoint deadline) {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline));
  csi::v1::ProbeResponse response;
  const grpc::Status status = stub.Probe(&context, {}, &response);
  if (!status.ok()) return FromGrpc(status);
  if (response.has_ready() && !response.ready().value()) return absl::UnavailableError("not ready");
  return absl::OkStatus();
}

int64_t CpuNanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

absl::Status AwaitSocket(const std::string& path, int changes, TimePoint deadline) {
  while (!Accepts(path)) {
    if (Clock::now() >= deadline)
      return absl::DeadlineExceededError(fmt::format("no process listens on {}", path));
    pollfd wait{.fd = changes, .events = POLLIN, .revents = 0};
    // Between bind and listen nothing changes in the directory.
    poll(&wait, 1, std::min(1, MillisecondsUntil(deadline)));
    std::array<char, 4096> events{};
    while (read(changes, events.data(), events.size()) > 0) {
    }
  }
  return absl::OkStatus();
}

absl::Status ProbeOnce(const std::string& path, TimePoint deadline) {
  const std::unique_ptr<Identity::Stub> stub = MakeStub(path);
  return Probe(*stub, deadline);
}

int ProbeClientMain(const std::vector<std::string>& socket_paths) {
  constexpr Duration kPatience = std::chrono::seconds(10);
  std::vector<std::unique_ptr<Identity::Stub>> stubs;
  for (const std::string& path : socket_paths) {
    stubs.push_back(MakeStub(path));
    if (const absl::Status status = Probe(*stubs.back(), Clock::now() + kPatience); !status.ok()) {
      fmt::print(stderr, "Probe on {}: {}\n", path, MessageOf(status));
      return 1;
    }
  }
  fmt::print("ready\n");
  std::fflush(stdout);
  for (int64_t count = 0, gap = 0; std::cin >> count >> gap;) {
    const int64_t before = CpuNanoseconds();
    const TimePoint start = Clock::now();
    int64_t failed = 0;
    for (int64_t i = 0; i < count; ++i) {
      const TimePoint due = start + std::chrono::microseconds(gap) * i;
      if (due > Clock::now()) poll(nullptr, 0, MillisecondsUntil(due));
      if (!Probe(*stubs[static_cast<size_t>(i) % stubs.size()], Clock::now() + kPatience).ok()) ++failed;
    }
    fmt::print("{} {}\n", CpuNanoseconds() - before, failed);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace berth
