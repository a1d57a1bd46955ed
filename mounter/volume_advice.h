// What a person does about a volume: one instruction, however much is wrong with it. Everything that shows a
// volume (berthctl, doctor, explain, the API) takes it from here, so that no two of them disagree.
//
// What has to end before anything else can be done comes first:
//
//   1  the plugin itself hangs in a call         restart it
//   2  a file system, or a step in it, hangs     wait, or bring its server back; then abort, detach
//   3  a mount is dead                           restart the consumer, or unpublish and publish again
//   4  a mount refuses writes                    unpublish, check it, publish again
//   5  secrets are missing                       publish again with them, or unpublish
//   6  a publication is blocked                  its scheduler confirms it, or its caller repeats it
//   7  it is in use                              end its users, who are named
//   8  a mount is lost, or a step has failed     repeat the publish, or unpublish
//
// Pure; any thread.
#pragma once

#include <string>

#include "mounter/volume_types.h"

namespace berth {

// Empty: there is nothing to do, or it is done by itself. Ids in its commands are quoted for a shell.
[[nodiscard]] std::string AdviceFor(const VolumeView& volume);

}  // namespace berth
