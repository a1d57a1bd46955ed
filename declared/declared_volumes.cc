#include "declared/declared_volumes.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/backoff.h"
#include "base/blocking.h"
#include "base/process.h"
#include "base/status.h"
#include "declared/declared.h"
#include "declared/declared_files.h"
#include "declared/declared_records.h"
#include "declared/declared_steps.h"

namespace berth {
namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::minutes(2);
constexpr Duration kReadWithin = std::chrono::seconds(30);
// Most waits end by an event; this is for changes without one, such as a volume that has left the mounter's
// records.
constexpr Duration kLookAgain = std::chrono::seconds(30);
constexpr size_t kEventsAtOnce = 256;

using Entry = DeclaredUseState;

std::string_view ActionName(DeclaredAction action) {
  switch (action) {
    case DeclaredAction::kNothing:
    case DeclaredAction::kWait:
    case DeclaredAction::kGone:
      return "";
    case DeclaredAction::kRemember:
    case DeclaredAction::kNoteRelease:
    case DeclaredAction::kForget:
      return "note";
    case DeclaredAction::kAttach:
      return "attach";
    case DeclaredAction::kPublish:
      return "publish";
    case DeclaredAction::kUnpublish:
      return "unpublish";
    case DeclaredAction::kDetach:
      return "detach";
  }
  return "";
}

}  // namespace

class DeclaredVolumes::Impl {
 public:
  Impl(asio::any_io_executor executor, DeclaredOptions options, Mounter& mounter,
       ControllerDirectory& controllers, ControllerAccess& access, EventLog& events)
      : executor_(executor),
        directory_(options.config_dir + "/volumes.d"),
        own_directories_{options.state_dir, options.runtime_dir},
        records_(options.state_dir + "/declared"),
        mounter_(mounter),
        controllers_(controllers),
        events_(events),
        steps_(records_, mounter, controllers, access, events),
        changed_(executor),
        tasks_(executor, "declared volumes") {}

  Awaitable<absl::Status> Start() {
    struct Loaded {
      std::vector<DeclaredRecord> records;
      std::vector<std::string> unreadable;
    };
    auto load = [records = records_]() -> absl::StatusOr<Loaded> {
      Loaded loaded;
      BERTH_ASSIGN_OR_RETURN(loaded.records, records.Load(&loaded.unreadable));
      return loaded;
    };
    absl::StatusOr<Loaded> loaded = co_await RunBlocking("read the records of declared volumes",
                                                         std::move(load), Clock::now() + kReadWithin);
    if (!loaded.ok()) {
      problems_.push_back(fmt::format("declared volumes are left alone: {}", MessageOf(loaded.status())));
      co_return loaded.status();
    }
    problems_ = std::move(loaded->unreadable);
    absl::StatusOr<std::vector<DeclaredFile>> files =
        co_await ReadFiles(FilesOf(loaded->records), Clock::now() + kReadWithin);
    const bool known = files.ok();
    if (known) {
      [[maybe_unused]] const DeclaredReload first = TakeIn(*std::move(files), &set_);
    } else {
      directory_problem_ =
          fmt::format("declared volumes are left as they are: {}", MessageOf(files.status()));
    }
    TakeUpRecords(std::move(loaded->records), known);
    started_ = true;
    Apply();
    tasks_.Spawn("follow events", FollowEvents());
    tasks_.Spawn("follow plugins", FollowPlugins());
    co_return absl::OkStatus();
  }

  Awaitable<absl::StatusOr<DeclaredReload>> Reload(TimePoint deadline) {
    if (final_ || !started_) co_return absl::UnavailableError("declared volumes are not managed now");
    if (reloading_) co_return absl::AbortedError("a reload of the declared volumes is under way");
    const Flag reloading(&reloading_);
    // What is released while the files are read was released after this request: it stays released.
    std::vector<std::shared_ptr<Entry>> requested;
    for (const auto& [key, entry] : entries_) {
      if (IsReleased(entry->state, Gather(*entry))) requested.push_back(entry);
    }
    absl::StatusOr<std::vector<DeclaredFile>> files = co_await ReadFiles(FilesInUse(), deadline);
    if (!files.ok()) {
      directory_problem_ =
          fmt::format("declared volumes are left as they are: {}", MessageOf(files.status()));
      co_return files.status();
    }
    if (final_) co_return absl::UnavailableError("declared volumes are being released");
    directory_problem_.clear();
    DeclaredReload report = TakeIn(*std::move(files), &set_);
    Emit("volume.declared", report.declared, "is declared");
    Emit("volume.withdrawn", report.withdrawn, "is not declared any more");
    for (const auto& entry : requested) {
      entry->state.was_published = false;
      entry->state.released = false;
      entry->state.not_before = TimePoint{};
      entry->last_done.reset();
    }
    Apply();
    co_return report;
  }

