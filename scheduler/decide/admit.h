// May one more claim be taken? By the claims that there are, and by the access mode alone: no node is asked.
//
//   mode                        nodes  writing claims  claims
//   SINGLE_NODE_WRITER          1      1               any
//   SINGLE_NODE_READER_ONLY     1      0               any
//   MULTI_NODE_READER_ONLY      any    0               any
//   MULTI_NODE_SINGLE_WRITER    any    1               any
//   MULTI_NODE_MULTI_WRITER     any    any             any
//   SINGLE_NODE_SINGLE_WRITER   1      1               1
//   SINGLE_NODE_MULTI_WRITER    1      any             any      (also if none is set)
//
// A claim counts from when it is held until its node has confirmed that nothing is left of it there. All
// claims of a volume have one capability. Two names of one consumer are two claims. Pure.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "berth/v1/node.pb.h"

namespace berth::scheduler {

// A claim, as far as it matters here.
struct ClaimFacts {
  enum class Phase {
    kHeld,
    kLeaving,  // its node has not confirmed yet
    kLeft,     // it has: the volume may still be attached there
  };
  std::string consumer;
  std::string name;  // of the use, where the consumer has several
  std::string node;
  bool writes = false;
  Phase phase = Phase::kHeld;
  std::string error;  // why it has not left yet, for people; may be empty
};

struct AdmitRequest {
  std::string volume;  // NAMESPACE/ID, for messages
  std::string node;
  v1::Capability capability;
  bool readonly = false;
};

// `fixed`: the capability of the volume's claims; null: it has none, also no attachment that is being ended.
// OK, or: INVALID_ARGUMENT    no claim could ever be taken so FAILED_PRECONDITION others have the volume: the
// message names each of them, its node, and what it waits for ABORTED             only what is being ended
// stands in the way: try again
[[nodiscard]] absl::Status Admit(const AdmitRequest& request, const v1::Capability* fixed,
                                 const std::vector<ClaimFacts>& claims);

}  // namespace berth::scheduler
