#include "rpc/uplink/operation_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/safe_path.h"
#include "base/testing/from_text.h"
#include "controller/testing/controller_requests.h"
#include "request/request_check.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// An operation as protobuf writes it in text; its id is 1 where the text gives none.
v1::Operation OperationOf(const std::string& text) {
  v1::Operation operation;
  operation.set_id(1);
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &operation)) << text;
  return operation;
}

// What is wrong with it; empty: nothing.
std::string MistakesOf(v1::Operation operation, const std::vector<RuntimeAbility>& runtimes = {}) {
  const absl::Status status = PrepareOperation(runtimes, &operation);
  if (!status.ok()) EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

struct OperationCase {
  std::string operation;
  std::string mistakes;
};

// One of each kind that is a node's own, in order, with what people read of it and what it does here.
struct KindCase {
  std::string operation;
  std::string subject;
  bool forward = false;
  bool changes = true;
};
std::vector<KindCase> EveryKindOfNodes() {
  return {
      {"publish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' name: 'logs' } }",
       "publish p/v for jobs/web as logs", true},
      {"unpublish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' } }",
       "unpublish p/v for jobs/web"},
      {"stats { plugin_id: 'p' volume_id: 'v' }", "stats p/v", false, false},
      {"expand { plugin_id: 'p' volume_id: 'v' required_bytes: 7 limit_bytes: 9 }", "expand p/v to 7", true},
      {"explain { plugin_id: 'p' volume_id: 'v' }", "explain p/v", false, false},
      {"end_consumer { namespace: 'jobs' request { consumer: 'web' } }", "end consumer for jobs/web"},
      {"restart_plugin { id: 'p' }", "restart plugin p"},
      {"drain_plugin { id: 'p' }", "drain plugin p"},
      {"swap_plugin { id: 'p' command: '/bin/new' arguments: '-v' }", "swap plugin p"},
      {"start_plugin { id: 'p' }", "start plugin p"},
      {"drain_node { reason: 'a new disk' }", "drain the node"},
      {"stop_plugin { id: 'p' }", "stop plugin p"},
      {"place_plugin { id: 'p' file: 'kind' }", "place plugin p (" + HashComponent({"kind"}) + ")"},
      {"remove_plugin { id: 'p' }", "remove plugin p"},
      {"reload { wait: true }", "reload"},
      {"examine { repair: true }", "examine and repair"},
      {"usage { consumer: 'jobs/web' }", "usage jobs/web", false, false},
      {"confirm { publications { plugin_id: 'p' volume_id: 'v' namespace: 'jobs' consumer: 'web' } }",
       "confirm 1 publications (" + HashComponent({"1:p;1:v;4:jobs;3:web;0:;"}) + ")", true},
  };
}

TEST(OperationCheckTest, EachKindIsTakenAndSaidInWords) {
  for (const KindCase& kind : EveryKindOfNodes()) {
    const v1::Operation operation = OperationOf(kind.operation);
    EXPECT_EQ(MistakesOf(operation), "") << kind.operation;
    const OperationFacts facts = FactsOf(operation);
    EXPECT_EQ(facts.subject, kind.subject);
    EXPECT_EQ(facts.forward, kind.forward) << kind.operation;
    EXPECT_EQ(facts.changes, kind.changes) << kind.operation;
  }
}

TEST(OperationCheckTest, AListToConfirmIsRefusedAsAWhole) {
  const std::string good =
      "publications { plugin_id: 'p' volume_id: 'v' namespace: 'jobs' consumer: 'web' } ";
  EXPECT_THAT(MistakesOf(OperationOf("confirm { }")),
              HasSubstr("confirm.publications: has 0, must have 1 to 4096"));
  std::string list;
  for (int i = 0; i < 4096; ++i) list += good;
  EXPECT_EQ(MistakesOf(OperationOf("confirm { " + list + " }")), "");
  EXPECT_THAT(MistakesOf(OperationOf("confirm { " + list + good + " }")), HasSubstr("has 4097, must have"));
  for (const auto& [bad, mistake] : std::vector<std::pair<std::string, std::string>>{
           {"volume_id: 'v' namespace: 'jobs' consumer: 'web'", "publications[1].plugin_id"},
           {"plugin_id: 'p' namespace: 'jobs' consumer: 'web'", "publications[1].volume_id"},
           {"plugin_id: 'p' volume_id: 'v' consumer: 'web'", "publications[1].namespace"},
           {"plugin_id: 'p' volume_id: 'v' namespace: 'a/b' consumer: 'web'", "must not hold a slash"},
           {"plugin_id: 'p' volume_id: 'v' namespace: 'jobs'", "publications[1].consumer"}}) {
    EXPECT_THAT(MistakesOf(OperationOf("confirm { " + good + "publications { " + bad + " } }")),
                HasSubstr(mistake));
  }
  const auto subject = [](const std::string& text) { return FactsOf(OperationOf(text)).subject; };
  EXPECT_NE(subject("confirm { " + good + "}"), subject("confirm { " + good + good + "}"));
}

// A kind that is added to the protocol must be added here, too.
TEST(OperationCheckTest, NoKindIsLeftOut) {
  const auto* kinds = v1::Operation::descriptor()->FindOneofByName("kind");
  EXPECT_EQ(static_cast<size_t>(kinds->field_count()), EveryKindOfNodes().size() + 1)
      << "but for the controller's call";
}

TEST(OperationCheckTest, EveryMistakeIsNamedByItsPlace) {
  const std::vector<OperationCase> cases = {
      {"publish { namespace: '' request {} }",
       "publish.namespace: must not be empty; publish.request.consumer: must not be empty; "
       "publish.request.plugin_id: must not be empty; publish.request.volume_id: must not be empty"},
      {"publish { namespace: 'a/b\\n' request { plugin_id: 'p' volume_id: 'v' consumer: 'w'"
       " capability { access_type: BLOCK fs_type: 'ext4' } life {} } }",
       "publish.namespace: must not hold control characters; publish.namespace: must not hold a slash; "
       "publish.request.consumer: must not hold control characters; "
       "publish.request.capability.fs_type: not with BLOCK; "
       "publish.request.life: names neither pid nor cgroup nor unit"},
      {"unpublish { request { all_names: true name: 'n' } }",
       "unpublish.namespace: must not be empty; unpublish.request.consumer: must not be empty; "
       "unpublish.request.plugin_id: must not be empty; unpublish.request.volume_id: must not be empty; "
       "unpublish.request.name: not with all_names"},
      {"stats {}", "stats.plugin_id: must not be empty; stats.volume_id: must not be empty"},
      {"explain {}", "explain.plugin_id: must not be empty; explain.volume_id: must not be empty"},
      {"expand { required_bytes: 9 limit_bytes: 7 secrets { key: '' value: 'hunter22' } }",
       "expand.plugin_id: must not be empty; expand.volume_id: must not be empty; "
       "expand.limit_bytes: must not be less than required_bytes; expand.secrets: a key must not be empty"},
      {"expand { plugin_id: 'p' volume_id: 'v' limit_bytes: 7 }",
       "expand.required_bytes: must be what the controller answered"},
      {"expand { plugin_id: 'p' volume_id: 'v' required_bytes: -1 }",
       "expand.required_bytes: must not be negative"},
      {"end_consumer {}",
       "end_consumer.namespace: must not be empty; end_consumer.request.consumer: must not be empty"},
      {"restart_plugin {}", "restart_plugin.id: must not be empty"},
      {"drain_plugin {}", "drain_plugin.id: must not be empty"},
      {"start_plugin {}", "start_plugin.id: must not be empty"},
      {"swap_plugin { command: 'new' }",
       "swap_plugin.id: must not be empty; swap_plugin.command: must be an absolute path"},
      {"swap_plugin { id: 'p' arguments: '-v' }", "swap_plugin.arguments: only with command"},
      // Mistakes common to all kinds are reported together with those special to one kind.
      {"id: 0 timeout { seconds: -1 } drain_plugin {}",
       "id: must be above zero; timeout: must be above zero, and 24 h at most; "
       "drain_plugin.id: must not be empty"},
  };
  for (const OperationCase& one : cases) {
    EXPECT_EQ(MistakesOf(OperationOf(one.operation)), one.mistakes) << one.operation;
  }
}

TEST(OperationCheckTest, AConsumerBelongsToItsNamespaceFromHereOn) {
  for (const char* text :
       {"publish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' } }",
        "unpublish { namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' } }",
        "end_consumer { namespace: 'jobs' request { consumer: 'web' } }"}) {
    v1::Operation operation = OperationOf(text);
    ASSERT_TRUE(PrepareOperation({}, &operation).ok());
    EXPECT_EQ(operation.publish().request().consumer() + operation.unpublish().request().consumer() +
                  operation.end_consumer().request().consumer(),
              "jobs/web");
  }
}

TEST(OperationCheckTest, ALabelBelongsToItsNamespaceToo) {
  const std::string names = "plugin_id: 'p' volume_id: 'v' consumer: 'web'";
  v1::Operation named = OperationOf("publish { namespace: 'jobs' request { " + names + " label: 'db' } }");
  ASSERT_TRUE(PrepareOperation({}, &named).ok());
  EXPECT_EQ(named.publish().request().label(), "jobs/db");
  v1::Operation without = OperationOf("publish { namespace: 'jobs' request { " + names + " } }");
  ASSERT_TRUE(PrepareOperation({}, &without).ok());
  EXPECT_EQ(without.publish().request().label(), "") << "the volume keeps the label that it has";
  const std::string full(RequestLimits::kVolumeName - 4, 'l');
  EXPECT_EQ(MistakesOf(
                OperationOf("publish { namespace: 'jobs' request { " + names + " label: '" + full + "' } }")),
            "publish.request.label: 1025 bytes long, at most 1024 are taken");
}

TEST(OperationCheckTest, ANamespaceAndItsConsumerTogetherHaveALimit) {
  const std::string half(RequestLimits::kConsumer / 2, 'n');
  for (const char* kind : {"publish", "unpublish", "end_consumer"}) {
    const auto named = [&](size_t more) {
      const std::string consumer(RequestLimits::kConsumer - half.size() - 1 + more, 'c');
      const std::string volume = std::string(kind) == "end_consumer" ? "" : "plugin_id: 'p' volume_id: 'v' ";
      return MistakesOf(OperationOf(std::string(kind) + " { namespace: '" + half + "' request { " + volume +
                                    "consumer: '" + consumer + "' } }"));
    };
    EXPECT_EQ(named(0), "") << kind;
    EXPECT_EQ(named(1), std::string(kind) + ".request.consumer: 1025 bytes long, at most 1024 are taken");
  }
}

TEST(OperationCheckTest, NamesAreAsLongAsOnTheNodesOwnSocket) {
  const std::string plugin(RequestLimits::kPluginName + 1, 'p');
  const std::string volume(RequestLimits::kVolumeId + 1, 'v');
  const std::string both = "{ plugin_id: '" + plugin + "' volume_id: '" + volume + "' required_bytes: 1 }";
  for (const std::string kind : {"stats", "explain"}) {
    EXPECT_EQ(MistakesOf(OperationOf(kind + " { plugin_id: '" + plugin + "' volume_id: '" + volume + "' }")),
              kind + ".plugin_id: 257 bytes long, at most 256 are taken; " + kind +
                  ".volume_id: 4097 bytes long, at most 4096 are taken");
  }
  EXPECT_THAT(MistakesOf(OperationOf("expand " + both)),
              AllOf(HasSubstr("expand.plugin_id: 257"), HasSubstr("expand.volume_id: 4097")));
  for (const std::string kind : {"restart_plugin", "drain_plugin", "swap_plugin", "start_plugin"}) {
    EXPECT_EQ(MistakesOf(OperationOf(kind + " { id: '" + plugin + "' }")),
              kind + ".id: 257 bytes long, at most 256 are taken");
  }
}

TEST(OperationCheckTest, ATimeoutIsAboveZeroAndADayAtMost) {
  const std::string stats = " stats { plugin_id: 'p' volume_id: 'v' }";
  for (const char* taken : {"seconds: 86400", "nanos: 1", "seconds: 1 nanos: 999999999"}) {
    EXPECT_EQ(MistakesOf(OperationOf("timeout { " + std::string(taken) + " }" + stats)), "") << taken;
  }
  for (const char* refused :
       {"", "seconds: 86400 nanos: 1", "nanos: 1000000000", "seconds: 86401", "seconds: -1", "nanos: -1",
        "seconds: 5 nanos: -1", "seconds: 9223372036854775807", "seconds: -9223372036854775808"}) {
    EXPECT_EQ(MistakesOf(OperationOf("timeout { " + std::string(refused) + " }" + stats)),
              "timeout: must be above zero, and 24 h at most")
        << refused;
  }
}

TEST(OperationCheckTest, WithoutATimeoutItIsTenMinutes) {
  const std::string stats = " stats { plugin_id: 'p' volume_id: 'v' }";
  EXPECT_EQ(FactsOf(OperationOf(stats)).timeout, std::chrono::minutes(10));
  EXPECT_EQ(FactsOf(OperationOf("timeout { nanos: 50000000 }" + stats)).timeout,
            std::chrono::milliseconds(50));
  EXPECT_EQ(FactsOf(OperationOf("timeout { seconds: 86400 }" + stats)).timeout, std::chrono::hours(24));
}

TEST(OperationCheckTest, ARuntimeThatIsNamedIsTheNodesOwn) {
  const std::vector<RuntimeAbility> runtimes = {
      FromText<RuntimeAbility>("name: 'podman' mount: true block: true readonly: true"),
      FromText<RuntimeAbility>("name: 'vm' block: true fs_types: 'ext4'")};
  const std::string publish =
      "namespace: 'jobs' request { plugin_id: 'p' volume_id: 'v' consumer: 'web' capability {"
      " access_type: BLOCK }";
  v1::Operation operation = OperationOf("publish { " + publish + " } runtime: 'vm' }");
  ASSERT_EQ(PrepareOperation(runtimes, &operation), absl::OkStatus());
  const v1::RuntimeAbility& used = operation.publish().request().runtime();
  EXPECT_EQ(used.name(), "vm");
  EXPECT_FALSE(used.mount());
  EXPECT_TRUE(used.block());
  EXPECT_FALSE(used.readonly());
  EXPECT_EQ(used.fs_types_size(), 1);

  EXPECT_EQ(MistakesOf(OperationOf("publish { " + publish + " } runtime: 'docker' }"), runtimes),
            "publish.runtime: no runtime of this node is called docker");
  EXPECT_EQ(MistakesOf(OperationOf("publish { " + publish + " runtime { block: true } } runtime: 'vm' }"),
                       runtimes),
            "publish.runtime: not with request.runtime");
}

TEST(OperationCheckTest, AKindThatIsNotKnownIsUnimplemented) {
  v1::Operation none = OperationOf("");
  EXPECT_EQ(PrepareOperation({}, &none).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FactsOf(none).subject, "");
  v1::Operation call = OperationOf("controller { plugin_id: 'p' }");
  const absl::Status status = PrepareOperation({}, &call);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("controller.request"));
  EXPECT_EQ(FactsOf(call).subject, "");
}

