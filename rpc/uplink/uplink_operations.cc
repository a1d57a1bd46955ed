// The part of Uplink that does what the scheduler asks for, and asks the scheduler what others want of it.
#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <utility>

#include "base/process.h"
#include "base/status.h"
#include "rpc/uplink/link.pb.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/uplink.h"

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

constexpr std::string_view kNotConnected = "the scheduler is not connected";
constexpr size_t kProgressBytes = 1024;

bool IsAnswerTo(v1::Ask::AskCase kind, const v1::Answer& answer) {
  switch (kind) {
    case v1::Ask::kClaim:
      return answer.has_claim();
    case v1::Ask::kToken:
      return answer.has_token();
    case v1::Ask::kRelease:
      return answer.has_release();
    case v1::Ask::ASK_NOT_SET:
      break;
  }
  return false;
}

absl::Status NotAllowed(v1::NodeState::Right right) {
  return absl::PermissionDeniedError(
      fmt::format("this node does not let its scheduler do that: its operator allows it with \"{}\" in "
                  "[scheduler] may of berthd.toml",
                  absl::AsciiStrToLower(v1::NodeState::Right_Name(right))));
}

}  // namespace

// An operation that runs, and whether it is to be waited for any more.
struct Uplink::Running {
  explicit Running(asio::any_io_executor executor) : bell(std::move(executor)) {}

  bool cancelled = false;
  Condition bell;
};

std::optional<v1::OperationResult> Uplink::OnOperation(v1::Operation operation) {
  const uint64_t id = operation.id();
  if (id == 0) {
    return Refused(0, v1::REFUSAL_NONE, absl::StatusCode::kInvalidArgument, "id: must be above zero");
  }
  OperationFacts facts = FactsOf(operation);
  const bool known = state_.operations.SubjectOf(id) != nullptr;
  // A repeat does nothing, and is answered whatever has become of the lease: "nothing was begun" would be a
  // lie.
  const v1::Refusal lease =
      known ? v1::REFUSAL_NONE : parts_.lease.Judge(operation.lease_epoch(), facts.forward);
  if (lease != v1::REFUSAL_NONE) {
    return Refused(id, lease, CodeOf(lease), WordsFor(lease, operation.lease_epoch(), parts_.lease));
  }
  const OperationTable::Admission admission = state_.operations.Admit(id, facts.subject, facts.reverse);
  switch (admission.kind) {
    case OperationTable::Admission::Kind::kRefused:
      return Refused(id, admission.refusal, CodeOf(admission.refusal), admission.why);
    case OperationTable::Admission::Kind::kAnswered:
      Wake();
      return std::nullopt;
    case OperationTable::Admission::Kind::kRuns:
      return std::nullopt;
    case OperationTable::Admission::Kind::kRun:
      break;
  }
  running_[id] = std::make_shared<Running>(executor_);
  operations_.Spawn(fmt::format("operation {}", id), Execute(std::move(operation), std::move(facts)));
  return std::nullopt;
}

Awaitable<void> Uplink::Execute(v1::Operation operation, OperationFacts facts) {
  using namespace asio::experimental::awaitable_operators;
  const uint64_t id = operation.id();
  const std::shared_ptr<Running> running = running_.at(id);
  v1::OperationResult result;
  absl::Status prepared = PrepareOperation(parts_.api.volumes.runtimes(), &operation);
  if (prepared.ok() && !options_.may.contains(facts.right)) prepared = NotAllowed(facts.right);
  if (prepared.ok() && GivingUp(operation)) {
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
                       !parts_.mounter.CheckNotShuttingDown().ok();
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
  } else if (!facts.changes && !state_.operations.HasRoomFor(bytes)) {
    // Those that were begun together may be more than what is kept.
    TakeAnswerAway(&result, v1::OUTCOME_RETRY,
                   "too many results wait to be acknowledged: ask again when they are");
  }
  running_.erase(id);
  if (facts.changes) co_await KeepResult(result, facts.subject);
  state_.operations.Finish(std::move(result));
  // The scheduler has settled it without waiting for this.
  if (state_.operations.SubjectOf(id) == nullptr) parts_.rows.DeleteSoon(Row(kResultRow, id));
  Wake();
}

bool Uplink::GivingUp(const v1::Operation& operation) const {
  if (!operation.has_publish()) return false;
  const v1::PublishVolumeRequest& request = operation.publish().request();
  const auto plugin_id = parts_.api.lookup.PluginOf(request.plugin_id(), request.volume_id());
  return parts_.lease.force_releasing(plugin_id.ok() ? *plugin_id : request.plugin_id(), request.volume_id());
}

