// The link to the central scheduler, and a drain of the node, as tables for people.
//
// Pure; any thread.
#pragma once

#include <chrono>
#include <string>

#include "berth/v1/node.pb.h"
#include "cli/table.h"

namespace berth::cli {

// Name and value a line: where it leads and how it stands, the lease, what is under way, the last error.
void AddLink(Table& table, const v1::LinkStatus& link, std::chrono::system_clock::time_point now);

// "since 3m ago, 2 publications are left: a new disk".
[[nodiscard]] std::string DescribeDrain(const v1::NodeDrain& drain,
                                        std::chrono::system_clock::time_point now);

// "1 publication is left", "3 publications are left".
[[nodiscard]] std::string DescribeLeft(int publications);

}  // namespace berth::cli
