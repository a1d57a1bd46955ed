// Records as the values of a store, each with the version of the one who wrote it.
//
// A newer program repairs older records as it reads them (Repair), so that the rest of it knows one form. A
// record of a newer program is refused: what it says beyond our knowledge must not be lost by writing it
// back. Pure.
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

// Brings a record of an older version to the present one. Version 1 is the first.
template <class Record>
void Repair(Record* record) {
  record->set_version(kRecordVersion);
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
  if (record.version() < kRecordVersion) Repair(&record);
  return record;
}

}  // namespace berth::scheduler
