#include "declared/declared_records.h"

#include <dirent.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kFileLimit = size_t{1} << 20;
constexpr size_t kFilesLimit = 10'000;

absl::StatusOr<DeclaredRecord> Read(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileLimit));
  DeclaredRecord record;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(text, &record, options).ok() || record.version() == 0 ||
      record.plugin_id().empty() || record.volume_id().empty() || record.consumer().empty()) {
    return absl::DataLossError(fmt::format("{} is not the record of a declared volume", path));
  }
  if (record.version() > kVersion) {
    return absl::FailedPreconditionError(fmt::format("{} was written by a newer berthd", path));
  }
  return record;
}

}  // namespace

std::string DeclaredRecords::PathOf(const DeclaredKey& key) const {
  return fmt::format("{}/{}.json", directory_,
                     HashComponent({key.plugin, key.volume_id, key.consumer, key.name}));
}

absl::StatusOr<std::vector<DeclaredRecord>> DeclaredRecords::Load(
    std::vector<std::string>* unreadable) const {
  std::vector<DeclaredRecord> all;
  const DirectoryStream directory(opendir(directory_.c_str()));
  if (directory == nullptr) {
    if (errno == ENOENT) return all;
    return ErrnoStatus(errno, fmt::format("read {}", directory_));
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory.get())) {
    // What a write that was cut short left behind has another ending.
    const std::string_view name = entry->d_name;
    if (name.ends_with(".json") && names.size() < kFilesLimit) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    absl::StatusOr<DeclaredRecord> read = Read(directory_ + "/" + name);
    if (read.ok()) {
      all.push_back(*std::move(read));
    } else {
      unreadable->emplace_back(MessageOf(read.status()));
    }
  }
  return all;
}

absl::Status DeclaredRecords::Write(DeclaredRecord record) const {
  record.set_version(kVersion);
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory_, 0700));
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(record, &text, options);
  // Text that is no UTF-8 cannot be written so; it cannot come from a TOML file either.
  if (!printed.ok()) return absl::InvalidArgumentError("the record of a declared volume cannot be written");
  return WriteFileAtomic(PathOf(KeyOf(record)), text, 0600);
}

absl::Status DeclaredRecords::Remove(const DeclaredKey& key) const { return RemoveFile(PathOf(key)); }

}  // namespace berth
