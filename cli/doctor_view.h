// The findings of Examine as text, with the plan of the repairs.
//
// Pure; any thread.
#pragma once

#include <string>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// Each finding, the worst first, then what `--repair` would do, or has done. Printable text.
[[nodiscard]] std::string DoctorText(const v1::ExamineResponse& answer, bool repaired, bool colour);

struct FindingCount {
  int found = 0;       // warnings and errors; INFO does not count
  int open = 0;        // warnings and errors that are not repaired
  int repairable = 0;  // open ones that a repair can fix
};
[[nodiscard]] FindingCount CountFindings(const v1::ExamineResponse& answer);

}  // namespace berth::cli
