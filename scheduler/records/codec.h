// Records as the values of a store, each with the version of the one who wrote it.
//
// A record of a newer program is refused: fields that we do not know must not be lost when we write it back.
// Version 1 is the first, so no older record exists yet. Decode is where later versions repair older ones.
// Pure.
#pragma once

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "scheduler/records/records.pb.h"

namespace berth::scheduler {

inline constexpr uint32_t kRecordVersion = 1;

template <class Record>
[[nodiscard]] std::string Encode(Record record) {
  record.set_version(kRecordVersion);
  return record.SerializeAsString();
}

// DATA_LOSS: it is no such record. FAILED_PRECONDITION: a newer program wrote it. The message names `key`.
template <class Record>
[[nodiscard]] absl::StatusOr<Record> Decode(std::string_view key, std::string_view value) {
  Record record;
  if (!record.ParseFromArray(value.data(), static_cast<int>(value.size())) || record.version() == 0) {
    return absl::DataLossError(
        fmt::format("the record {} is no {}", Printable(key, 256), Record::descriptor()->name()));
  }
  if (record.version() > kRecordVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "the record {} was written by a newer berth-scheduler (version {} of records; this one knows {})",
        Printable(key, 256), record.version(), kRecordVersion));
  }
  return record;
}

}  // namespace berth::scheduler
