// The options `force` and `lazy` of an unpublish, and what they have done. Kept until the volume is released
// or published again, since the plugin may be restarted in between.
//
// A value of the volume's actor.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "mounter/volume_record.h"

namespace berth {

struct ForcedOptions {
  bool force = false;
  bool lazy = false;
  std::set<PublicationKey> for_keys;
  bool call_hung = false;  // a call of the plugin's, in the volume
  // What was done, and when last.
  std::optional<WallTime> aborted_at = {};
  std::optional<WallTime> detached_at = {};

  // Ends them once no publication is left that they were for, and others use the volume.
  void ForgetOld(const VolumeRecord& record);
  // "its file system was aborted 12 s ago"; empty: nothing.
  [[nodiscard]] std::string WhatWasDone() const;
};

}  // namespace berth
