// F10: a plugin that writes 100 MB of log lines in one go, under berthd, which follows them; against the same
// program writing to a plain file on the same file system. Its own time counts, from its first line to its
// last: berthd must neither hold it up nor grow.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

constexpr uint64_t kBytes = 100'000'000;
// What berthd's resident memory may grow by meanwhile: far below what was written.
constexpr double kMostGrowth = 16.0 * 1024 * 1024;
constexpr Duration kWrittenWithin = std::chrono::seconds(120);

class LogOutput : public Figure {
 public:
  explicit LogOutput(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F10",
            .what = "a plugin writes 100 MB of log lines under berthd",
            .reference = "the same program writes them to a plain file on the same file system",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 1.1},
            .pairs = 10,
            .warmups = 1};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    result_ = node_->node().dir() + "/result";
    node_->node().WritePlugin("writer", fmt::format(R"(id = "writer"
kind = "node"
command = "{}"
args = ["write-log", "{}", "{}"]
[restart]
policy = "never"
)",
                                                    options_.self, kBytes, result_));
    node_->Start();
    // berthd starts it by itself.
    BERTH_RETURN_IF_ERROR(AwaitResult().status());
    return LetSettle(node_->berthd_pid(), kWrittenWithin);
  }

  absl::StatusOr<double> Candidate() override {
    BERTH_RETURN_IF_ERROR(ResetPeak(node_->berthd_pid()));
    BERTH_ASSIGN_OR_RETURN(const double before, PeakResident(node_->berthd_pid()));
    v1::StartPluginRequest request;
    request.set_id("writer");
    v1::Plugin plugin;
    // It serves no CSI, so nothing good is said of it in the end; what counts is that it wrote.
    (void)node_->node().stub().StartPlugin(Node::Context(std::chrono::seconds(1)).get(), request, &plugin);
    BERTH_ASSIGN_OR_RETURN(const double took, AwaitResult());
    BERTH_RETURN_IF_ERROR(LetSettle(node_->berthd_pid(), kWrittenWithin));
    BERTH_ASSIGN_OR_RETURN(const double after, PeakResident(node_->berthd_pid()));
    most_growth_ = std::max(most_growth_, after - before);
    return took;
  }

  absl::StatusOr<double> Reference() override {
    const std::string path = node_->node().state_dir() + "/reference.log";
    const UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!log.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
    syncfs(log.get());
    BERTH_ASSIGN_OR_RETURN(
        Child writer,
        Child::Start({options_.self, "write-log", fmt::format("{}", kBytes), result_}, -1, log.get()));
    BERTH_ASSIGN_OR_RETURN(const double took, AwaitResult());
    BERTH_RETURN_IF_ERROR(writer.Wait(kWrittenWithin).status());
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, fmt::format("remove {}", path));
    return took;
  }

  absl::StatusOr<Remarks> Finish() override {
    return Remarks{.checks = {{.what = "berthd's resident memory grows by no more than " +
                                       QuantityText(kMostGrowth, Unit::kBytes),
                               .found = QuantityText(most_growth_, Unit::kBytes),
                               .holds = most_growth_ <= kMostGrowth}}};
  }

 private:
  absl::StatusOr<double> AwaitResult() {
    double took = 0;
    WaitFor(
        "the writer to be done", [this] { return access(result_.c_str(), F_OK) == 0; },
        std::chrono::duration_cast<std::chrono::seconds>(kWrittenWithin));
    std::ifstream(result_) >> took;
    if (unlink(result_.c_str()) != 0) return ErrnoStatus(errno, fmt::format("remove {}", result_));
    if (took <= 0) return absl::InternalError("the writer gives no time");
    return took;
  }

  const BenchOptions options_;
  std::optional<BenchNode> node_;
  std::string result_;
  double most_growth_ = 0;
};

}  // namespace

std::unique_ptr<Figure> MakeF10LogOutput(const BenchOptions& options) {
  return std::make_unique<LogOutput>(options);
}

}  // namespace berth
