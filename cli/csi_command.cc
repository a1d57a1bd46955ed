// csi: any CSI RPC of any socket, by hand.
#include <fmt/format.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/csi_call.h"
#include "cli/failure.h"
#include "cli/field_args.h"
#include "cli/progress.h"
#include "cli/rpc_catalog.h"
#include "cli/session.h"
#include "cli/values.h"
#include "csi/redact.h"

namespace berth::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

struct CsiOptions {
  std::string endpoint;
  std::string service;
  std::string method;
  std::vector<std::string> fields;
  std::string request;
  std::string secrets_file;
  bool list = false;
};

constexpr const char* kCsiFooter =
    R"(Names: NodePublishVolume, node-publish-volume or publish-volume; services are identity, controller, node,
group-controller and snapshot-metadata. The answer is JSON, of a stream one line each.
  berthctl csi --list node publish-volume                  what a request takes
  berthctl csi --endpoint /run/p/csi.sock identity probe
  export CSI_ENDPOINT=unix:///run/p/csi.sock
  berthctl csi controller create-volume name=v1 capacity_range.required_bytes=64MiB \
      'volume_capabilities[0].mount.fs_type=ext4' \
      'volume_capabilities[0].access_mode.mode=SINGLE_NODE_WRITER' parameters.kind=image
  berthctl csi node stage-volume --request @request.json volume_id=other --secrets-file secrets.json)";

void DeclareCsi(CLI::App& command, CsiOptions& options) {
  command.add_option("--endpoint", options.endpoint, "The plugin's socket; default: $CSI_ENDPOINT")
      ->option_text("unix:///PATH");
  command.add_option("service", options.service, "The service")->option_text("SERVICE");
  command.add_option("method", options.method, "The RPC")->option_text("METHOD");
  command.add_option("fields", options.fields, "Fields of the request, such as volume_id=v1")
      ->option_text("FIELD=VALUE ...");
  command
      .add_option("--request", options.request,
                  "The request as JSON, @FILE, or - for standard input; FIELD=VALUE go on top of it")
      ->option_text("JSON");
  command
      .add_option("--secrets-file", options.secrets_file,
                  "The request's secrets: a JSON object of strings or KEY=VALUE lines; - is standard input")
      ->option_text("FILE");
  command.add_flag("--list", options.list, "List the RPCs, or what SERVICE, or METHOD, has");
  command.footer(kCsiFooter);
}

// ---- --list ----

std::string Marks(bool alpha, bool streaming) {
  std::string marks;
  if (alpha) marks += " (alpha)";
  if (streaming) marks += " (stream)";
  return marks;
}

void ListRpcs(const Output& output, const std::vector<const ServiceDescriptor*>& services) {
  Table table({"SERVICE", "METHOD", "RPC", "REQUEST FIELDS"});
  for (const ServiceDescriptor* service : services) {
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor* method = service->method(i);
      std::vector<std::string> fields;
      for (int j = 0; j < method->input_type()->field_count(); ++j) {
        fields.push_back(method->input_type()->field(j)->name());
      }
      table.Add({ShortName(service), ShortName(method),
                 method->name() + Marks(IsAlpha(method), method->server_streaming()),
                 fmt::format("{}", fmt::join(fields, " "))});
    }
  }
  output.Show(table);
}

void ListFields(const Output& output, const MethodDescriptor* method) {
  output.Text(fmt::format("{}.{}{}\n", method->service()->full_name(), method->name(),
                          Marks(IsAlpha(method), method->server_streaming())));
  Table table({"FIELD", "VALUE"});
  for (const FieldPath& field : FieldPaths(method->input_type())) {
    table.Add({field.path,
               field.secret ? "string, by --secrets-file" : field.type + (field.alpha ? " (alpha)" : "")});
  }
  if (table.empty()) {
    output.Text("Its request has no fields.\n");
  } else {
    output.Show(table);
  }
}

