// The figures there are. A new one is a file of its own, a line here, and a line in figures.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/figure.h"

namespace berth {

struct BenchOptions {
  std::string disk;  // where nodes keep their state and logs: a directory on a real file system
  std::string self;  // this program: some figures run its hidden commands as processes
};

[[nodiscard]] std::unique_ptr<Figure> MakeF01MountCheck(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF02PublishMounts(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF03PublishFloor(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF04ImageCycle(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF04Holders(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF05AtOnce(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF06Restart(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF07PluginMemory(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF08ProbeCpu(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF09FullRestart(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF10LogOutput(const BenchOptions& options);
[[nodiscard]] std::unique_ptr<Figure> MakeF15IdleMemory(const BenchOptions& options);

// All of them, in the order of their numbers.
[[nodiscard]] std::vector<std::unique_ptr<Figure>> AllFigures(const BenchOptions& options);

[[nodiscard]] inline double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// A pair of the Go sidecars (node-driver-registrar and livenessprobe) that other systems run for each plugin:
// private dirty memory of both, idle. They are not in Debian, so this number was measured elsewhere: 23 + 19
// MiB resident, of this so much was private and dirty.
inline constexpr double kSidecarPairBytes = 9.3 * 1024 * 1024;

}  // namespace berth
