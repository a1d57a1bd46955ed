#include "bench/log_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/clock.h"

namespace berth {

int LogWriterMain(uint64_t bytes, const std::string& result_path) {
  constexpr size_t kLine = 100;
  const TimePoint start = Clock::now();
  for (uint64_t i = 0; i < bytes / kLine; ++i) {
    std::string line =
        fmt::format("I1121 16:00:00.000000 nodeserver.go:134] line {:010} GRPC call: /csi.v1.Node/", i);
    line.resize(kLine - 1, '.');
    line += '\n';
    if (write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return 1;
  }
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string unfinished = result_path + ".new";
  std::ofstream(unfinished) << took << std::endl;
  return rename(unfinished.c_str(), result_path.c_str()) == 0 ? 0 : 1;
}

}  // namespace berth
