#include "scheduler/decide/check_volume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr size_t kDriverLimit = 256;
constexpr size_t kExternalIdLimit = 4096;
constexpr size_t kFsTypeLimit = 128;
constexpr size_t kMountFlagsLimit = 4096;  // all of them
constexpr size_t kMountGroupLimit = 128;
constexpr size_t kContextLimit = size_t{64} << 10;  // keys and values

class Mistakes {
 public:
  void Add(std::string_view field, std::string_view text) {
    texts_.push_back(fmt::format("volume.{}: {}", field, text));
  }
  void AtMost(std::string_view field, size_t bytes, size_t limit) {
    if (bytes > limit) Add(field, fmt::format("has {} bytes, at most {} are taken", bytes, limit));
  }
  [[nodiscard]] absl::Status status() const {
    if (texts_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("{}", fmt::join(texts_, "; ")));
  }

 private:
  std::vector<std::string> texts_;
};

void CheckAccess(const v1::VolumeSpec& spec, Mistakes& mistakes) {
  std::set<int> modes;
  for (const int mode : spec.access_modes()) {
    if (!v1::AccessMode_IsValid(mode) || mode == v1::ACCESS_MODE_UNKNOWN) {
      mistakes.Add("access_modes", fmt::format("{} is not an access mode of CSI", mode));
    } else if (!modes.insert(mode).second) {
      mistakes.Add("access_modes",
                   v1::AccessMode_Name(static_cast<v1::AccessMode>(mode)) + " is there twice");
    }
  }
  if (!v1::AccessType_IsValid(spec.access_type()))
    mistakes.Add("access_type", fmt::format("{} is neither MOUNT nor BLOCK", +spec.access_type()));
  size_t bytes = 0;
  for (const std::string& flag : spec.mount_flags()) {
    if (flag.empty()) mistakes.Add("mount_flags", "one of them is empty");
    bytes += flag.size();
  }
  mistakes.AtMost("fs_type", spec.fs_type().size(), kFsTypeLimit);
  mistakes.AtMost("mount_flags", bytes, kMountFlagsLimit);
  mistakes.AtMost("volume_mount_group", spec.volume_mount_group().size(), kMountGroupLimit);
  if (spec.access_type() != v1::BLOCK) return;
  const auto only_mounted = [&mistakes](std::string_view field, bool is_set) {
    if (is_set) mistakes.Add(field, "only with a file system, not with access_type BLOCK");
  };
  only_mounted("fs_type", !spec.fs_type().empty());
  only_mounted("mount_flags", !spec.mount_flags().empty());
  only_mounted("volume_mount_group", !spec.volume_mount_group().empty());
}

}  // namespace

std::string MistakeInName(const std::string& text) {
  if (text.empty()) return "must not be empty";
  if (text.size() > kNameLimit)
    return fmt::format("has {} bytes, at most {} are taken", text.size(), kNameLimit);
  const bool plain =
      std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c != 0x7F && c != '/'; });
  return plain ? ""
               : fmt::format("{} must have no slash and no control characters", Printable(text, kNameLimit));
}

absl::Status CheckVolumeSpec(const v1::VolumeSpec& spec) {
  Mistakes mistakes;
  if (const std::string mistake = MistakeInName(spec.namespace_()); !mistake.empty())
    mistakes.Add("namespace", mistake);
  if (const std::string mistake = MistakeInName(spec.id()); !mistake.empty()) mistakes.Add("id", mistake);
  if (spec.driver().empty())
    mistakes.Add("driver", "must not be empty: the driver's name, as in its plugin's list");
  mistakes.AtMost("driver", spec.driver().size(), kDriverLimit);
  mistakes.AtMost("external_id", spec.external_id().size(), kExternalIdLimit);
  CheckAccess(spec, mistakes);
  size_t bytes = 0;
  for (const auto& [key, value] : spec.volume_context()) bytes += key.size() + value.size();
  mistakes.AtMost("volume_context", bytes, kContextLimit);
  return mistakes.status();
}

v1::VolumeSpec Completed(v1::VolumeSpec spec) {
  if (spec.external_id().empty()) spec.set_external_id(spec.id());
  if (spec.access_modes().empty()) spec.add_access_modes(v1::SINGLE_NODE_MULTI_WRITER);
  return spec;
}

std::string DifferingFields(const google::protobuf::Message& left, const google::protobuf::Message& right) {
  std::vector<std::string> names;
  const google::protobuf::Descriptor& type = *left.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    google::protobuf::util::MessageDifferencer differencer;
    const std::vector<const google::protobuf::FieldDescriptor*> field{type.field(i)};
    if (!differencer.CompareWithFields(left, right, field, field)) names.push_back(type.field(i)->name());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace berth::scheduler
