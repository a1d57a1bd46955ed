#include "controller/controller_calls.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/printable.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "controller/controller_answer.h"
#include "controller/controller_call_kinds.h"
#include "controller/controller_check.h"
#include "controller/controller_outcome.h"
#include "csi/redact.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;

// How often a listing that the plugin aborts is repeated from its beginning.
constexpr int kNewListings = 3;
// A listing that takes more pages than this goes on with the next call.
constexpr int kPages = 1000;
// So many in a row without an entry lead nowhere.
constexpr int kEmptyPages = 64;
// Asked for once a page that the plugin chose the size of was too large, and less each time.
constexpr int32_t kSmallerPage = 256;

template <class Request>
void FitAccessModes(const PluginFacts& facts, Request* request) {
  if constexpr (requires { request->mutable_volume_capability(); }) {
    if (request->has_volume_capability()) FitAccessMode(facts, request->mutable_volume_capability());
  }
  if constexpr (requires { request->mutable_volume_capabilities(); }) {
    for (auto& capability : *request->mutable_volume_capabilities()) FitAccessMode(facts, &capability);
  }
}

// What a call, which was checked, is about. A snapshot in the making is its volume's matter too.
class Keys {
 public:
  explicit Keys(std::string driver) : driver_(std::move(driver)) {}

  void Add(const csi::CreateVolumeRequest& request) { Add(kVolumeName, request.name()); }
  void Add(const csi::CreateSnapshotRequest& request) {
    Add(kVolume, request.source_volume_id());
    Add(kSnapshotName, request.name());
  }
  void Add(const csi::CreateVolumeGroupSnapshotRequest& request) {
    Add(kGroupName, request.name());
    for (const std::string& id : request.source_volume_ids()) Add(kVolume, id);
  }
  void Add(const csi::DeleteVolumeGroupSnapshotRequest& request) {
    Add(kGroup, request.group_snapshot_id());
    for (const std::string& id : request.snapshot_ids()) Add(kSnapshot, id);
  }
  void Add(const csi::GetVolumeGroupSnapshotRequest& request) { Add(kGroup, request.group_snapshot_id()); }
  void Add(const csi::DeleteSnapshotRequest& request) { Add(kSnapshot, request.snapshot_id()); }
  void Add(const csi::GetSnapshotRequest& request) { Add(kSnapshot, request.snapshot_id()); }
  // Each may hold megabytes: one at a time is enough.
  void Add(const csi::ListVolumesRequest&) { Add(kListing, "all volumes"); }
  void Add(const csi::ListSnapshotsRequest&) { Add(kListing, "all snapshots"); }
  void Add(const csi::GetCapacityRequest&) {}
  template <class Request>
  void Add(const Request& request) {
    Add(kVolume, request.volume_id());
  }

  std::vector<CallKey> keys;

 private:
  using enum CallKey::Kind;
  void Add(CallKey::Kind kind, const std::string& id) {
    keys.push_back({.driver = driver_, .kind = kind, .id = id});
  }

  std::string driver_;
};

std::vector<CallKey> KeysOf(const v1::ControllerCall& call, const std::string& driver) {
  Keys keys(driver);
  VisitControllerCall(call, [&keys](CsiRpc, auto, const auto& request, auto) { keys.Add(request); });
  return std::move(keys.keys);
}

// Equal calls have equal ones, and no secret can be read from it.
std::string HashOf(const v1::ControllerCall& call) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    call.SerializeToCodedStream(&coded);
  }
  return HashComponent({bytes});
}

