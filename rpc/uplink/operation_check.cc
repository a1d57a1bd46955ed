#include "rpc/uplink/operation_check.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "controller/controller_call_kinds.h"
#include "controller/controller_check.h"
#include "request/request_check.h"
#include "request/request_parts.h"
#include "rpc/convert_volume.h"

namespace berth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr Duration kDefaultTimeout = std::chrono::minutes(10);
constexpr Duration kLongestTimeout = std::chrono::hours(24);
constexpr int kMostConfirmed = 4096;

// The field of `message` that is set of the oneof `name`; null: none.
const FieldDescriptor* SetField(const Message& message, const char* name) {
  return message.GetReflection()->GetOneofFieldDescriptor(message,
                                                          message.GetDescriptor()->FindOneofByName(name));
}

std::string Volume(const std::string& plugin_id, const std::string& volume_id) {
  return fmt::format("{}/{}", PrintableName(plugin_id), PrintableName(volume_id));
}

std::string For(const std::string& name_space, const std::string& consumer, const std::string& name) {
  return fmt::format(" for {}{}{}", PrintableName(QualifiedConsumer(name_space, consumer)),
                     name.empty() ? "" : " as ", PrintableName(name));
}

// "create ceph pvc-1": the kind, the plugin, and whatever names the object.
std::string ControllerSubject(const v1::ControllerCall& call) {
  const FieldDescriptor* kind = SetField(call, "request");
  if (kind == nullptr) return "";
  std::string subject = fmt::format("{} {}", kind->name(), PrintableName(call.plugin_id()));
  const Message& request = call.GetReflection()->GetMessage(call, kind);
  for (const char* name : {"volume_id", "name", "snapshot_id", "group_snapshot_id", "source_volume_id",
                           "node_id", "starting_token"}) {
    const FieldDescriptor* field = request.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING)
      continue;
    const std::string value = request.GetReflection()->GetString(request, field);
    if (!value.empty()) subject += fmt::format(" {} {}", name, PrintableName(value));
  }
  return subject;
}

// "confirm 2 publications (1b4f…)": the same for equal lists, however long they are.
std::string ConfirmSubject(const v1::ConfirmOperation& confirm) {
  std::string list;
  for (const v1::PublicationName& use : confirm.publications()) {
    for (const std::string& part :
         {use.plugin_id(), use.volume_id(), use.namespace_(), use.consumer(), use.name()}) {
      list += fmt::format("{}:{};", part.size(), part);
    }
  }
  return fmt::format("confirm {} publications ({})", confirm.publications_size(), HashComponent({list}));
}

Duration TimeoutOf(const v1::Operation& operation) {
  if (!operation.has_timeout()) return kDefaultTimeout;
  const int64_t seconds = std::clamp<int64_t>(operation.timeout().seconds(), 0, 1'000'000);
  return std::min(kLongestTimeout, Duration(std::chrono::seconds(seconds) +
                                            std::chrono::nanoseconds(operation.timeout().nanos())));
}

// --- Checks ------------------------------------------------------------------------------------------------

void CheckNames(const std::string& field, const std::string& name_space, const std::string& consumer,
                Mistakes& mistakes) {
  mistakes.Required(field + ".namespace", name_space, RequestLimits::kConsumer);
  mistakes.PlainText(field + ".namespace", name_space);
  if (name_space.find('/') != std::string::npos) mistakes.Add(field + ".namespace", "must not hold a slash");
  if (consumer.empty()) mistakes.Add(field + ".request.consumer", "must not be empty");
}

