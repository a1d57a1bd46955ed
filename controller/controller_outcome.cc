#include "controller/controller_outcome.h"

namespace berth {

v1::Outcome OutcomeOf(CsiRpc rpc, absl::StatusCode code) {
  switch (Classify(rpc, code)) {
    case CallOutcome::kDone:
      return v1::OUTCOME_DONE;
    case CallOutcome::kFinal:
    case CallOutcome::kAbsent:
      return v1::OUTCOME_FAILED;
    case CallOutcome::kRetry:
      return code == absl::StatusCode::kAborted && ChangesSomething(rpc) ? v1::OUTCOME_UNCERTAIN
                                                                         : v1::OUTCOME_RETRY;
    case CallOutcome::kUncertain:
      return v1::OUTCOME_UNCERTAIN;
  }
  return v1::OUTCOME_UNCERTAIN;  // Not reached by a value of the enum.
}

v1::Outcome OutcomeUnsent(absl::StatusCode code) {
  const bool later = code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
  return later ? v1::OUTCOME_RETRY : v1::OUTCOME_REFUSED;
}

}  // namespace berth
