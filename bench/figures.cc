#include "bench/figures.h"

namespace berth {

std::vector<std::unique_ptr<Figure>> AllFigures(const BenchOptions& options) {
  std::vector<std::unique_ptr<Figure>> figures;
  figures.push_back(MakeF06Restart(options));
  figures.push_back(MakeF07PluginMemory(options));
  figures.push_back(MakeF08ProbeCpu(options));
  figures.push_back(MakeF10LogOutput(options));
  figures.push_back(MakeF15IdleMemory(options));
  return figures;
}

}  // namespace berth
