#include "mounts/mount_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <libmount.h>
#include <spdlog/spdlog.h>
#include <sys/fanotify.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/blocking.h"
#include "base/mountinfo.h"
#include "base/safe_path.h"
#include "base/statmount.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace berth {
namespace {

// Linux 6.15; Debian 12's headers do not have them.
constexpr unsigned kReportMounts = 0x4000;
constexpr unsigned kMarkNamespace = 0x110;
constexpr uint64_t kAttach = 0x01000000;
constexpr uint64_t kDetach = 0x02000000;
constexpr uint8_t kInfoOfMount = 7;

struct MountRecord {
  fanotify_event_info_header header;
  uint64_t mount_id;
};

// Beyond so many events at a time, looking each up costs more than looking at every volume once.
constexpr size_t kLookUpsAtATime = 4096;
// How long the mount table may be read, on kernels that do not say what has changed.
constexpr Duration kReadTableWithin = std::chrono::seconds(30);

bool IsBeneath(std::string_view path, std::string_view directory) {
  return path != directory && IsAtOrBeneath(path, directory);
}

// The volume directory in which a mount lies; empty: it lies in none.
std::string_view KeyOf(std::string_view target, std::string_view tree) {
  if (!IsBeneath(target, tree)) return {};
  const std::string_view inside = target.substr(tree.size() + 1);
  return inside.substr(0, inside.find('/'));
}

// Which keys may have changed, in the making.
class Changes {
 public:
  explicit Changes(std::string_view tree) : tree_(tree) {}

  void AddKey(const std::string& key) { keys_.insert(key); }
  void AddEverything() { everything_ = true; }
  // By where a mount lies.
  void AddTarget(std::string_view target) {
    if (target == tree_ || IsBeneath(tree_, target)) {
      everything_ = true;
    } else if (const std::string_view key = KeyOf(target, tree_); !key.empty()) {
      keys_.emplace(key);
    }
  }
  // Whether AddTarget would do anything.
  [[nodiscard]] bool Concerns(std::string_view target) const {
    return target == tree_ || IsBeneath(tree_, target) || IsBeneath(target, tree_);
  }

  [[nodiscard]] bool empty() const { return !everything_ && keys_.empty(); }
  [[nodiscard]] bool everything() const { return everything_; }
  [[nodiscard]] std::optional<std::set<std::string>> Take() {
    if (everything_) return std::nullopt;
    return std::move(keys_);
  }

