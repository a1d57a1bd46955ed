// What berthd found when it compared everything, explained, with the plan of what would mend it.
//
// Pure; any thread.
#pragma once

#include <string>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// Each finding with what it means, the worst first, and then the plan: what `--repair` would do, or has done.
// Printable text.
[[nodiscard]] std::string DoctorText(const v1::ExamineResponse& answer, bool repaired, bool colour);

struct FindingCount {
  int found = 0;     // warnings and errors: what is merely told does not count
  int open = 0;      // of them, those that are not mended
  int mendable = 0;  // of the open ones, those that a repair can mend
};
[[nodiscard]] FindingCount CountFindings(const v1::ExamineResponse& answer);

}  // namespace berth::cli
