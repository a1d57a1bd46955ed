#include "mounts/mount_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "mounts/helper_answer.h"

namespace berth {
namespace {

constexpr char kName[] = "berth-mount-helper";
// More than the largest census says.
constexpr size_t kOutputLimit = size_t{32} << 20;
// Shares of those that may be left behind, so that probes and reads take no unmount's place.
constexpr size_t kStuckProbes = kStuckHelpers / 2;
constexpr size_t kStuckReads = kStuckHelpers / 8;
constexpr size_t kStuckFlushes = kStuckHelpers / 8;
constexpr size_t kStuckSteps = kStuckHelpers - kStuckProbes - kStuckReads - kStuckFlushes;
// How many paths one helper probes. A round begins only where all of them may hang.
constexpr size_t kProbesAtATime = 16;

std::string Number(dev_t device) { return fmt::format("{}:{}", major(device), minor(device)); }

// A helper writes what it has to say into memory that outlives it: what it said before it hung is there too.
absl::StatusOr<UniqueFd> MemoryFile() {
  UniqueFd fd(memfd_create(kName, MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "make a file in memory");
  return fd;
}

std::string ReadOutput(const UniqueFd& fd) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return {};
  std::string text(std::min(static_cast<size_t>(info.st_size), kOutputLimit), '\0');
  const ssize_t count = pread(fd.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

}  // namespace

absl::StatusOr<std::string> FindMountHelper(const std::string& configured) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path beside = self / kName;
  const std::filesystem::path installed = (self / "../libexec/berth" / kName).lexically_normal();
  for (const auto& candidate : {beside, installed, std::filesystem::path(configured)}) {
    if (!candidate.empty() && access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return absl::NotFoundError(fmt::format("{}: not at {}, {}{}{}", kName, beside.string(), installed.string(),
                                         configured.empty() ? "" : ", ", configured));
}

struct MountHelper::State {
  State(std::string path, TaskScope& scope) : executable(std::move(path)), reaper(scope) {}

  struct Entry {
    pid_t pid = 0;
    std::string what;
    WallTime since;
    TimePoint began;
    Kind kind = Kind::kStep;
    bool left_behind = false;
  };
  using Place = std::list<Entry>::iterator;

  // A helper process, from its launch until it has ended; shared by who waits for it and by its reaping.
  struct Running {
    Running(std::shared_ptr<State> owner, std::unique_ptr<Process> launched, Entry known)
        : state(std::move(owner)),
          process(std::move(launched)),
          place(state->entries.insert(state->entries.end(), std::move(known))) {}
    ~Running() { state->entries.erase(place); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    std::shared_ptr<State> state;
    std::unique_ptr<Process> process;
    Place place;
    std::optional<ExitStatus> exit;
  };

  static void Kill(Running& running) {
    if (running.process->SignalGroup(SIGKILL).ok()) return;
    [[maybe_unused]] const absl::Status killed = running.process->Signal(SIGKILL);
  }

  // Kills what still runs when its waiter leaves, in any way.
  class LeaveBehind {
   public:
    explicit LeaveBehind(Running& running) : running_(running) {}
    ~LeaveBehind() {
      if (running_.exit.has_value()) return;
      // What a probe leaves behind is its children: it is never in the kernel's hands itself.
      running_.place->left_behind = running_.place->kind != Kind::kProbe;
      Kill(running_);
    }
    LeaveBehind(const LeaveBehind&) = delete;
    LeaveBehind& operator=(const LeaveBehind&) = delete;

   private:
    Running& running_;
  };

  [[nodiscard]] const Entry* Hanging(std::string_view what) const {
    const auto it = std::ranges::find_if(
        entries, [what](const Entry& entry) { return entry.left_behind && entry.what == what; });
    return it == entries.end() ? nullptr : &*it;
  }
  static size_t ShareOf(Kind kind) {
    switch (kind) {
      case Kind::kProbe:
        return kStuckProbes;
      case Kind::kRead:
        return kStuckReads;
      case Kind::kFlush:
        return kStuckFlushes;
      case Kind::kStep:
        return kStuckSteps;
    }
    return 0;
  }
  [[nodiscard]] size_t CountStuck(Kind kind) const {
    return static_cast<size_t>(std::ranges::count_if(
        entries, [kind](const Entry& entry) { return entry.left_behind && entry.kind == kind; }));
  }
  [[nodiscard]] static absl::Status Overdue(const Entry& entry) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - entry.began);
    return absl::DeadlineExceededError(
        fmt::format("{}: process {} hangs in it for {} s", entry.what, entry.pid, age.count()));
  }

  // What a round of probes asks, from its launch until it is known which of them hang.
  class Asking {
   public:
    Asking(std::shared_ptr<State> state, std::vector<std::string> paths)
        : state_(std::move(state)), paths_(std::move(paths)) {
      state_->asked.insert(paths_.begin(), paths_.end());
    }
    ~Asking() {
      for (const std::string& path : paths_) state_->asked.extract(path);
      state_->NotifyEnded();
    }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    // One of them is to be unmounted.
    [[nodiscard]] bool Unwanted() const {
      return std::ranges::any_of(
          paths_, [this](const std::string& path) { return state_->probe_pause.contains(path); });
    }

   private:
    std::shared_ptr<State> state_;
    std::vector<std::string> paths_;
  };

  void NotifyEnded() {
    if (ended.has_value()) ended->NotifyAll();
  }

  static Awaitable<void> Reap(std::shared_ptr<Running> running) {
    running->exit = co_await running->process->Wait();
    // Not stuck any more, for those who wake up now.
    running->place->left_behind = false;
    running->state->NotifyEnded();
  }

  // The child of a probe hangs on: its end is waited for.
  static void WaitForChild(const std::shared_ptr<State>& state, const asio::any_io_executor& executor,
                           pid_t helper, Entry child) {
    // Its session shows that it is this helper's child and not another process with the same number.
    if (getsid(child.pid) != helper) return;
    auto process = Process::Adopt(executor, child.pid);
    if (!process.ok()) return;
    const auto left = std::make_shared<Running>(state, *std::move(process), std::move(child));
    state->reaper.Spawn("reap a probe", Reap(left));
  }

  // CANCELLED: it is being shut down. RESOURCE_EXHAUSTED: too many hang already.
  [[nodiscard]] absl::Status CheckRoomForProbes(size_t more) const {
    if (reaper.cancelled()) return absl::CancelledError("shutting down");
    const size_t stuck = CountStuck(Kind::kProbe);
    if (stuck + more <= kStuckProbes) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format("{} earlier probes hang", stuck));
  }

  std::string executable;
  TaskScope& reaper;
  std::list<Entry> entries;
  std::multiset<std::string> probe_pause;  // paths that are not to be probed
  std::multiset<std::string> asked;        // paths that are being probed
  // Some helper's. Made by the first that waits, who knows the loop.
  std::optional<Condition> ended;
};

MountHelper::MountHelper(std::string executable, TaskScope& reaper, std::string locks)
    : state_(std::make_shared<State>(std::move(executable), reaper)), locks_(std::move(locks)) {}
MountHelper::~MountHelper() = default;

std::vector<StuckHelper> MountHelper::stuck() const {
  std::vector<StuckHelper> stuck;
  for (const State::Entry& entry : state_->entries) {
    if (entry.left_behind) stuck.push_back({.pid = entry.pid, .what = entry.what, .since = entry.since});
  }
  return stuck;
}

pid_t MountHelper::HangingProbe(const std::string& path) const {
  const State::Entry* const hanging = state_->Hanging("probe " + path);
  return hanging == nullptr ? 0 : hanging->pid;
}

class MountHelper::ProbePause {
 public:
  ProbePause(std::shared_ptr<State> state, std::string path)
      : state_(std::move(state)), path_(std::move(path)) {
    state_->probe_pause.insert(path_);
  }
  ~ProbePause() { state_->probe_pause.extract(path_); }
  ProbePause(const ProbePause&) = delete;
  ProbePause& operator=(const ProbePause&) = delete;

