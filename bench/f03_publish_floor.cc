// F3: a publish through berthd of a plugin that does nothing but bind, against what cannot be left out: the
// caller's round trip, the plugin's with its bind, and two durable commits of a row, one before and one
// after.

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/durable_rows.h"
#include "bench/figures.h"
#include "bench/volume_calls.h"

namespace berth {
namespace {

class PublishFloor : public Figure {
 public:
  explicit PublishFloor(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F3",
            .what = "publish of a plugin that does nothing but bind",
            .reference = "its round trips, the bind, two durable commits",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 1.5},
            .pairs = 400,
            .warmups = 20};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    node_->AddBind("bind", options_.self);
    node_->Start();
    plugin_.emplace(node_->PluginSocket("bind"));
    const std::string state = node_->node().state_dir() + "/reference";
    if (mkdir(state.c_str(), 0750) != 0) return ErrnoStatus(errno, fmt::format("mkdir {}", state));
    target_ = state + "/target";
    BERTH_ASSIGN_OR_RETURN(DurableRows rows, DurableRows::Open(state + "/rows.db"));
    rows_.emplace(std::move(rows));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    const BenchVolume volume{.plugin_id = "bind", .volume_id = fmt::format("v{}", ++count_)};
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(PublishThrough(node_->node(), volume));
    const double took = Seconds(Clock::now() - start);
    BERTH_RETURN_IF_ERROR(UnpublishThrough(node_->node(), volume));
    return took;
  }

  absl::StatusOr<double> Reference() override {
    const std::string volume = fmt::format("r{}", ++count_);
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(plugin_->Probe());  // the caller's round trip
    BERTH_RETURN_IF_ERROR(rows_->Put(volume));
    const TimePoint middle = Clock::now();
    BERTH_RETURN_IF_ERROR(plugin_->Publish(volume, "", target_));
    const TimePoint published = Clock::now();
    BERTH_RETURN_IF_ERROR(rows_->Put(volume));
    const TimePoint end = Clock::now();
    calls_.push_back(Seconds(published - middle));
    commits_.push_back(Seconds(end - published));
    BERTH_RETURN_IF_ERROR(plugin_->Unpublish(volume, target_));
    return Seconds(end - start);
  }

  absl::StatusOr<Remarks> Finish() override {
    return Remarks{.notes = {fmt::format("of the reference: {} the plugin's call, {} each commit",
                                         QuantityText(Median(calls_), Unit::kSeconds),
                                         QuantityText(Median(commits_), Unit::kSeconds))}};
  }

 private:
  const BenchOptions options_;
  std::optional<BenchNode> node_;
  std::optional<PluginCalls> plugin_;
  std::optional<DurableRows> rows_;
  std::string target_;
  std::vector<double> calls_;
  std::vector<double> commits_;
  int count_ = 0;
};

}  // namespace

std::unique_ptr<Figure> MakeF03PublishFloor(const BenchOptions& options) {
  return std::make_unique<PublishFloor>(options);
}

}  // namespace berth
