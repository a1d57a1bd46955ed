// Many plugins under one berthd, which is killed again and again at random moments, while volumes are
// published and unpublished and every plugin's log is read. At the end: the same processes, every line that
// they wrote exactly once, every operation done.
//
// An ordinary run has 30 plugins and 12 kills; ./dev test --model has 100 and 50. BERTH_OUTLIVE_PLUGINS,
// BERTH_OUTLIVE_KILLS and BERTH_OUTLIVE_SEED change how many, and repeat a run.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "base/sanitizer.h"
#include "tests/harness/node.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::IsEmpty;

constexpr int kPlugins = kAddressSanitizer ? 20 : 30;
constexpr int kKills = kAddressSanitizer ? 10 : 12;
constexpr int kClients = 3;
constexpr int kFollowers = 5;
constexpr seconds kBound{90};  // for one operation, over all its repetitions

unsigned FromEnvironment(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

std::string PluginId(int index) { return fmt::format("p{:03}", index); }

// Field 22 of /proc/pid/stat: with the number it names one process.
std::string StartTime(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field;
}

bool IsMount(const std::string& path) {
  struct statx info{};
  return statx(AT_FDCWD, path.c_str(), AT_NO_AUTOMOUNT, 0, &info) == 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// How a thread is asked to end.
class Stop {
 public:
  void Now() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  // Waits so long, or until asked to end; true: asked.
  bool Wait(milliseconds bound) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, bound, [this] { return stopped_; });
  }
  bool told() { return Wait(milliseconds(0)); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
};

// A connection that comes back soon after berthd does.
std::unique_ptr<v1::Node::Stub> Connect(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (const char* name : {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                           GRPC_ARG_MAX_RECONNECT_BACKOFF_MS}) {
    arguments.SetInt(name, 50);
  }
  return v1::Node::NewStub(
      grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
}

// What a client may answer by repeating the request.
bool Repeatable(const grpc::Status& status) {
  const grpc::StatusCode code = status.error_code();
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
         code == grpc::StatusCode::ABORTED;
}

struct Load {
  std::atomic<int> operations = 0;
  std::atomic<int> repetitions = 0;
};

// One caller: publishes volumes of its own through plugins at random, holds a few, and unpublishes them;
// repeats what berthd did not live to answer.
class Caller {
 public:
  Caller(int index, unsigned seed, const Node& node, int plugins, Stop& stop, Load& load)
      : index_(index),
        random_(seed),
        stub_(Connect(node.socket())),
        plugins_(plugins),
        stop_(stop),
        load_(load) {}

  void Run() {
    while (!stop_.Wait(milliseconds(std::uniform_int_distribution(0, 40)(random_)))) {
      if (!Publish()) return;
      if (held_.size() > 5 && !Unpublish()) return;
    }
    while (!held_.empty()) {
      if (!Unpublish()) return;
    }
  }

 private:
  struct Held {
    v1::PublishVolumeRequest request;
    std::string target;
  };

  // Calls until OK.
  bool Repeat(const std::string& what, const std::function<grpc::Status(grpc::ClientContext*)>& call) {
    const auto deadline = steady_clock::now() + kBound;
    while (true) {
      const auto context = Node::Context(seconds(20));
      context->set_wait_for_ready(true);
      const grpc::Status status = call(context.get());
      if (status.ok()) break;
      ++load_.repetitions;
      if (!Repeatable(status) || steady_clock::now() > deadline) {
        ADD_FAILURE() << what << ": code " << status.error_code() << ": " << status.error_message();
        return false;
      }
      stop_.Wait(milliseconds(5));
    }
    ++load_.operations;
    return true;
  }

  bool Publish() {
    Held held;
    held.request.set_plugin_id(PluginId(std::uniform_int_distribution(0, plugins_ - 1)(random_)));
    held.request.set_volume_id(fmt::format("volume-{}-{}", index_, ++volumes_));
    held.request.set_consumer(fmt::format("caller-{}", index_));
    v1::PublishVolumeResponse response;
    if (!Repeat("publish " + held.request.volume_id(), [&](grpc::ClientContext* context) {
          return stub_->PublishVolume(context, held.request, &response);
        })) {
      return false;
    }
    held.target = response.target_path();
    EXPECT_TRUE(IsMount(held.target)) << held.target;
    held_.push_back(std::move(held));
    return true;
  }

  bool Unpublish() {
    const Held held = std::move(held_.front());
    held_.pop_front();
    EXPECT_TRUE(IsMount(held.target)) << held.target << " was lost";
    v1::UnpublishVolumeRequest request;
    request.set_plugin_id(held.request.plugin_id());
    request.set_volume_id(held.request.volume_id());
    request.set_consumer(held.request.consumer());
    v1::UnpublishVolumeResponse response;
    if (!Repeat("unpublish " + request.volume_id(), [&](grpc::ClientContext* context) {
          return stub_->UnpublishVolume(context, request, &response);
        })) {
      return false;
    }
    EXPECT_FALSE(IsMount(held.target)) << held.target;
    return true;
  }

  const int index_;
  std::mt19937 random_;
  const std::unique_ptr<v1::Node::Stub> stub_;
  const int plugins_;
  Stop& stop_;
  Load& load_;
  int volumes_ = 0;
  std::deque<Held> held_;
};

// Reads one plugin's log, goes on where it stopped, and sees that the plugin's numbers come one by one.
class LogReader {
 public:
  explicit LogReader(std::string id) : id_(std::move(id)) {}

  // Reads what there is, or, with `follow`, until the call ends. False where a number was lost or doubled.
  bool Read(v1::Node::Stub& stub, bool follow, grpc::ClientContext& context) {
    v1::ReadPluginLogRequest request;
    request.set_id(id_);
    request.set_follow(follow);
    if (cursor_.has_value()) *request.mutable_after() = *cursor_;
    const auto stream = stub.ReadPluginLog(&context, request);
    v1::ReadPluginLogResponse response;
    bool good = true;
    while (good && stream->Read(&response)) {
      good = Take(response);
      if (ended()) break;
    }
    if (!good || ended()) context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (status.error_code() == grpc::StatusCode::OK || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::CANCELLED ||
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return good;
    }
    ADD_FAILURE() << id_ << ": code " << status.error_code() << ": " << status.error_message();
    return false;
  }

  // Its last line has come.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] uint64_t lines() const { return next_; }
  [[nodiscard]] const std::string& id() const { return id_; }

 private:
  bool Take(const v1::ReadPluginLogResponse& response) {
    if (response.missed_lines() != 0 || response.missed_bytes() != 0) {
      ADD_FAILURE() << id_ << ": missed " << response.missed_lines() << " lines, " << response.missed_bytes()
                    << " bytes after n=" << next_;
      return false;
    }
    for (const v1::PluginLogLine& line : response.lines()) {
      if (line.text().starts_with("end=")) {
        ended_ = true;
        EXPECT_EQ(line.text(), fmt::format("end={}", next_)) << id_;
      } else if (line.text() != fmt::format("n={}", next_)) {
        ADD_FAILURE() << id_ << ": n=" << next_ << " should have come, not \"" << line.text()
                      << "\", at position " << line.position();
        return false;
      } else {
        ++next_;
      }
    }
    if (response.has_next()) cursor_ = response.next();
    return true;
  }

  const std::string id_;
  std::optional<v1::PluginLogCursor> cursor_;
  uint64_t next_ = 0;
  bool ended_ = false;
};

// Follows one plugin's log, over all deaths of berthd, to its end.
void Follow(LogReader& reader, const std::string& socket, Stop& stop) {
  const auto stub = Connect(socket);
  while (!reader.ended() && !stop.told()) {
    const auto context = Node::Context(seconds(10));
    context->set_wait_for_ready(true);
    if (!reader.Read(*stub, true, *context)) return;
  }
}

// Reads several plugins' logs in turn.
void Sweep(std::vector<LogReader>& readers, const std::string& socket, Stop& stop) {
  const auto stub = Connect(socket);
  while (!stop.told()) {
    bool all_ended = true;
    for (LogReader& reader : readers) {
      if (reader.ended() || stop.Wait(milliseconds(2))) continue;
      all_ended = false;
      const auto context = Node::Context(seconds(10));
      context->set_wait_for_ready(true);
      if (!reader.Read(*stub, false, *context)) return;
    }
    if (all_ended) return;
  }
}

class OutliveTest : public testing::Test {
 protected:
  OutliveTest() {
    std::cerr << fmt::format("{} plugins, {} kills, seed {}\n", plugins_, kills_, seed_);
    for (int i = 0; i < plugins_; ++i) {
      node_.WritePlugin(PluginId(i),
                        fmt::format("id = \"{}\"\nkind = \"node\"\ncommand = \"{}\"\n\n[log]\njournal = "
                                    "false\n",
                                    PluginId(i), OUTLIVE_PLUGIN));
    }
  }

  // Every plugin's process, once all are registered.
  std::map<std::string, pid_t> WaitAll() {
    v1::ListPluginsResponse response;
    WaitFor(
        "all plugins registered",
        [&] {
          const grpc::Status status = node_.stub().ListPlugins(Node::Context().get(), {}, &response);
          EXPECT_TRUE(status.ok()) << status.error_message();
          return response.plugins_size() == plugins_ &&
                 std::all_of(response.plugins().begin(), response.plugins().end(),
                             [](const v1::Plugin& plugin) { return plugin.ready() && plugin.registered(); });
        },
        seconds(120));
    std::map<std::string, pid_t> pids;
    for (const v1::Plugin& plugin : response.plugins()) {
      pids[plugin.id()] = plugin.pid();
      EXPECT_EQ(plugin.restarts(), 0) << plugin.id();
    }
    return pids;
  }

  // Kills berthd while it comes back, or while it serves.
  void KillAtRandomMoments() {
    Stop never;
    for (int kill = 0; kill < kills_; ++kill) {
      const bool early = std::uniform_int_distribution(0, 2)(random_) == 0;
      if (!early) node_.AwaitReady();
      never.Wait(milliseconds(std::uniform_int_distribution(0, early ? 300 : 1000)(random_)));
      node_.Kill();
      node_.Begin();
    }
    node_.AwaitReady();
  }

  const int plugins_ = static_cast<int>(FromEnvironment("BERTH_OUTLIVE_PLUGINS", kPlugins));
  const int kills_ = static_cast<int>(FromEnvironment("BERTH_OUTLIVE_KILLS", kKills));
  const unsigned seed_ = FromEnvironment("BERTH_OUTLIVE_SEED", std::random_device{}());
  std::mt19937 random_{seed_};
  Node node_;
};

TEST_F(OutliveTest, PluginsTheirLinesAndEveryOperationOutliveBerthdsDeaths) {
  node_.Start();
  const std::map<std::string, pid_t> before = WaitAll();
  std::map<pid_t, std::string> start_times;
  for (const auto& [id, pid] : before) start_times[pid] = StartTime(pid);

  Stop stop_load;
  Stop stop_reading;
  Load load;
  std::vector<std::jthread> callers;
  const int followed = std::min(kFollowers, plugins_);
  std::vector<LogReader> readers;
  for (int i = 0; i < plugins_; ++i) readers.emplace_back(PluginId(i));
  std::vector<LogReader> followers(readers.begin(), readers.begin() + followed);
  std::vector<LogReader> swept(readers.begin() + followed, readers.end());
  std::vector<std::jthread> log_threads;
  // However this ends, the threads do before what they use.
  struct StopAll {
    std::vector<Stop*> stops;
    ~StopAll() {
      for (Stop* stop : stops) stop->Now();
    }
  } stop_all{{&stop_load, &stop_reading}};

  for (int i = 0; i < kClients; ++i) {
    callers.emplace_back([&, i] { Caller(i, seed_ + i, node_, plugins_, stop_load, load).Run(); });
  }
  log_threads.emplace_back([&] { Sweep(swept, node_.socket(), stop_reading); });
  for (LogReader& reader : followers) {
    log_threads.emplace_back([&] { Follow(reader, node_.socket(), stop_reading); });
  }

  KillAtRandomMoments();

  // How many end between the kills depends on the machine. Fewer than this would show little.
  WaitFor("more operations than kills", [&] { return load.operations.load() > kills_; }, kBound);
  stop_load.Now();
  for (std::jthread& caller : callers) caller.join();
  std::cerr << fmt::format("{} operations, {} repeated\n", load.operations.load(), load.repetitions.load());
  EXPECT_THAT(node_.Volumes().volumes(), IsEmpty());
  EXPECT_THAT(Node::Tree(node_.state_dir() + "/volumes"), IsEmpty());

  EXPECT_EQ(WaitAll(), before);
  for (const auto& [pid, start_time] : start_times) EXPECT_EQ(StartTime(pid), start_time) << pid;

  for (const auto& [id, pid] : before) ASSERT_EQ(kill(pid, SIGUSR1), 0) << id;
  std::jthread end_of_patience([&stop_reading] {
    stop_reading.Wait(std::chrono::duration_cast<milliseconds>(kBound));
    stop_reading.Now();
  });
  for (std::jthread& thread : log_threads) thread.join();
  stop_reading.Now();
  end_of_patience.join();
  uint64_t lines = 0;
  for (const std::vector<LogReader>* some : {&followers, &swept}) {
    for (const LogReader& reader : *some) {
      EXPECT_TRUE(reader.ended()) << reader.id() << ": " << reader.lines() << " lines, and not its last one";
      lines += reader.lines();
    }
  }
  std::cerr << fmt::format("{} lines, each once\n", lines);
}

}  // namespace
}  // namespace berth
