// Explanations and findings: facts gathered for the doctor (doctor.h), and what it proposes carried out.
// mounter.h has each method's meaning.
//
// Owned by the Mounter; loop thread only. Disk and kernel are read on a helper thread.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mounter/doctor.h"
#include "mounter/volume_table.h"
#include "mounter/volume_types.h"

namespace berth {

class VolumeExaminer {
 public:
  // `problems`: Mounter::Problems.
  VolumeExaminer(MounterContext& context, const VolumeTable& table,
                 std::function<std::vector<std::string>()> problems)
      : context_(context), table_(table), problems_(std::move(problems)) {}

  [[nodiscard]] Awaitable<absl::StatusOr<VolumeExplanation>> Explain(std::string plugin_id,
                                                                     std::string volume_id,
                                                                     TimePoint deadline);
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Finding>>> Examine(bool repair, TimePoint deadline);

 private:
  // Who uses it where it is published; where nothing is left of that, who keeps the staging.
  [[nodiscard]] Awaitable<void> AddHolders(VolumeRecord record, std::vector<std::string> paths,
                                           TimePoint deadline, VolumeExplanation* explanation);
  // What this berthd knows of one volume; what the disk and the kernel say is for others to add.
  [[nodiscard]] VolumeEvidence EvidenceOf(const std::string& key, const VolumeActor& actor) const;
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<Diagnosis>>> DiagnoseAll(TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Perform(Diagnosis diagnosis, TimePoint deadline);

  MounterContext& context_;
  const VolumeTable& table_;
  std::function<std::vector<std::string>()> problems_;
};

}  // namespace berth
