// The file in which the plugin writes down what happened, for a test to check afterwards: one line of JSON
// for each thing, appended whole, and read again at the next start for the rules' counts.
//
//   {"event":"start","pid":17,"at":5.25}                             at: seconds of the monotonic clock
//   {"event":"call","rpc":"NodeStageVolume","volume":"v","staging":"/…","pid":17,"at":…}
//   {"event":"rule","rule":"slow","call":2,"acts":true,"action":…}   a rule met that call, for the 2nd time
//   {"event":"effect","rpc":…,"volume":…,"code":"OK"}                the effect was had, or tried
//   {"event":"answer","rpc":…,"volume":…,"code":"UNAVAILABLE"}
//   {"event":"script","error":"…"}                                   it was changed, and is wrong
//   {"event":"signal","signal":15}                                   it was asked to end
//
// Any thread. Without a path nothing is written. What cannot be written is lost, and logged.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/struct.pb.h>

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/fault_plugin/script.h"

namespace berth::fault {

class History {
 public:
  using Fields = std::vector<std::pair<std::string, google::protobuf::Value>>;

  [[nodiscard]] static absl::StatusOr<History> Open(const std::string& path);

  void Append(std::string_view event, Fields fields) const;

  // The counts of the runs before.
  [[nodiscard]] static absl::Status RestoreCounts(const std::string& path, RuleCounts* counts);

 private:
  UniqueFd fd_;
};

[[nodiscard]] google::protobuf::Value JsonText(std::string_view text);
[[nodiscard]] google::protobuf::Value JsonNumber(double number);
[[nodiscard]] google::protobuf::Value JsonBool(bool value);

}  // namespace berth::fault