Awaitable<void> Uplink::KeepResult(v1::OperationResult result, std::string subject) {
  link::v1::StoredResult stored;
  *stored.mutable_result() = std::move(result);
  stored.set_subject(std::move(subject));
  std::string key = Row(kResultRow, stored.result().id());
  co_await PutUntilDone(std::move(key), [value = stored.SerializeAsString()] { return value; });
}

void Uplink::OnCancel(uint64_t operation_id) {
  const auto running = running_.find(operation_id);
  if (running == running_.end()) return;
  running->second->cancelled = true;
  running->second->bell.NotifyAll();
}

void Uplink::OnAcknowledge(const v1::Acknowledge& acknowledge) {
  const std::vector<uint64_t> ids(acknowledge.operation_ids().begin(), acknowledge.operation_ids().end());
  const OperationTable::Changes changes = state_.operations.Acknowledge(ids, acknowledge.settled_below());
  for (const uint64_t id : changes.acknowledged) {
    parts_.rows.PutSoon(Row(kAcknowledgedRow, id), "1");
    parts_.rows.DeleteSoon(Row(kResultRow, id));
  }
  // First what forbids these ids for ever.
  if (changes.settled) {
    parts_.rows.PutSoon(std::string(kSettledRow), std::to_string(state_.operations.settled_below()));
  }
  for (const uint64_t id : changes.forgotten) {
    parts_.rows.DeleteSoon(Row(kAcknowledgedRow, id));
    parts_.rows.DeleteSoon(Row(kResultRow, id));
  }
  for (const uint64_t number : acknowledge.ended_consumers()) DropEndedConsumer(number);
  for (const uint64_t number : acknowledge.forced_releases()) parts_.lease.AcknowledgeForcedRelease(number);
}

// --- Asks --------------------------------------------------------------------------------------------------

void Uplink::OnAnswer(v1::Answer answer) {
  if (!state_.asks.Answer(std::move(answer))) return;
  changed_.NotifyAll();
}

void Uplink::OnAskProgress(const v1::AskProgress& progress) {
  state_.asks.SetProgress(progress.number(), Printable(progress.text(), kProgressBytes));
  changed_.NotifyAll();
}

bool Uplink::IsGreeted() const {
  return session_ != nullptr && session_->phase() != LinkSession::Phase::kGreeting;
}

Awaitable<absl::StatusOr<v1::Answer>> Uplink::Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                  OnProgress on_progress) {
  if (!IsGreeted() && !wait) {
    co_return absl::UnavailableError(
        fmt::format("{}{}{}", kNotConnected, status_.last_error().empty() ? "" : ": ", status_.last_error()));
  }
  const v1::Ask::AskCase kind = ask.ask_case();
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t number, state_.asks.Add(std::move(ask)));
  struct Leave {
    Uplink& uplink;
    uint64_t number;
    ~Leave() {
      uplink.state_.asks.Leave(number);
      uplink.Wake();
    }
  } const leave{.uplink = *this, .number = number};
  Wake();
  std::string told;
  const auto answered = [this, number] { return state_.asks.AnswerOf(number) != nullptr; };
  const auto progress = [this, number] {
    return IsGreeted() ? state_.asks.ProgressOf(number) : std::string(kNotConnected);
  };
  while (!answered()) {
    const auto moved = [&] { return answered() || (on_progress && progress() != told); };
    if (!co_await changed_.WaitUntil(moved, deadline)) {
      co_return absl::DeadlineExceededError("the scheduler has not answered in time");
    }
    if (answered()) break;
    told = progress();
    if (!told.empty() && !co_await on_progress(told)) co_return absl::CancelledError("the caller has gone");
  }
  const v1::Answer answer = *state_.asks.AnswerOf(number);
  if (answer.code() == 0) {
    if (IsAnswerTo(kind, answer)) co_return answer;
    co_return absl::InternalError("the scheduler's answer is of another kind than the request");
  }
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool known = answer.code() > 0 && answer.code() <= kLastCode;
  co_return absl::Status(known ? static_cast<absl::StatusCode>(answer.code()) : absl::StatusCode::kUnknown,
                         fmt::format("the scheduler: {}", Printable(answer.message())));
}

}  // namespace berth
