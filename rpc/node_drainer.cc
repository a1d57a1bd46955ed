#include "rpc/node_drainer.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/printable.h"
#include "base/status.h"
#include "rpc/convert.h"

namespace berth {
namespace {

constexpr size_t kFileLimit = size_t{64} << 10;
constexpr auto kFileReadWithin = std::chrono::seconds(30);
// A node that empties loses thousands of publications in a moment: they are not counted after each.
constexpr auto kCountPause = std::chrono::milliseconds(100);

absl::StatusOr<v1::NodeDrain> ReadDrain(const std::string& file) {
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kFileLimit));
  v1::NodeDrain drain;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(text, &drain, options).ok()) {
    return absl::DataLossError(fmt::format("{} is not a note of a drain", file));
  }
  return drain;
}

absl::Status WriteDrain(const std::string& file, const v1::NodeDrain& drain) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(drain, &text).ok()) {
    return absl::InvalidArgumentError("reason: it cannot be written down");
  }
  return WriteFileAtomic(file, text + "\n", 0600);
}

}  // namespace

NodeDrainer::NodeDrainer(asio::any_io_executor executor, std::string file, const Mounter& mounter,
                         EventLog& events)
    : executor_(executor),
      file_(std::move(file)),
      mounter_(mounter),
      events_(events),
      changed_(executor),
      tasks_(std::move(executor), "node drain") {}

Awaitable<void> NodeDrainer::Restore() {
  auto read = co_await RunBlocking(
      fmt::format("read {}", file_), [file = file_] { return ReadDrain(file); },
      Clock::now() + kFileReadWithin);
  if (read.ok()) {
    drain_ = *std::move(read);
    SPDLOG_INFO("this node is being drained{}", ReasonSuffix(drain_->reason()));
  } else if (!absl::IsNotFound(read.status())) {
    drain_.emplace();
    drain_->set_reason(
        fmt::format("{}, so it is not known whether this node is in use", MessageOf(read.status())));
    *drain_->mutable_since() = ToProto(WallClock::now());
    SPDLOG_ERROR("{}", drain_->reason());
  }
  tasks_.Spawn("watch", Watch());
}

Awaitable<absl::Status> NodeDrainer::Begin(std::string reason, TimePoint deadline) {
  return Become(true, std::move(reason), deadline);
}

Awaitable<absl::Status> NodeDrainer::End(TimePoint deadline) { return Become(false, {}, deadline); }

Awaitable<absl::Status> NodeDrainer::Become(bool drain, std::string reason, TimePoint deadline) {
  if (!co_await changed_.WaitUntil([this] { return !writing_; }, deadline)) {
    co_return absl::DeadlineExceededError(fmt::format("an earlier change of {} is not done yet", file_));
  }
  const bool same = drain == drain_.has_value() && (!drain || drain_->reason() == reason);
  if (same) co_return absl::OkStatus();
  auto change = std::make_shared<Change>();
  if (drain) {
    change->wanted = drain_.value_or(v1::NodeDrain());
    change->wanted->set_reason(std::move(reason));
    if (!drain_) *change->wanted->mutable_since() = ToProto(WallClock::now());
  }
  writing_ = true;
  tasks_.Spawn("write", Write(change));
  if (!co_await changed_.WaitUntil([change] { return change->done; }, deadline)) {
    co_return absl::DeadlineExceededError(fmt::format("{} is not changed yet: it goes on", file_));
  }
  co_return change->status;
}

Awaitable<void> NodeDrainer::Write(std::shared_ptr<Change> change) {
  // The disk and the answer must agree: the change is waited for to its end, also if the caller has gone.
  // Only berthd's own end does not wait for a disk that hangs: the next berthd reads the outcome.
  change->status = co_await RunBlocking(
      fmt::format("change {}", file_),
      [file = file_, wanted = change->wanted] {
        return wanted ? WriteDrain(file, *wanted) : RemoveFile(file);
      },
      TimePoint::max());
  if (change->status.ok()) TakeOver(*change);
  writing_ = false;
  change->done = true;
  changed_.NotifyAll();
}

void NodeDrainer::TakeOver(const Change& change) {
  drain_ = change.wanted;
  if (drain_) {
    events_.Append(
        {.type = "node.draining",
         .message = fmt::format("nothing new is published here{}", ReasonSuffix(drain_->reason()))});
  } else {
    left_ = -1;
    events_.Append({.type = "node.in_use", .message = "this node is in use again"});
  }
  Changed();
}

std::optional<v1::NodeDrain> NodeDrainer::Describe() const {
  if (!drain_) return std::nullopt;
  v1::NodeDrain drain = *drain_;
  drain.set_publications_left(PublicationsLeft());
  return drain;
}

absl::StatusOr<NodeDrainer::Admission> NodeDrainer::Admit(const PublishRequest& request) {
  UseKey use(request.plugin_id, request.volume_id, request.consumer, request.name);
  if (!drain_ || under_way_.contains(use) || IsHere(use)) return Admission(*this, std::move(use));
  return absl::FailedPreconditionError(
      fmt::format("this node is being drained, and takes nothing new{}", ReasonSuffix(drain_->reason())));
}

bool NodeDrainer::IsHere(const UseKey& use) const {
  const auto& [plugin, id, consumer, name] = use;
  const auto volume = mounter_.Find(plugin, id);
  if (!volume) return false;
  return std::ranges::any_of(volume->publications, [&consumer, &name](const PublicationView& seen) {
    const bool leaves = seen.state == PublicationState::kUnpublishing && !seen.remount_after_undo;
    return seen.consumer == consumer && seen.name == name && !leaves;
  });
}

int NodeDrainer::PublicationsLeft() const {
  const VolumeCounts counts = mounter_.Count();
  int left = counts.publications - counts.declared;
  for (const auto& [use, count] : under_way_) left += IsHere(use) ? 0 : 1;
  return left;
}

Awaitable<bool> NodeDrainer::WaitChange(uint64_t after, TimePoint deadline) {
  return changed_.WaitUntil([this, after] { return version_ != after; }, deadline);
}

void NodeDrainer::Changed() {
  ++version_;
  changed_.NotifyAll();
}

void NodeDrainer::OnHoldersChanged() {
  ++holders_changed_;
  if (drain_) changed_.NotifyAll();
}

Awaitable<void> NodeDrainer::Watch() {
  while (true) {
    co_await changed_.WaitUntil([this] { return drain_.has_value(); }, TimePoint::max());
    const uint64_t counted_at = holders_changed_;
    const int left = PublicationsLeft();
    if (std::exchange(left_, left) != left) {
      if (left == 0) {
        events_.Append(
            {.type = "node.drained", .message = "no publication is left here; the node drains on"});
      }
      Changed();
    }
    co_await changed_.WaitUntil([&] { return !drain_ || holders_changed_ != counted_at; }, TimePoint::max());
    co_await SleepUntil(Clock::now() + kCountPause);
  }
}

Awaitable<void> NodeDrainer::Shutdown() { co_await tasks_.Join(); }

}  // namespace berth