void PreparePublish(const std::vector<RuntimeAbility>& runtimes, v1::PublishOperation* publish,
                    Mistakes& mistakes) {
  v1::PublishVolumeRequest& request = *publish->mutable_request();
  CheckNames("publish", publish->namespace_(), request.consumer(), mistakes);
  if (!publish->runtime().empty()) {
    const auto named = std::ranges::find(runtimes, publish->runtime(), &RuntimeAbility::name);
    if (request.has_runtime()) mistakes.Add("publish.runtime", "not with request.runtime");
    if (named == runtimes.end()) {
      mistakes.Add("publish.runtime",
                   fmt::format("no runtime of this node is called {}", PrintableName(publish->runtime())));
    } else {
      *request.mutable_runtime() = *named;
    }
  }
  const bool named = !request.consumer().empty();
  if (named) request.set_consumer(QualifiedConsumer(publish->namespace_(), request.consumer()));
  if (!request.label().empty()) {
    request.set_label(QualifiedConsumer(publish->namespace_(), request.label()));
  }
  // A missing one has been reported already.
  v1::PublishVolumeRequest checked = request;
  if (!named) checked.set_consumer("-");
  const Mistakes::Within within(mistakes, "publish.request.");
  CheckPublish(checked, mistakes);
}

void PrepareUnpublish(v1::UnpublishOperation* unpublish, Mistakes& mistakes) {
  v1::UnpublishVolumeRequest& request = *unpublish->mutable_request();
  CheckNames("unpublish", unpublish->namespace_(), request.consumer(), mistakes);
  const bool named = !request.consumer().empty();
  if (named) request.set_consumer(QualifiedConsumer(unpublish->namespace_(), request.consumer()));
  v1::UnpublishVolumeRequest checked = request;
  if (!named) checked.set_consumer("-");
  const Mistakes::Within within(mistakes, "unpublish.request.");
  CheckUnpublish(checked, mistakes);
}

void PrepareEndConsumer(v1::EndConsumerOperation* end, Mistakes& mistakes) {
  v1::EndConsumerRequest& request = *end->mutable_request();
  CheckNames("end_consumer", end->namespace_(), request.consumer(), mistakes);
  if (request.consumer().empty()) return;
  request.set_consumer(QualifiedConsumer(end->namespace_(), request.consumer()));
  mistakes.Length("end_consumer.request.consumer", request.consumer(), RequestLimits::kConsumer);
}

void CheckExpansion(const v1::ExpandOperation& expand, Mistakes& mistakes) {
  v1::ExpandVolumeRequest request;
  request.set_plugin_id(expand.plugin_id());
  request.set_volume_id(expand.volume_id());
  request.set_required_bytes(expand.required_bytes());
  request.set_limit_bytes(expand.limit_bytes());
  *request.mutable_secrets() = expand.secrets();
  const Mistakes::Within within(mistakes, "expand.");
  CheckExpand(request, mistakes);
  if (expand.required_bytes() == 0) mistakes.Add("required_bytes", "must be what the controller answered");
}

void CheckConfirmation(const v1::ConfirmOperation& confirm, Mistakes& mistakes) {
  const int count = confirm.publications_size();
  if (count == 0 || count > kMostConfirmed) {
    mistakes.Add("confirm.publications", fmt::format("has {}, must have 1 to {}", count, kMostConfirmed));
    return;
  }
  for (int i = 0; i < count; ++i) {
    const v1::PublicationName& use = confirm.publications(i);
    const Mistakes::Within within(mistakes, fmt::format("confirm.publications[{}].", i));
    const size_t before = mistakes.size();
    mistakes.Volume(use.plugin_id(), use.volume_id());
    mistakes.Required("namespace", use.namespace_(), RequestLimits::kConsumer);
    if (use.namespace_().find('/') != std::string::npos) mistakes.Add("namespace", "must not hold a slash");
    mistakes.Required("consumer", use.consumer(), RequestLimits::kConsumer);
    // The first one will do: a list of thousands may have as many mistakes.
    if (mistakes.size() > before) return;
  }
}

void CheckTimeout(const v1::Operation& operation, Mistakes& mistakes) {
  if (!operation.has_timeout()) return;
  const auto& timeout = operation.timeout();
  constexpr int64_t kLongest = std::chrono::duration_cast<std::chrono::seconds>(kLongestTimeout).count();
  const bool whole = timeout.nanos() >= 0 && timeout.nanos() <= 999'999'999;
  const bool positive = timeout.seconds() > 0 || (timeout.seconds() == 0 && timeout.nanos() > 0);
  const bool in_time =
      timeout.seconds() < kLongest || (timeout.seconds() == kLongest && timeout.nanos() == 0);
  if (!whole || !positive || !in_time) {
    mistakes.Add("timeout", "must be above zero, and 24 h at most");
  }
}

}  // namespace

