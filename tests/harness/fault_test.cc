#include "tests/harness/fault_test.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <tuple>

namespace berth {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kBystander = "hostpath";
// Files that are longer hold what plugins have written, and are mostly holes.
constexpr off_t kLargestFile = off_t{64} * 1024 * 1024;

std::string Read(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string MarkerText(const std::string& volume) { return "this is " + volume; }

void WriteMarker(const std::string& target, const std::string& volume) {
  std::ofstream out(target + "/marker");
  out << MarkerText(volume) << std::flush;
  EXPECT_TRUE(out.good()) << target;
}

// The number after `name` in a file of /proc that counts in kB.
int64_t Kilobytes(const std::string& path, const std::string& name) {
  std::istringstream lines(ReadText(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  ADD_FAILURE() << path << " has no " << name;
  return 0;
}

}  // namespace

bool Lives(pid_t pid) {
  const std::string stat = Read(fmt::format("/proc/{}/stat", pid));
  const size_t end = stat.rfind(") ");
  return end != std::string::npos && stat.size() > end + 2 && stat[end + 2] != 'Z';
}

int64_t PrivateDirtyBytes(pid_t pid) {
  return Kilobytes(fmt::format("/proc/{}/smaps_rollup", pid), "Private_Dirty:") * 1024;
}

int64_t PeakBytes(pid_t pid) { return Kilobytes(fmt::format("/proc/{}/status", pid), "VmHWM:") * 1024; }

size_t Descriptors(pid_t pid) {
  const std::filesystem::directory_iterator all(fmt::format("/proc/{}/fd", pid));
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

void FaultTest::StartNode(const std::string& sections) {
  node_.WriteHostpath();
  fault_.Write(sections);
  node_.Start();
  bystander_pid_ = node_.WaitReady(kBystander).pid();
  v1::CreateVolumeRequest volume;
  volume.set_plugin_id(kBystander);
  volume.set_name("bystander");
  (*volume.mutable_parameters())["kind"] = "directory";
  bystander_use_.set_plugin_id(kBystander);
  bystander_use_.set_volume_id(node_.CreateVolume(volume));
  bystander_use_.set_consumer("bystander");
  bystander_target_ = node_.Publish(bystander_use_);
  WriteMarker(bystander_target_, kBystander);
}

void FaultTest::RepublishBystander() {
  bystander_pid_ = node_.WaitReady(kBystander).pid();
  EXPECT_EQ(node_.Publish(bystander_use_), bystander_target_);
}

v1::Plugin FaultTest::StartReady(const std::string& sections) {
  StartNode(sections);
  return node_.WaitReady(fault_.id());
}

void FaultTest::TearDown() {
  if (bystander_pid_ < 0) return;
  if (!node_.running()) node_.Start();
  CheckAcknowledged();
  CheckOrder();
  CheckMarkers();
  CheckBystander();
  CheckSecrets();
}

std::string FaultTest::CreateVolume(const std::string& name) {
  v1::CreateVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_name(name);
  (*request.mutable_secrets())["create"] = kSecret;
  return node_.CreateVolume(request);
}

grpc::Status FaultTest::TryPublish(const std::string& volume, const std::string& consumer,
                                   std::string* target, std::chrono::milliseconds timeout) {
  v1::PublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  (*request.mutable_secrets())["password"] = kSecret;
  v1::PublishVolumeResponse response;
  grpc::Status status = node_.stub().PublishVolume(Node::Context(timeout).get(), request, &response);
  EXPECT_THAT(status.error_message(), Not(HasSubstr(kSecret)));
  EXPECT_THAT(response.DebugString(), Not(HasSubstr(kSecret)));
  if (!status.ok()) return status;
  if (target != nullptr) *target = response.target_path();
  published_[{volume, consumer}] = response.target_path();
  unpublished_.erase(response.target_path());
  if (marked_.insert(volume).second) {
    WriteMarker(response.target_path(), volume);
  } else {
    EXPECT_EQ(Read(response.target_path() + "/marker"), MarkerText(volume));
  }
  return status;
}

std::string FaultTest::Publish(const std::string& volume, const std::string& consumer) {
  std::string target;
  const grpc::Status status = TryPublish(volume, consumer, &target);
  EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
  return target;
}

grpc::Status FaultTest::TryUnpublish(const std::string& volume, const std::string& consumer,
                                     std::chrono::milliseconds timeout) {
  std::string target;
  if (const auto known = published_.extract({volume, consumer}); !known.empty()) target = known.mapped();
  v1::UnpublishVolumeRequest request;
  request.set_plugin_id(fault_.id());
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  v1::UnpublishVolumeResponse response;
  grpc::Status status = node_.stub().UnpublishVolume(Node::Context(timeout).get(), request, &response);
  if (status.ok() && !target.empty()) unpublished_.insert(target);
  return status;
}

void FaultTest::Unpublish(const std::string& volume, const std::string& consumer) {
  const grpc::Status status = TryUnpublish(volume, consumer);
  EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
}

void FaultTest::ExpectWorks(const std::string& name) {
  const std::string volume = CreateVolume(name);
  const std::string target = Publish(volume, "works");
  EXPECT_EQ(Read(target + "/marker"), MarkerText(volume));
  Unpublish(volume, "works");
}

std::optional<v1::Volume> FaultTest::VolumeOf(const std::string& id) {
  const v1::ListVolumesResponse all = node_.Volumes();
  for (const v1::Volume& volume : all.volumes()) {
    if (volume.volume_id() == id) return volume;
  }
  return std::nullopt;
}

v1::Volume FaultTest::WaitVolume(const std::string& id, const std::string& what,
                                 const std::function<bool(const v1::Volume&)>& predicate) {
  std::optional<v1::Volume> volume;
  try {
    WaitFor(fmt::format("volume {}: {}", id, what), [&] {
      volume = VolumeOf(id);
      return volume && predicate(*volume);
    });
  } catch (const std::exception&) {
    ADD_FAILURE() << (volume ? volume->DebugString() : "it is not known");
    throw;
  }
  return *volume;
}

void FaultTest::WaitReleased(const std::string& id) {
  WaitFor("volume " + id + " is released", [&] { return !VolumeOf(id).has_value(); });
}

int64_t FaultTest::MountsAt(const std::string& path) const {
  const std::vector<std::string> mounts = node_.Mounts();
  return std::count(mounts.begin(), mounts.end(), path);
}

int64_t FaultTest::Calls(const std::string& rpc, const std::string& volume) const {
  return fault_.Count([&](const FaultEvent& event) {
    return event.event == "call" && event.rpc == rpc && (volume.empty() || event.volume == volume);
  });
}

pid_t FaultTest::BerthdPid() {
  v1::GetStatusResponse status;
  EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  return static_cast<pid_t>(status.pid());
}

grpc::Status FaultTest::StartPlugin(const std::string& id) {
  v1::StartPluginRequest request;
  request.set_id(id);
  v1::Plugin plugin;
  return node_.stub().StartPlugin(Node::Context().get(), request, &plugin);
}

grpc::Status FaultTest::StopPlugin(const std::string& id, bool force) {
  v1::StopPluginRequest request;
  request.set_id(id);
  request.set_force(force);
  v1::Plugin plugin;
  return node_.stub().StopPlugin(Node::Context().get(), request, &plugin);
}

std::vector<v1::Event> FaultTest::Events(const std::string& type) {
  auto context = Node::Context();
  const auto reader = node_.stub().WatchEvents(context.get(), {});
  std::vector<v1::Event> events;
  for (v1::WatchEventsResponse response; reader->Read(&response);) {
    if (response.has_event() && (type.empty() || response.event().type() == type)) {
      events.push_back(response.event());
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  return events;
}

void FaultTest::WaitEvent(const std::string& type, const std::string& part) {
  WaitFor(fmt::format("event {} with \"{}\"", type, part), [&] {
    const std::vector<v1::Event> events = Events(type);
    return std::any_of(events.begin(), events.end(), [&](const v1::Event& event) {
      return event.plugin_id() == fault_.id() && event.message().find(part) != std::string::npos;
    });
  });
}

void FaultTest::CheckAcknowledged() {
  const std::vector<std::string> mounts = node_.Mounts();
  for (const auto& [use, target] : published_) {
    EXPECT_EQ(std::count(mounts.begin(), mounts.end(), target), 1)
        << use.volume << " was published for " << use.consumer << " at " << target;
    EXPECT_EQ(Read(target + "/marker"), MarkerText(use.volume));
  }
  for (const std::string& target : unpublished_) {
    EXPECT_EQ(std::count(mounts.begin(), mounts.end(), target), 0) << target << " was unpublished";
  }
  // One mount at each place, acknowledged or not.
  for (const std::string& mount : mounts) {
    if (!mount.starts_with(node_.state_dir() + "/volumes/")) continue;
    EXPECT_EQ(std::count(mounts.begin(), mounts.end(), mount), 1) << mount;
  }
}

void FaultTest::CheckOrder() {
  std::map<std::string, std::set<std::string>> targets;  // of a volume: published by the plugin, not undone
  for (const FaultEvent& event : fault_.History()) {
    if (event.event == "call" && event.rpc == "NodeUnstageVolume") {
      EXPECT_TRUE(targets[event.volume].empty())
          << event.volume << " was to be unstaged while published at " << *targets[event.volume].begin();
    }
    if (event.code != "OK") continue;
    if (event.event == "effect" && event.rpc == "NodePublishVolume") {
      targets[event.volume].insert(event.target);
    }
    // An answer is enough, true or not: more the plugin cannot be asked.
    if (event.rpc == "NodeUnpublishVolume") targets[event.volume].erase(event.target);
  }
}

std::string FaultTest::MarkerOf(const std::string& volume) const {
  return fmt::format("{}/volumes/{}/data/marker", fault_.dir(), volume);
}

void FaultTest::CheckMarkers() {
  for (const std::string& volume : marked_) EXPECT_EQ(Read(MarkerOf(volume)), MarkerText(volume));
}

void FaultTest::CheckBystander() {
  const v1::Plugin bystander = node_.WaitReady(kBystander);
  EXPECT_EQ(bystander.pid(), bystander_pid_);
  EXPECT_EQ(bystander.restarts(), 0);
  EXPECT_EQ(Read(bystander_target_ + "/marker"), MarkerText(kBystander));
  const std::vector<std::string> mounts = node_.Mounts();
  EXPECT_EQ(std::count(mounts.begin(), mounts.end(), bystander_target_), 1);
}

void FaultTest::CheckSecrets() {
  for (const std::string& name : Node::Tree(node_.dir())) {
    struct stat info{};
    const std::string path = node_.dir() + "/" + name;
    if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kLargestFile) continue;
    const std::string text = Read(path);
    EXPECT_EQ(text.find(kSecret), std::string::npos) << "the secret is in " << path;
    if (name.find("journal.db") != std::string::npos) continue;
    EXPECT_EQ(text.find(kSecretInFlag), std::string::npos) << "the mount flag is in " << path;
  }
  std::string answers;
  for (const v1::Event& event : Events()) answers += event.DebugString();
  v1::GetStatusResponse status;
  EXPECT_TRUE(node_.stub().GetStatus(Node::Context().get(), {}, &status).ok());
  v1::ListPluginsResponse plugins;
  EXPECT_TRUE(node_.stub().ListPlugins(Node::Context().get(), {}, &plugins).ok());
  answers += status.DebugString() + plugins.DebugString() + node_.Volumes().DebugString();
  EXPECT_EQ(answers.find(kSecret), std::string::npos) << "the secret is in an answer";
  EXPECT_EQ(answers.find(kSecretInFlag), std::string::npos) << "the mount flag is in an answer";
}

}  // namespace berth