google::protobuf::Value RpcAsJson(const MethodDescriptor* method) {
  google::protobuf::Value value;
  auto& rpc = *value.mutable_struct_value()->mutable_fields();
  rpc["service"].set_string_value(method->service()->full_name());
  rpc["method"].set_string_value(method->name());
  rpc["alpha"].set_bool_value(IsAlpha(method));
  rpc["streaming"].set_bool_value(method->server_streaming());
  auto* fields = rpc["request_fields"].mutable_list_value();
  for (int i = 0; i < method->input_type()->field_count(); ++i) {
    const FieldDescriptor* each = method->input_type()->field(i);
    auto& field = *fields->add_values()->mutable_struct_value()->mutable_fields();
    field["name"].set_string_value(each->name());
    field["type"].set_string_value(DescribeType(each));
    field["secret"].set_bool_value(IsSecret(each));
    field["alpha"].set_bool_value(IsAlpha(each));
  }
  return value;
}

absl::Status List(const Session& session, const CsiOptions& options) {
  std::vector<const ServiceDescriptor*> services = CsiServices();
  const MethodDescriptor* only = nullptr;
  if (!options.service.empty()) {
    BERTH_ASSIGN_OR_RETURN(const ServiceDescriptor* service, FindService(options.service));
    services = {service};
    if (!options.method.empty()) {
      BERTH_ASSIGN_OR_RETURN(only, FindMethod(service, options.method));
    }
  }
  if (!session.output.json()) {
    if (only != nullptr) {
      ListFields(session.output, only);
    } else {
      ListRpcs(session.output, services);
    }
    return absl::OkStatus();
  }
  google::protobuf::Struct document;
  auto* rpcs = (*document.mutable_fields())["rpcs"].mutable_list_value();
  for (const ServiceDescriptor* service : services) {
    for (int i = 0; i < service->method_count(); ++i) {
      if (only == nullptr || only == service->method(i)) *rpcs->add_values() = RpcAsJson(service->method(i));
    }
  }
  session.output.Json(document);
  return absl::OkStatus();
}

// ---- the request ----

// Whether `message` holds anything that CSI marks as secret.
bool HoldsSecrets(const Message& message) {
  const std::unique_ptr<Message> stripped(message.New());
  stripped->CopyFrom(message);
  StripSecrets(stripped.get());
  return stripped->ByteSizeLong() != message.ByteSizeLong();
}

absl::Status ReadRequest(const std::string& option, Message* request) {
  std::string json = option;
  const bool inline_json = option != "-" && !option.starts_with('@');
  if (!inline_json) {
    BERTH_ASSIGN_OR_RETURN(json, ReadInput(option == "-" ? option : option.substr(1), "--request"));
  }
  const std::string type = request->GetDescriptor()->name();
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request);
  if (!parsed.ok()) {
    // The parser's message may quote the text, secrets included, so only JSON in plain sight is quoted.
    const auto reason = parsed.message();
    return UsageError(inline_json
                          ? fmt::format("--request is not the JSON of a {}: {}", type,
                                        Printable({reason.data(), reason.size()}, 400))
                          : fmt::format("--request {} is not the JSON of a {}", Printable(option, 200), type),
                      "What it takes: berthctl csi --list SERVICE METHOD");
  }
  if (inline_json && HoldsSecrets(*request)) {
    return UsageError("--request: secrets do not belong on a command line, where others can read them",
                      "Write them into a file: --secrets-file FILE, or --request @FILE");
  }
  return absl::OkStatus();
}

// Puts `secrets` into every field of the request that is meant for them.
absl::Status FillSecrets(const Secrets& secrets, Message* request) {
  const auto* type = request->GetDescriptor();
  bool taken = false;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (!IsSecret(field) || !field->is_map()) continue;
    taken = true;
    for (const auto& [key, value] : secrets) {
      Message* entry = request->GetReflection()->AddMessage(request, field);
      entry->GetReflection()->SetString(entry, field->message_type()->map_key(), key);
      entry->GetReflection()->SetString(entry, field->message_type()->map_value(), value);
    }
  }
  if (taken) return absl::OkStatus();
  return UsageError(fmt::format("--secrets-file: a {} takes no secrets", type->name()));
}

