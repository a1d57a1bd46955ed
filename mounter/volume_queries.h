// What is asked of the volumes of this node: nothing here changes one. mounter.h has each method's meaning.
//
// Owned by the Mounter; loop thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mounter/volume_table.h"
#include "mounter/volume_types.h"

namespace berth {

class VolumeQueries {
 public:
  VolumeQueries(const MounterContext& context, const VolumeTable& table) : context_(context), table_(table) {}

  [[nodiscard]] std::vector<VolumeView> List(const VolumeFilter& filter) const;
  [[nodiscard]] VolumeCounts Count() const;
  [[nodiscard]] std::optional<VolumeView> Find(const std::string& plugin_id,
                                               const std::string& volume_id) const;
  [[nodiscard]] std::vector<std::string> PluginsOf(const std::string& volume_id,
                                                   const std::string& name) const;
  [[nodiscard]] std::optional<VolumeView> ShownBy(const std::string& volume_id,
                                                  const std::string& name) const;
  [[nodiscard]] std::vector<std::string> HeldThrough(const std::string& plugin_id) const;
  [[nodiscard]] std::optional<ConsumerMount> MountOf(const std::string& plugin_id,
                                                     const std::string& volume_id,
                                                     const std::string& consumer,
                                                     const std::string& name) const;
  [[nodiscard]] std::vector<ConsumerMount> MountsOf(const std::string& consumer) const;

 private:
  // Nothing where it is not there, as the kernel sees it.
  [[nodiscard]] std::optional<ConsumerMount> MountAt(const VolumeRecord& record,
                                                     const PublicationRecord& publication) const;

  const MounterContext& context_;
  const VolumeTable& table_;
};

}  // namespace berth
