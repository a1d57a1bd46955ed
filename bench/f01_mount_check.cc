// F1: whether a path is a mount, with 10,000 mounts there: what the mounter asks after each step, against a
// parse of the whole table by libmount with a look-up, as most plugins and orchestrators do it.

#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "bench/figures.h"
#include "bench/many_mounts.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

constexpr int kMounts = 10'000;
// Of one measurement of what takes a microsecond.
constexpr int kChecks = 5'000;

class MountCheck : public Figure {
 public:
  explicit MountCheck(const BenchOptions& options) : directory_(options.disk + "/mounts") {}
  ~MountCheck() override { umount2(directory_.c_str(), MNT_DETACH); }
  MountCheck(const MountCheck&) = delete;
  MountCheck& operator=(const MountCheck&) = delete;

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F1",
            .what = fmt::format("mount check with {} mounts", kMounts),
            .reference = "libmount's parse of the table and look-up",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 1e-4},
            .pairs = 20,
            .warmups = 2};
  }

  absl::Status Prepare() override { return MakeMounts(directory_, kMounts); }

  absl::StatusOr<double> Candidate() override {
    const TimePoint start = Clock::now();
    for (int i = 0; i < kChecks; ++i) {
      const int index = static_cast<int>((int64_t{i} * 7919) % kMounts);
      BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(MountPath(directory_, index)));
      if (!facts.mount_root) return absl::InternalError("a mount that was not seen");
    }
    return Seconds(Clock::now() - start) / kChecks;
  }

  absl::StatusOr<double> Reference() override {
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const std::vector<Mount> found,
                           MountsBeneath(MountPath(directory_, kMounts / 2), 1));
    const double took = Seconds(Clock::now() - start);
    if (found.size() != 1) return absl::InternalError("a mount that was not found");
    return took;
  }

 private:
  const std::string directory_;
};

}  // namespace

std::unique_ptr<Figure> MakeF01MountCheck(const BenchOptions& options) {
  return std::make_unique<MountCheck>(options);
}

}  // namespace berth
