#include "rpc/uplink/link_operations.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/process.h"
#include "base/status.h"
#include "rpc/uplink/link.pb.h"
#include "rpc/uplink/link_rows.h"

namespace berth {
namespace {

// What one result has at most: a message has up to 4 MiB, and holds more than this.
constexpr size_t kResultBytes = (size_t{3} << 20) + (size_t{1} << 19);

// An answer that would not fit into any message, alone or with another result, is left out of its result.
void TakeAnswerAway(v1::OperationResult* result, v1::Outcome outcome, const std::string& why) {
  if (result->outcome() != v1::OUTCOME_DONE) return;
  result->clear_answer();
  result->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  result->set_message(why);
  result->set_outcome(outcome);
}

v1::OperationResult Refused(uint64_t id, v1::Refusal refusal, absl::StatusCode code, std::string_view why) {
  v1::OperationResult result;
  result.set_id(id);
  result.set_code(static_cast<int>(code));
  result.set_message(Printable(why));
  result.set_outcome(v1::OUTCOME_REFUSED);
  result.set_refusal(refusal);
  result.set_boot_id(BootId());
  return result;
}

absl::StatusCode CodeOf(v1::Refusal refusal) {
  return refusal == v1::TOO_MANY ? absl::StatusCode::kResourceExhausted
                                 : absl::StatusCode::kFailedPrecondition;
}

std::string WordsFor(v1::Refusal refusal, uint64_t asked, const LinkLease& lease) {
  if (refusal == v1::LEASE_EPOCH) {
    return fmt::format("it was asked for under lease epoch {}, and the node's is {}", asked, lease.epoch());
  }
  return lease.why_not_valid();
}

absl::Status NotAllowed(v1::NodeState::Right right) {
  return absl::PermissionDeniedError(
      fmt::format("this node does not let its scheduler do that: its operator allows it with \"{}\" in "
                  "[scheduler] may of berthd.toml",
                  absl::AsciiStrToLower(v1::NodeState::Right_Name(right))));
}

}  // namespace

// An operation that runs, and whether it is to be waited for any more.
struct LinkOperations::Running {
  explicit Running(asio::any_io_executor executor) : bell(std::move(executor)) {}

