// What a node of ordinary size says to its scheduler, without being one: two plugins and ten volumes, of
// which eight are published, with ids, paths and facts as long as real ones are.
//
// Pure; any thread.
#pragma once

#include <string>

#include "berth/v1/scheduler.pb.h"

namespace berth {

inline constexpr int kSimulatedPlugins = 2;
inline constexpr int kSimulatedVolumes = 10;

// "node-00042".
[[nodiscard]] std::string SimulatedName(int number);

[[nodiscard]] berth::v1::NodeMessage SimulatedHello(int number);

// All there is to tell of the node, in one message, synced.
[[nodiscard]] berth::v1::NodeMessage SimulatedState(int number);

[[nodiscard]] berth::v1::NodeMessage SimulatedHeartbeat(uint64_t heartbeat);

}  // namespace berth
