// What a record that the journal kept still says once berthd, or the machine, was started again.
//
// Pure; any thread.
#pragma once

#include "mounter/volume_record.h"

namespace berth {

// What was under way is uncertain; what needs secrets awaits them; whatever is a scheduler's is blocked until
// its lease is known. What the row does not say is assumed the worse way. `rebooted`: the record is of
// another boot, so none of its mounts is there. What then becomes of what is wanted is for recovery.h to say,
// before anything moves.
[[nodiscard]] VolumeRecord RecoveredRecord(VolumeRecord record, bool rebooted);

}  // namespace berth
