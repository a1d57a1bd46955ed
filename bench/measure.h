// Runs a figure: its pairs interleaved, after warm-ups, in alternating order.
#pragma once

#include <functional>
#include <string>

#include "bench/figure.h"

namespace berth {

struct FigureResult {
  FigureInfo info;
  absl::Status status;  // not OK: why there are no numbers
  Series series;
  Summary summary;
  Remarks remarks;
  bool met = false;  // the goal, and every check
};

// Called before each pair, warm-ups first: (1, 11), (2, 11), …
using OnPair = std::function<void(int number, int of)>;

// Every second pair begins with the reference, so that neither has the other's leavings each time.
[[nodiscard]] FigureResult Measure(Figure& figure, const OnPair& on_pair);

}  // namespace berth
