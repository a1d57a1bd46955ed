#include "mounts/census_question.h"

#include <sys/sysmacros.h>

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

constexpr std::array<std::pair<std::string_view, bool CensusObject::*>, 5> kFlags = {{
    {"--place", &CensusObject::place},
    {"--disk", &CensusObject::disk},
    {"--staged", &CensusObject::staged},
    {"--detached", &CensusObject::detached},
    {"--users", &CensusObject::users},
}};

std::string Device(dev_t device) {
  return std::to_string(major(device)) + ":" + std::to_string(minor(device));
}

bool ParseDevice(std::string_view text, dev_t* device) {
  const size_t colon = text.find(':');
  unsigned major_number = 0;
  unsigned minor_number = 0;
  if (colon == std::string_view::npos || !ParseNumber(text.substr(0, colon), &major_number) ||
      !ParseNumber(text.substr(colon + 1), &minor_number)) {
    return false;
  }
  *device = makedev(major_number, minor_number);
  return true;
}

std::string Field(std::string_view text) {
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

// Reads the words of a question one after another.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}
  [[nodiscard]] bool Done() const { return next_ == words_.size(); }
  [[nodiscard]] const std::string* Take() { return Done() ? nullptr : &words_[next_++]; }
  bool TakeText(std::string* text) {
    const std::string* const word = Take();
    if (word != nullptr) *text = *word;
    return word != nullptr;
  }
  bool TakeNumber(uint64_t* number) {
    const std::string* const word = Take();
    return word != nullptr && ParseNumber(*word, number);
  }
  bool TakeDevice(dev_t* device) {
    const std::string* const word = Take();
    return word != nullptr && ParseDevice(*word, device);
  }

 private:
  const std::vector<std::string>& words_;
  size_t next_ = 0;
};

bool TakeObject(Words* words, CensusObject* object) {
  return words->TakeDevice(&object->device) && words->TakeDevice(&object->inode_device) &&
         words->TakeText(&object->root) && words->TakeText(&object->fs_type) &&
         words->TakeText(&object->source) && words->TakeText(&object->directory) &&
         words->TakeNumber(&object->before);
}

}  // namespace

std::vector<std::string> EncodeQuestion(const CensusQuestion& question) {
  std::vector<std::string> words;
  if (question.kernel != KernelAs::kThis)
    words.insert(words.end(), {"--kernel", std::to_string(static_cast<int>(question.kernel))});
  for (const uint64_t id : question.recorded) {
    words.insert(words.end(), {"--recorded", std::to_string(id)});
  }
  for (const CensusObject& object : question.objects) {
    words.insert(words.end(), {object.block_device ? "--block" : "--fs", Device(object.device),
                               Device(object.inode_device), object.root, object.fs_type, object.source,
                               object.directory, std::to_string(object.before)});
    for (const uint64_t id : object.ours) words.insert(words.end(), {"--ours", std::to_string(id)});
    for (const uint64_t mount : object.earlier)
      words.insert(words.end(), {"--earlier", std::to_string(mount)});
    for (const auto& [word, flag] : kFlags) {
      if (object.*flag) words.emplace_back(word);
    }
  }
  return words;
}

std::optional<CensusQuestion> DecodeQuestion(const std::vector<std::string>& arguments) {
  CensusQuestion question;
  Words words(arguments);
  while (!words.Done()) {
    const std::string& word = *words.Take();
    uint64_t id = 0;
    if (word == "--fs" || word == "--block") {
      CensusObject& object = question.objects.emplace_back();
      object.block_device = word == "--block";
      if (!TakeObject(&words, &object)) return std::nullopt;
    } else if (word == "--kernel" && words.TakeNumber(&id) && id <= 2) {
      question.kernel = static_cast<KernelAs>(id);
    } else if (word == "--recorded" && words.TakeNumber(&id)) {
      question.recorded.push_back(id);
    } else if (question.objects.empty()) {
      return std::nullopt;
    } else if (word == "--ours" && words.TakeNumber(&id)) {
      question.objects.back().ours.push_back(id);
    } else if (word == "--earlier" && words.TakeNumber(&id)) {
      question.objects.back().earlier.push_back(id);
    } else {
      const auto known = std::ranges::find(kFlags, word, [](const auto& flag) { return flag.first; });
      if (known == kFlags.end()) return std::nullopt;
      question.objects.back().*(known->second) = true;
    }
  }
  return question;
}

std::string EncodeHold(const Hold& hold) {
  return Line({"held", std::to_string(hold.object), std::string(kKinds.at(static_cast<size_t>(hold.kind))),
               std::to_string(hold.pid), Field(hold.where), Field(hold.source), Field(hold.keeper)});
}

std::string EncodeElsewhere(size_t object) { return Line({"elsewhere", std::to_string(object)}); }
std::string EncodeEnd(const std::string& incomplete) {
  return incomplete.empty() ? Line({"complete"}) : Line({"incomplete", Field(incomplete)});
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
