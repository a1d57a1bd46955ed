#include "rpc/uplink/link_asks.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "base/status.h"

namespace berth {
namespace {

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

}  // namespace

void LinkAsks::OnAnswer(v1::Answer answer) {
  if (!link_.state.asks.Answer(std::move(answer))) return;
  link_.changed.NotifyAll();
}

void LinkAsks::OnAskProgress(const v1::AskProgress& progress) {
  link_.state.asks.SetProgress(progress.number(), Printable(progress.text(), kProgressBytes));
  link_.changed.NotifyAll();
}

Awaitable<absl::StatusOr<v1::Answer>> LinkAsks::Ask(v1::Ask ask, bool wait, TimePoint deadline,
                                                    SchedulerDirectory::OnProgress on_progress) {
  if (!link_.IsGreeted() && !wait) {
    co_return absl::UnavailableError(fmt::format(
        "{}{}{}", kNotConnected, link_.status.last_error().empty() ? "" : ": ", link_.status.last_error()));
  }
  const v1::Ask::AskCase kind = ask.ask_case();
  BERTH_CO_ASSIGN_OR_RETURN(const uint64_t number, link_.state.asks.Add(std::move(ask)));
  struct Leave {
    UplinkContext& link;
    uint64_t number;
    ~Leave() {
      link.state.asks.Leave(number);
      link.Wake();
    }
  } const leave{.link = link_, .number = number};
  link_.Wake();
  std::string reported;
  const auto answered = [this, number] { return link_.state.asks.AnswerOf(number) != nullptr; };
  const auto progress = [this, number] {
    return link_.IsGreeted() ? link_.state.asks.ProgressOf(number) : std::string(kNotConnected);
  };
  while (!answered()) {
    const auto moved = [&] { return answered() || (on_progress && progress() != reported); };
    if (!co_await link_.changed.WaitUntil(moved, deadline)) {
      co_return absl::DeadlineExceededError("the scheduler has not answered in time");
    }
    if (answered()) break;
    reported = progress();
    if (!reported.empty() && !co_await on_progress(reported))
      co_return absl::CancelledError("the caller has gone");
  }
  const v1::Answer answer = *link_.state.asks.AnswerOf(number);
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
