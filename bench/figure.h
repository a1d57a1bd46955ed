// One figure: Berth measured against a reference in the same run.
//
// A figure is a file of its own, fNN_name.cc, and a line in figures.cc. Measure (measure.h) owns the order of
// things: Prepare once, then pairs of Candidate and Reference, then Finish; the first pairs are thrown away.
// One thread. Errors, and exceptions of the tests' harness, end the figure, not the run.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "bench/stats.h"

namespace berth {

struct FigureInfo {
  std::string id;         // "F6"
  std::string what;       // what is measured
  std::string reference;  // what it is measured against
  Unit unit = Unit::kSeconds;
  Goal goal;
  // Measured elsewhere, once, because it cannot be had here: Reference() only repeats it.
  bool reference_is_constant = false;
  int pairs = 10;
  int warmups = 1;
};

// A condition in addition to the ratio: "berthd's memory stays bounded".
struct Check {
  std::string what;
  std::string found;
  bool holds = false;
};

// Remarks in addition to the ratio.
struct Remarks {
  std::vector<Check> checks;
  std::vector<std::string> notes;
};

class Figure {
 public:
  virtual ~Figure() = default;

  [[nodiscard]] virtual FigureInfo Info() const = 0;
  [[nodiscard]] virtual absl::Status Prepare() { return absl::OkStatus(); }
  // One measurement each, in Info().unit.
  [[nodiscard]] virtual absl::StatusOr<double> Candidate() = 0;
  [[nodiscard]] virtual absl::StatusOr<double> Reference() = 0;
  [[nodiscard]] virtual absl::StatusOr<Remarks> Finish() { return Remarks(); }
};

}  // namespace berth
