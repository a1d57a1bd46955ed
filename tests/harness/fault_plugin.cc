#include "tests/harness/fault_plugin.h"

#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace berth {
namespace {

FaultEvent Parse(const std::string& text) {
  google::protobuf::Struct line;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &line).ok()) << text;
  const auto& fields = line.fields();
  const auto string = [&](const char* name) {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string() : found->second.string_value();
  };
  const auto number = [&](const char* name) {
    const auto found = fields.find(name);
    return found == fields.end() ? 0.0 : found->second.number_value();
  };
  const auto acts = fields.find("acts");
  return {.event = string("event"),
          .rpc = string("rpc"),
          .volume = string("volume"),
          .staging = string("staging"),
          .target = string("target"),
          .code = string("code"),
          .rule = string("rule"),
          .acts = acts != fields.end() && acts->second.bool_value(),
          .pid = static_cast<pid_t>(number("pid")),
          .child = static_cast<pid_t>(number("child")),
          .at = number("at")};
}

std::string RuleName(int number) { return fmt::format("rule-{}", number); }

}  // namespace

FaultPlugin::FaultPlugin(Node& node, std::string id)
    : node_(node),
      id_(std::move(id)),
      script_(fmt::format("{}/{}.script.toml", node.dir(), id_)),
      history_(fmt::format("{}/{}.history", node.dir(), id_)) {
  Play();
}

void FaultPlugin::Write(const std::string& sections, const std::vector<std::string>& arguments) {
  std::string more;
  for (const std::string& argument : arguments) more += fmt::format(", \"{}\"", argument);
  std::string text = fmt::format(R"(id = "{0}"
kind = "monolith"
command = "{1}"
args = ["--script", "{2}", "--history", "{3}", "--endpoint", "${{CSI_ENDPOINT}}",
        "--node-id", "${{BERTH_NODE_ID}}", "--state-dir", "${{BERTH_PLUGIN_DIR}}",
        "--driver-name", "{0}.berth.dev", "--kind", "directory"{4}]
)",
                                 id_, BERTH_FAULT_PLUGIN, script_, history_, more);
  if (sections.find("start_timeout") == std::string::npos) text += "start_timeout = \"10s\"\n";
  if (sections.find("stop_timeout") == std::string::npos) text += "stop_timeout = \"2s\"\n";
  text += sections;
  if (sections.find("[health]") == std::string::npos) {
    text += "\n[health]\ninterval = \"50ms\"\ntimeout = \"1s\"\nfailures = 2\n";
  }
  if (sections.find("[restart]") == std::string::npos) {
    text += "\n[restart]\ninitial_backoff = \"20ms\"\nmax_backoff = \"100ms\"\n";
  }
  node_.WritePlugin(id_, text);
}

void FaultPlugin::Play(const std::vector<std::string>& rules) {
  first_ = rules_;
  const std::string fresh = script_ + ".new";
  {
    std::ofstream out(fresh);
    for (const std::string& rule : rules) {
      out << "[[rule]]\nname = \"" << RuleName(rules_++) << "\"\n" << rule << "\n";
    }
    out.flush();
    EXPECT_TRUE(out.good()) << fresh;
  }
  EXPECT_EQ(std::rename(fresh.c_str(), script_.c_str()), 0) << script_;
}

std::vector<FaultEvent> FaultPlugin::History() const {
  std::vector<FaultEvent> events;
  std::ifstream in(history_);
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // Its end is still being written.
    events.push_back(Parse(line));
  }
  return events;
}

int64_t FaultPlugin::Count(const std::function<bool(const FaultEvent&)>& predicate) const {
  const std::vector<FaultEvent> events = History();
  return std::count_if(events.begin(), events.end(), predicate);
}

FaultEvent FaultPlugin::WaitHistory(const std::string& what,
                                    const std::function<bool(const FaultEvent&)>& predicate,
                                    std::chrono::seconds bound) const {
  FaultEvent found;
  WaitFor(
      fmt::format("history of {}: {}", id_, what),
      [&] {
        const std::vector<FaultEvent> events = History();
        const auto it = std::find_if(events.begin(), events.end(), predicate);
        if (it == events.end()) return false;
        found = *it;
        return true;
      },
      bound);
  return found;
}

FaultEvent FaultPlugin::WaitActed(const std::string& rpc) const {
  return WaitHistory("a rule acts at " + rpc, [&](const FaultEvent& event) {
    if (event.event != "rule" || !event.acts || event.rpc != rpc) return false;
    for (int rule = first_; rule < rules_; ++rule) {
      if (event.rule == RuleName(rule)) return true;
    }
    return false;
  });
}

}  // namespace berth