 private:
  std::shared_ptr<State> state_;
  std::string path_;
};

bool MountHelper::MayProbe(const std::string& path) const { return !state_->probe_pause.contains(path); }

Awaitable<std::shared_ptr<MountHelper::ProbePause>> MountHelper::PauseProbes(std::string path,
                                                                             TimePoint deadline) {
  const std::shared_ptr<State> state = state_;
  if (!state->ended.has_value()) state->ended.emplace(co_await asio::this_coro::executor);
  const auto probe_pause = std::make_shared<ProbePause>(state, path);
  state->NotifyEnded();  // for a round that is under way
  auto let_go = [state, path] {
    return !state->asked.contains(path) && state->Hanging("probe " + path) == nullptr;
  };
  co_await state->ended->WaitUntil(std::move(let_go), deadline);
  co_return probe_pause;
}

Awaitable<void> MountHelper::WaitUnstuck(TimePoint deadline) {
  const std::shared_ptr<State> state = state_;
  if (!state->ended.has_value()) state->ended.emplace(co_await asio::this_coro::executor);
  std::vector<pid_t> before;
  for (const StuckHelper& each : stuck()) before.push_back(each.pid);
  auto changed = [state, before] {
    return std::ranges::any_of(before, [&state](pid_t pid) {
      return std::ranges::none_of(
          state->entries, [pid](const State::Entry& entry) { return entry.left_behind && entry.pid == pid; });
    });
  };
  co_await state->ended->WaitUntil(std::move(changed), deadline);
}

Awaitable<absl::StatusOr<std::string>> MountHelper::Run(Kind kind, std::string what,
                                                        std::vector<std::string> arguments,
                                                        TimePoint deadline, std::string input,
                                                        std::string* unfinished) {
  const std::shared_ptr<State> state = state_;
  const auto executor = co_await asio::this_coro::executor;
  if (state->reaper.cancelled()) co_return absl::CancelledError(what + ": shutting down");
  if (!state->ended.has_value()) state->ended.emplace(executor);
  auto free = [state, what] { return state->Hanging(what) == nullptr; };
  if (!co_await state->ended->WaitUntil(std::move(free), deadline)) {
    const State::Entry* const hanging = state->Hanging(what);
    co_return hanging != nullptr ? State::Overdue(*hanging) : absl::DeadlineExceededError(what);
  }
  if (state->CountStuck(kind) >= State::ShareOf(kind)) {
    co_return absl::ResourceExhaustedError(
        fmt::format("{}: {} helper processes hang already", what, state->CountStuck(kind)));
  }

  auto output = MemoryFile();
  if (!output.ok()) co_return Annotate(output.status(), what);
  ProcessSpec spec;
  UniqueFd question;
  if (!input.empty()) {
    BERTH_CO_ASSIGN_OR_RETURN(question, MemoryFile());
    BERTH_CO_RETURN_IF_ERROR(WriteAll(question.get(), input, what));
    spec.stdin_fd = question.get();
  }
  spec.executable = state->executable;
  spec.arguments = std::move(arguments);
  spec.stdout_fd = output->get();
  spec.stderr_fd = output->get();
  auto launched = co_await Process::Launch(executor, std::move(spec), deadline);
  if (!launched.ok()) co_return Annotate(launched.status(), what);
  State::Entry entry{.pid = (*launched)->pid(),
                     .what = what,
                     .since = WallClock::now(),
                     .began = Clock::now(),
                     .kind = kind};
  const auto running = std::make_shared<State::Running>(state, *std::move(launched), std::move(entry));
  state->reaper.Spawn("reap " + what, State::Reap(running));
  const State::LeaveBehind leave_behind(*running);
  auto done = [running] { return running->exit.has_value(); };
  if (!co_await state->ended->WaitUntil(std::move(done), deadline)) {
    if (unfinished != nullptr) *unfinished = ReadOutput(*output);
    co_return State::Overdue(*running->place);
  }

  std::string said = ReadOutput(*output);
  const ExitStatus exit = *running->exit;
  if (exit.known && exit.signal == 0 && exit.code == 0) co_return said;
  if (const int error = ErrnoIn(said); error != 0) co_return ErrnoStatus(error, what);
  const std::string shown = kind == Kind::kRead ? std::string() : ": " + Printable(said, 256);
  explicit_bzero(said.data(), said.size());
  co_return absl::InternalError(
      fmt::format("{}: {} ended with {}{}", what, state->executable, exit.Describe(), shown));
}

Awaitable<absl::Status> MountHelper::Unmount(std::string path, UnmountOptions options, TimePoint deadline) {
  std::vector<std::string> arguments{"umount"};
  std::string what = "umount ";
  const auto add = [&arguments, &what](const char* option) {
    arguments.emplace_back(option);
    what += fmt::format("{} ", option);
  };
  if (options.force) add("--force");
  if (options.lazy) add("--lazy");
  arguments.push_back(path);
  const auto output = co_await Run(Kind::kStep, what + path, std::move(arguments), deadline);
  co_return output.status();
}

Awaitable<std::vector<absl::Status>> MountHelper::Probe(std::vector<std::string> paths, TimePoint deadline) {
  std::vector<absl::Status> verdicts;
  verdicts.reserve(paths.size());
  const std::span<const std::string> all(paths);
  for (size_t from = 0; from < all.size(); from += kProbesAtATime) {
    const auto some = all.subspan(from, std::min(kProbesAtATime, all.size() - from));
    // Those that hang may take their share of the time, and no more.
    const size_t rounds = (all.size() - from + kProbesAtATime - 1) / kProbesAtATime;
    const TimePoint now = Clock::now();
    const TimePoint until = now + (deadline - now) / static_cast<int64_t>(rounds);
    std::vector<std::string> asked(some.begin(), some.end());
    for (absl::Status& verdict : co_await ProbeSome(std::move(asked), until)) {
      verdicts.push_back(std::move(verdict));
    }
  }
  co_return verdicts;
}

Awaitable<std::vector<absl::Status>> MountHelper::ProbeSome(std::vector<std::string> paths,
                                                            TimePoint deadline) {
  const std::shared_ptr<State> state = state_;
  const auto executor = co_await asio::this_coro::executor;
  if (!state->ended.has_value()) state->ended.emplace(executor);
  std::vector<absl::Status> verdicts(paths.size(), absl::UnknownError("not asked"));
  std::vector<std::string> asked;
  std::vector<size_t> places;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (const State::Entry* const hanging = state->Hanging("probe " + paths[i]); hanging != nullptr) {
      verdicts[i] = State::Overdue(*hanging);
      continue;
    }
    if (state->probe_pause.contains(paths[i])) continue;
    asked.push_back(paths[i]);
    places.push_back(i);
  }
  if (asked.empty()) co_return verdicts;
  const auto fail = [&verdicts, &places, &asked](const absl::Status& why) {
    for (size_t i = 0; i < places.size(); ++i) verdicts[places[i]] = Annotate(why, "probe " + asked[i]);
  };
  const absl::Status room = state->CheckRoomForProbes(asked.size());
  const absl::StatusOr<UniqueFd> output = room.ok() ? MemoryFile() : room;
  if (!output.ok()) {
    fail(output.status());
    co_return verdicts;
  }
  // Before the launch, so that a mount is not unmounted that is about to be asked.
  const auto asking = std::make_shared<State::Asking>(state, asked);
  ProcessSpec spec;
  spec.executable = state->executable;
  spec.arguments = asked;
  spec.arguments.insert(spec.arguments.begin(), "probe");
  spec.stdout_fd = output->get();
  auto launched = co_await Process::Launch(executor, std::move(spec), deadline);
  if (!launched.ok()) {
    // A helper that does not start in time says nothing of any file system.
    const bool late = launched.status().code() == absl::StatusCode::kDeadlineExceeded;
    fail(late ? absl::UnknownError(launched.status().message()) : launched.status());
    co_return verdicts;
  }
  const pid_t helper = (*launched)->pid();
  const WallTime since = WallClock::now();
  const TimePoint began = Clock::now();
  State::Entry entry{.pid = helper, .what = "probe", .since = since, .began = began, .kind = Kind::kProbe};
  const auto running = std::make_shared<State::Running>(state, *std::move(launched), std::move(entry));
  state->reaper.Spawn("reap a probe", State::Reap(running));
  const State::LeaveBehind leave_behind(*running);
  auto done = [running, asking] { return running->exit.has_value() || asking->Unwanted(); };
  const bool overdue = !co_await state->ended->WaitUntil(std::move(done), deadline);
  const bool ended = running->exit.has_value();
  // Each says its number before it asks: after this, those that are left have said it.
  if (!ended) State::Kill(*running);

