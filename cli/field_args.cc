#include "cli/field_args.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>
#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/number_text.h"
#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"
#include "csi/csi.pb.h"

namespace berth::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::json;

// No message of CSI's nests deeper; what would recurse for ever ends here.
constexpr int kMaxDepth = 8;
// Of JSON; protobuf takes no more.
constexpr int kMostNested = 100;

std::vector<std::string> FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return names;
}

std::vector<std::string> ValueNames(const EnumDescriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() != 0) names.push_back(type->value(i)->name());
  }
  return names;
}

bool IsMessage(const FieldDescriptor* field) { return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; }

// What one value of `field` is, list or not.
std::string ElementType(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_BOOL:
      return field->cpp_type_name();
    case FieldDescriptor::CPPTYPE_ENUM:
      return fmt::format("one of {}", fmt::join(ValueNames(field->enum_type()), ", "));
    case FieldDescriptor::CPPTYPE_STRING:
      return "string";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return field->message_type()->name();
  }
  return {};
}

// As the proto writes it, or as JSON does.
const FieldDescriptor* FindField(const Descriptor* type, std::string_view name) {
  const std::string key(name);
  const FieldDescriptor* field = type->FindFieldByName(key);
  return field != nullptr ? field : type->FindFieldByCamelcaseName(key);
}

// Walks along one argument's path, down a request's JSON and its descriptor together.
class Walk {
 public:
  explicit Walk(std::string_view argument) : argument_(argument), rest_(argument) {}

  // The path so far, for messages.
  [[nodiscard]] std::string Path() const {
    return Printable(argument_.substr(0, argument_.size() - rest_.size()), 200);
  }
  [[nodiscard]] absl::Status Wrong(std::string_view why, std::string_view hint = {}) const {
    return UsageError(fmt::format("{}: {}", Path(), why), hint);
  }
  // What follows the path, without the '='.
  [[nodiscard]] std::string_view value() const { return rest_.substr(1); }

  // The path's last field; `at` becomes its place in the document, where the value is to be put.
  absl::StatusOr<const FieldDescriptor*> To(const Descriptor* type, Json** at) {
    for (;;) {
      BERTH_ASSIGN_OR_RETURN(const FieldDescriptor* const field, NextField(type, **at));
      *at = &(**at)[field->name()];
      if (field->is_map() && !rest_.starts_with('=')) {
        BERTH_ASSIGN_OR_RETURN(const std::string key, Key(field));
        *at = &(**at)[key];
        return field->message_type()->map_value();
      }
      if (field->is_map()) return field;
      if (field->is_repeated()) {
        BERTH_ASSIGN_OR_RETURN(const size_t index, Index(field, (*at)->size()));
        if (index == (*at)->size()) (*at)->push_back({});
        *at = &(**at)[index];
      }
      if (rest_.starts_with('=')) return field;
      if (!IsMessage(field)) return NothingBeneath(field);
      type = field->message_type();
      if (!rest_.starts_with('.')) {
        return UsageError(
            fmt::format("{}: it is a {}: set its fields, or give it as JSON", Path(), type->name()),
            fmt::format("Its fields: {}; empty: '{}={{}}'", fmt::join(FieldNames(type), ", "), Path()));
      }
      rest_.remove_prefix(1);
    }
  }

 private:
  absl::StatusOr<const FieldDescriptor*> NextField(const Descriptor* type, const Json& present) {
    const std::string_view name = rest_.substr(0, rest_.find_first_of(".[="));
    rest_.remove_prefix(name.size());
    const FieldDescriptor* field = FindField(type, name);
    if (field == nullptr) {
      const std::vector<std::string> names = FieldNames(type);
      return UsageError(
          fmt::format("{} has no field '{}'{}", type->name(), Printable(name, 80), DidYouMean(name, names)),
          names.empty() ? fmt::format("{} has no fields at all", type->name())
                        : fmt::format("Its fields: {}", fmt::join(names, ", ")));
    }
    if (IsSecret(field)) {
      return UsageError(
          fmt::format("{}: secrets do not belong on a command line, where others can read them", name),
          "Write them into a file: --secrets-file FILE");
    }
    // Two members of one oneof on a command line are a mistake, not a wish for the second.
    const auto* oneof = field->real_containing_oneof();
    for (int i = 0; oneof != nullptr && i < oneof->field_count(); ++i) {
      const std::string& other = oneof->field(i)->name();
      if (oneof->field(i) == field || !present.contains(other)) continue;
      return Wrong(fmt::format("'{}' is set already, and {} is one or the other", other, type->name()));
    }
    return field;
  }

  [[nodiscard]] absl::Status NothingBeneath(const FieldDescriptor* field) const {
    const std::string type = DescribeType(field);
    if (rest_.empty()) return Wrong(fmt::format("it needs a value: {}=…, {}", Path(), type));
    return Wrong(
        fmt::format("it is {} and has nothing beneath it: '{}' cannot follow", type, Printable(rest_, 40)));
  }

  // Which element of a list: "[N]", or a new one.
  absl::StatusOr<size_t> Index(const FieldDescriptor* field, size_t size) {
    if (rest_.starts_with('=')) return size;
    if (!rest_.starts_with('[')) {
      return Wrong(fmt::format("it is a {}: say which element, {}[0]", DescribeType(field), Path()));
    }
    size_t index = 0;
    const size_t close = std::min(rest_.find(']'), rest_.size() - 1);
    if (rest_[close] != ']' || !ParseNumber(rest_.substr(1, close - 1), &index)) {
      return Wrong("after '[' comes the number of an element, from 0 on, then ']'");
    }
    if (index > size) {
      return Wrong(fmt::format("element {0} comes before element {1}: there are {0} so far", size, index));
    }
    rest_.remove_prefix(close + 1);
    return index;
  }