TEST(OperationCheckTest, AControllersCallSaysWhatItIsAbout) {
  for (const auto& [call, capability] : EveryControllerCall()) {
    v1::Operation operation;
    operation.set_id(1);
    *operation.mutable_controller() = call;
    const OperationFacts facts = FactsOf(operation);
    EXPECT_THAT(facts.subject, HasSubstr(" p")) << call.ShortDebugString();
    EXPECT_FALSE(facts.forward);
    const bool only_looks = call.has_validate() || call.has_list() || call.has_get() ||
                            call.has_get_capacity() || call.has_list_snapshots() || call.has_get_snapshot() ||
                            call.has_get_group_snapshot();
    EXPECT_EQ(facts.changes, !only_looks) << call.ShortDebugString();
    EXPECT_EQ(PrepareOperation({}, &operation), absl::OkStatus());
  }
}

TEST(OperationCheckTest, NoSecretIsInAnyWord) {
  for (const char* text :
       {"publish { namespace: '' request { secrets { key: 'k' value: 'hunter22' }"
        " volume_context { key: '' value: 'hunter22' } capability { mount_flags: 'hunter22' mount_flags: ''"
        " } } }",
        "expand { secrets { key: '' value: 'hunter22' } }",
        "controller { plugin_id: 'p' attach { volume_id: 'v' secrets { key: 'k' value: 'hunter22' } } }"}) {
    const v1::Operation operation = OperationOf(text);
    EXPECT_THAT(MistakesOf(operation), Not(HasSubstr("hunter22")));
    EXPECT_THAT(FactsOf(operation).subject, Not(HasSubstr("hunter22")));
  }
}

TEST(OperationCheckTest, AQualifiedConsumerIsTakenApartAtItsFirstSlash) {
  const ConsumerName name = SplitConsumer(QualifiedConsumer("jobs", "web/1"));
  EXPECT_EQ(name.name_space, "jobs");
  EXPECT_EQ(name.consumer, "web/1");
  EXPECT_EQ(SplitConsumer("local").consumer, "local");
  EXPECT_EQ(SplitConsumer("local").name_space, "");
}

}  // namespace
}  // namespace berth
