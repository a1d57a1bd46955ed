#include "tests/fault_plugin/script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <set>

#include "base/status.h"
#include "base/toml_reader.h"
#include "csi/csi.pb.h"

namespace berth::fault {
namespace {

using KeyList = std::vector<std::string_view>;

struct Action {
  std::string_view name;
  Deed deed;
  KeyList keys;       // of its own
  bool both = true;   // before and after the effect; false: `when` is fixed
  bool start = true;  // makes sense at the start
  bool background = true;
};

const std::vector<Action>& Actions() {
  static const std::vector<Action> kActions = {
      {.name = "hang", .deed = Deed::kHang, .background = false},
      {.name = "delay", .deed = Deed::kDelay, .background = false},
      {.name = "exit", .deed = Deed::kExit, .keys = {"exit_code"}},
      {.name = "signal", .deed = Deed::kSignal, .keys = {"signal"}},
      {.name = "fail", .deed = Deed::kFail, .keys = {"code", "text"}, .start = false, .background = false},
      {.name = "lie", .deed = Deed::kLie, .both = false, .start = false, .background = false},
      {.name = "answer",
       .deed = Deed::kAnswer,
       .keys = {"answer", "replace", "pad"},
       .both = false,
       .start = false,
       .background = false},
      {.name = "forget", .deed = Deed::kForget, .keys = {"record"}, .start = false, .background = false},
      {.name = "repeat",
       .deed = Deed::kRepeat,
       .keys = {"times"},
       .both = false,
       .start = false,
       .background = false},
      {.name = "beneath",
       .deed = Deed::kBeneath,
       .keys = {"directory"},
       .both = false,
       .start = false,
       .background = false},
      {.name = "ignore-sigterm", .deed = Deed::kIgnoreSigterm},
      {.name = "children", .deed = Deed::kChildren, .keys = {"processes", "hold_fuse"}},
      {.name = "fork-bomb", .deed = Deed::kForkBomb, .keys = {"processes"}},
      {.name = "memory", .deed = Deed::kMemory, .keys = {"bytes"}},
      {.name = "output",
       .deed = Deed::kOutput,
       .keys = {"lines", "length", "bytes", "line_ends", "binary", "text", "per_second"}},
  };
  return kActions;
}

const google::protobuf::MethodDescriptor* FindRpc(std::string_view name) {
  const google::protobuf::FileDescriptor* file = ::csi::v1::ProbeRequest::descriptor()->file();
  for (int i = 0; i < file->service_count(); ++i) {
    const auto* method = file->service(i)->FindMethodByName(std::string(name));
    if (method != nullptr) return method;
  }
  return nullptr;
}

// Takes the place of the parser's own, which writes to stderr.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int /*line*/, int /*column*/, const std::string& message) override {
    if (text.empty()) text = message;
  }
  std::string text;
};

// Why `text` is no answer to `rpc`; empty where it is one.
std::string WrongAnswer(const google::protobuf::MethodDescriptor& rpc, const std::string& text) {
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  const std::unique_ptr<google::protobuf::Message> answer(factory->GetPrototype(rpc.output_type())->New());
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  return parser.ParseFromString(text, answer.get()) ? "" : error.text;
}

std::optional<int> SignalNumber(std::string_view name) {
  static const std::map<std::string_view, int> kSignals = {
      {"SIGKILL", SIGKILL}, {"SIGSTOP", SIGSTOP}, {"SIGTERM", SIGTERM}, {"SIGABRT", SIGABRT},
      {"SIGSEGV", SIGSEGV}, {"SIGHUP", SIGHUP},   {"SIGUSR1", SIGUSR1}, {"SIGBUS", SIGBUS},
  };
  const auto found = kSignals.find(name);
  return found == kSignals.end() ? std::nullopt : std::optional(found->second);
}

std::optional<grpc::StatusCode> StatusCodeOf(std::string_view name) {
  for (int code = 1; code <= 16; ++code) {
    if (CodeName(static_cast<absl::StatusCode>(code)) == name) return static_cast<grpc::StatusCode>(code);
  }
  return std::nullopt;
}

