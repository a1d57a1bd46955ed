#include "mounts/census.h"

#include <algorithm>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "mounts/census_pass.h"

namespace berth {
namespace {

constexpr Duration kTakeWithin = std::chrono::seconds(30);
// On our own thread; a helper takes its place then.
constexpr Duration kListWithin = std::chrono::seconds(5);
// How many share a helper: its arguments and its output have limits.
constexpr size_t kSharedBy = 64;

// The part of `all` about the objects from `first` on, as many as `count`.
CensusAnswer PartOf(const CensusAnswer& all, size_t first, size_t count) {
  CensusAnswer part{.incomplete = all.incomplete};
  const auto is_in = [first, count](size_t object) { return object >= first && object < first + count; };
  for (const Hold& hold : all.holds) {
    if (!is_in(hold.object)) continue;
    part.holds.push_back(hold);
    part.holds.back().object -= first;
  }
  for (const size_t object : all.elsewhere) {
    if (is_in(object)) part.elsewhere.push_back(object - first);
  }
  return part;
}

}  // namespace

struct Census::Query {
  CensusQuestion question;
  bool done = false;
  CensusAnswer answer;
};

Census::Census(const asio::any_io_executor& executor, TaskScope& scope, MountHelper& helper,
               RecordedMounts recorded)
    : scope_(scope), helper_(helper), recorded_(std::move(recorded)), answered_(executor) {}

Census::~Census() = default;

Awaitable<CensusAnswer> Census::Take(CensusQuestion question, TimePoint deadline) {
  const bool users = std::ranges::any_of(question.objects, &CensusObject::users);
  Line& line = users ? users_ : mounts_;
  const auto query = std::make_shared<Query>();
  query->question = std::move(question);
  line.waiting.push_back(query);
  if (!line.running) {
    line.running = true;
    scope_.Spawn("census", Run(&line));
  }
  if (!co_await answered_.WaitUntil([query] { return query->done; }, deadline)) {
    std::erase(line.waiting, query);
    co_return CensusAnswer{.incomplete = "look for who has the volume: not done in time"};
  }
  co_return std::move(query->answer);
}

Awaitable<CensusAnswer> Census::Pass(CensusQuestion question, bool users) {
  if (!users) {
    const auto listed = co_await RunBlocking(
        "look for mounts of volumes", [question] { return CensusOfMounts(question); },
        Clock::now() + kListWithin);
    if (listed.ok() && listed->has_value() && (*listed)->incomplete.empty()) co_return **listed;
  }
  co_return co_await helper_.TakeCensus(std::move(question), Clock::now() + kTakeWithin);
}

Awaitable<void> Census::Run(Line* line) {
  struct Stopped {
    bool* running;
    ~Stopped() { *running = false; }
  } stopped{&line->running};
  while (!line->waiting.empty()) {
    const auto end =
        line->waiting.begin() + static_cast<std::ptrdiff_t>(std::min(line->waiting.size(), kSharedBy));
    const std::vector<std::shared_ptr<Query>> queries(line->waiting.begin(), end);
    line->waiting.erase(line->waiting.begin(), end);
    CensusQuestion all{.kernel = kernel_};
    for (const auto& query : queries) {
      const CensusQuestion& one = query->question;
      all.objects.insert(all.objects.end(), one.objects.begin(), one.objects.end());
    }
    std::set<dev_t> devices;
    for (const CensusObject& object : all.objects) devices.insert(object.device);
    all.recorded = recorded_(devices);
    ++taken_;
    const auto answer = co_await Pass(std::move(all), line == &users_);
    size_t first = 0;
    for (const auto& query : queries) {
      const size_t count = query->question.objects.size();
      query->answer = PartOf(answer, first, count);
      query->done = true;
      first += count;
    }
    answered_.NotifyAll();
  }
}

}  // namespace berth