// Counts one who waits.
class Waiting {
 public:
  explicit Waiting(int& count) : count_(count) { ++count_; }
  ~Waiting() { --count_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  int& count_;
};

ControllerCalls::Result Unsent(absl::Status status) {
  return {.status = status, .outcome = OutcomeUnsent(status.code()), .answer = {}};
}

absl::Status TimeIsOver() { return absl::DeadlineExceededError("the time that it was given is over"); }

// What people read, as far as the plugin has written it, and what is as sensitive as secrets.
template <class Response>
void CleanTexts(const CsiClient& client, Response* response) {
  const auto clean = [&client](const std::string& text) { return Printable(client.Redacted(text)); };
  const auto clean_condition = [&clean](auto* status) {
    if (!status->has_volume_condition()) return;
    csi::VolumeCondition* condition = status->mutable_volume_condition();
    condition->set_message(clean(condition->message()));
  };
  if constexpr (std::is_same_v<Response, csi::ValidateVolumeCapabilitiesResponse>) {
    response->set_message(clean(response->message()));
    if (!response->has_confirmed()) return;
    for (auto& capability : *response->mutable_confirmed()->mutable_volume_capabilities()) {
      if (!capability.has_mount()) continue;
      for (std::string& flag : *capability.mutable_mount()->mutable_mount_flags()) flag = "(hidden)";
    }
  } else if constexpr (std::is_same_v<Response, csi::ListVolumesResponse>) {
    for (auto& entry : *response->mutable_entries()) {
      if (entry.has_status()) clean_condition(entry.mutable_status());
    }
  } else if constexpr (std::is_same_v<Response, csi::ControllerGetVolumeResponse>) {
    if (response->has_status()) clean_condition(response->mutable_status());
  }
}

// "; the volume V exists now", where the answer is of something that was made.
template <class Response>
std::string MadeBy(const Response& response) {
  if constexpr (std::is_same_v<Response, csi::CreateVolumeResponse>) {
    return fmt::format("; the volume {} exists now", PrintableName(response.volume().volume_id()));
  } else if constexpr (std::is_same_v<Response, csi::CreateVolumeGroupSnapshotResponse>) {
    return fmt::format("; the group snapshot {} exists now",
                       PrintableName(response.group_snapshot().group_snapshot_id()));
  } else {
    return {};
  }
}

// The most entries to ask for, where 0 is as many as the plugin likes: what is `left` of those that are
// wanted, and no more than `page`.
int32_t EntriesToAsk(int32_t left, int32_t page) {
  if (left == 0 || page == 0) return std::max(left, page);
  return std::min(left, page);
}

}  // namespace

// One call and those who wait for its result.
struct ControllerCalls::Job {
  explicit Job(const asio::any_io_executor& executor) : ended(executor) {}

  // Until when it is worth a further try.
  [[nodiscard]] TimePoint Until() const { return waiting > 0 ? latest : Clock::now(); }
  [[nodiscard]] bool InTime() const { return Clock::now() < Until(); }

  int waiting = 0;
  TimePoint latest = TimePoint::min();
  // What it means for those who wait no longer.
  v1::Outcome so_far = v1::OUTCOME_RETRY;
  std::optional<Result> result;
  Condition ended;
};

// One call, from its first try to its end. Lives in the frame of ControllerCalls::Perform.
class ControllerCalls::Work {
 public:
  Work(ControllerCalls& calls, const v1::ControllerCall& call, std::shared_ptr<Job> job)
      : calls_(calls), call_(call), job_(std::move(job)) {}

  // One of the client's methods with one request, until it is answered.
  template <class Request, class Response>
  Awaitable<Result> Do(CsiRpc rpc,
                       Awaitable<absl::StatusOr<Response>> (CsiClient::*method)(Request, TimePoint),
                       Request request, Response* (v1::ControllerAnswer::*field)()) {
    rpc_ = rpc;
    auto answer = co_await Try(method, std::move(request), /*repeat_aborted=*/true);
    co_return Finish(std::move(answer), field);
  }

  // The same of a listing, page by page.
  template <class Request, class Response>
  Awaitable<Result> List(CsiRpc rpc,
                         Awaitable<absl::StatusOr<Response>> (CsiClient::*method)(Request, TimePoint),
                         Request request, Response* (v1::ControllerAnswer::*field)()) {
    rpc_ = rpc;
    auto answer = co_await Pages(method, request);
    // Its tokens are no longer good: from where the caller began, others are to be had.
    for (int i = 0; i < kNewListings && token_refused_; ++i) answer = co_await Pages(method, request);
    if (callers_token_refused_) {
      // With it the same is refused for ever. The caller alone can begin without it.
      answer = Annotate(answer.status(), "the starting_token is no longer good: begin again without it");
      outcome_ = v1::OUTCOME_FAILED;
    }
    co_return Finish(std::move(answer), field);
  }