  // Of a map's entry: ".KEY" up to the first '=', or "[KEY]".
  absl::StatusOr<std::string> Key(const FieldDescriptor* field) {
    const bool brackets = rest_.starts_with('[');
    const size_t end = rest_.find(brackets ? "]=" : "=");
    if (brackets && end == std::string_view::npos) {
      return Wrong(fmt::format("it must be {}[KEY]=VALUE", Path()));
    }
    if (!brackets && (!rest_.starts_with('.') || end == std::string_view::npos || end < 2)) {
      return Wrong(fmt::format("it is a {}: set an entry, {}.KEY=VALUE", DescribeType(field), Path()));
    }
    std::string key(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + (brackets ? 1 : 0));
    return key;
  }

  std::string_view argument_;
  std::string_view rest_;
};

// `value` as the JSON of a `field`; protobuf says whether it is one.
absl::StatusOr<Json> JsonOf(const FieldDescriptor* field, std::string_view value, const Walk& walk) {
  if (!IsUtf8(value)) return walk.Wrong("the value is not UTF-8");
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    if (value == "true" || value == "false") return Json(value == "true");
    return walk.Wrong(fmt::format("'{}' is neither true nor false", Printable(value, 80)));
  }
  int64_t number = 0;
  // Of any size and sign, and an enum's without a name: to try what a plugin does with it.
  if (!IsMessage(field) && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
      ParseNumber(value, &number)) {
    return Json(number);
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    BERTH_ASSIGN_OR_RETURN(number, ParseEnum(value, field->enum_type(), walk.Path()));
    return Json(number);
  }
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 && field->name().ends_with("_bytes")) {
    const absl::StatusOr<int64_t> size = ParseSize(value);
    if (!size.ok()) return walk.Wrong(MessageOf(size.status()), HintOf(size.status()));
    return Json(*size);
  }
  if (!IsMessage(field)) return Json(value);
  bool too_deep = false;
  const auto look = [&too_deep](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
    too_deep = too_deep || depth > kMostNested;
    return !too_deep;
  };
  Json parsed = Json::parse(value, look, /*allow_exceptions=*/false);
  if (too_deep) return walk.Wrong(fmt::format("the JSON is nested more than {} times", kMostNested));
  return parsed.is_discarded() ? Json(value) : parsed;
}

void AddPaths(const Descriptor* type, const std::string& prefix, int depth, std::vector<FieldPath>* paths) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    std::string path = prefix + field->name();
    if (field->is_map()) {
      paths->push_back({path + ".KEY", "string", IsSecret(field), IsAlpha(field)});
      continue;
    }
    if (field->is_repeated() && IsMessage(field)) path += "[0]";
    if (IsMessage(field) && field->message_type()->field_count() > 0 && depth < kMaxDepth) {
      AddPaths(field->message_type(), path + ".", depth + 1, paths);
      continue;
    }
    const std::string element = IsMessage(field) ? "{}" : ElementType(field);
    const bool list = field->is_repeated() && !IsMessage(field);
    paths->push_back({path, list ? element + ", may be repeated" : element, IsSecret(field), IsAlpha(field)});
  }
}

}  // namespace

absl::Status SetField(Message* message, std::string_view argument) {
  google::protobuf::util::JsonPrintOptions as_written;
  as_written.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(*message, &text, as_written).ok() || !IsUtf8(argument)) {
    return UsageError(fmt::format("{}: is not UTF-8", Printable(argument, 200)));
  }
  Json document = Json::parse(text);
  Json* at = &document;
  Walk walk(argument);
  BERTH_ASSIGN_OR_RETURN(const FieldDescriptor* const field, walk.To(message->GetDescriptor(), &at));
  BERTH_ASSIGN_OR_RETURN(*at, JsonOf(field, walk.value(), walk));
  // A copy, so that an error leaves `message` unchanged.
  const std::unique_ptr<Message> changed(message->New());
  const auto status = google::protobuf::util::JsonStringToMessage(document.dump(), changed.get());
  if (!status.ok()) {
    const std::string type = field->is_map() ? DescribeType(field) : ElementType(field);
    const std::string_view article = IsMessage(field)          ? "the JSON of a"
                                     : type.starts_with("int") ? "an"
                                                               : "a";
    const bool fields = IsMessage(field) && !field->is_map();
    return walk.Wrong(
        fmt::format("'{}' is not {} {}", Printable(walk.value(), 80), article, type),
        fields ? fmt::format("Its fields: {}", fmt::join(FieldNames(field->message_type()), ", ")) : "");
  }
  message->GetReflection()->Swap(message, changed.get());
  return absl::OkStatus();
}

std::vector<FieldPath> FieldPaths(const Descriptor* type) {
  std::vector<FieldPath> paths;
  AddPaths(type, "", 0, &paths);
  return paths;
}

std::string DescribeType(const FieldDescriptor* field) {
  if (field->is_map()) return fmt::format("map of {}", ElementType(field->message_type()->map_value()));
  if (field->is_repeated()) return fmt::format("list of {}", ElementType(field));
  return ElementType(field);
}

bool IsSecret(const FieldDescriptor* field) { return field->options().GetExtension(::csi::v1::csi_secret); }

bool IsAlpha(const FieldDescriptor* field) { return field->options().GetExtension(::csi::v1::alpha_field); }

}  // namespace berth::cli
