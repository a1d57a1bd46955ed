#include "mounts/census_question.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/mountinfo_line.h"
#include "base/number_text.h"

namespace berth {
namespace {

// In the order of HoldKind.
constexpr std::array<std::string_view, 10> kKinds = {"mount", "namespace", "file",    "cwd",  "root",
                                                     "map",   "program",   "overlay", "swap", "loop"};

// The fields of an object, by their names in a question.
template <class Value>
using Field = std::pair<std::string_view, Value CensusObject::*>;
constexpr std::array<Field<bool>, 5> kFlags = {{{"--block", &CensusObject::block_device},
                                                {"--place", &CensusObject::place},
                                                {"--staged", &CensusObject::staged},
                                                {"--detached", &CensusObject::detached},
                                                {"--users", &CensusObject::users}}};
constexpr std::array<Field<uint64_t>, 3> kNumbers = {{{"--device", &CensusObject::device},
                                                      {"--inode-device", &CensusObject::inode_device},
                                                      {"--before", &CensusObject::before}}};
constexpr std::array<Field<std::string>, 4> kTexts = {{{"--root", &CensusObject::root},
                                                       {"--fs-type", &CensusObject::fs_type},
                                                       {"--source", &CensusObject::source},
                                                       {"--directory", &CensusObject::directory}}};
constexpr std::array<Field<std::vector<uint64_t>>, 2> kLists = {
    {{"--ours", &CensusObject::ours}, {"--earlier", &CensusObject::earlier}}};

std::string Word(std::string_view name, const std::string& value) { return std::string(name) + "=" + value; }

// False: no field has this name, or this is no value of it.
bool SetField(std::string_view name, std::string_view value, CensusObject* object) {
  uint64_t number = 0;
  const bool is_number = ParseNumber(value, &number);
  for (const auto& [known, field] : kFlags) {
    if (name == known) object->*field = true;
    if (name == known) return value == "1";
  }
  for (const auto& [known, field] : kNumbers) {
    if (name == known) object->*field = number;
    if (name == known) return is_number;
  }
  for (const auto& [known, field] : kTexts) {
    if (name == known) object->*field = value;
    if (name == known) return true;
  }
  for (const auto& [known, field] : kLists) {
    if (name == known) (object->*field).push_back(number);
    if (name == known) return is_number;
  }
  return false;
}

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte != 0x7F && c != '\\') {
      out += c;
      continue;
    }
    out += '\\';
    for (const int shift : {6, 3, 0}) out += static_cast<char>('0' + ((byte >> shift) & 7));
  }
  return out;
}

std::string Line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (!line.empty()) line += '\t';
    line += field;
  }
  return line + '\n';
}

std::vector<std::string_view> Split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t tab = line.find('\t'); tab != std::string_view::npos; tab = line.find('\t')) {
    fields.push_back(line.substr(0, tab));
    line.remove_prefix(tab + 1);
  }
  fields.push_back(line);
  return fields;
}

}  // namespace

std::vector<std::string> EncodeQuestion(const CensusQuestion& question) {
  std::vector<std::string> words = {Word("--kernel", std::to_string(static_cast<int>(question.kernel)))};
  for (const uint64_t id : question.recorded) words.push_back(Word("--recorded", std::to_string(id)));
  for (const CensusObject& object : question.objects) {
    words.emplace_back("--object");
    for (const auto& [name, field] : kFlags) {
      if (object.*field) words.push_back(Word(name, "1"));
    }
    for (const auto& [name, field] : kNumbers) words.push_back(Word(name, std::to_string(object.*field)));
    for (const auto& [name, field] : kTexts) words.push_back(Word(name, object.*field));
    for (const auto& [name, field] : kLists) {
      for (const uint64_t number : object.*field) words.push_back(Word(name, std::to_string(number)));
    }
  }
  return words;
}

std::optional<CensusQuestion> DecodeQuestion(const std::vector<std::string>& arguments) {
  CensusQuestion question;
  for (const std::string& word : arguments) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    const std::string_view value = std::string_view(word).substr(std::min(word.size(), name.size() + 1));
    uint64_t number = 0;
    const bool is_number = ParseNumber(value, &number);
    if (name == "--object") {
      question.objects.emplace_back();
    } else if (name == "--kernel" && is_number && number <= static_cast<uint64_t>(KernelAs::kBefore6_8)) {
      question.kernel = static_cast<KernelAs>(number);
    } else if (name == "--recorded" && is_number) {
      question.recorded.push_back(number);
    } else if (question.objects.empty() || !SetField(name, value, &question.objects.back())) {
      return std::nullopt;
    }
  }
  return question;
}

std::string EncodeHold(const Hold& hold) {
  return Line({"held", std::to_string(hold.object), std::string(kKinds.at(static_cast<size_t>(hold.kind))),
               std::to_string(hold.pid), Escape(hold.where), Escape(hold.source), Escape(hold.keeper)});
}

std::string EncodeElsewhere(size_t object) { return Line({"elsewhere", std::to_string(object)}); }
std::string EncodeEnd(const std::string& incomplete) {
  return incomplete.empty() ? Line({"complete"}) : Line({"incomplete", Escape(incomplete)});
}

CensusAnswer DecodeAnswer(std::string_view text, size_t objects) {
  CensusAnswer answer;
  // A line without its end was cut off.
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::vector<std::string_view> fields = Split(text.substr(0, end));
    text.remove_prefix(end + 1);
    if (fields[0] == "complete") answer.incomplete.clear();
    if (fields.size() < 2) continue;
    if (fields[0] == "incomplete") answer.incomplete = DecodeMountinfo(fields[1]);
    Hold hold;
    if (!ParseNumber(fields[1], &hold.object) || hold.object >= objects) continue;
    if (fields[0] == "elsewhere") answer.elsewhere.push_back(hold.object);
    if (fields[0] != "held" || fields.size() != 7 || !ParseNumber(fields[3], &hold.pid)) continue;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      if (fields[2] != kKinds.at(kind)) continue;
      hold.kind = static_cast<HoldKind>(kind);
      hold.where = DecodeMountinfo(fields[4]);
      hold.source = DecodeMountinfo(fields[5]);
      hold.keeper = DecodeMountinfo(fields[6]);
      answer.holds.push_back(std::move(hold));
      break;
    }
  }
  return answer;
}

}  // namespace berth