 private:
  std::string_view tree_;
  std::set<std::string> keys_;
  bool everything_ = false;
};

// By mounts that are as they should be: the volume directory of each.
using Tracked = std::unordered_map<uint64_t, std::string>;

// What the mount table shows of the tree: by mountinfo's number, which comes again, where, and what.
struct Place {
  std::string target;
  uint64_t fingerprint = 0;
  bool operator==(const Place&) const = default;
};
using Snapshot = std::map<uint64_t, Place>;

struct Table {
  Snapshot mounts;
  std::vector<uint64_t> gone;  // of those that were tracked
};

absl::StatusOr<Table> ReadTableNow(const std::string& tree, const Tracked& tracked) {
  Table table;
  std::set<uint64_t> there;
  const Changes filter(tree);
  BERTH_RETURN_IF_ERROR(ReadMountinfo("/proc/self/mountinfo", [&](const MountinfoLine& line) {
    std::string target = DecodeMountinfo(line.target);
    const bool concerns = filter.Concerns(target);
    const auto known = tracked.find(line.id);
    // One that lies elsewhere has the number of one that has gone.
    if (known != tracked.end() && (!concerns || KeyOf(target, tree) == known->second)) there.insert(line.id);
    if (!concerns) return true;
    const uint64_t fingerprint = MountFingerprint(line.id, makedev(line.device_major, line.device_minor),
                                                  DecodeMountinfo(line.root), target);
    table.mounts.emplace(line.id, Place{.target = std::move(target), .fingerprint = fingerprint});
    return true;
  }));
  for (const auto& [id, key] : tracked) {
    // By unique number, which mountinfo does not have; by mountinfo's where there is no other.
    const auto told = StatMount(id);
    const bool gone = told.ok() && !told->has_value() ? !there.contains(id) : absl::IsNotFound(told.status());
    if (gone) table.gone.push_back(id);
  }
  return table;
}

void Compare(const Snapshot& before, const Snapshot& after, Changes* changes) {
  const auto differs = [](const Snapshot& other, const auto& entry) {
    const auto it = other.find(entry.first);
    return it == other.end() || it->second != entry.second;
  };
  for (const auto& entry : before) {
    if (differs(after, entry)) changes->AddTarget(entry.second.target);
  }
  for (const auto& entry : after) {
    if (differs(before, entry)) changes->AddTarget(entry.second.target);
  }
}

struct Unref {
  void operator()(libmnt_monitor* monitor) const { mnt_unref_monitor(monitor); }
};
using Monitor = std::unique_ptr<libmnt_monitor, Unref>;

absl::StatusOr<UniqueFd> OpenFanotify() {
  // Not an unlimited queue: what overflows is found by looking at everything.
  UniqueFd fd(fanotify_init(kReportMounts | FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "fanotify_init for mounts");
  const UniqueFd mount_namespace(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!mount_namespace.valid()) return ErrnoStatus(errno, "open /proc/self/ns/mnt");
  if (fanotify_mark(fd.get(), FAN_MARK_ADD | kMarkNamespace, kAttach | kDetach, mount_namespace.get(),
                    nullptr) != 0) {
    return ErrnoStatus(errno, "fanotify_mark for mounts");
  }
  return fd;
}

absl::StatusOr<Monitor> OpenMonitor() {
  Monitor monitor(mnt_new_monitor());
  if (monitor == nullptr) return absl::ResourceExhaustedError("watch mounts: no memory");
  const int error = mnt_monitor_enable_kernel(monitor.get(), 1);
  if (error < 0) return ErrnoStatus(-error, "watch mounts");
  return monitor;
}

}  // namespace

struct MountWatch::State {
  State(const asio::any_io_executor& loop, std::string directory, OnChange told, MountWatchOptions chosen)
      : tree(std::move(directory)), on_change(std::move(told)), options(chosen), descriptor(loop) {}
  ~State() {
    // libmount's is closed by the monitor.
    if (monitor != nullptr) [[maybe_unused]]
      const int fd = descriptor.release();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void TakeEvents(Changes* changes);
  void TakeEvent(const fanotify_event_metadata& event, std::string_view records, Changes* changes);
  Awaitable<void> ReadTable(Changes* changes);
  static Awaitable<void> Run(std::shared_ptr<State> state);

  std::string tree;
  OnChange on_change;
  MountWatchOptions options;
  asio::posix::stream_descriptor descriptor;
  std::string described;
  bool stopped = false;

  Tracked tracked;

  // With fanotify.
  uint64_t tree_mount = 0;
  size_t looked_up = 0;

  // Without.
  Monitor monitor;
  Snapshot snapshot;
  TimePoint next_reading;
};

void MountWatch::State::TakeEvent(const fanotify_event_metadata& event, std::string_view records,
                                  Changes* changes) {
  if ((event.mask & FAN_Q_OVERFLOW) != 0) {
    SPDLOG_WARN("more changes of mounts at a time than the kernel keeps: looking at every volume");
    return changes->AddEverything();
  }
  while (records.size() >= sizeof(fanotify_event_info_header)) {
    MountRecord record{};
    memcpy(&record.header, records.data(), sizeof record.header);
    if (record.header.len < sizeof record.header || record.header.len > records.size()) return;
    const std::string_view body = records.substr(0, record.header.len);
    records.remove_prefix(record.header.len);
    if (record.header.info_type != kInfoOfMount || body.size() < sizeof record) continue;
    memcpy(&record, body.data(), sizeof record);

    if ((event.mask & kDetach) != 0) {
      if (record.mount_id == tree_mount) changes->AddEverything();
      if (const auto known = tracked.extract(record.mount_id)) changes->AddKey(known.mapped());
    }
    if ((event.mask & kAttach) == 0 || tracked.contains(record.mount_id) || changes->everything()) continue;
    if (++looked_up > kLookUpsAtATime) return changes->AddEverything();
    const auto mount = StatMount(record.mount_id);
    if (absl::IsNotFound(mount.status())) continue;  // it has gone again
    if (!mount.ok() || !mount->has_value()) return changes->AddEverything();
    changes->AddTarget((*mount)->target);
  }
}

void MountWatch::State::TakeEvents(Changes* changes) {
  looked_up = 0;
  alignas(fanotify_event_metadata) std::array<char, size_t{16} * 1024> buffer{};
  while (true) {
    const ssize_t count = read(descriptor.native_handle(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    std::string_view rest(buffer.data(), static_cast<size_t>(count));
    while (rest.size() >= sizeof(fanotify_event_metadata)) {
      fanotify_event_metadata event{};
      memcpy(&event, rest.data(), sizeof event);
      if (event.event_len < sizeof event || event.event_len > rest.size()) break;
      TakeEvent(event, rest.substr(sizeof event, event.event_len - sizeof event), changes);
      rest.remove_prefix(event.event_len);
    }
  }
}

Awaitable<void> MountWatch::State::ReadTable(Changes* changes) {
  if (Clock::now() < next_reading) co_await SleepUntil(next_reading);
  // Changes from here on are reported by a new event.
  while (!stopped && mnt_monitor_next_change(monitor.get(), nullptr, nullptr) == 0) {
  }
  const TimePoint began = Clock::now();
  auto read = [directory = tree, mounts = tracked] { return ReadTableNow(directory, mounts); };
  auto now = co_await RunBlocking("read the mount table", std::move(read), began + kReadTableWithin);
  next_reading = Clock::now() + 9 * (Clock::now() - began);
  if (!now.ok()) {
    SPDLOG_WARN("{}", MessageOf(now.status()));
    changes->AddEverything();
    co_return;
  }
  Compare(snapshot, now->mounts, changes);
  snapshot = std::move(now->mounts);
  // Also one that came and went since the last reading.
  for (const uint64_t id : now->gone) {
    if (const auto known = tracked.extract(id)) changes->AddKey(known.mapped());
  }
}

Awaitable<void> MountWatch::State::Run(std::shared_ptr<State> state) {
  while (true) {
    const auto [error] = co_await state->descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                                               asio::as_tuple(asio::use_awaitable));
    if (error || state->stopped) co_return;
    co_await SleepUntil(Clock::now() + state->options.gather);
    if (state->stopped) co_return;
    Changes changes(state->tree);
    if (state->monitor != nullptr) {
      co_await state->ReadTable(&changes);
    } else {
      state->TakeEvents(&changes);
    }
    if (!state->stopped && !changes.empty()) state->on_change(changes.Take());
  }
}

MountWatch::MountWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}

MountWatch::~MountWatch() {
  state_->stopped = true;
  boost::system::error_code ignored;
  [[maybe_unused]] const auto cancelled = state_->descriptor.cancel(ignored);
}

absl::StatusOr<std::unique_ptr<MountWatch>> MountWatch::Start(asio::any_io_executor executor,
                                                              TaskScope& scope, std::string tree,
                                                              OnChange on_change, MountWatchOptions options) {
  const auto state = std::make_shared<State>(executor, std::move(tree), std::move(on_change), options);
  BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(state->tree));
  if (facts.mount_root) state->tree_mount = facts.mount_id;
  absl::StatusOr<UniqueFd> fanotify =
      options.use_fanotify ? OpenFanotify() : absl::UnimplementedError("not wanted");
  if (fanotify.ok()) {
    state->described = "fanotify";
    state->descriptor.assign(fanotify->Release());
  } else {
    SPDLOG_DEBUG("{}", MessageOf(fanotify.status()));
    BERTH_ASSIGN_OR_RETURN(state->monitor, OpenMonitor());
    const int fd = mnt_monitor_get_fd(state->monitor.get());
    if (fd < 0) {
      const absl::Status status = ErrnoStatus(-fd, "watch mounts");
      state->monitor.reset();
      return status;
    }
    state->described = fmt::format(
        "libmount's monitor ({}): the kernel does not report which mounts change (Linux 6.15 and later do), "
        "so the mount table is read again after each change, which is slow with very many mounts",
        MessageOf(fanotify.status()));
    state->descriptor.assign(fd);
    BERTH_ASSIGN_OR_RETURN(Table table, ReadTableNow(state->tree, {}));
    state->snapshot = std::move(table.mounts);
  }
  scope.Spawn("watch mounts", State::Run(state));
  return std::unique_ptr<MountWatch>(new MountWatch(state));
}

void MountWatch::Track(uint64_t mount_id, const std::string& key) {
  state_->tracked.insert_or_assign(mount_id, key);
}
void MountWatch::Untrack(uint64_t mount_id) { state_->tracked.erase(mount_id); }
const std::string& MountWatch::describe() const { return state_->described; }

}  // namespace berth
