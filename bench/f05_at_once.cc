// F5: how many publishes a second with 64 volumes at once, against one at a time: what the journal's sharing
// of commits, and working on many volumes side by side, are worth.

#include <fmt/format.h>

#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/volume_calls.h"

namespace berth {
namespace {

constexpr size_t kAtOnce = 64;
constexpr size_t kOfMany = 512;
constexpr size_t kOfOne = 64;

class AtOnce : public Figure {
 public:
  explicit AtOnce(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F5",
            .what = fmt::format("publishes a second, {} at once", kAtOnce),
            .reference = "one at a time",
            .unit = Unit::kPerSecond,
            .goal = {.p50 = 10, .at_least = true},
            .pairs = 12,
            .warmups = 2};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    node_->AddBind("bind", options_.self);
    node_->Start();
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override { return Rate(kOfMany, kAtOnce); }
  absl::StatusOr<double> Reference() override { return Rate(kOfOne, 1); }

 private:
  absl::StatusOr<double> Rate(size_t count, size_t at_once) {
    std::vector<BenchVolume> volumes;
    for (size_t i = 0; i < count; ++i) {
      volumes.push_back({.plugin_id = "bind", .volume_id = fmt::format("v{}", i)});
    }
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(PublishMany(node_->node(), volumes, at_once));
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    BERTH_RETURN_IF_ERROR(UnpublishMany(node_->node(), volumes, kAtOnce));
    return static_cast<double>(count) / took;
  }

  const BenchOptions options_;
  std::optional<BenchNode> node_;
};

}  // namespace

std::unique_ptr<Figure> MakeF05AtOnce(const BenchOptions& options) {
  return std::make_unique<AtOnce>(options);
}

}  // namespace berth