class Reader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  void Read(const toml::table& root, Script* script) {
    CheckKeys(root, "", {"rule"});
    const toml::node* rules = root.get("rule");
    if (rules == nullptr) return;
    if (!rules->is_array_of_tables()) return WrongType(*rules, "rule", "tables: [[rule]]");
    std::set<std::string> names;
    for (const toml::node& node : *rules->as_array()) {
      Rule rule = ReadRule(*node.as_table());
      if (!rule.name.empty() && !names.insert(rule.name).second) {
        Mistake(node, "rule.name", fmt::format("\"{}\" is given twice", rule.name));
      }
      script->rules.push_back(std::move(rule));
    }
  }

 private:
  Rule ReadRule(const toml::table& table) {
    Rule rule;
    rule.name = String(table, "name").value_or("");
    if (rule.name.empty()) Mistake(table, "rule.name", "is missing");
    rule.rpc = String(table, "rpc").value_or("");
    const bool start = rule.rpc == kStart;
    if (!start && rule.rpc != "*" && FindRpc(rule.rpc) == nullptr) {
      Mistake(table, "rule.rpc",
              fmt::format("\"{}\" is no RPC of CSI, nor \"*\" nor \"start\"", Printable(rule.rpc, 64)));
    }
    rule.volume = String(table, "volume").value_or("");
    ReadCalls(table, &rule);

    const std::string action_name = String(table, "action").value_or("");
    const auto action = std::find_if(Actions().begin(), Actions().end(),
                                     [&](const Action& a) { return a.name == action_name; });
    if (action == Actions().end()) {
      Mistake(
          table, "rule.action",
          fmt::format("\"{}\" is not one of {}", Printable(action_name, 64), fmt::join(ActionNames(), ", ")));
      return rule;
    }
    rule.deed = action->deed;
    CheckRuleKeys(table, *action);
    if (start && !action->start) Mistake(table, "rule.action", "there is nothing to answer at the start");
    rule.delay = std::chrono::milliseconds(Integer(table, "delay_ms", 0, 86'400'000).value_or(0));
    rule.background = Bool(table, "background").value_or(false);
    if (rule.background && !action->background) {
      Mistake(table, "rule.background", fmt::format("the call cannot go on with \"{}\"", action->name));
    }
    if (rule.deed == Deed::kAnswer) rule.when = When::kAfter;
    if (const auto when = String(table, "when"); when.has_value()) {
      if (*when != "before" && *when != "after")
        Mistake(table, "rule.when", "must be \"before\" or \"after\"");
      if (!action->both) Mistake(table, "rule.when", fmt::format("has no meaning for \"{}\"", action->name));
      rule.when = *when == "after" ? When::kAfter : When::kBefore;
    }
    ReadDeed(table, &rule);
    return rule;
  }

  void ReadCalls(const toml::table& table, Rule* rule) {
    if (const auto call = Integer(table, "call", 1, INT64_MAX); call.has_value()) {
      rule->from = *call;
      rule->count = 1;
      if (table.contains("from") || table.contains("count")) {
        Mistake(table, "rule.call", "cannot have `from` or `count` with it");
      }
      return;
    }
    rule->from = Integer(table, "from", 1, INT64_MAX).value_or(1);
    rule->count = Integer(table, "count", 1, INT64_MAX).value_or(0);
  }

  void ReadDeed(const toml::table& table, Rule* rule) {
    const auto number = [&](std::string_view key, int64_t least, int64_t otherwise) {
      return Integer(table, key, least, INT64_MAX).value_or(otherwise);
    };
    rule->code = static_cast<int>(Integer(table, "exit_code", 0, 255).value_or(0));
    rule->times = static_cast<int>(Integer(table, "times", 2, 1000).value_or(2));
    rule->answer = String(table, "answer").value_or("");
    rule->replace = Bool(table, "replace").value_or(false);
    rule->pad = number("pad", 0, 0);
    rule->processes = number("processes", 0, 1);
    rule->hold_fuse = Bool(table, "hold_fuse").value_or(false);
    rule->bytes = number("bytes", 0, 0);
    rule->output = {.lines = number("lines", 0, 0),
                    .length = number("length", 1, 80),
                    .bytes = rule->bytes,
                    .line_ends = Bool(table, "line_ends").value_or(true),
                    .binary = Bool(table, "binary").value_or(false),
                    .text = String(table, "text").value_or(""),
                    .per_second = number("per_second", 0, 0)};
    if (rule->deed == Deed::kDelay && rule->delay.count() == 0) {
      Mistake(table, "rule.delay_ms", "is missing: how long?");
    }
    if (rule->deed == Deed::kSignal) {
      const auto signal = SignalNumber(String(table, "signal").value_or(""));
      if (!signal.has_value()) Mistake(table, "rule.signal", "must be a signal's name, such as \"SIGKILL\"");
      rule->signal = signal.value_or(0);
    }
    if (rule->deed == Deed::kFail) {
      const auto code = StatusCodeOf(String(table, "code").value_or(""));
      if (!code.has_value()) Mistake(table, "rule.code", "must be a code of gRPC, such as \"UNAVAILABLE\"");
      rule->status = {code.value_or(grpc::StatusCode::UNKNOWN),
                      String(table, "text").value_or("as the script says")};
    }
    if (rule->deed == Deed::kAnswer && !rule->answer.empty()) {
      const auto* rpc = FindRpc(rule->rpc);
      const std::string wrong =
          rpc == nullptr ? "only an answer of one RPC can be given" : WrongAnswer(*rpc, rule->answer);
      if (!wrong.empty()) Mistake(table, "rule.answer", Printable(wrong, 256));
    }
    if (rule->deed == Deed::kBeneath) {
      rule->directory = String(table, "directory").value_or("");
      const bool one_name = !rule->directory.empty() && rule->directory.find('/') == std::string::npos;
      if (!one_name || rule->directory == "." || rule->directory == "..") {
        Mistake(table, "rule.directory", "must be one name, such as \"mount\"");
      }
    }
    if (rule->deed == Deed::kForget) {
      const std::string record = String(table, "record").value_or("publication");
      if (record == "staging") {
        rule->record = Record::kStaging;
      } else if (record == "volume") {
        rule->record = Record::kVolume;
      } else if (record != "publication") {
        Mistake(table, "rule.record", "must be \"publication\", \"staging\" or \"volume\"");
      }
    }
  }

  void CheckRuleKeys(const toml::table& table, const Action& action) {
    KeyList known = {"name",  "rpc",  "volume",   "call",       "from",
                     "count", "when", "delay_ms", "background", "action"};
    known.insert(known.end(), action.keys.begin(), action.keys.end());
    for (const auto& [key, value] : table) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      Mistake(key.source().begin.line, fmt::format("rule.{}", key.str()),
              fmt::format("\"{}\" has no such key; it has {}", action.name, fmt::join(known, ", ")));
    }
  }

  static KeyList ActionNames() {
    KeyList names;
    for (const Action& action : Actions()) names.push_back(action.name);
    return names;
  }

  std::optional<int64_t> Integer(const toml::table& table, std::string_view key, int64_t least,
                                 int64_t greatest) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_integer()) {
      WrongType(*node, fmt::format("rule.{}", key), "an integer");
      return std::nullopt;
    }
    const int64_t value = **node->as_integer();
    if (value < least || value > greatest) {
      Mistake(*node, fmt::format("rule.{}", key), fmt::format("must be {} to {}", least, greatest));
    }
    return value;
  }
};

}  // namespace

