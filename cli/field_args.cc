#include "cli/field_args.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>
#include <google/protobuf/util/json_util.h>

#include <charconv>
#include <cstdint>

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
using google::protobuf::Reflection;

// No message of CSI's nests deeper; what would recurse for ever ends here.
constexpr int kMaxDepth = 8;

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

// Walks along one argument's path, then sets the value.
class Setter {
 public:
  explicit Setter(std::string_view argument) : argument_(argument), rest_(argument) {}

  absl::Status Set(Message* message, int depth) {
    if (depth > kMaxDepth) return Wrong("the path is too deep");
    const std::string_view name = rest_.substr(0, rest_.find_first_of(".[="));
    rest_.remove_prefix(name.size());
    const Descriptor* type = message->GetDescriptor();
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
    BERTH_RETURN_IF_ERROR(CheckOneof(*message, field));
    if (field->is_map()) return SetMap(message, field);
    if (field->is_repeated()) return SetElement(message, field, depth);
    if (!IsMessage(field)) return SetPlain(message, field, -1);
    return SetMessage(message->GetReflection()->MutableMessage(message, field), field, depth);
  }

 private:
  // As the proto writes it, or as JSON does.
  static const FieldDescriptor* FindField(const Descriptor* type, std::string_view name) {
    const std::string key(name);
    const FieldDescriptor* field = type->FindFieldByName(key);
    return field != nullptr ? field : type->FindFieldByCamelcaseName(key);
  }

  // The path so far, for messages.
  [[nodiscard]] std::string Path() const {
    return Printable(argument_.substr(0, argument_.size() - rest_.size()), 200);
  }
  [[nodiscard]] absl::Status Wrong(std::string_view why, std::string_view hint = {}) const {
    return UsageError(fmt::format("{}: {}", Path(), why), hint);
  }

  // Takes the '=' and gives what follows, the value; `path_` keeps what stood before it.
  absl::StatusOr<std::string> TakeValue(const FieldDescriptor* field) {
    if (rest_.starts_with('=')) return std::string(rest_.substr(1));
    if (rest_.empty()) {
      return Wrong(fmt::format("it needs a value: {}=…, {}", Path(), DescribeType(field)));
    }
    return Wrong(fmt::format("it is {} and has nothing beneath it: '{}' cannot follow", DescribeType(field),
                             Printable(rest_, 40)));
  }

  // Two members of one oneof on a command line are a mistake, not a wish for the second.
  [[nodiscard]] absl::Status CheckOneof(const Message& message, const FieldDescriptor* field) const {
    const auto* oneof = field->real_containing_oneof();
    if (oneof == nullptr) return absl::OkStatus();
    const FieldDescriptor* present = message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
    if (present == nullptr || present == field) return absl::OkStatus();
    return Wrong(fmt::format("'{}' is set already, and {} is one or the other", present->name(),
                             message.GetDescriptor()->name()));
  }

  absl::Status SetMessage(Message* message, const FieldDescriptor* field, int depth) {
    if (rest_.starts_with('.')) {
      rest_.remove_prefix(1);
      return Set(message, depth + 1);
    }
    const auto value = TakeValue(field);
    if (!value.ok()) {
      return UsageError(
          fmt::format("{}: it is a {}: set its fields, or give it as JSON", Path(), ElementType(field)),
          fmt::format("Its fields: {}; empty: '{}={{}}'", fmt::join(FieldNames(field->message_type()), ", "),
                      Path()));
    }
    return FromJson(*value, message, field);
  }

  [[nodiscard]] absl::Status FromJson(const std::string& json, Message* message,
                                      const FieldDescriptor* field) const {
    using google::protobuf::util::JsonStringToMessage;
    auto parsed = JsonStringToMessage(json, message);
    // Times and the like are strings in JSON; their quotes may be left out here.
    if (!parsed.ok() && field->message_type()->full_name().starts_with("google.protobuf.")) {
      parsed = JsonStringToMessage(fmt::format("\"{}\"", json), message);
    }
    if (parsed.ok()) return absl::OkStatus();
    const auto reason = parsed.message();
    return Wrong(fmt::format("this is not the JSON of a {}: {}", field->message_type()->name(),
                             Printable({reason.data(), reason.size()}, 200)),
                 fmt::format("Its fields: {}", fmt::join(FieldNames(field->message_type()), ", ")));
  }

