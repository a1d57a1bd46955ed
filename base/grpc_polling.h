// Keeps gRPC's callback threads at their sockets.
//
// gRPC serves its callback API with a few threads, two on fewer than six cores, and each of them sleeps for
// 100 ms whenever it has waited for a second without an event. While all of them sleep no thread looks at any
// socket: on a quiet node one call in twenty, berthd's or a client's, waits for up to 100 ms, and the first
// Probe of a restarted plugin mostly does. There is no option. So a program that links this has a
// gpr_sleep_until of its own, which the dynamic linker gives to gRPC's libraries instead of theirs: on those
// threads it returns at once, and they wait for the next event; elsewhere it sleeps as it should.
#pragma once

namespace berth {

// Whether gRPC's libraries here call ours. Called at start, it also makes a program link it.
[[nodiscard]] bool GrpcPollsWithoutPause();

}  // namespace berth
