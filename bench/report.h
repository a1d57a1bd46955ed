// What a run of figures found: a table for people, JSON for programs. Pure.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace berth {

// One row a figure; below, what there is to say about some of them.
[[nodiscard]] std::string RenderTable(const std::vector<FigureResult>& results, bool colour);

// {"figures": [{"id": "F6", …, "ratio_p50": 1.3, "met": true, "candidate": [0.021, …], …}]}. Values are in
// seconds or bytes; every measurement is there. A figure without numbers has an "error".
[[nodiscard]] std::string RenderJson(const std::vector<FigureResult>& results);

}  // namespace berth
