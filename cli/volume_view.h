// Volumes as tables for people.
//
// Pure; any thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "berth/v1/node.pb.h"
#include "cli/table.h"

namespace berth::cli {

// A name from outside in a sentence: printable, and '' where it is empty.
[[nodiscard]] std::string PrintableName(std::string_view text);
// The consumer, and its name for this use where it has one: "job/data".
[[nodiscard]] std::string Use(const std::string& consumer, const std::string& name);

[[nodiscard]] Cell StateCell(v1::VolumeState state, bool uncertain);

// One line for each volume. CONDITION says in short what is wrong, NOW in a sentence.
[[nodiscard]] Table VolumeTable(const v1::ListVolumesResponse& volumes,
                                std::chrono::system_clock::time_point now);

// One volume: name and value a line.
[[nodiscard]] Table VolumeDetails(const v1::Volume& volume, std::chrono::system_clock::time_point now);
// Its uses, one a line.
[[nodiscard]] Table UseTable(const v1::Volume& volume, std::chrono::system_clock::time_point now);

// What the plugin says of a volume: "normal", "abnormal, disk failing".
[[nodiscard]] Cell DescribeCondition(const v1::VolumeCondition& condition);

// Of each thing that is measured a line; `subject` leads each where it is not empty.
void AddUsage(Table& table, const google::protobuf::RepeatedPtrField<v1::VolumeUsage>& usage,
              const std::vector<Cell>& subject);

}  // namespace berth::cli
