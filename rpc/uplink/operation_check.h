// An operation of the scheduler's, checked whole before anything is done about it, and made ready to be run.
//
// Every mistake is named at once, by its field within the operation: "publish.namespace: must not be empty;
// publish.request.volume_id: must not be empty". No message repeats a value that may be secret.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "berth/v1/scheduler.pb.h"
#include "mounter/volume_types.h"

namespace berth {

struct OperationFacts {
  // What it is about, for people, the same for equal operations: "publish disk/vol-1 for jobs/web". No secret
  // in it.
  std::string subject;
  // It begins or enlarges a use of a volume here: that takes a valid lease.
  bool forward = false;
  // It ends uses of volumes here: it is taken also when many operations are open.
  bool reverse = false;
  // What the node's operator has to allow.
  v1::NodeState::Right right = v1::NodeState::VOLUMES;
  // It changes something: its result is written down before it is sent.
  bool changes = false;
  Duration timeout{};
};

// A consumer as this node knows it: NAMESPACE/CONSUMER.
[[nodiscard]] std::string QualifiedConsumer(const std::string& name_space, const std::string& consumer);
// Its two halves; the first is empty where it has no slash.
struct ConsumerName {
  std::string name_space;
  std::string consumer;
};
[[nodiscard]] ConsumerName SplitConsumer(const std::string& qualified);

// What there is to know of it, good or bad: an unknown kind has an empty subject.
[[nodiscard]] OperationFacts FactsOf(const v1::Operation& operation);

// Checks `operation` and makes its requests the node's own: consumers are qualified, a runtime that is named
// is looked up in `runtimes`. INVALID_ARGUMENT with all mistakes; UNIMPLEMENTED: a kind that this node does
// not know. What a controller's request must hold is controller_check.h's to say.
[[nodiscard]] absl::Status PrepareOperation(const std::vector<RuntimeAbility>& runtimes,
                                            v1::Operation* operation);

}  // namespace berth
