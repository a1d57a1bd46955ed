#include "csi/redact.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "csi/csi.pb.h"
#include "csi/recent_secrets.h"

namespace berth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::string_view kStripped = "***stripped***";

// No single value fills the line.
constexpr size_t kMaxValueBytes = 256;

// More entries of a map than a line can hold are not worth sorting.
constexpr size_t kMaxSortedEntries = 256;

bool IsSecret(const FieldDescriptor* field) { return field->options().GetExtension(::csi::v1::csi_secret); }

// Contexts and parameters are between the storage and its plugin, and drivers put passwords into them. So of
// all maps only these two are shown; one of a later CSI is hidden.
bool IsOpaqueMap(const FieldDescriptor* field) {
  return field->is_map() && field->name() != "segments" && field->name() != "manifest";
}

bool IsHidden(const FieldDescriptor* field) {
  return IsSecret(field) || HoldsMountFlags(field) || IsOpaqueMap(field);
}

void Strip(Message* message, int depth) {
  if (depth > kMaxMessageDepth) {
    message->Clear();
    return;
  }
  const Reflection* reflection = message->GetReflection();
  // A field that our proto does not know could be a secret of a later one.
  reflection->MutableUnknownFields(message)->Clear();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (IsSecret(field)) {
      reflection->ClearField(message, field);
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    } else if (field->is_repeated()) {  // Maps too: their entries are messages to reflection.
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        Strip(reflection->MutableRepeatedMessage(message, field, i), depth + 1);
      }
    } else {
      Strip(reflection->MutableMessage(message, field), depth + 1);
    }
  }
}

// Writes a message as {name: value, …} until `limit` bytes are there; then it stops looking, so the work is
// bounded by what is shown and not by what was sent.
class LineWriter {
 public:
  LineWriter(size_t limit, const SecretSet* secrets) : limit_(limit), secrets_(secrets) {}

  void Write(const Message& message, int depth) {
    if (depth > kMaxMessageDepth) {
      out_ += "{…}";
      return;
    }
    const Reflection* reflection = message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    out_ += '{';
    std::string_view separator;
    for (const FieldDescriptor* field : fields) {
      if (Full()) return;
      out_ += separator;
      separator = ", ";
      out_ += field->name();
      out_ += ": ";
      if (IsHidden(field)) {
        out_ += kStripped;
      } else if (field->is_map()) {
        WriteMap(message, field, depth);
      } else if (field->is_repeated()) {
        WriteList(message, field, depth);
      } else {
        WriteValue(message, field, -1, depth);
      }
    }
    out_ += '}';
  }

  [[nodiscard]] std::string Take() {
    if (!Full()) return std::move(out_);
    // Cut where a character begins: what is in here is printable UTF-8 already.
    size_t end = limit_;
    while (end > 0 && (static_cast<unsigned char>(out_[end]) & 0xC0) == 0x80) --end;
    out_.resize(end);
    out_ += "…";
    return std::move(out_);
  }

  void Append(std::string_view text) { out_ += text; }

 private:
  [[nodiscard]] bool Full() const { return out_.size() > limit_; }

  void WriteString(std::string_view value) {
    out_ += '"';
    // Before it is cut: half a secret could not be recognised.
    const bool known = secrets_ != nullptr && !secrets_->Find(value).empty();
    out_ += Printable(known ? secrets_->Redacted(std::string(value)) : std::string(value), kMaxValueBytes);
    out_ += '"';
  }

  // The value of `field`, or of its element `index` where it is repeated (index >= 0).
  void WriteValue(const Message& message, const FieldDescriptor* field, int index, int depth) {
    const Reflection* reflection = message.GetReflection();
    const bool one = index < 0;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        out_ += fmt::to_string(one ? reflection->GetInt32(message, field)
                                   : reflection->GetRepeatedInt32(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        out_ += fmt::to_string(one ? reflection->GetInt64(message, field)
                                   : reflection->GetRepeatedInt64(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        out_ += fmt::to_string(one ? reflection->GetUInt32(message, field)
                                   : reflection->GetRepeatedUInt32(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        out_ += fmt::to_string(one ? reflection->GetUInt64(message, field)
                                   : reflection->GetRepeatedUInt64(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        out_ += fmt::to_string(one ? reflection->GetDouble(message, field)
                                   : reflection->GetRepeatedDouble(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        out_ += fmt::to_string(one ? reflection->GetFloat(message, field)
                                   : reflection->GetRepeatedFloat(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        out_ += fmt::to_string(one ? reflection->GetBool(message, field)
                                   : reflection->GetRepeatedBool(message, field, index));
        break;
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int number = one ? reflection->GetEnumValue(message, field)
                               : reflection->GetRepeatedEnumValue(message, field, index);
        const auto* value = field->enum_type()->FindValueByNumber(number);
        out_ += value == nullptr ? fmt::to_string(number) : value->name();
        break;
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string scratch;
        WriteString(one ? reflection->GetStringReference(message, field, &scratch)
                        : reflection->GetRepeatedStringReference(message, field, index, &scratch));
        break;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Write(one ? reflection->GetMessage(message, field)
                  : reflection->GetRepeatedMessage(message, field, index),
              depth + 1);
        break;
    }
  }

  void WriteList(const Message& message, const FieldDescriptor* field, int depth) {
    out_ += '[';
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int i = 0; i < size && !Full(); ++i) {
      if (i > 0) out_ += ", ";
      WriteValue(message, field, i, depth);
    }
    out_ += ']';
  }

  // A map as {key: value, …}, sorted where its keys are strings and not too many, so that equal messages
  // give equal lines.
  void WriteMap(const Message& message, const FieldDescriptor* field, int depth) {
    const Reflection* reflection = message.GetReflection();
    const FieldDescriptor* key = field->message_type()->map_key();
    const FieldDescriptor* value = field->message_type()->map_value();
    std::vector<const Message*> entries;
    const int size = reflection->FieldSize(message, field);
    entries.reserve(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) entries.push_back(&reflection->GetRepeatedMessage(message, field, i));
    if (key->cpp_type() == FieldDescriptor::CPPTYPE_STRING && entries.size() <= kMaxSortedEntries) {
      std::sort(entries.begin(), entries.end(), [key](const Message* a, const Message* b) {
        std::string scratch_a;
        std::string scratch_b;
        return a->GetReflection()->GetStringReference(*a, key, &scratch_a) <
               b->GetReflection()->GetStringReference(*b, key, &scratch_b);
      });
    }
    out_ += '{';
    std::string_view separator;
    for (const Message* entry : entries) {
      if (Full()) return;
      out_ += separator;
      separator = ", ";
      WriteValue(*entry, key, -1, depth);
      out_ += ": ";
      WriteValue(*entry, value, -1, depth);
    }
    out_ += '}';
  }

  size_t limit_;
  const SecretSet* secrets_;  // may be null
  std::string out_;
};

}  // namespace

bool HoldsMountFlags(const FieldDescriptor* field) { return field->name() == "mount_flags"; }

void StripSecrets(Message* message) { Strip(message, 0); }

std::string DebugLine(const Message& message, size_t limit, const SecretSet* secrets) {
  LineWriter line(limit, secrets);
  line.Append(message.GetDescriptor()->name());
  line.Append(" ");
  line.Write(message, 0);
  return line.Take();
}

}  // namespace berth
