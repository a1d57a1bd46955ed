// The commands about volumes. Each adds itself to the group `volume`, or to berthctl itself.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/session.h"

namespace berth::cli {

void AddControllerCommands(CLI::App& volume, Command& chosen);  // create, delete, expand
void AddVolumeStats(CLI::App& volume, Command& chosen);         // stats
void AddPublish(CLI::App& volume, Command& chosen);             // publish
void AddUnpublish(CLI::App& volume, Command& chosen);           // unpublish
void AddClaim(CLI::App& volume, Command& chosen);               // claim
void AddClusterVolumes(CLI::App& volume, Command& chosen);      // register, deregister
void AddMounts(CLI::App& volume, Command& chosen);              // mounts
void AddWait(CLI::App& volume, Command& chosen);                // wait
void AddExplain(CLI::App& parent, Command& chosen);             // explain

}  // namespace berth::cli
