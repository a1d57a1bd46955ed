// What is wrong with a publish is said in the same words, however it was asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <regex>
#include <string>

#include "base/status.h"
#include "base/testing/temp_dir.h"
#include "cli/publish_options.h"
#include "declared/declared_files.h"
#include "request/request_check.h"
#include "rpc/uplink/operation_check.h"

namespace berth {
namespace {

using Request = v1::PublishVolumeRequest;
using Options = cli::PublishOptions;

struct Mistake {
  const char* about;
  std::function<void(Request&)> request;
  std::function<void(Options&)> option;
  std::optional<std::string> file;  // none: a file cannot say it
};

std::vector<Mistake> Mistakes() {
  const std::string long_text(70'000, 'x');
  const std::string long_name(300, 'x');
  return {
      {"a context's size", [=](Request& r) { (*r.mutable_volume_context())["k"] = long_text; },
       [=](Options& o) { o.context = {"k=" + long_text}; }, std::nullopt},
      {"plugin id", [=](Request& r) { r.set_plugin_id(long_name); },
       [=](Options& o) { o.plugin = long_name; }, "plugin = \"" + long_name + "\""},
      {"a runtime's name", [=](Request& r) { r.mutable_runtime()->set_name(long_name); },
       [=](Options& o) { o.runtime = long_name; }, std::nullopt},
      {"highest pid", [](Request& r) { r.mutable_life()->set_pid(4'194'305); },
       [](Options& o) { o.pid = 4'194'305; }, std::nullopt},
      {"pid 0", [](Request& r) { r.mutable_life()->set_pid(0); }, [](Options& o) { o.pid = 0; },
       std::nullopt},
      {"a unit's name", [](Request& r) { r.mutable_life()->set_unit("web.x"); },
       [](Options& o) { o.unit = "web.x"; }, "unit = \"web.x\""},
      {"a cgroup", [](Request& r) { r.mutable_life()->set_cgroup("/a/../b"); },
       [](Options& o) { o.cgroup = "/a/../b"; }, "cgroup = \"/a/../b\""},
      {"SELinux label", [](Request& r) { r.mutable_permissions()->set_selinux_label("a: b:c"); },
       [](Options& o) { o.selinux_label = "a: b:c"; }, "selinux_label = \"a: b:c\""},
      {"a reader's mode",
       [](Request& r) { r.mutable_capability()->set_access_mode(v1::MULTI_NODE_READER_ONLY); },
       [](Options& o) { o.capability.access = "multi-node-reader-only"; },
       "access_mode = \"multi-node-reader-only\""},
  };
}

Request Least() {
  Request request;
  request.set_plugin_id("p");
  request.set_volume_id("v");
  request.set_consumer("declared/a");
  return request;
}

std::string Said(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(MessageOf(status));
}

TEST(PublishMistakesTest, AreTheSameThroughApiFileOperationAndCommandLine) {
  for (const Mistake& mistake : Mistakes()) {
    SCOPED_TRACE(mistake.about);
    Request request = Least();
    mistake.request(request);
    const std::string api = Said(CheckPublish(request).status());

    Options options;
    options.plugin = "p";
    options.volume = "v";
    options.consumer = "declared/a";
    mistake.option(options);
    const auto asked = cli::WithOptions(Request(), options);
    ASSERT_TRUE(asked.ok()) << asked.status();
    EXPECT_EQ(Said(CheckPublish(*asked).status()), api);

    v1::Operation operation;
    operation.set_id(1);
    operation.mutable_publish()->set_namespace_("n");
    *operation.mutable_publish()->mutable_request() = request;
    EXPECT_EQ(Said(PrepareOperation({}, &operation)),
              "publish.request." + std::regex_replace(api, std::regex("; "), "; publish.request."));

    if (!mistake.file) continue;
    TempDir directory;
    std::string text = *mistake.file;
    if (!text.starts_with("plugin")) text = "plugin = \"p\"\n" + text;
    directory.Write("a.toml", "volume = \"v\"\n" + text + "\n");
    const auto files = ReadDeclaredFiles(directory.path());
    ASSERT_TRUE(files.ok() && files->size() == 1) << files.status();
    EXPECT_EQ(Said(files->front().use.status()), directory.Path("a.toml") + ": " + api);
  }
}

}  // namespace
}  // namespace berth
