// F15: an idle berthd with one plugin; against the one pair of sidecars that it stands in for.

#include <fmt/format.h>
#include <unistd.h>

#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

constexpr Duration kSettle = std::chrono::seconds(3);

class IdleMemory : public Figure {
 public:
  explicit IdleMemory(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F15",
            .what = "idle berthd with one plugin, private dirty memory",
            .reference = "one pair of Go sidecars, private dirty (not installable here)",
            .unit = Unit::kBytes,
            .goal = {.p50 = 0.5},
            .reference_is_constant = true,
            .pairs = 10,
            .warmups = 0};
  }

  absl::Status Prepare() override {
    // Of a program that was just built, its pages would count as dirty.
    sync();
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    BenchNode node(options_.disk);
    node.AddHostpath("hostpath", "[health]\ninterval = \"1s\"");
    node.Start();
    BERTH_RETURN_IF_ERROR(LetRun(node.berthd_pid(), kSettle));
    BERTH_ASSIGN_OR_RETURN(const PrivateMemory memory, ReadPrivateMemory(node.berthd_pid()));
    clean_.push_back(memory.clean);
    return memory.dirty;
  }

  absl::StatusOr<double> Reference() override { return kSidecarPairBytes; }

  absl::StatusOr<Remarks> Finish() override {
    return Remarks{.notes = {fmt::format(
                       "private and clean (program text that no other process runs) in addition: {}; of "
                       "the sidecars' 42 MiB resident, most is such text",
                       QuantityText(Median(clean_), Unit::kBytes))}};
  }

 private:
  const BenchOptions options_;
  std::vector<double> clean_;
};

}  // namespace

std::unique_ptr<Figure> MakeF15IdleMemory(const BenchOptions& options) {
  return std::make_unique<IdleMemory>(options);
}

}  // namespace berth
