// F7: what each plugin adds to berthd's private memory; against the pair of sidecars that each plugin has
// elsewhere.

#include <fmt/format.h>

#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

constexpr int kPlugins = 50;
// A few rounds of probes, so that whatever is made on first use has been made.
constexpr Duration kSettlePlugins = std::chrono::seconds(3);

absl::StatusOr<PrivateMemory> MeasureNode(const std::string& disk, int plugins) {
  BenchNode node(disk);
  for (int i = 0; i < plugins; ++i) {
    node.AddHostpath(fmt::format("plugin-{}", i), "[health]\ninterval = \"1s\"");
  }
  node.Start();
  BERTH_RETURN_IF_ERROR(LetRun(node.berthd_pid(), kSettlePlugins));
  return ReadPrivateMemory(node.berthd_pid());
}

class PluginMemory : public Figure {
 public:
  explicit PluginMemory(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F7",
            .what = fmt::format("private memory added to berthd per plugin, {} plugins", kPlugins),
            .reference = "a pair of Go sidecars per plugin, private dirty (not installable here)",
            .unit = Unit::kBytes,
            .goal = {.p50 = 1.0 / 20},
            .reference_is_constant = true,
            .pairs = 10,
            .warmups = 0};
  }

  absl::StatusOr<double> Candidate() override {
    BERTH_ASSIGN_OR_RETURN(const PrivateMemory without, MeasureNode(options_.disk, 0));
    BERTH_ASSIGN_OR_RETURN(const PrivateMemory with, MeasureNode(options_.disk, kPlugins));
    without_.push_back(without.dirty);
    with_.push_back(with.dirty);
    return (with.dirty + with.clean - without.dirty - without.clean) / kPlugins;
  }

  absl::StatusOr<double> Reference() override { return kSidecarPairBytes; }

  absl::StatusOr<Remarks> Finish() override {
    return Remarks{.notes = {fmt::format("berthd's private dirty memory is {} with no plugin, {} with {}",
                                         QuantityText(Median(without_), Unit::kBytes),
                                         QuantityText(Median(with_), Unit::kBytes), kPlugins)}};
  }

 private:
  const BenchOptions options_;
  std::vector<double> without_;
  std::vector<double> with_;
};

}  // namespace

std::unique_ptr<Figure> MakeF07PluginMemory(const BenchOptions& options) {
  return std::make_unique<PluginMemory>(options);
}

}  // namespace berth
