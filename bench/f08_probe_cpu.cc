// F8: berthd's CPU for keeping 50 plugins under watch, each probed once a second; against a minimal client
// that makes as many Probe calls, evenly spread over the second as berthd's are.

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <sstream>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

constexpr int kProbed = 50;
constexpr int kSeconds = 4;  // of each measurement
constexpr Duration kServesWithin = std::chrono::seconds(30);

class ProbeCpu : public Figure {
 public:
  explicit ProbeCpu(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {
        .id = "F8",
        .what = fmt::format("berthd's CPU for {} s of probing {} plugins once a second", kSeconds, kProbed),
        .reference = "as many Probes from a minimal client (a channel a plugin, one thread)",
        .unit = Unit::kSeconds,
        .goal = {.p50 = 1.5},
        .pairs = 10,
        .warmups = 1};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    std::vector<std::string> command = {options_.self, "probe-client"};
    for (int i = 0; i < kProbed; ++i) {
      const std::string id = fmt::format("plugin-{}", i);
      node_->AddHostpath(id, "[health]\ninterval = \"1s\"");
      command.push_back(node_->PluginSocket(id));
    }
    node_->Start();
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
    const UniqueFd child_in(in[0]);
    const UniqueFd child_out(out[1]);
    to_client_ = UniqueFd(in[1]);
    from_client_ = UniqueFd(out[0]);
    BERTH_ASSIGN_OR_RETURN(Child client, Child::Start(std::move(command), child_in.get(), child_out.get()));
    client_.emplace(std::move(client));
    BERTH_ASSIGN_OR_RETURN(const std::string answer, ReadLine());
    if (answer != "ready") return absl::UnavailableError(fmt::format("the minimal client says: {}", answer));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    BERTH_ASSIGN_OR_RETURN(const double before, CpuTime(node_->berthd_pid()));
    BERTH_RETURN_IF_ERROR(LetRun(node_->berthd_pid(), std::chrono::seconds(kSeconds)));
    BERTH_ASSIGN_OR_RETURN(const double after, CpuTime(node_->berthd_pid()));
    return after - before;
  }

  absl::StatusOr<double> Reference() override {
    const std::string request = fmt::format("{} {}\n", kProbed * kSeconds, 1'000'000 / kProbed);
    if (write(to_client_.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
      return ErrnoStatus(errno, "write to the minimal client");
    }
    BERTH_ASSIGN_OR_RETURN(const std::string answer, ReadLine());
    std::istringstream fields(answer);
    double nanoseconds = 0;
    int failed = -1;
    fields >> nanoseconds >> failed;
    if (failed != 0) return absl::UnavailableError(fmt::format("the minimal client says: {}", answer));
    return nanoseconds * 1e-9;
  }

 private:
  absl::StatusOr<std::string> ReadLine() {
    std::string line;
    const TimePoint deadline = Clock::now() + kServesWithin;
    while (Clock::now() < deadline) {
      pollfd wait{.fd = from_client_.get(), .events = POLLIN, .revents = 0};
      if (poll(&wait, 1, 1000) <= 0) continue;
      char c = 0;
      if (read(from_client_.get(), &c, 1) != 1) return absl::UnavailableError("the minimal client has ended");
      if (c == '\n') return line;
      line += c;
    }
    return absl::DeadlineExceededError("the minimal client does not answer");
  }

  const BenchOptions options_;
  std::optional<BenchNode> node_;
  UniqueFd to_client_;
  UniqueFd from_client_;
  std::optional<Child> client_;  // before the node, which ends every child there is
};

}  // namespace

std::unique_ptr<Figure> MakeF08ProbeCpu(const BenchOptions& options) {
  return std::make_unique<ProbeCpu>(options);
}

}  // namespace berth