  absl::Status SetElement(Message* message, const FieldDescriptor* field, int depth) {
    const Reflection* reflection = message->GetReflection();
    const int size = reflection->FieldSize(*message, field);
    int index = size;
    if (rest_.starts_with('[')) {
      const size_t close = std::min(rest_.find(']'), rest_.size() - 1);
      const std::string_view text = rest_.substr(1, close - 1);
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
      if (rest_[close] != ']' || error != std::errc() || end != text.data() + text.size() || index < 0) {
        return Wrong("after '[' comes the number of an element, from 0 on, then ']'");
      }
      if (index > size) {
        return Wrong(
            fmt::format("element {} comes before element {}: there are {} so far", size, index, size));
      }
      rest_.remove_prefix(close + 1);
    } else if (!rest_.starts_with('=')) {
      return Wrong(fmt::format("it is a {}: say which element, {}[0]", DescribeType(field), Path()));
    }
    if (!IsMessage(field)) return SetPlain(message, field, index);
    Message* element = index < size ? reflection->MutableRepeatedMessage(message, field, index)
                                    : reflection->AddMessage(message, field);
    return SetMessage(element, field, depth);
  }

  absl::Status SetMap(Message* message, const FieldDescriptor* field) {
    const FieldDescriptor* key_field = field->message_type()->map_key();
    const FieldDescriptor* value_field = field->message_type()->map_value();
    if (key_field->cpp_type() != FieldDescriptor::CPPTYPE_STRING ||
        value_field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      return Wrong("such a map can only be given by --request");
    }
    if (rest_.starts_with('=')) return SetWholeMap(message, field);
    std::string key;
    if (rest_.starts_with('[')) {
      const size_t close = rest_.find("]=");
      if (close == std::string_view::npos) return Wrong(fmt::format("it must be {}[KEY]=VALUE", Path()));
      key = rest_.substr(1, close - 1);
      rest_.remove_prefix(close + 1);
    } else {
      const size_t equals = rest_.find('=');
      if (!rest_.starts_with('.') || equals == std::string_view::npos || equals < 2) {
        return Wrong(fmt::format("it is a {}: set an entry, {}.KEY=VALUE", DescribeType(field), Path()));
      }
      key = rest_.substr(1, equals - 1);
      rest_.remove_prefix(equals);
    }
    const Reflection* reflection = message->GetReflection();
    Message* entry = nullptr;
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      Message* each = reflection->MutableRepeatedMessage(message, field, i);
      if (each->GetReflection()->GetString(*each, key_field) == key) entry = each;
    }
    if (entry == nullptr) entry = reflection->AddMessage(message, field);
    entry->GetReflection()->SetString(entry, key_field, key);
    entry->GetReflection()->SetString(entry, value_field, std::string(rest_.substr(1)));
    return absl::OkStatus();
  }

  // As JSON of a message that has this one field.
  absl::Status SetWholeMap(Message* message, const FieldDescriptor* field) {
    const std::unique_ptr<Message> parsed(message->New());
    const auto status = google::protobuf::util::JsonStringToMessage(
        fmt::format("{{\"{}\": {}}}", field->name(), rest_.substr(1)), parsed.get());
    if (!status.ok()) {
      return Wrong("this is not a JSON object of strings", fmt::format("Or one entry: {}.KEY=VALUE", Path()));
    }
    message->GetReflection()->ClearField(message, field);
    message->MergeFrom(*parsed);
    return absl::OkStatus();
  }

  template <class Number>
  absl::StatusOr<Number> ParseNumber(const std::string& value, const FieldDescriptor* field) const {
    Number number{};
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && stop == end) return number;
    return NotA(value, field);
  }

  [[nodiscard]] absl::Status NotA(const std::string& value, const FieldDescriptor* field) const {
    return Wrong(fmt::format("'{}' is not {} {}", Printable(value, 80),
                             ElementType(field).starts_with("int") ? "an" : "a", ElementType(field)));
  }

  absl::StatusOr<int64_t> ParseInt64(const std::string& value, const FieldDescriptor* field) const {
    const absl::StatusOr<int64_t> number = ParseNumber<int64_t>(value, field);
    if (number.ok() || !field->name().ends_with("_bytes")) return number;
    const absl::StatusOr<int64_t> size = ParseSize(value);
    if (size.ok()) return size;
    const absl::string_view message = size.status().message();
    return Wrong({message.data(), message.size()}, HintOf(size.status()));
  }

  // Sets the field, or the element `index` of it where it is a list (index >= 0; its size means: append).
  absl::Status SetPlain(Message* message, const FieldDescriptor* field, int index) {
    BERTH_ASSIGN_OR_RETURN(const std::string value, TakeValue(field));
    const Reflection* reflection = message->GetReflection();
    const bool append = index >= 0 && index == reflection->FieldSize(*message, field);
    const auto put = [&](auto set, auto set_element, auto add, auto number) {
      if (index < 0) {
        (reflection->*set)(message, field, std::move(number));
      } else if (append) {
        (reflection->*add)(message, field, std::move(number));
      } else {
        (reflection->*set_element)(message, field, index, std::move(number));
      }
      return absl::OkStatus();
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        BERTH_ASSIGN_OR_RETURN(const int32_t number, ParseNumber<int32_t>(value, field));
        return put(&Reflection::SetInt32, &Reflection::SetRepeatedInt32, &Reflection::AddInt32, number);
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        BERTH_ASSIGN_OR_RETURN(const int64_t number, ParseInt64(value, field));
        return put(&Reflection::SetInt64, &Reflection::SetRepeatedInt64, &Reflection::AddInt64, number);
      }
      case FieldDescriptor::CPPTYPE_UINT32: {
        BERTH_ASSIGN_OR_RETURN(const uint32_t number, ParseNumber<uint32_t>(value, field));
        return put(&Reflection::SetUInt32, &Reflection::SetRepeatedUInt32, &Reflection::AddUInt32, number);
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        BERTH_ASSIGN_OR_RETURN(const uint64_t number, ParseNumber<uint64_t>(value, field));
        return put(&Reflection::SetUInt64, &Reflection::SetRepeatedUInt64, &Reflection::AddUInt64, number);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        BERTH_ASSIGN_OR_RETURN(const double number, ParseNumber<double>(value, field));
        return put(&Reflection::SetDouble, &Reflection::SetRepeatedDouble, &Reflection::AddDouble, number);
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        BERTH_ASSIGN_OR_RETURN(const float number, ParseNumber<float>(value, field));
        return put(&Reflection::SetFloat, &Reflection::SetRepeatedFloat, &Reflection::AddFloat, number);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        if (value != "true" && value != "false") {
          return Wrong(fmt::format("'{}' is neither true nor false", Printable(value, 80)));
        }
        return put(&Reflection::SetBool, &Reflection::SetRepeatedBool, &Reflection::AddBool, value == "true");
      case FieldDescriptor::CPPTYPE_ENUM: {
        const absl::StatusOr<int> number = ParseEnumValue(value, field->enum_type());
        if (!number.ok()) return number.status();
        return put(&Reflection::SetEnumValue, &Reflection::SetRepeatedEnumValue, &Reflection::AddEnumValue,
                   *number);
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return put(&Reflection::SetString, &Reflection::SetRepeatedString, &Reflection::AddString, value);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    return NotA(value, field);
  }

  // By name, or by number: to try what a plugin does with one that nobody knows.
  absl::StatusOr<int> ParseEnumValue(const std::string& value, const EnumDescriptor* type) const {
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (!value.empty() && error == std::errc() && stop == end) return number;
    return ParseEnum(value, type, Path());
  }

  std::string_view argument_;
  std::string_view rest_;
};

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
  // Filled beside the message: what fails leaves it as it was.
  const std::unique_ptr<Message> changed(message->New());
  changed->CopyFrom(*message);
  BERTH_RETURN_IF_ERROR(Setter(argument).Set(changed.get(), 0));
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