  // The plugin that was called last; empty: nothing was sent.
  [[nodiscard]] const std::string& sent_to() const { return sent_to_; }

 private:
  // The controller for the next try, with nothing in the way of calling it now.
  Awaitable<absl::StatusOr<ControllerAccess::Controller>> Find() {
    if (!job_->InTime()) co_return TimeIsOver();
    const auto work = call_.has_create() ? ControllerWork::kNewVolume : ControllerWork::kKnownVolume;
    const std::string name = sent_to_.empty() ? call_.plugin_id() : sent_to_;
    if (call_.has_delete_()) {
      BERTH_CO_RETURN_IF_ERROR(
          co_await calls_.access_.CheckUnrecorded(name, call_.delete_().volume_id(), "", job_->Until()));
    } else if (call_.has_detach()) {
      BERTH_CO_RETURN_IF_ERROR(co_await calls_.access_.CheckUnrecorded(
          name, call_.detach().volume_id(), call_.detach().node_id(), job_->Until()));
    }
    auto found = co_await calls_.access_.Find(name, work, job_->Until());
    // Who joined meanwhile may have more time.
    while (absl::IsDeadlineExceeded(found.status()) && job_->InTime()) {
      found = co_await calls_.access_.Find(name, work, job_->Until());
    }
    BERTH_CO_ASSIGN_OR_RETURN(ControllerAccess::Controller controller, std::move(found));
    // Its callers may have got the answer meanwhile that nothing was sent.
    if (!job_->InTime()) co_return TimeIsOver();
    if (!sent_to_.empty() && controller.plugin_id != sent_to_) {
      co_return absl::UnavailableError(fmt::format("plugin {} was called and is not ready now", sent_to_));
    }
    BERTH_CO_RETURN_IF_ERROR(CheckCapabilities(call_, controller.plugin_id, controller.facts));
    if (ChangesSomething(call_) && !call_.has_detach()) {
      BERTH_CO_RETURN_IF_ERROR(calls_.access_.CheckNotShuttingDown());
    }
    BERTH_CO_RETURN_IF_ERROR(KeepUsersOff(controller));
    co_return controller;
  }

  // Some calls need a volume that is not in use here, and no use may begin before their end.
  absl::Status KeepUsersOff(const ControllerAccess::Controller& controller) {
    ControllerAccess& access = calls_.access_;
    const std::string& plugin_id = controller.plugin_id;
    std::optional<ControllerAccess::VolumeUseLock> hold;
    if (call_.has_delete_()) {
      const std::string& volume_id = call_.delete_().volume_id();
      BERTH_RETURN_IF_ERROR(access.MayDelete(plugin_id, volume_id));
      hold.emplace(access.LockForDelete(plugin_id, volume_id));
    } else if (call_.has_detach()) {
      const csi::ControllerUnpublishVolumeRequest& detach = call_.detach();
      BERTH_RETURN_IF_ERROR(access.MayDetach(plugin_id, detach.volume_id(), detach.node_id()));
      if (auto its = access.LockForDetach(plugin_id, detach.volume_id(), detach.node_id())) {
        hold.emplace(*std::move(its));
      }
    } else if (call_.has_expand()) {
      const std::string& volume_id = call_.expand().volume_id();
      BERTH_RETURN_IF_ERROR(access.MayExpand(controller, volume_id));
      if (auto its = access.LockForExpand(controller, volume_id)) hold.emplace(*std::move(its));
    }
    if (hold && !hold_) hold_.emplace(*std::move(hold));
    return absl::OkStatus();
  }

