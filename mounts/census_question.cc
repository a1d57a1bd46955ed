#include "mounts/census_question.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace berth {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CensusObject, block_device, place, device, inode_device, root, fs_type,
                                   source, source_fingerprint, ours, directory, staged, before, earlier,
                                   users, writers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CensusQuestion, objects, recorded, kernel)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hold, object, kind, pid, where, keeper)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CensusAnswer, holds, elsewhere, incomplete)

namespace {

// CBOR, since names are any bytes.
template <class Value>
std::string Encode(const Value& value) {
  std::string bytes;
  json::to_cbor(json(value), bytes);
  return bytes;
}

template <class Value>
std::optional<Value> Decode(std::istream& bytes) {
  try {
    return json::from_cbor(bytes, /*strict=*/false).get<Value>();
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

bool IsAbout(const CensusAnswer& part, size_t objects) {
  return std::ranges::all_of(part.elsewhere, [objects](size_t object) { return object < objects; }) &&
         std::ranges::all_of(part.holds, [objects](const Hold& hold) {
           return hold.object < objects && hold.kind >= HoldKind::kMount && hold.kind <= HoldKind::kLoop;
         });
}

}  // namespace

void CensusAnswer::Add(const CensusAnswer& part) {
  holds.insert(holds.end(), part.holds.begin(), part.holds.end());
  elsewhere.insert(elsewhere.end(), part.elsewhere.begin(), part.elsewhere.end());
  incomplete = part.incomplete;
}

std::string EncodeQuestion(const CensusQuestion& question) { return Encode(question); }

std::optional<CensusQuestion> DecodeQuestion(std::string_view bytes) {
  std::istringstream stream{std::string(bytes)};
  auto question = Decode<CensusQuestion>(stream);
  const bool known =
      question.has_value() && question->kernel >= KernelAs::kThis && question->kernel <= KernelAs::kBefore6_8;
  return known ? question : std::nullopt;
}

std::string EncodeAnswer(const CensusAnswer& part) { return Encode(part); }

CensusAnswer DecodeAnswer(std::string_view bytes, size_t objects) {
  CensusAnswer answer;
  std::istringstream stream{std::string(bytes)};
  while (stream.peek() != std::istringstream::traits_type::eof()) {
    const auto part = Decode<CensusAnswer>(stream);
    if (!part.has_value() || !IsAbout(*part, objects)) {
      answer.incomplete = CensusAnswer{}.incomplete;
      break;
    }
    answer.Add(*part);
  }
  return answer;
}

}  // namespace berth
