// The census as berth-mount-helper takes it: who has each of the objects that are asked for.
//
//   all mounts ──► of the object's file system, and at or beneath its directory?
//                    its own mounts, by id, and copies that go with them ─────────────► no hold
//                    recorded mounts of other volumes, mounts from before, and their copies ──► no hold
//                    anything else ──────────────────────────────────────────────────► a hold
//   users asked for ──► what processes and the kernel have on its own mounts and on holds ──► holds
//
// A descriptor may pass to another process during a pass, and the kernel uses numbers of processes again. So
// "no users" is believed only after a second pass. A hold that was found in either counts.
//
// Runs in berth-mount-helper; CensusOfMounts in any thread. No shared library.
#pragma once

#include <functional>
#include <optional>

#include "mounts/census_question.h"

namespace berth {

// Gives the answer's parts to `write` as they come.
using CensusWriter = std::function<void(const CensusAnswer& part)>;
void TakeCensus(const CensusQuestion& question, const CensusWriter& write);

// The answer to a question that asks for no users, without a process for it. Unset where the kernel does not
// list the mount namespaces: then they have to be entered. Blocks, and asks no file system.
[[nodiscard]] std::optional<CensusAnswer> CensusOfMounts(const CensusQuestion& question);

}  // namespace berth