const Rule* Script::Find(std::string_view name) const {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.name == name; });
  return found == rules.end() ? nullptr : &*found;
}

absl::StatusOr<Script> ParseScript(const std::string& path, std::string_view content) {
  toml::table table;
  BERTH_ASSIGN_OR_RETURN(table, ParseToml(path, content));
  Reader reader(path);
  Script script;
  reader.Read(table, &script);
  BERTH_RETURN_IF_ERROR(reader.status());
  return script;
}

std::vector<RuleCounts::Match> RuleCounts::Meet(const Script& script, std::string_view rpc,
                                                std::string_view volume) {
  std::vector<Match> matches;
  for (const Rule& rule : script.rules) {
    const bool every = rule.rpc == "*" && rpc != kStart;
    if (!every && rule.rpc != rpc) continue;
    if (!rule.volume.empty() && rule.volume != volume) continue;
    const int64_t call = ++calls_[rule.name];
    const bool acts = call >= rule.from && (rule.count == 0 || call - rule.from < rule.count);
    matches.push_back({.rule = rule, .call = call, .acts = acts});
  }
  return matches;
}

void RuleCounts::Restore(const std::string& rule, int64_t calls) {
  int64_t& count = calls_[rule];
  count = std::max(count, calls);
}

}  // namespace berth::fault
