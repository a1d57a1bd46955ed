#include "bench/figures.h"

namespace berth {

std::vector<std::unique_ptr<Figure>> AllFigures(const BenchOptions& options) {
  std::vector<std::unique_ptr<Figure>> figures;
  figures.push_back(MakeF01MountCheck(options));
  figures.push_back(MakeF02PublishMounts(options));
  figures.push_back(MakeF03PublishFloor(options));
  figures.push_back(MakeF04ImageCycle(options));
  figures.push_back(MakeF04Holders(options));
  figures.push_back(MakeF05AtOnce(options));
  figures.push_back(MakeF06Restart(options));
  figures.push_back(MakeF07PluginMemory(options));
  figures.push_back(MakeF08ProbeCpu(options));
  figures.push_back(MakeF09FullRestart(options));
  figures.push_back(MakeF10LogOutput(options));
  figures.push_back(MakeF15IdleMemory(options));
  return figures;
}

}  // namespace berth
