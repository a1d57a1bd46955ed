// All that is known of one volume, so that a person sees in ten seconds what is wrong: first the verdict and
// what to do, then who, then the evidence.
//
// Pure; any thread.
#pragma once

#include <chrono>
#include <string>

#include "berth/v1/node.pb.h"

namespace berth::cli {

// Printable text; `colour` as in Table.
[[nodiscard]] std::string ExplainText(const v1::ExplainVolumeResponse& answer,
                                      std::chrono::system_clock::time_point now, bool colour);

}  // namespace berth::cli