  template <class Request, class Response>
  Awaitable<absl::StatusOr<Response>> Try(Awaitable<absl::StatusOr<Response>> (CsiClient::*method)(Request,
                                                                                                   TimePoint),
                                          Request request, bool repeat_aborted) {
    for (int failures = 1;; ++failures) {
      const auto controller = co_await Find();
      absl::StatusOr<Response> answer = absl::UnknownError("not sent");
      if (controller.ok()) {
        answer = co_await Send(*controller, method, request);
      } else {
        answer = NotSent(controller.status());
      }
      const absl::StatusCode code = answer.status().code();
      const bool again = !sent_to_.empty() && (code == absl::StatusCode::kUnavailable ||
                                               (code == absl::StatusCode::kAborted && repeat_aborted));
      if (!again) co_return answer;
      const TimePoint next = Clock::now() + Backoff(failures, calls_.options_.first_pause,
                                                    calls_.options_.longest_pause, RandomShare());
      if (next >= job_->Until()) {
        co_return Annotate(answer.status(), "tried again until the deadline");
      }
      co_await SleepUntil(next);
    }
  }

  template <class Request, class Response>
  Awaitable<absl::StatusOr<Response>> Send(
      ControllerAccess::Controller controller,
      Awaitable<absl::StatusOr<Response>> (CsiClient::*method)(Request, TimePoint), Request request) {
    FitAccessModes(controller.facts, &request);
    sent_to_ = controller.plugin_id;
    TimePoint deadline = job_->Until();
    if (ChangesSomething(rpc_)) {
      job_->so_far = v1::OUTCOME_UNCERTAIN;
      deadline = std::max(deadline, Clock::now() + calls_.options_.change_within);
    }
    auto answer = co_await (controller.client.get()->*method)(request, deadline);
    absl::Status status;
    if (!answer.ok()) {
      status = CallError(answer.status(), sent_to_, rpc_);
    } else if (const absl::Status checked = CheckAnswer(request, *answer); !checked.ok()) {
      status =
          WrongAnswer(sent_to_, RpcName(rpc_), controller.client->Redacted(std::string(MessageOf(checked))));
    }
    outcome_ = OutcomeOf(rpc_, status.code());
    uncertain_ = uncertain_ || outcome_ == v1::OUTCOME_UNCERTAIN;
    // A try that is certain to have failed says nothing of those before it.
    if (uncertain_ && outcome_ == v1::OUTCOME_RETRY) outcome_ = v1::OUTCOME_UNCERTAIN;
    if (!status.ok()) co_return status;
    if constexpr (std::is_same_v<Request, csi::ValidateVolumeCapabilitiesRequest>) {
      // Here, since the caller sees neither the mount flags nor which access modes were sent.
      TakeBackUnconfirmed(request, &*answer);
    }
    // What our proto does not know may be a secret of a later one.
    StripSecrets(&*answer);
    CleanTexts(*controller.client, &*answer);
    co_return std::move(*answer);
  }

  // This try was none; those before it may have done something.
  absl::Status NotSent(const absl::Status& status) {
    outcome_ = uncertain_ ? v1::OUTCOME_UNCERTAIN : OutcomeUnsent(status.code());
    return status;
  }

  // From the request's token to the last page, or as many as fit.
  template <class Request, class Response>
  Awaitable<absl::StatusOr<Response>> Pages(
      Awaitable<absl::StatusOr<Response>> (CsiClient::*method)(Request, TimePoint), Request request) {
    const int32_t wanted = request.max_entries();
    Response all;
    all.set_next_token(request.starting_token());
    std::set<std::string> tokens{request.starting_token()};
    size_t bytes = 0;
    int32_t page_limit = 0;
    int empty = 0;
    token_refused_ = callers_token_refused_ = false;
    for (int pages = 0; pages < kPages;) {
      const bool with_token = !all.next_token().empty();
      request.set_starting_token(all.next_token());
      request.set_max_entries(EntriesToAsk(wanted == 0 ? 0 : wanted - all.entries_size(), page_limit));
      auto page = co_await Try(method, request, /*repeat_aborted=*/!with_token);
      const bool large =
          page.ok() ? page->ByteSizeLong() > kAnswerBytes : absl::IsResourceExhausted(page.status());
      if (large && page_limit != 1) {
        if (all.entries_size() > 0) co_return all;
        page_limit = page_limit == 0 ? EntriesToAsk(wanted, kSmallerPage) : std::max(1, page_limit / 4);
        continue;
      }
      if (!page.ok()) {
        const bool refused = with_token && absl::IsAborted(page.status());
        const bool callers = pages == 0;
        callers_token_refused_ = refused && callers;
        token_refused_ = refused && !callers;
        co_return page.status();
      }
      bytes += page->ByteSizeLong();
      if (bytes > kAnswerBytes && all.entries_size() > 0) co_return all;
      if (large) co_return TooLong(fmt::format("one entry of {} bytes", page->ByteSizeLong()));
      empty = page->entries_size() == 0 ? empty + 1 : 0;
      for (auto& entry : *page->mutable_entries()) *all.add_entries() = std::move(entry);
      all.set_next_token(page->next_token());
      if (all.next_token().empty() || (wanted > 0 && all.entries_size() >= wanted)) co_return all;
      if (!tokens.insert(all.next_token()).second) co_return Wrong("a next_token that it gave before");
      if (empty >= kEmptyPages) co_return Wrong("nothing but empty pages");
      ++pages;
    }
    co_return all;
  }