  void OnUnpublish(const UnpublishRequest& request) {
    for (const auto& [key, entry] : entries_) {
      const bool concerns =
          key.consumer == request.consumer && (request.all_names || key.name == request.name);
      std::string why;
      if (key.volume_id != request.volume_id || !concerns) continue;
      if (entry->state.will != DeclaredEntry::Will::kWanted) continue;
      if (steps_.PluginIdOf(*entry, &why) != request.plugin_id) continue;
      // What is under way for it ends, and its release is noted.
      entry->state.released = true;
      entry->state.not_before = TimePoint{};
      ++entry->will_version;
      entry->Wake();
    }
  }

  std::vector<DeclaredView> List() const {
    std::map<std::string, DeclaredView> views;
    for (const auto& [name, file] : set_.files) {
      DeclaredView& view = views[name];
      view.file = file.path;
      view.request = file.request;
      view.state = file.use.ok() ? "waiting" : "broken";
      if (!file.use.ok()) view.error_in_file = std::string(MessageOf(file.use.status()));
      if (file.use.ok()) view.path = file.use->request.path.path;
    }
    for (const auto& [key, entry] : entries_) {
      if (entry->file.empty()) continue;
      const auto use = set_.uses.find(entry->file);
      // What a file that is broken since before we came declared is only in its note.
      const bool present = use != set_.uses.end() ? KeyOf(use->second) == key : Broken(entry->file);
      // If a file was changed, the use that still leaves is shown, too.
      DeclaredView& view = views[present ? entry->file : entry->file + " (before)"];
      view.file = directory_ + "/" + entry->file;
      view.withdrawn = !present;
      if (view.request.volume_id().empty()) {
        view.request.set_plugin_id(key.plugin);
        view.request.set_volume_id(key.volume_id);
        view.request.set_consumer(key.consumer);
        view.request.set_name(key.name);
      }
      Show(*entry, &view);
      if (entry->step.at.has_value()) {
        view.next_retry_at = WallClock::now() +
                             std::chrono::duration_cast<WallClock::duration>(*entry->step.at - Clock::now());
      }
    }
    std::vector<DeclaredView> list;
    list.reserve(views.size());
    for (auto& [name, view] : views) list.push_back(std::move(view));
    return list;
  }

  [[nodiscard]] uint64_t version() const { return version_; }
  Awaitable<void> WaitChange(uint64_t seen, TimePoint deadline) {
    auto changed = [this, seen] { return version_ != seen; };
    co_await changed_.WaitUntil(std::move(changed), deadline);
  }

  std::vector<std::string> Problems() const {
    std::vector<std::string> problems = problems_;
    if (!directory_problem_.empty()) problems.push_back(directory_problem_);
    return problems;
  }

  Awaitable<size_t> ReleaseAll(TimePoint deadline) {
    final_ = true;
    steps_.KeepPaths();
    set_.uses.clear();
    for (const auto& [key, entry] : entries_) Want(entry.get(), DeclaredEntry::Will::kWithdrawn, nullptr);
    WakeAll();
    auto none = [this] { return entries_.empty(); };
    [[maybe_unused]] const bool all = co_await changed_.WaitUntil(std::move(none), deadline);
    for (const auto& [key, entry] : entries_) {
      const std::string why = steps_.WhyNotReleased(*entry);
      Event event{.type = "volume.not_released"};
      event.plugin_id = entry->state.record.has_value() ? entry->state.record->plugin_id() : key.plugin;
      event.volume_id = key.volume_id;
      event.consumer = key.consumer;
      event.message = fmt::format("declared in {}, and not released in time: {}", entry->file, why);
      events_.Append(std::move(event));
    }
    co_return entries_.size();
  }

  Awaitable<void> Shutdown() { co_await tasks_.Join(); }

