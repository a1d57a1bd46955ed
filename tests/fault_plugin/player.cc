#include "tests/fault_plugin/player.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/unknown_field_set.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/toml_reader.h"
#include "tests/fault_plugin/deeds.h"

namespace berth::fault {
namespace {

// A field that no version of CSI has.
constexpr int kPadding = 9999;

std::string StringField(const google::protobuf::Message& message, const char* name) {
  const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated() ||
      field->type() != google::protobuf::FieldDescriptor::TYPE_STRING) {
    return "";
  }
  return message.GetReflection()->GetString(message, field);
}

std::string_view NameOf(const grpc::Status& status) {
  return CodeName(static_cast<absl::StatusCode>(status.error_code()));
}

}  // namespace

Player::Player(std::string script_path, std::string history_path)
    : script_path_(std::move(script_path)),
      history_path_(std::move(history_path)),
      stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Player::~Player() {
  stopping_ = true;
  for (std::thread& thread : background_) thread.join();
}

absl::StatusOr<std::unique_ptr<Player>> Player::Open(const std::string& script_path,
                                                     const std::string& history_path) {
  std::unique_ptr<Player> player(new Player(script_path, history_path));
  if (!player->stop_event_.valid()) return ErrnoStatus(errno, "eventfd");
  BERTH_RETURN_IF_ERROR(player->Load());
  BERTH_RETURN_IF_ERROR(History::RestoreCounts(history_path, &player->counts_));
  BERTH_ASSIGN_OR_RETURN(player->history_, History::Open(history_path));
  return player;
}

