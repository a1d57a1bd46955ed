// The berthd that dies, of the crash tests: see mounter_crash_test.cc.
#pragma once

namespace berth {

// crash-child STATE_DIR SOCKET SCENARIO BOUNDARY: opens a Mounter on STATE_DIR, does SCENARIO with the plugin
// behind SOCKET, and kills itself with SIGKILL at the BOUNDARY-th boundary. Ends with 0 if it got through.
int RunCrashChild(int argc, char** argv);

}  // namespace berth
