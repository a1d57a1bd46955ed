#include "tests/fault_plugin/history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace berth::fault {

google::protobuf::Value JsonText(std::string_view text) {
  google::protobuf::Value value;
  value.set_string_value(Printable(text, 512));
  return value;
}

google::protobuf::Value JsonNumber(double number) {
  google::protobuf::Value value;
  value.set_number_value(number);
  return value;
}

google::protobuf::Value JsonBool(bool value) {
  google::protobuf::Value result;
  result.set_bool_value(value);
  return result;
}

absl::StatusOr<History> History::Open(const std::string& path) {
  History history;
  if (path.empty()) return history;
  history.fd_.Reset(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!history.fd_.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return history;
}

void History::Append(std::string_view event, Fields fields) const {
  if (!fd_.valid()) return;
  google::protobuf::Struct line;
  auto& members = *line.mutable_fields();
  members["event"] = JsonText(event);
  members["pid"] = JsonNumber(getpid());
  members["at"] = JsonNumber(std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
  for (auto& [name, value] : fields) members[name] = std::move(value);
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(line, &text).ok()) return;
  text += '\n';
  // One write: appended whole, also while another process writes to the same file.
  if (write(fd_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    SPDLOG_ERROR("write to the history: {}", MessageOf(ErrnoStatus(errno == 0 ? EIO : errno, "write")));
  }
}

absl::Status History::RestoreCounts(const std::string& path, RuleCounts* counts) {
  if (path.empty()) return absl::OkStatus();
  std::ifstream in(path);
  for (std::string text; std::getline(in, text);) {
    google::protobuf::Struct line;
    if (!google::protobuf::util::JsonStringToMessage(text, &line).ok()) {
      return absl::InvalidArgumentError(fmt::format("{}: not a history: {}", path, Printable(text, 80)));
    }
    const auto& members = line.fields();
    if (const auto rule = members.find("rule"); rule != members.end() && members.contains("call")) {
      counts->Restore(rule->second.string_value(), static_cast<int64_t>(members.at("call").number_value()));
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::fault