  bool cancelled = false;
  Condition bell;
};

LinkOperations::LinkOperations(UplinkContext& link)
    : link_(link),
      runner_(link.parts.api, link.parts.controller),
      tasks_(link.executor, "operations of the scheduler") {}

LinkOperations::~LinkOperations() = default;

std::optional<v1::OperationResult> LinkOperations::OnOperation(v1::Operation operation) {
  const uint64_t id = operation.id();
  if (id == 0) {
    return Refused(0, v1::REFUSAL_NONE, absl::StatusCode::kInvalidArgument, "id: must be above zero");
  }
  OperationFacts facts = FactsOf(operation);
  const bool known = link_.state.operations.SubjectOf(id) != nullptr;
  // A repeat does nothing, and is answered whatever has become of the lease: "nothing was begun" would be a
  // lie.
  const v1::Refusal lease =
      known ? v1::REFUSAL_NONE : link_.parts.lease.Judge(operation.lease_epoch(), facts.forward);
  if (lease != v1::REFUSAL_NONE) {
    return Refused(id, lease, CodeOf(lease), WordsFor(lease, operation.lease_epoch(), link_.parts.lease));
  }
  const OperationTable::Admission admission = link_.state.operations.Admit(id, facts.subject, facts.reverse);
  switch (admission.kind) {
    case OperationTable::Admission::Kind::kRefused:
      return Refused(id, admission.refusal, CodeOf(admission.refusal), admission.why);
    case OperationTable::Admission::Kind::kAnswered:
      link_.Wake();
      return std::nullopt;
    case OperationTable::Admission::Kind::kRuns:
      return std::nullopt;
    case OperationTable::Admission::Kind::kRun:
      break;
  }
  running_[id] = std::make_shared<Running>(link_.executor);
  tasks_.Spawn(fmt::format("operation {}", id), Execute(std::move(operation), std::move(facts)));
  return std::nullopt;
}

Awaitable<void> LinkOperations::Execute(v1::Operation operation, OperationFacts facts) {
  using namespace asio::experimental::awaitable_operators;
  const uint64_t id = operation.id();
  const std::shared_ptr<Running> running = running_.at(id);
  v1::OperationResult result;
  absl::Status prepared = PrepareOperation(link_.parts.api.volumes.runtimes(), &operation);
  if (prepared.ok() && !link_.options.may.contains(facts.right)) prepared = NotAllowed(facts.right);
  if (prepared.ok() && IsBeingReleased(operation)) {
    result.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    result.set_message(
        "the node releases this volume, since its lease has expired: ask again once it is released");
    result.set_outcome(v1::OUTCOME_RETRY);
  } else if (prepared.ok()) {
    auto ended =
        co_await (runner_.Run(std::move(operation), Clock::now() + facts.timeout) ||
                  running->bell.WaitUntil([running] { return running->cancelled; }, TimePoint::max()));
    if (ended.index() == 0) {
      result = std::get<0>(std::move(ended));
    } else {
      result.set_code(static_cast<int>(absl::StatusCode::kCancelled));
      result.set_message("cancelled; what was begun goes on");
      result.set_outcome(v1::OUTCOME_UNCERTAIN);
    }
  } else {
    result = Refused(id, v1::REFUSAL_NONE, prepared.code(), MessageOf(prepared));
  }
  // berthd ends: the scheduler sends the operation again, and the next berthd does it under the same id.
  const bool cut_off = facts.forward && result.code() == static_cast<int>(absl::StatusCode::kUnavailable) &&
                       !link_.parts.mounter.CheckNotShuttingDown().ok();
  if (cut_off) {
    running_.erase(id);
    co_return;
  }
  result.set_id(id);
  result.set_boot_id(BootId());
  if (const size_t bytes = result.ByteSizeLong(); bytes > kResultBytes) {
    TakeAnswerAway(&result, facts.changes ? v1::OUTCOME_UNCERTAIN : v1::OUTCOME_FAILED,
                   fmt::format("{}the answer has {} bytes, at most {} are sent",
                               facts.changes ? "done, but " : "", bytes, kResultBytes));
  } else if (!facts.changes && !link_.state.operations.HasRoomFor(bytes)) {
    // Those that were begun together may be more than what is kept.
    TakeAnswerAway(&result, v1::OUTCOME_RETRY,
                   "too many results wait to be acknowledged: ask again when they are");
  }
  running_.erase(id);
  if (facts.changes) co_await KeepResult(result, facts.subject);
  link_.state.operations.Finish(std::move(result));
  // The scheduler has settled it without waiting for this.
  if (link_.state.operations.SubjectOf(id) == nullptr) link_.parts.rows.DeleteSoon(Row(kResultRow, id));
  link_.Wake();
}

bool LinkOperations::IsBeingReleased(const v1::Operation& operation) const {
  if (!operation.has_publish()) return false;
  const v1::PublishVolumeRequest& request = operation.publish().request();
  const auto plugin_id = link_.parts.api.lookup.PluginOf(request.plugin_id(), request.volume_id());
  return link_.parts.lease.force_releasing(plugin_id.ok() ? *plugin_id : request.plugin_id(),
                                           request.volume_id());
}

Awaitable<void> LinkOperations::KeepResult(v1::OperationResult result, std::string subject) {
  link::v1::StoredResult stored;
  *stored.mutable_result() = std::move(result);
  stored.set_subject(std::move(subject));
  std::string key = Row(kResultRow, stored.result().id());
  co_await link_.PutUntilDone(std::move(key), [value = stored.SerializeAsString()] { return value; });
}

void LinkOperations::OnCancel(uint64_t operation_id) {
  const auto running = running_.find(operation_id);
  if (running == running_.end()) return;
  running->second->cancelled = true;
  running->second->bell.NotifyAll();
}

void LinkOperations::OnAcknowledge(const v1::Acknowledge& acknowledge) {
  const std::vector<uint64_t> ids(acknowledge.operation_ids().begin(), acknowledge.operation_ids().end());
  const OperationTable::Changes changes =
      link_.state.operations.Acknowledge(ids, acknowledge.settled_below());
  for (const uint64_t id : changes.acknowledged) {
    link_.parts.rows.PutSoon(Row(kAcknowledgedRow, id), "1");
    link_.parts.rows.DeleteSoon(Row(kResultRow, id));
  }
  // First what forbids these ids for ever.
  if (changes.settled) {
    link_.parts.rows.PutSoon(std::string(kSettledRow),
                             std::to_string(link_.state.operations.settled_below()));
  }
  for (const uint64_t id : changes.forgotten) {
    link_.parts.rows.DeleteSoon(Row(kAcknowledgedRow, id));
    link_.parts.rows.DeleteSoon(Row(kResultRow, id));
  }
}

}  // namespace berth
