// F2: a publish with 10,000 mounts present, against the same with 10: two nodes alike, each in a mount
// namespace of its own, in which the mounts were made beneath another path before its berthd began.

#include <fmt/format.h>

#include <array>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/process_usage.h"
#include "bench/volume_calls.h"

namespace berth {
namespace {

constexpr int kMany = 10'000;
constexpr int kFew = 10;

class PublishMounts : public Figure {
 public:
  explicit PublishMounts(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F2",
            .what = fmt::format("publish with {} mounts present", kMany),
            .reference = fmt::format("the same with {}", kFew),
            .unit = Unit::kSeconds,
            .goal = {.p50 = 1.2, .p99 = 1.2},
            .pairs = 400,
            .warmups = 20};
  }

  absl::Status Prepare() override {
    many_.emplace(options_.disk);
    few_.emplace(options_.disk);
    for (auto& [node, mounts] : {std::pair(&*many_, kMany), std::pair(&*few_, kFew)}) {
      node->node().RunThrough(
          {options_.self, "with-mounts", node->node().dir() + "/others", std::to_string(mounts), "--"});
      node->AddBind("bind", options_.self);
      node->Start();
      BERTH_RETURN_IF_ERROR(LetSettle(node->berthd_pid(), std::chrono::seconds(30)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override { return Publish(many_->node()); }
  absl::StatusOr<double> Reference() override { return Publish(few_->node()); }

 private:
  absl::StatusOr<double> Publish(Node& node) {
    const BenchVolume volume{.plugin_id = "bind", .volume_id = fmt::format("v{}", ++count_)};
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(PublishThrough(node, volume));
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    BERTH_RETURN_IF_ERROR(UnpublishThrough(node, volume));
    return took;
  }

  const BenchOptions options_;
  std::optional<BenchNode> many_;
  std::optional<BenchNode> few_;
  int count_ = 0;
};

}  // namespace

std::unique_ptr<Figure> MakeF02PublishMounts(const BenchOptions& options) {
  return std::make_unique<PublishMounts>(options);
}

}  // namespace berth
