#include "base/grpc_call.h"

#include <grpc/support/time.h>

namespace berth {

gpr_timespec GrpcDeadline(TimePoint deadline) {
  if (deadline == TimePoint::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN));
}

}  // namespace berth
