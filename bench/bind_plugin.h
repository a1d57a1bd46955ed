// A CSI plugin that does nothing but bind: what is left of a publish when the storage costs nothing.
//
// A hidden command of the bench, run by berthd as a plugin. It serves Identity and Node without staging;
// NodePublishVolume makes the target and binds one directory there, NodeUnpublishVolume takes both away.
#pragma once

#include <string>

namespace berth {

// Serves on `endpoint` until SIGTERM. `backing` is made where it is missing, and mounted on itself: a source
// on the mount that the targets lie on would get slower with each of them. The exit code.
int BindPluginMain(const std::string& endpoint, const std::string& backing);

}  // namespace berth