// ---- the call ----

std::string_view CsiHintFor(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnimplemented:
      return "What the plugin has: get-plugin-capabilities of identity, get-capabilities of controller and "
             "node";
    case absl::StatusCode::kInvalidArgument:
      return "What the request takes: berthctl csi --list SERVICE METHOD";
    case absl::StatusCode::kDeadlineExceeded:
      return "The plugin may go on with it; to wait longer: --timeout 10m";
    case absl::StatusCode::kAborted:
      return "Another operation on it is under way: try again in a moment";
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  return "This is the plugin's own answer; its log may say more";
}

absl::Status Csi(Session& session, const CsiOptions& options) {
  if (options.list) return List(session, options);
  if (options.service.empty() || options.method.empty()) {
    return UsageError("csi wants a service and a method: berthctl csi --endpoint unix:///PATH node get-info",
                      "What there is: berthctl csi --list");
  }
  BERTH_ASSIGN_OR_RETURN(const ServiceDescriptor* service, FindService(options.service));
  BERTH_ASSIGN_OR_RETURN(const MethodDescriptor* method, FindMethod(service, options.method));
  if (options.request == "-" && options.secrets_file == "-") {
    return UsageError("--request and --secrets-file cannot both read standard input");
  }
  const std::unique_ptr<Message> request = NewMessage(method->input_type());
  if (!options.request.empty()) BERTH_RETURN_IF_ERROR(ReadRequest(options.request, request.get()));
  for (const std::string& field : options.fields) BERTH_RETURN_IF_ERROR(SetField(request.get(), field));
  if (!options.secrets_file.empty()) {
    BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
    BERTH_RETURN_IF_ERROR(FillSecrets(secrets, request.get()));
  }
  const char* environment = std::getenv("CSI_ENDPOINT");
  const std::string endpoint =
      !options.endpoint.empty() ? options.endpoint : std::string(environment == nullptr ? "" : environment);
  if (endpoint.empty()) {
    return UsageError("which plugin? There is no --endpoint, and CSI_ENDPOINT is not set",
                      "berthctl plugin show ID has a plugin's socket");
  }
  BERTH_ASSIGN_OR_RETURN(const std::string path, SocketPathOf(endpoint));
  const absl::StatusOr<Connection> connection = Connection::Open(path);
  if (!connection.ok()) {
    return UnreachableError(
        fmt::format("cannot reach a plugin at {}", std::string(connection.status().message())),
        absl::IsPermissionDenied(connection.status())
            ? "Ask as root (sudo)"
            : "Does the plugin run? berthctl plugin show ID has its state and its socket");
  }
  const Output& output = session.output;
  const absl::Status status = [&] {
    const Progress progress(output, method->name());
    return CallRpc(*connection, method, *request, session.timeout, [&](const Message& response) {
      if (method->server_streaming() || output.json()) {
        output.JsonLine(response);
      } else {
        output.Text(ToJson(response, true));
      }
    });
  }();
  if (status.ok()) return absl::OkStatus();
  if (absl::IsUnavailable(status) && connection->Broken()) {
    return UnreachableError(
        fmt::format("lost the plugin at {}: {}", Printable(path), std::string(status.message())),
        "Did it crash, or does something else than CSI listen there?");
  }
  return WithHint(Annotate(status, method->name()), CsiHintFor(status.code()));
}

}  // namespace

void AddCsiCommand(CLI::App& app, Command& chosen) {
  AddCommand<CsiOptions>(app, "csi", "Call any CSI RPC of any plugin's socket", chosen, DeclareCsi, Csi);
}

}  // namespace berth::cli
