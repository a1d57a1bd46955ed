// What a user says of a volume: whether it can be, and in what two sayings differ. Pure.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message.h>

#include <string>

#include "berth/v1/cluster.pb.h"

namespace berth::scheduler {

// Of each part of a name in the cluster: namespace, id, consumer, the name of a use.
inline constexpr size_t kNameLimit = 128;

// Why `text` is no such part; empty: it is one.
[[nodiscard]] std::string MistakeInName(const std::string& text);

// OK, or INVALID_ARGUMENT with every mistake, by field.
[[nodiscard]] absl::Status CheckVolumeSpec(const v1::VolumeSpec& spec);
// With the defaults filled in.
[[nodiscard]] v1::VolumeSpec Completed(v1::VolumeSpec spec);

// The fields in which two messages of one type differ, "fs_type, mount_flags", without their values, which
// may hold secrets.
[[nodiscard]] std::string DifferingFields(const google::protobuf::Message& left,
                                          const google::protobuf::Message& right);

}  // namespace berth::scheduler