 private:
  // Why it waits stands where an error stands, too: it is what keeps it away.
  static void Show(const Entry& entry, DeclaredView* view) {
    constexpr std::string_view kWaiting = "waiting: ";
    view->state = entry.step.state;
    view->published = entry.published;
    view->attached = entry.state.record.has_value() && entry.state.record->attach_sent();
    view->last_error = entry.last_error;
    if (!view->last_error.empty() || !view->state.starts_with(kWaiting)) return;
    view->last_error = view->state.substr(kWaiting.size());
    view->state = "waiting";
  }

  struct Flag {
    explicit Flag(bool* flag) : flag_(flag) { *flag_ = true; }
    ~Flag() { *flag_ = false; }
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;
    bool* flag_;
  };

  // A missing directory declares nothing; but it withdraws nothing either. `in_use`: the files with volumes
  // here; may be empty.
  Awaitable<absl::StatusOr<std::vector<DeclaredFile>>> ReadFiles(std::set<std::string> in_use,
                                                                 TimePoint deadline) {
    const bool owes = !in_use.empty();
    auto read = [directory = directory_, in_use = std::move(in_use), own = own_directories_] {
      return ReadDeclaredFiles(directory, in_use, own);
    };
    absl::StatusOr<std::vector<DeclaredFile>> files =
        co_await RunBlocking(fmt::format("read {}", directory_), std::move(read), deadline);
    if (absl::IsNotFound(files.status()) && set_.files.empty() && !owes && !OwesUnnoted()) {
      co_return std::vector<DeclaredFile>{};
    }
    co_return files;
  }

  static std::set<std::string> FilesOf(const std::vector<DeclaredRecord>& records) {
    std::set<std::string> files;
    for (const DeclaredRecord& record : records) files.insert(record.file());
    return files;
  }

  [[nodiscard]] std::set<std::string> FilesInUse() const {
    std::set<std::string> files;
    for (const auto& [key, entry] : entries_) files.insert(entry->file);
    return files;
  }

  // The mounter has publications that files declared.
  [[nodiscard]] bool OwesUnnoted() const { return !mounter_.List({.declared = true, .limit = 1}).empty(); }

  void TakeUpRecords(std::vector<DeclaredRecord> records, bool files_known) {
    for (DeclaredRecord& record : records) {
      Entry& entry = EntryOf(KeyOf(record));
      entry.file = record.file();
      entry.state.will = files_known && !Broken(record.file()) ? DeclaredEntry::Will::kWithdrawn
                                                               : DeclaredEntry::Will::kKept;
      entry.state.released = record.released_in_boot() == entry.state.boot_id;
      entry.state.record = std::move(record);
    }
    // A declared use with a lost record is released like any other with a missing file.
    for (const VolumeView& view : mounter_.List({.declared = true})) {
      for (const PublicationView& publication : view.publications) {
        if (publication.origin != Origin::kDeclared || Noted(view.volume_id, publication)) continue;
        Entry& entry = EntryOf({view.plugin_id, view.volume_id, publication.consumer, publication.name});
        entry.state.will = files_known ? DeclaredEntry::Will::kWithdrawn : DeclaredEntry::Will::kKept;
      }
    }
  }

  [[nodiscard]] bool Broken(const std::string& file) const {
    const auto found = set_.files.find(file);
    return found != set_.files.end() && !found->second.use.ok();
  }

  // Whatever the plugin is called there.
  [[nodiscard]] bool Noted(const std::string& volume_id, const PublicationView& publication) const {
    const auto same = [&](const DeclaredKey& key) {
      return key.volume_id == volume_id && key.consumer == publication.consumer &&
             key.name == publication.name;
    };
    for (const auto& [key, entry] : entries_) {
      if (same(key)) return true;
    }
    return std::any_of(set_.uses.begin(), set_.uses.end(),
                       [&](const auto& use) { return same(KeyOf(use.second)); });
  }

  Entry& EntryOf(const DeclaredKey& key) {
    std::shared_ptr<Entry>& entry = entries_[key];
    if (entry == nullptr) {
      entry = std::make_shared<Entry>(executor_);
      entry->key = key;
      entry->state.will = DeclaredEntry::Will::kWithdrawn;
      entry->state.boot_id = boot_id_;
    }
    return *entry;
  }

