// Proves that csi.proto describes the wire of CSI 1.12 and 1.13 and nothing else: the compiled descriptor
// gives exactly the rows of testdata/csi-v1.12-wire.tsv and csi-v1.13-added.tsv, those of each in their
// order.
//
// The columns are: kind, owner, name, number, type, oneof, options.

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "csi/csi.pb.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

class WireTable {
 public:
  explicit WireTable(const FileDescriptor* file) : package_(file->package() + ".") {
    Row("syntax", file->syntax() == FileDescriptor::SYNTAX_PROTO3 ? "proto3" : "other");
    Row("package", file->package());
    for (int i = 0; i < file->extension_count(); ++i) Extension(file->extension(i));
    for (int i = 0; i < file->enum_type_count(); ++i) Enum(file->enum_type(i));
    for (int i = 0; i < file->service_count(); ++i) Service(file->service(i));
    for (int i = 0; i < file->message_type_count(); ++i) Message(file->message_type(i));
  }

  [[nodiscard]] const std::vector<std::string>& rows() const { return rows_; }

 private:
  void Row(std::string_view kind, std::string_view owner, std::string_view name = "",
           std::string_view number = "", std::string_view type = "", std::string_view oneof = "",
           std::string_view options = "") {
    rows_.push_back(
        fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}", kind, owner, name, number, type, oneof, options));
  }

  // Without the package: "VolumeCapability.AccessMode".
  [[nodiscard]] std::string Local(std::string_view full_name) const {
    return std::string(full_name.substr(package_.size()));
  }

  static std::string TypeOf(const FieldDescriptor* field) {
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) return field->message_type()->full_name();
    if (field->type() == FieldDescriptor::TYPE_ENUM) return field->enum_type()->full_name();
    return field->type_name();
  }

  static std::string_view AlphaIf(bool alpha) { return alpha ? "alpha" : ""; }

  void Extension(const FieldDescriptor* field) {
    Row("extension", "." + field->containing_type()->full_name(), field->name(),
        std::to_string(field->number()), TypeOf(field));
  }

  void Enum(const EnumDescriptor* type) {
    Row("enum", Local(type->full_name()), "", "", "", "",
        AlphaIf(type->options().GetExtension(csi::alpha_enum)));
    for (int i = 0; i < type->value_count(); ++i) {
      const auto* value = type->value(i);
      Row("value", Local(type->full_name()), value->name(), std::to_string(value->number()), "", "",
          AlphaIf(value->options().GetExtension(csi::alpha_enum_value)));
    }
  }

  void Service(const ServiceDescriptor* service) {
    Row("service", service->name(), "", "", "", "",
        AlphaIf(service->options().GetExtension(csi::alpha_service)));
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor* method = service->method(i);
      Row("method", service->name(), method->name(), "",
          fmt::format("{}{} -> {}{}", method->client_streaming() ? "stream " : "",
                      method->input_type()->full_name(), method->server_streaming() ? "stream " : "",
                      method->output_type()->full_name()),
          "", AlphaIf(method->options().GetExtension(csi::alpha_method)));
    }
  }

  void Message(const Descriptor* type) {
    const std::string name = Local(type->full_name());
    Row("message", name, "", "", "", "", AlphaIf(type->options().GetExtension(csi::alpha_message)));
    for (int i = 0; i < type->enum_type_count(); ++i) Enum(type->enum_type(i));
    for (int i = 0; i < type->field_count(); ++i) Field(name, type->field(i));
    for (int i = 0; i < type->nested_type_count(); ++i) {
      if (!type->nested_type(i)->options().map_entry()) Message(type->nested_type(i));
    }
  }

  void Field(std::string_view owner, const FieldDescriptor* field) {
    std::string type;
    if (field->is_map()) {
      type = fmt::format("map<{},{}>", TypeOf(field->message_type()->map_key()),
                         TypeOf(field->message_type()->map_value()));
    } else {
      type = fmt::format("{}{}", field->is_repeated() ? "repeated " : "", TypeOf(field));
    }
    const auto* oneof = field->containing_oneof();
    std::string options;
    if (field->options().deprecated()) options = "deprecated";
    if (field->options().GetExtension(csi::csi_secret))
      options += options.empty() ? "csi_secret" : ",csi_secret";
    if (field->options().GetExtension(csi::alpha_field)) options += options.empty() ? "alpha" : ",alpha";
    Row("field", owner, field->name(), std::to_string(field->number()), type,
        oneof == nullptr ? "" : fmt::format("oneof {}", oneof->name()), options);
  }

  std::string package_;
  std::vector<std::string> rows_;
};

std::vector<std::string> ReadRows(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(line);
  return rows;
}

TEST(CsiWireTest, TheDescriptorHasExactlyTheRowsOfTheTables) {
  const std::vector<std::string> first = ReadRows(BERTH_CSI_TESTDATA "/csi-v1.12-wire.tsv");
  const std::vector<std::string> added = ReadRows(BERTH_CSI_TESTDATA "/csi-v1.13-added.tsv");
  ASSERT_GT(first.size(), 300U) << "cannot read the table of 1.12";
  ASSERT_GT(added.size(), 40U) << "cannot read the table of 1.13";
  const WireTable actual(csi::ProbeRequest::descriptor()->file());
  EXPECT_EQ(actual.rows().size(), first.size() + added.size()) << "a row comes twice";

  for (const std::vector<std::string>* table : {&first, &added}) {
    std::vector<std::string> have;
    std::ranges::copy_if(actual.rows(), std::back_inserter(have),
                         [table](const std::string& row) { return std::ranges::count(*table, row) > 0; });
    EXPECT_EQ(have, *table);
  }
  for (const std::string& row : actual.rows()) {
    EXPECT_EQ(std::ranges::count(first, row) + std::ranges::count(added, row), 1) << row;
  }
}

}  // namespace
}  // namespace berth