  // The same again would be as long. What was changed is changed.
  absl::Status TooLong(std::string_view what) {
    outcome_ = ChangesSomething(rpc_) ? v1::OUTCOME_UNCERTAIN : v1::OUTCOME_FAILED;
    return TooLongAnswer(sent_to_, RpcName(rpc_), what);
  }

  absl::Status Wrong(std::string_view what) {
    const absl::Status status = WrongAnswer(sent_to_, RpcName(rpc_), what);
    outcome_ = OutcomeOf(rpc_, status.code());
    return status;
  }

  template <class Response>
  Result Finish(absl::StatusOr<Response> answer, Response* (v1::ControllerAnswer::*field)()) {
    if (answer.ok() && answer->ByteSizeLong() > kAnswerBytes) {
      answer = TooLong(fmt::format("{} bytes{}", answer->ByteSizeLong(), MadeBy(*answer)));
    }
    Result result{.status = answer.status(), .outcome = outcome_, .answer = {}};
    if (answer.ok()) *(result.answer.*field)() = std::move(*answer);
    return result;
  }

  ControllerCalls& calls_;
  const v1::ControllerCall& call_;
  std::shared_ptr<Job> job_;
  CsiRpc rpc_ = CsiRpc::kListVolumes;
  std::optional<ControllerAccess::VolumeUseLock> hold_;
  std::string sent_to_;
  v1::Outcome outcome_ = v1::OUTCOME_UNKNOWN;
  bool uncertain_ = false;
  // The last listing ended with this: the plugin aborted the token that it gave, or the caller's.
  bool token_refused_ = false;
  bool callers_token_refused_ = false;
};

ControllerCalls::ControllerCalls(asio::any_io_executor executor, ControllerAccess& access, Mounter& mounter,
                                 ControllerCallsOptions options)
    : executor_(executor),
      access_(access),
      mounter_(mounter),
      options_(options),
      tasks_(std::move(executor), "controller calls") {}

Awaitable<ControllerCalls::Result> ControllerCalls::Call(v1::ControllerCall call, TimePoint deadline) {
  if (absl::Status status = CheckControllerCall(call); !status.ok()) co_return Unsent(std::move(status));
  if (!ChangesSomething(call)) {
    // No other caller needs the answer, which would be older than another request's.
    const auto job = std::make_shared<Job>(executor_);
    const Waiting waiting(job->waiting);
    job->latest = deadline;
    co_return co_await Perform(job, std::move(call));
  }

  const std::string key = HashOf(call);
  std::shared_ptr<Job> job = FindJob(key, call);
  const bool joins = job != nullptr;
  if (!joins && tasks_.size() >= kJobs) {
    co_return Unsent(absl::ResourceExhaustedError(fmt::format("{} calls are under way already", kJobs)));
  }
  if (!joins) job = jobs_[key] = std::make_shared<Job>(executor_);
  const Waiting waiting(job->waiting);
  job->latest = std::max(job->latest, deadline);
  if (!joins) tasks_.Spawn("call", Run(key, job, std::move(call)));

  if (co_await job->ended.WaitUntil([&job] { return job->result.has_value(); }, deadline)) {
    co_return *job->result;
  }
  absl::Status status = absl::DeadlineExceededError(
      job->so_far == v1::OUTCOME_UNCERTAIN ? "the plugin may be at work still; the same request joins it"
                                           : "it was not answered in time");
  co_return Result{.status = std::move(status), .outcome = job->so_far, .answer = {}};
}