  void Want(Entry* entry, DeclaredEntry::Will will, const DeclaredUse* use) {
    DeclaredEntry& state = entry->state;
    const bool same_mount =
        use != nullptr && state.use.has_value() && state.use->mount_digest == use->mount_digest;
    if (state.will == will && same_mount) {
      // secrets_reference, remount and their like.
      if (state.use->request != use->request) {
        state.tell_anew = true;
        state.not_before = TimePoint{};
      }
      state.use = *use;
      return;
    }
    if (state.will == will && use == nullptr && !state.use.has_value()) return;
    state.will = will;
    state.use = use == nullptr ? std::nullopt : std::optional(*use);
    state.not_before = TimePoint{};
    entry->failures = 0;
    entry->last_error.clear();
    entry->last_done.reset();
    entry->published = false;
    ++entry->will_version;
  }

  // Brings the entries in line with what is declared, and wakes or begins them.
  void Apply() {
    std::set<DeclaredKey> wanted;
    for (const auto& [name, use] : set_.uses) {
      Entry& entry = EntryOf(KeyOf(use));
      entry.file = name;
      Want(&entry, DeclaredEntry::Will::kWanted, &use);
      wanted.insert(entry.key);
    }
    for (const auto& [key, entry] : entries_) {
      if (wanted.contains(key)) continue;
      // A note of a file that is broken since before we came: who knows what it wants.
      const bool keep = Broken(entry->file) || (!directory_problem_.empty() && !entry->state.use.has_value());
      Want(entry.get(), keep ? DeclaredEntry::Will::kKept : DeclaredEntry::Will::kWithdrawn, nullptr);
    }
    // One that has nothing left to do ends, and takes itself out, the moment that it is begun.
    const std::map<DeclaredKey, std::shared_ptr<Entry>> all = entries_;
    for (const auto& [key, entry] : all) {
      if (entry->running) continue;
      entry->running = true;
      tasks_.Spawn(fmt::format("volume of {}", entry->file), Keep(entry));
    }
    WakeAll();
    Changed();
  }

  void Changed() {
    ++version_;
    changed_.NotifyAll();
  }

  void WakeAll() {
    for (const auto& [key, entry] : entries_) entry->Wake();
  }

  void WakeVolume(const std::string& volume_id) {
    for (const auto& [key, entry] : entries_) {
      if (key.volume_id == volume_id) entry->Wake();
    }
  }

  void Emit(const std::string& type, const std::vector<std::string>& files, std::string_view what) {
    for (const std::string& name : files) {
      Event event{.type = type};
      for (const auto& [key, entry] : entries_) {
        if (entry->file != name) continue;
        event.plugin_id = key.plugin;
        event.volume_id = key.volume_id;
        event.consumer = key.consumer;
      }
      if (const auto use = set_.uses.find(name); use != set_.uses.end()) {
        event.plugin_id = use->second.request.plugin_id;
        event.volume_id = use->second.request.volume_id;
        event.consumer = use->second.request.consumer;
      }
      event.message =
          fmt::format("volume {} {} ({}/{})", Printable(event.volume_id, 256), what, directory_, name);
      events_.Append(std::move(event));
    }
  }

  Awaitable<void> FollowEvents() {
    uint64_t seen = events_.next_sequence() - 1;
    while (true) {
      [[maybe_unused]] const bool more = co_await events_.WaitAfter(seen, TimePoint::max());
      const EventLog::Batch batch = events_.After(seen, kEventsAtOnce);
      if (batch.missed > 0) WakeAll();
      seen += batch.missed;
      for (const Event& event : batch.events) {
        seen = std::max(seen, event.sequence);
        if (event.volume_id.empty()) {
          WakeAll();
        } else {
          WakeVolume(event.volume_id);
        }
      }
    }
  }

  Awaitable<void> FollowPlugins() {
    while (true) {
      co_await controllers_.WaitChange(Clock::now() + kLookAgain);
      WakeAll();
    }
  }

  [[nodiscard]] DeclaredFacts Gather(const Entry& entry) const {
    DeclaredFacts facts = steps_.Gather(entry);
    std::string why;
    const std::string plugin_id = steps_.PluginIdOf(entry, &why);
    for (const auto& [key, other] : entries_) {
      if (other.get() == &entry || key.volume_id != entry.key.volume_id || !other->state.record.has_value() ||
          other->state.record->plugin_id() != plugin_id) {
        continue;
      }
      facts.attached_for_another = facts.attached_for_another || other->state.record->attach_sent();
      facts.attach_busy = facts.attach_busy || other->step.action == DeclaredAction::kAttach ||
                          other->step.action == DeclaredAction::kDetach;
    }
    return facts;
  }