absl::Status Player::Load() {
  struct stat info{};
  if (stat(script_path_.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", script_path_));
  const bool same = info.st_ino == version_.inode && info.st_size == version_.size &&
                    info.st_mtim.tv_sec == version_.time.tv_sec &&
                    info.st_mtim.tv_nsec == version_.time.tv_nsec;
  if (same) return absl::OkStatus();
  version_ = {.inode = info.st_ino, .time = info.st_mtim, .size = info.st_size};
  std::string content;
  BERTH_ASSIGN_OR_RETURN(content, ReadTomlFile(script_path_));
  BERTH_ASSIGN_OR_RETURN(script_, ParseScript(script_path_, content));
  return absl::OkStatus();
}

void Player::Reload() {
  const absl::Status status = Load();
  if (status.ok()) return;
  SPDLOG_ERROR("the script is wrong, the one before stays: {}", MessageOf(status));
  history_.Append("script", {{"error", JsonText(MessageOf(status))}});
}

std::vector<RuleCounts::Match> Player::Meet(std::string_view rpc, std::string_view volume) {
  const std::lock_guard lock(mutex_);
  Reload();
  return counts_.Meet(script_, rpc, volume);
}

bool Player::Start() {
  history_.Append("start", {});
  (void)Play(Meet(kStart, ""), When::kBefore, {.rpc = kStart});
  return !stopping_;
}

History::Fields Player::Describe(const Call& call) {
  History::Fields fields = {{"rpc", JsonText(call.rpc)}};
  if (call.request == nullptr) return fields;
  const std::pair<const char*, const char*> names[] = {
      {"volume", "volume_id"}, {"staging", "staging_target_path"}, {"target", "target_path"}};
  for (const auto& [name, field] : names) {
    std::string value = StringField(*call.request, field);
    if (!value.empty()) fields.emplace_back(name, JsonText(value));
  }
  return fields;
}

grpc::Status Player::Run(std::string_view rpc, const google::protobuf::Message& request,
                         google::protobuf::Message* response, const Effect& effect) {
  const Call call{.rpc = rpc, .request = &request, .response = response};
  const auto record = [&](std::string_view event, const grpc::Status& status) {
    History::Fields fields = Describe(call);
    fields.emplace_back("code", JsonText(NameOf(status)));
    history_.Append(event, std::move(fields));
    return status;
  };
  history_.Append("call", Describe(call));
  const std::vector<RuleCounts::Match> matches = Meet(rpc, StringField(request, "volume_id"));
  const Verdict before = Play(matches, When::kBefore, call);
  if (before.answered) return record("answer", before.status);
  grpc::Status status;
  for (int i = 0; i < before.times; ++i) {
    response->Clear();
    status = record("effect", Beneath(before.beneath, call, effect));
  }
  const Verdict after = Play(matches, When::kAfter, call);
  return record("answer", after.answered ? after.status : status);
}

grpc::Status Player::Beneath(const std::string& directory, const Call& call, const Effect& effect) {
  const std::string staging = StringField(*call.request, "staging_target_path");
  if (directory.empty() || staging.empty()) return effect(*call.request);
  const std::string beneath = fmt::format("{}/{}", staging, directory);
  const std::unique_ptr<google::protobuf::Message> request(call.request->New());
  request->CopyFrom(*call.request);
  const auto* field = request->GetDescriptor()->FindFieldByName("staging_target_path");
  request->GetReflection()->SetString(request.get(), field, beneath);
  if (call.rpc == "NodeStageVolume" && mkdir(beneath.c_str(), 0700) != 0 && errno != EEXIST) {
    return {grpc::StatusCode::INTERNAL, fmt::format("mkdir {}: {}", beneath, std::strerror(errno))};
  }
  grpc::Status status = effect(*request);
  if (call.rpc == "NodeUnstageVolume" && status.ok()) rmdir(beneath.c_str());
  return status;
}

Player::Verdict Player::Play(const std::vector<RuleCounts::Match>& matches, When when, const Call& call) {
  Verdict verdict;
  for (const RuleCounts::Match& match : matches) {
    const Rule& rule = match.rule;
    if (rule.when != when || verdict.answered) continue;
    History::Fields fields = Describe(call);
    fields.emplace_back("rule", JsonText(rule.name));
    fields.emplace_back("call", JsonNumber(static_cast<double>(match.call)));
    fields.emplace_back("acts", JsonBool(match.acts));
    history_.Append("rule", std::move(fields));
    if (!match.acts) continue;
    if (rule.background) {
      const std::lock_guard lock(mutex_);
      background_.emplace_back([this, rule] {
        Verdict nobody;
        if (Wait(rule.delay)) Do(rule, {}, &nobody);
      });
      continue;
    }
    if (!Wait(rule.delay)) {
      verdict = {.answered = true, .status = {grpc::StatusCode::UNAVAILABLE, "the plugin ends"}};
      continue;
    }
    Do(rule, call, &verdict);
  }
  return verdict;
}

void Player::Do(const Rule& rule, const Call& call, Verdict* verdict) {
  absl::Status status;
  switch (rule.deed) {
    case Deed::kHang:
      HangUntilToldOtherwise(rule.name);
      if (stopping_)
        *verdict = {.answered = true, .status = {grpc::StatusCode::UNAVAILABLE, "the plugin ends"}};
      break;
    case Deed::kDelay:
      break;
    case Deed::kExit:
      _exit(rule.code);
    case Deed::kSignal:
      kill(getpid(), rule.signal);
      break;
    case Deed::kFail:
      verdict->answered = true;
      verdict->status = rule.status;
      break;
    case Deed::kLie:
      verdict->answered = true;
      break;
    case Deed::kAnswer:
      Change(rule, call, verdict);
      break;
    case Deed::kForget:
      status = Forget(rule, call);
      break;
    case Deed::kRepeat:
      verdict->times = rule.times;
      break;
    case Deed::kBeneath:
      verdict->beneath = rule.directory;
      break;
    case Deed::kIgnoreSigterm:
      ignores_sigterm_ = true;
      break;
    case Deed::kChildren: {
      const absl::StatusOr<std::vector<pid_t>> pids = LeaveChildren(rule.processes, rule.hold_fuse);
      status = pids.status();
      for (const pid_t pid : pids.value_or(std::vector<pid_t>())) {
        history_.Append("child", {{"child", JsonNumber(pid)}});
      }
      break;
    }
    case Deed::kForkBomb: {
      const absl::StatusOr<int64_t> count = ForkBomb(rule.processes);
      status = count.status();
      history_.Append("forked", {{"count", JsonNumber(static_cast<double>(count.value_or(0)))}});
      break;
    }
    case Deed::kMemory:
      TakeMemory(rule.bytes);
      break;
    case Deed::kOutput:
      status = Write(rule.output, stopping_);
      history_.Append("written", {{"rule", JsonText(rule.name)}});
      break;
  }
  if (status.ok()) return;
  SPDLOG_ERROR("rule {}: {}", rule.name, MessageOf(status));
  history_.Append("error", {{"rule", JsonText(rule.name)}, {"error", JsonText(MessageOf(status))}});
}

void Player::HangUntilToldOtherwise(const std::string& rule) {
  const UniqueFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string directory = std::filesystem::path(script_path_).parent_path().string();
  inotify_add_watch(watch.get(), directory.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE);
  while (!stopping_) {
    {
      const std::lock_guard lock(mutex_);
      Reload();
      if (script_.Find(rule) == nullptr) return;
    }
    pollfd waits[] = {{.fd = watch.get(), .events = POLLIN, .revents = 0},
                      {.fd = stop_event_.get(), .events = POLLIN, .revents = 0}};
    // Also where nothing could be watched.
    poll(waits, 2, 1000);
    alignas(inotify_event) char events[4096];
    while (read(watch.get(), events, sizeof events) > 0) {
    }
  }
}

void Player::Change(const Rule& rule, const Call& call, Verdict* verdict) const {
  if (!rule.answer.empty() || rule.replace) {
    const std::unique_ptr<google::protobuf::Message> answer(call.response->New());
    if (!google::protobuf::TextFormat::ParseFromString(rule.answer, answer.get())) {
      verdict->answered = true;
      verdict->status = {grpc::StatusCode::INTERNAL,
                         fmt::format("rule {}: its answer is not one of {}", rule.name, call.rpc)};
      return;
    }
    if (rule.replace) call.response->Clear();
    // What is given takes the place of what was there; only lists and maps are added to.
    std::vector<const google::protobuf::FieldDescriptor*> given;
    answer->GetReflection()->ListFields(*answer, &given);
    for (const auto* field : given) {
      if (!field->is_repeated()) call.response->GetReflection()->ClearField(call.response, field);
    }
    call.response->MergeFrom(*answer);
  }
  if (rule.pad > 0) {
    call.response->GetReflection()
        ->MutableUnknownFields(call.response)
        ->AddLengthDelimited(kPadding, std::string(static_cast<size_t>(rule.pad), 'x'));
  }
}

absl::Status Player::Forget(const Rule& rule, const Call& call) {
  if (store_ == nullptr || call.request == nullptr) return absl::OkStatus();
  const std::string volume = StringField(*call.request, "volume_id");
  switch (rule.record) {
    case Record::kPublication:
      return store_->DeletePublication(StringField(*call.request, "target_path"));
    case Record::kStaging:
      return store_->DeleteStaging(volume);
    case Record::kVolume:
      return store_->DeleteVolume(volume);
  }
  return absl::OkStatus();
}

bool Player::Wait(std::chrono::milliseconds time) const {
  if (time.count() > 0) {
    pollfd wait{.fd = stop_event_.get(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, static_cast<int>(time.count()));
  }
  return !stopping_;
}

bool Player::Stop(int signal) {
  history_.Append("signal", {{"signal", JsonNumber(signal)}});
  if (signal == SIGTERM && ignores_sigterm_) return false;
  stopping_ = true;
  eventfd_write(stop_event_.get(), 1);
  return true;
}

}  // namespace berth::fault