  std::vector<ProbeAnswer> answers = ParseProbe(ReadOutput(*output), asked);
  for (size_t i = 0; i < answers.size(); ++i) {
    absl::Status& verdict = verdicts[places[i]];
    if (answers[i].verdict.has_value()) {
      verdict = *answers[i].verdict;
      continue;
    }
    const pid_t child = answers[i].child;
    verdict = absl::UnknownError(fmt::format("probe {}: {} did not say", asked[i], state->executable));
    if (ended || child <= 0) continue;
    State::Entry hanging{.pid = child,
                         .what = "probe " + asked[i],
                         .since = since,
                         .began = began,
                         .kind = Kind::kProbe,
                         .left_behind = true};
    if (overdue) verdict = State::Overdue(hanging);
    State::WaitForChild(state, executor, helper, std::move(hanging));
  }
  co_return verdicts;
}

Awaitable<absl::Status> MountHelper::SetPermissions(std::string path, RootPermissions permissions,
                                                    TimePoint deadline) {
  std::vector<std::string> arguments{"permissions", path};
  const auto add = [&arguments](const char* option, std::string value) {
    arguments.emplace_back(option);
    arguments.push_back(std::move(value));
  };
  if (permissions.has_owner()) add("--owner", fmt::format("{}", permissions.owner()));
  if (permissions.has_group()) add("--group", fmt::format("{}", permissions.group()));
  if (permissions.has_mode()) add("--mode", fmt::format("{:o}", permissions.mode()));
  if (!permissions.selinux_label().empty()) add("--label", permissions.selinux_label());
  if (permissions.recursive()) arguments.emplace_back("--recursive");
  const auto output = co_await Run(Kind::kStep, "set permissions of " + path, std::move(arguments), deadline);
  co_return output.status();
}

// One after the other at one path, whichever of them it is: one that was left behind may have its effect yet.
std::string AtPath(const std::string& path) { return "the mount at " + Printable(path); }

Awaitable<absl::StatusOr<PathMount>> MountHelper::MountPath(std::string source, PublishedPath path,
                                                            bool readonly, TimePoint deadline) {
  std::vector<std::string> arguments{"mount-path", fmt::format("{}", getpid()), source, path.path, locks_};
  if (readonly) arguments.emplace_back("--readonly");
  if (path.suid) arguments.emplace_back("--suid");
  if (path.dev) arguments.emplace_back("--dev");
  const auto output = co_await Run(Kind::kStep, AtPath(path.path), std::move(arguments), deadline);
  if (!output.ok()) co_return output.status();
  co_return ParseMountPath(*output, path.path);
}

Awaitable<absl::Status> MountHelper::UnmountPath(std::string path, uint64_t mount_id,
                                                 std::vector<std::string> sources, bool lazy,
                                                 TimePoint deadline) {
  std::vector<std::string> arguments{"unmount-path", path, locks_, fmt::format("{}", mount_id)};
  if (lazy) arguments.emplace_back("--lazy");
  arguments.insert(arguments.end(), sources.begin(), sources.end());
  const auto output = co_await Run(Kind::kStep, AtPath(path), std::move(arguments), deadline);
  if (!output.ok()) co_return output.status();
  if (output->starts_with("ok")) co_return absl::OkStatus();
  co_return SomethingElseMounted(path);
}

Awaitable<absl::Status> MountHelper::FreePath(std::string path, TimePoint deadline) {
  const auto output = co_await Run(Kind::kStep, AtPath(path), {"free-path", path}, deadline);
  co_return output.status();
}

Awaitable<absl::StatusOr<bool>> MountHelper::IsReadonly(std::string path, TimePoint deadline) {
  const auto output = co_await Run(Kind::kStep, "statvfs " + path, {"statvfs", path}, deadline);
  if (!output.ok()) co_return output.status();
  if (output->starts_with("readonly 1")) co_return true;
  if (output->starts_with("readonly 0")) co_return false;
  co_return absl::InternalError(
      fmt::format("statvfs {}: {} answered {}", path, state_->executable, Printable(*output, 64)));
}

Awaitable<absl::StatusOr<FileContent>> MountHelper::ReadFile(std::string path, size_t limit,
                                                             TimePoint deadline) {
  const std::string what = "read " + Printable(path);
  auto output = co_await Run(Kind::kRead, what, {"read", path, fmt::format("{}", limit)}, deadline);
  // Of the helper, not of the file.
  if (!output.ok()) co_return absl::Status(output.status().code(), output.status().message());
  absl::StatusOr<FileContent> content = ParseRead(*output, what);
  explicit_bzero(output->data(), output->size());
  co_return content;
}

Awaitable<absl::StatusOr<bool>> MountHelper::SuperblockIsAlive(dev_t device, dev_t disk, TimePoint deadline) {
  const std::string number = Number(device);
  const std::string what = "look for the file system with device number " + number;
  std::vector<std::string> arguments{"superblock", number};
  if (disk != 0) arguments.push_back(Number(disk));
  const auto output = co_await Run(Kind::kRead, what, std::move(arguments), deadline);
  if (disk == 0 && (ErrnoOf(output.status()) == ENOSYS || ErrnoOf(output.status()) == EPERM)) {
    co_return absl::UnimplementedError(fmt::format("{}", MessageOf(output.status())));
  }
  if (!output.ok()) co_return output.status();
  if (output->starts_with("alive 1")) co_return true;
  if (output->starts_with("alive 0")) co_return false;
  co_return absl::InternalError(what + ": the helper did not say what it found");
}

Awaitable<CensusAnswer> MountHelper::TakeCensus(CensusQuestion question, TimePoint deadline) {
  const bool users = std::ranges::any_of(question.objects, &CensusObject::users);
  std::string input = EncodeQuestion(question);
  const char* const what = users ? "look for who has volumes" : "look for mounts of volumes";
  std::string unfinished;
  const auto output = co_await Run(Kind::kRead, what, {"census"}, deadline, std::move(input), &unfinished);
  CensusAnswer answer = DecodeAnswer(output.ok() ? *output : unfinished, question.objects.size());
  if (!output.ok() && !answer.incomplete.empty()) answer.incomplete = std::string(MessageOf(output.status()));
  co_return answer;
}

Awaitable<absl::Status> MountHelper::Flush(dev_t device, uint64_t sequence, TimePoint deadline) {
  const std::string number = Number(device);
  const std::string what = "flush block device " + number;
  const auto output =
      co_await Run(Kind::kFlush, what, {"flush", number, fmt::format("{}", sequence)}, deadline);
  if (output.ok() && output->starts_with("failed"))
    SPDLOG_WARN("{}: its disk has not taken all that was written to it: {}", what, Printable(*output, 64));
  co_return output.status();
}

Awaitable<absl::StatusOr<bool>> MountHelper::DeviceIsClaimed(dev_t device, TimePoint deadline) {
  const std::string number = Number(device);
  const auto output =
      co_await Run(Kind::kRead, "open block device " + number, {"exclusive", number}, deadline);
  if (output.ok()) co_return false;
  if (ErrnoOf(output.status()) == EBUSY) co_return true;
  co_return output.status();
}

}  // namespace berth