std::shared_ptr<ControllerCalls::Job> ControllerCalls::FindJob(const std::string& key,
                                                               const v1::ControllerCall& call) const {
  const auto found = jobs_.find(key);
  if (found == jobs_.end()) return nullptr;
  // Between an attach and the same one again a detach may have been asked for: all three are done, in order.
  const std::vector<CallKey> keys = KeysOf(call, access_.DriverOf(call.plugin_id()));
  return access_.IsLast(keys, found->second.get()) ? found->second : nullptr;
}

Awaitable<void> ControllerCalls::Run(std::string key, std::shared_ptr<Job> job, v1::ControllerCall call) {
  // However it ends, no caller waits for it any longer.
  struct Ending {
    ControllerCalls& calls;
    const std::string& key;
    Job& job;
    ~Ending() {
      if (!job.result) {
        job.result = {.status = absl::CancelledError("berthd stops"), .outcome = job.so_far, .answer = {}};
      }
      const auto newest = calls.jobs_.find(key);
      if (newest != calls.jobs_.end() && newest->second.get() == &job) calls.jobs_.erase(newest);
      job.ended.NotifyAll();
    }
  };
  const Ending ending{.calls = *this, .key = key, .job = *job};
  job->result = co_await Perform(job, std::move(call));
}

Awaitable<ControllerCalls::Result> ControllerCalls::Perform(std::shared_ptr<Job> job,
                                                            v1::ControllerCall call) {
  const std::vector<CallKey> keys = KeysOf(call, access_.DriverOf(call.plugin_id()));
  const auto turn = co_await access_.WaitTurn(keys, [job] { return job->Until(); }, job.get());
  if (!turn.ok()) co_return Unsent(turn.status());

  Work work(*this, call, std::move(job));
  const auto perform = [&work](CsiRpc rpc, auto method, const auto& request, auto field) {
    if constexpr (requires { request.max_entries(); }) {
      return work.List(rpc, method, request, field);
    } else {
      return work.Do(rpc, method, request, field);
    }
  };
  // There is one: it was checked.
  Result result = co_await VisitControllerCall(call, perform);
  if (result.status.ok() && call.has_delete_()) {
    co_return co_await AfterDelete(call, work.sent_to(), std::move(result));
  }
  if (result.status.ok() && call.has_expand()) {
    co_return co_await AfterExpand(call, work.sent_to(), std::move(result));
  }
  co_return result;
}

Awaitable<ControllerCalls::Result> ControllerCalls::AfterDelete(v1::ControllerCall call,
                                                                std::string plugin_id, Result result) {
  const absl::Status status =
      co_await access_.CancelPendingExpansion(std::move(plugin_id), call.delete_().volume_id());
  if (status.ok()) co_return result;
  co_return Result{.status = status, .outcome = v1::OUTCOME_UNCERTAIN, .answer = {}};
}

Awaitable<ControllerCalls::Result> ControllerCalls::AfterExpand(v1::ControllerCall call,
                                                                std::string plugin_id, Result result) {
  const csi::ControllerExpandVolumeResponse& grown = result.answer.expand();
  if (!grown.node_expansion_required()) co_return result;
  const std::string& volume_id = call.expand().volume_id();
  // Where it is not held, the scheduler knows better which node is to expand it.
  const std::optional<VolumeView> held = access_.FindHeld(plugin_id, volume_id);
  if (!held) co_return result;
  const absl::Status noted =
      co_await mounter_.SetPendingExpansion(held->plugin_id, volume_id, grown.capacity_bytes());
  if (noted.ok()) co_return result;
  const std::string why = fmt::format(
      "the storage has grown to {} bytes, but the node's part could not be noted; repeat the request",
      grown.capacity_bytes());
  co_return Result{.status = Annotate(noted, why), .outcome = v1::OUTCOME_UNCERTAIN, .answer = {}};
}

}  // namespace berth
