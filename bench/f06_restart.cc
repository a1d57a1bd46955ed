// F6: how soon a plugin that was killed is back, seen by a client of the node's API; against the same program
// started by hand, with nothing between it and its first Probe.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/bench_node.h"
#include "bench/csi_probe.h"
#include "bench/figures.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

constexpr Duration kReadyWithin = std::chrono::seconds(20);
// Longer than the plugin must have run for its restart to be immediate (stable_after below).
constexpr Duration kStable = std::chrono::milliseconds(60);

class Restart : public Figure {
 public:
  explicit Restart(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F6",
            .what = "kill -9 of a plugin until a client has its plugin.joined",
            .reference = "bare exec of the same program until its first Probe is OK",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 2},
            .pairs = 40,
            .warmups = 3};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    node_->AddHostpath("hostpath", "[restart]\nstable_after = \"50ms\"\nburst = 1000000\nwindow = \"1s\"");
    node_->Start();
    reference_dir_ = node_->node().dir() + "/reference";
    // On the same file system as the plugin's own.
    reference_state_ = node_->node().state_dir() + "/reference";
    for (const std::string& directory : {reference_dir_, reference_state_}) {
      if (mkdir(directory.c_str(), 0750) != 0) return ErrnoStatus(errno, fmt::format("mkdir {}", directory));
    }
    // Kept for all of the run: closing it takes the kernel some milliseconds, which are no part of a floor.
    socket_changes_ = UniqueFd(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (inotify_add_watch(socket_changes_.get(), reference_dir_.c_str(), IN_CREATE | IN_MOVED_TO) < 0) {
      return ErrnoStatus(errno, fmt::format("watch {}", reference_dir_));
    }
    v1::WatchEventsRequest request;
    request.set_follow(true);
    request.set_plugin_id("hostpath");
    watch_context_ = Node::Context(std::chrono::minutes(3));
    watch_ = node_->node().stub().WatchEvents(watch_context_.get(), request);
    return AwaitJoined();
  }

  absl::StatusOr<double> Candidate() override {
    const pid_t pid = node_->node().Plugin("hostpath").pid();
    BERTH_RETURN_IF_ERROR(LetRun(pid, kStable));
    const TimePoint start = Clock::now();
    if (kill(pid, SIGKILL) != 0) return ErrnoStatus(errno, "kill the plugin");
    BERTH_RETURN_IF_ERROR(AwaitJoined());
    return Seconds(Clock::now() - start);
  }

  absl::StatusOr<double> Reference() override {
    const std::string socket = reference_dir_ + "/csi.sock";
    const UniqueFd log(
        open((reference_dir_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    std::vector<std::string> command = {BERTH_HOSTPATH, "--endpoint",  "unix://" + socket, "--node-id",
                                        "node-1",       "--state-dir", reference_state_};
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(Child plugin, Child::Start(std::move(command), -1, log.get()));
    BERTH_RETURN_IF_ERROR(AwaitSocket(socket, socket_changes_.get(), start + kReadyWithin));
    until_socket_.push_back(Seconds(Clock::now() - start));
    BERTH_RETURN_IF_ERROR(ProbeOnce(socket, start + kReadyWithin));
    const double took = Seconds(Clock::now() - start);
    plugin.Kill();
    if (unlink(socket.c_str()) != 0) return ErrnoStatus(errno, fmt::format("remove {}", socket));
    return took;
  }

  absl::StatusOr<Remarks> Finish() override {
    watch_context_->TryCancel();
    return Remarks{.notes = {fmt::format("of the reference, until its socket accepts: {}",
                                         QuantityText(Median(until_socket_), Unit::kSeconds))}};
  }

 private:
  absl::Status AwaitJoined() {
    for (v1::WatchEventsResponse response; watch_->Read(&response);) {
      const v1::Event& event = response.event();
      if (event.type() == "plugin.joined") return absl::OkStatus();
      if (event.type() == "plugin.backing_off" || event.type() == "plugin.failed") {
        return absl::FailedPreconditionError(fmt::format("{}: {}", event.type(), event.message()));
      }
    }
    return Annotate(FromGrpc(watch_->Finish()), "WatchEvents");
  }

  const BenchOptions options_;
  std::optional<BenchNode> node_;
  std::string reference_dir_;
  std::string reference_state_;
  UniqueFd socket_changes_;
  std::vector<double> until_socket_;
  std::unique_ptr<grpc::ClientContext> watch_context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchEventsResponse>> watch_;
};

}  // namespace

std::unique_ptr<Figure> MakeF06Restart(const BenchOptions& options) {
  return std::make_unique<Restart>(options);
}

}  // namespace berth