std::string QualifiedConsumer(const std::string& name_space, const std::string& consumer) {
  return fmt::format("{}/{}", name_space, consumer);
}

ConsumerName SplitConsumer(const std::string& qualified) {
  const size_t slash = qualified.find('/');
  if (slash == std::string::npos) return {.consumer = qualified};
  return {.name_space = qualified.substr(0, slash), .consumer = qualified.substr(slash + 1)};
}

OperationFacts FactsOf(const v1::Operation& operation) {
  OperationFacts facts{.timeout = TimeoutOf(operation)};
  switch (operation.kind_case()) {
    case v1::Operation::kPublish: {
      const v1::PublishVolumeRequest& request = operation.publish().request();
      facts.subject = "publish " + Volume(request.plugin_id(), request.volume_id()) +
                      For(operation.publish().namespace_(), request.consumer(), request.name());
      facts.forward = true;
      facts.changes = true;
      return facts;
    }
    case v1::Operation::kUnpublish: {
      const v1::UnpublishVolumeRequest& request = operation.unpublish().request();
      facts.subject = "unpublish " + Volume(request.plugin_id(), request.volume_id()) +
                      For(operation.unpublish().namespace_(), request.consumer(), request.name());
      facts.reverse = true;
      facts.changes = true;
      return facts;
    }
    case v1::Operation::kStats:
      facts.subject = "stats " + Volume(operation.stats().plugin_id(), operation.stats().volume_id());
      return facts;
    case v1::Operation::kExpand:
      facts.subject = fmt::format("expand {} to {}",
                                  Volume(operation.expand().plugin_id(), operation.expand().volume_id()),
                                  operation.expand().required_bytes());
      facts.forward = true;
      facts.changes = true;
      return facts;
    case v1::Operation::kExplain:
      facts.subject = "explain " + Volume(operation.explain().plugin_id(), operation.explain().volume_id());
      return facts;
    case v1::Operation::kEndConsumer:
      facts.subject = "end consumer" + For(operation.end_consumer().namespace_(),
                                           operation.end_consumer().request().consumer(), "");
      facts.reverse = true;
      facts.changes = true;
      return facts;
    case v1::Operation::kRestartPlugin:
      facts.subject = "restart plugin " + PrintableName(operation.restart_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kDrainPlugin:
      facts.subject = "drain plugin " + PrintableName(operation.drain_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kSwapPlugin:
      facts.subject = "swap plugin " + PrintableName(operation.swap_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kStartPlugin:
      facts.subject = "start plugin " + PrintableName(operation.start_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kDrainNode:
      facts.subject = operation.drain_node().end() ? "end the node's drain" : "drain the node";
      facts.right = v1::NodeState::NODE;
      facts.changes = true;
      return facts;
    case v1::Operation::kStopPlugin:
      facts.subject = "stop plugin " + PrintableName(operation.stop_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kPlacePlugin:
      facts.subject = fmt::format("place plugin {} ({})", PrintableName(operation.place_plugin().id()),
                                  HashComponent({operation.place_plugin().file()}));
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kRemovePlugin:
      facts.subject = "remove plugin " + PrintableName(operation.remove_plugin().id());
      facts.right = v1::NodeState::PLUGINS;
      facts.changes = true;
      return facts;
    case v1::Operation::kReload:
      facts.subject = "reload";
      facts.right = v1::NodeState::NODE;
      facts.changes = true;
      return facts;
    case v1::Operation::kExamine:
      facts.subject = operation.examine().repair() ? "examine and repair" : "examine";
      facts.right = v1::NodeState::NODE;
      facts.changes = operation.examine().repair();
      return facts;
    case v1::Operation::kUsage:
      facts.subject = "usage " + PrintableName(operation.usage().consumer());
      facts.right = v1::NodeState::NODE;
      return facts;
    case v1::Operation::kConfirm:
      facts.subject = ConfirmSubject(operation.confirm());
      facts.forward = true;
      facts.changes = true;
      return facts;
    case v1::Operation::kController:
      facts.subject = ControllerSubject(operation.controller());
      facts.changes = ChangesSomething(operation.controller());
      return facts;
    case v1::Operation::KIND_NOT_SET:
      return facts;
  }
  return facts;
}

absl::Status PrepareOperation(const std::vector<RuntimeAbility>& runtimes, v1::Operation* operation) {
  Mistakes mistakes;
  if (operation->id() == 0) mistakes.Add("id", "must be above zero");
  CheckTimeout(*operation, mistakes);
  switch (operation->kind_case()) {
    case v1::Operation::kPublish:
      PreparePublish(runtimes, operation->mutable_publish(), mistakes);
      break;
    case v1::Operation::kUnpublish:
      PrepareUnpublish(operation->mutable_unpublish(), mistakes);
      break;
    case v1::Operation::kEndConsumer:
      PrepareEndConsumer(operation->mutable_end_consumer(), mistakes);
      break;
    case v1::Operation::kExpand:
      CheckExpansion(operation->expand(), mistakes);
      break;
    case v1::Operation::kStats: {
      const Mistakes::Within within(mistakes, "stats.");
      mistakes.Volume(operation->stats().plugin_id(), operation->stats().volume_id());
      break;
    }
    case v1::Operation::kExplain: {
      const Mistakes::Within within(mistakes, "explain.");
      mistakes.Volume(operation->explain().plugin_id(), operation->explain().volume_id());
      break;
    }
    case v1::Operation::kRestartPlugin:
      mistakes.Required("restart_plugin.id", operation->restart_plugin().id(), RequestLimits::kPluginName);
      break;
    case v1::Operation::kDrainPlugin:
      mistakes.Required("drain_plugin.id", operation->drain_plugin().id(), RequestLimits::kPluginName);
      break;
    case v1::Operation::kSwapPlugin: {
      const Mistakes::Within within(mistakes, "swap_plugin.");
      CheckSwap(operation->swap_plugin(), mistakes);
      break;
    }
    case v1::Operation::kStartPlugin:
      mistakes.Required("start_plugin.id", operation->start_plugin().id(), RequestLimits::kPluginName);
      break;
    case v1::Operation::kStopPlugin:
      mistakes.Required("stop_plugin.id", operation->stop_plugin().id(), RequestLimits::kPluginName);
      break;
    case v1::Operation::kPlacePlugin:
      mistakes.Required("place_plugin.id", operation->place_plugin().id(), RequestLimits::kPluginName);
      mistakes.Required("place_plugin.file", operation->place_plugin().file(), RequestLimits::kPluginFile);
      break;
    case v1::Operation::kRemovePlugin:
      mistakes.Required("remove_plugin.id", operation->remove_plugin().id(), RequestLimits::kPluginName);
      break;
    case v1::Operation::kUsage:
      mistakes.Length("usage.consumer", operation->usage().consumer(), RequestLimits::kConsumer);
      break;
    case v1::Operation::kReload:
    case v1::Operation::kExamine:
      break;
    case v1::Operation::kDrainNode:
      mistakes.Length("drain_node.reason", operation->drain_node().reason(), RequestLimits::kReason);
      break;
    case v1::Operation::kConfirm:
      CheckConfirmation(operation->confirm(), mistakes);
      break;
    case v1::Operation::kController: {
      if (operation->controller().request_case() == v1::ControllerCall::REQUEST_NOT_SET) {
        return absl::UnimplementedError(
            "controller.request: not set, or of a kind that this node does not know");
      }
      const Mistakes::Within within(mistakes, "controller.");
      CheckControllerCall(operation->controller(), mistakes);
      break;
    }
    case v1::Operation::KIND_NOT_SET:
      return absl::UnimplementedError("kind: not set, or one that this node does not know");
  }
  return mistakes.ToStatus();
}

}  // namespace berth