  Awaitable<void> Keep(std::shared_ptr<Entry> entry) {
    while (true) {
      const uint64_t seen = entry->version;
      const DeclaredFacts facts = Gather(*entry);
      const DeclaredStep before = std::exchange(entry->step, NextStep(entry->state, facts, Clock::now()));
      entry->published = IsPublished(entry->state, facts);
      if (entry->step != before) Changed();
      const DeclaredAction action = entry->step.action;
      if (action == DeclaredAction::kGone) break;
      if (action == DeclaredAction::kNothing || action == DeclaredAction::kWait) {
        if (action == DeclaredAction::kNothing) {
          entry->state.was_published = true;
          entry->state.released = false;  // an unpublish that was asked for was not begun
          entry->failures = 0;
          entry->last_error.clear();
          entry->last_done.reset();
        }
        const TimePoint again = Clock::now() + kLookAgain;
        auto changed = [entry, seen] { return entry->version != seen; };
        [[maybe_unused]] const bool woken = co_await entry->changed.WaitUntil(
            std::move(changed), std::min(entry->step.at.value_or(again), again));
        continue;
      }
      const uint64_t will = entry->will_version;
      absl::Status done = co_await steps_.Perform(entry, action);
      if (will == entry->will_version) Note(entry.get(), action, done);
      Changed();
      entry->step.action = DeclaredAction::kWait;
      // Others may have waited for this one's attach.
      WakeVolume(entry->key.volume_id);
    }
    entries_.erase(entry->key);
    WakeVolume(entry->key.volume_id);
    Changed();
  }

  // What comes of an action, unless something else is wanted by now.
  void Note(Entry* entry, DeclaredAction action, const absl::Status& done) {
    if (done.ok() && entry->last_done != action) {
      entry->last_done = action;
      entry->last_error.clear();
      if (action != DeclaredAction::kRemember) entry->failures = 0;
      return;
    }
    entry->last_done.reset();
    // One that succeeds and is to be done again at once has not done what it should.
    if (!done.ok()) entry->last_error = MessageOf(done);
    ++entry->failures;
    entry->state.not_before =
        Clock::now() + Backoff(entry->failures, kFirstPause, kLongestPause, RandomShare());
    if (entry->failures == 1 && !done.ok()) {
      SPDLOG_WARN("declared volume {}: {}: {}", Printable(entry->key.volume_id, 256), ActionName(action),
                  entry->last_error);
    }
  }

  asio::any_io_executor executor_;
  std::string directory_;
  std::vector<std::string> own_directories_;
  DeclaredRecords records_;
  Mounter& mounter_;
  ControllerDirectory& controllers_;
  EventLog& events_;
  DeclaredSteps steps_;
  DeclaredSet set_;
  std::map<DeclaredKey, std::shared_ptr<Entry>> entries_;
  std::vector<std::string> problems_;
  std::string directory_problem_;
  const std::string boot_id_ = BootId();
  bool started_ = false;
  bool reloading_ = false;
  bool final_ = false;
  uint64_t version_ = 0;
  Condition changed_;  // version_
  TaskScope tasks_;
};

DeclaredVolumes::DeclaredVolumes(asio::any_io_executor executor, DeclaredOptions options, Mounter& mounter,
                                 ControllerDirectory& controllers, ControllerAccess& access, EventLog& events)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options), mounter, controllers, access,
                                   events)) {}

DeclaredVolumes::~DeclaredVolumes() = default;

Awaitable<absl::Status> DeclaredVolumes::Start() { return impl_->Start(); }
std::vector<DeclaredView> DeclaredVolumes::List() const { return impl_->List(); }
void DeclaredVolumes::OnUnpublish(const UnpublishRequest& request) { impl_->OnUnpublish(request); }
Awaitable<absl::StatusOr<DeclaredReload>> DeclaredVolumes::Reload(TimePoint deadline) {
  return impl_->Reload(deadline);
}
uint64_t DeclaredVolumes::version() const { return impl_->version(); }
Awaitable<void> DeclaredVolumes::WaitChange(uint64_t seen, TimePoint deadline) const {
  return impl_->WaitChange(seen, deadline);
}
std::vector<std::string> DeclaredVolumes::Problems() const { return impl_->Problems(); }
Awaitable<size_t> DeclaredVolumes::ReleaseAll(TimePoint deadline) { return impl_->ReleaseAll(deadline); }
Awaitable<void> DeclaredVolumes::Shutdown() { return impl_->Shutdown(); }

}  // namespace berth
