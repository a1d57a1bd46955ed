#include "base/grpc_polling.h"

#include <dlfcn.h>
#include <grpc/support/time.h>
#include <pthread.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace berth {
namespace {

// What gRPC (1.51: src/cpp/common/completion_queue_cc.cc) names them.
constexpr std::string_view kCallbackThread = "nexting_thread";

bool OnCallbackThread() {
  std::array<char, 16> name{};
  return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 && kCallbackThread == name.data();
}

}  // namespace

bool GrpcPollsWithoutPause() {
  return dlsym(RTLD_DEFAULT, "gpr_sleep_until") == reinterpret_cast<void*>(&gpr_sleep_until);
}

}  // namespace berth

extern "C" void gpr_sleep_until(gpr_timespec until) {
  if (berth::OnCallbackThread()) return;
  const gpr_timespec monotonic = gpr_convert_clock_type(until, GPR_CLOCK_MONOTONIC);
  const timespec at{.tv_sec = monotonic.tv_sec, .tv_nsec = monotonic.tv_nsec};
  pthread_cond_t never = PTHREAD_COND_INITIALIZER;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  while (pthread_cond_clockwait(&never, &mutex, CLOCK_MONOTONIC, &at) != ETIMEDOUT) {
  }
  pthread_mutex_unlock(&mutex);
}
