#include "cli/mount_formats.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/testing/temp_dir.h"

namespace berth::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::ConsumerMount Mount(const std::string& volume, const std::string& source) {
  v1::ConsumerMount mount;
  mount.set_plugin_id("hostpath");
  mount.set_volume_id(volume);
  mount.set_consumer("job-1");
  mount.set_source_path(source);
  mount.set_fs_type("ext4");
  mount.set_propagation("rprivate");
  return mount;
}

v1::ConsumerMount Block(const std::string& volume, const std::string& source) {
  v1::ConsumerMount mount = Mount(volume, source);
  mount.set_access_type(v1::BLOCK);
  mount.set_device_major(7);
  mount.set_device_minor(3);
  mount.clear_fs_type();
  mount.clear_propagation();
  return mount;
}

std::string Formatted(MountFormat format, const std::vector<PlacedMount>& mounts) {
  const absl::StatusOr<std::string> text = FormatMounts(format, mounts);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::string Refused(MountFormat format, const std::vector<PlacedMount>& mounts) {
  const absl::StatusOr<std::string> text = FormatMounts(format, mounts);
  EXPECT_TRUE(absl::IsFailedPrecondition(text.status())) << text.value_or("");
  EXPECT_EQ(ExitCodeOf(text.status()), ExitCode::kFailed);
  EXPECT_NE(HintOf(text.status()), "");
  return std::string(MessageOf(text.status()));
}

// A file system to write to, one to read only, and a device of each kind.
std::vector<PlacedMount> Usual() {
  v1::ConsumerMount media = Mount("media", "/srv/v/media");
  media.set_readonly(true);
  media.set_propagation("rslave");
  v1::ConsumerMount tape = Block("tape", "/srv/v/tape");
  tape.set_readonly(true);
  tape.set_device_minor(4);
  return {{Mount("data", "/srv/v/data"), "/volumes/data"},
          {media, "/media"},
          {Block("raw", "/srv/v/raw"), "/dev/xvda"},
          {tape, "/dev/xvdb"}};
}

TEST(MountFormatsTest, Oci) {
  const std::string text = Formatted(MountFormat::kOci, Usual());
  EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(R"({
  "mounts": [
    {"destination": "/volumes/data", "type": "bind", "source": "/srv/v/data", "options": ["rbind", "rw", "rprivate"]},
    {"destination": "/media", "type": "bind", "source": "/srv/v/media", "options": ["rbind", "ro", "rslave"]}
  ],
  "linux": {
    "devices": [
      {"path": "/dev/xvda", "type": "b", "major": 7, "minor": 3, "fileMode": 432, "uid": 0, "gid": 0},
      {"path": "/dev/xvdb", "type": "b", "major": 7, "minor": 4, "fileMode": 288, "uid": 0, "gid": 0}
    ],
    "resources": {
      "devices": [
        {"allow": true, "type": "b", "major": 7, "minor": 3, "access": "rw"},
        {"allow": true, "type": "b", "major": 7, "minor": 4, "access": "r"}
      ]
    }
  }
})"));
}

TEST(MountFormatsTest, APathThatIsNotUtf8CannotBeJson) {
  for (const MountFormat format : {MountFormat::kOci, MountFormat::kJson}) {
    EXPECT_THAT(Refused(format, {{Mount("v", "/srv/v"), "/vol\xff"}}), HasSubstr("UTF-8"));
  }
}

TEST(MountFormatsTest, OciOfOddPathsIsStillJson) {
  const std::string text = Formatted(MountFormat::kOci, {{Mount("v", "/srv/\"a\\b\nc"), "/volumes/ü \"x\""}});
  google::protobuf::Struct document;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &document).ok()) << text;
  const auto& mount = document.fields().at("mounts").list_value().values(0).struct_value().fields();
  EXPECT_EQ(mount.at("source").string_value(), "/srv/\"a\\b\nc");
  EXPECT_EQ(mount.at("destination").string_value(), "/volumes/ü \"x\"");
  EXPECT_EQ(Formatted(MountFormat::kOci, {}), "{\n  \"mounts\": []\n}\n");
}

TEST(MountFormatsTest, Podman) {
  EXPECT_EQ(Formatted(MountFormat::kPodman, Usual()),
            "--mount type=bind,source=/srv/v/data,target=/volumes/data,bind-propagation=rprivate "
            "--mount type=bind,source=/srv/v/media,target=/media,readonly,bind-propagation=rslave "
            "--device /srv/v/raw:/dev/xvda:rw "
            "--device /srv/v/tape:/dev/xvdb:r\n");
}

TEST(MountFormatsTest, DockerTakesTheSame) {
  EXPECT_EQ(Formatted(MountFormat::kDocker, Usual()), Formatted(MountFormat::kPodman, Usual()));
}

TEST(MountFormatsTest, CommasAndQuotesAreFieldsOfTheirOwn) {
  EXPECT_EQ(Formatted(MountFormat::kDocker, {{Mount("v", "/srv/a,b"), "/x \"y\"=z"}}),
            "--mount 'type=bind,\"source=/srv/a,b\",\"target=/x \"\"y\"\"=z\",bind-propagation=rprivate'\n");
}

TEST(MountFormatsTest, PodmanWouldMountAnotherPathThanOneWithAnEqualsSign) {
  EXPECT_THAT(Refused(MountFormat::kPodman, {{Mount("v", "/srv/a=b"), "/x"}}),
              AllOf(HasSubstr("/srv/a=b"), HasSubstr("no way to write a '='")));
}

TEST(MountFormatsTest, WhatALineCannotHoldIsRefused) {
  for (const MountFormat format : {MountFormat::kPodman, MountFormat::kDocker, MountFormat::kNspawn,
                                   MountFormat::kSystemd, MountFormat::kEnv}) {
    EXPECT_THAT(Refused(format, {{Mount("v", "/srv/a\nb"), "/x"}}), HasSubstr("control character"));
  }
  EXPECT_THAT(Refused(MountFormat::kDocker, {{Mount("v", "/srv/a"), "/x "}}), HasSubstr("ends with a blank"));
  EXPECT_THAT(Refused(MountFormat::kDocker, {{Block("v", "/srv/a:b"), "/x"}}),
              HasSubstr("docker's --device has no way to write a ':'"));
}

TEST(MountFormatsTest, ADeviceThatIsNotKnownIsRefused) {
  v1::ConsumerMount unknown = Block("v", "/srv/v");
  unknown.set_device_major(0);
  for (const MountFormat format :
       {MountFormat::kOci, MountFormat::kPodman, MountFormat::kNspawn, MountFormat::kSystemd}) {
    EXPECT_THAT(Refused(format, {{unknown, "/dev/x"}}), HasSubstr("which block device"));
  }
}

TEST(MountFormatsTest, Nspawn) {
  EXPECT_EQ(Formatted(MountFormat::kNspawn, Usual()),
            "--bind=/srv/v/data:/volumes/data "
            "--bind-ro=/srv/v/media:/media "
            "--bind=/srv/v/raw:/dev/xvda "
            "'--property=DeviceAllow=/dev/block/7:3 rw' "
            "--bind-ro=/srv/v/tape:/dev/xvdb "
            "'--property=DeviceAllow=/dev/block/7:4 r'\n");
  EXPECT_EQ(Formatted(MountFormat::kNspawn, {{Mount("v", "/srv/a:b\\c"), "/x y"}}),
            "'--bind=/srv/a\\:b\\\\c:/x y'\n");
}

TEST(MountFormatsTest, Systemd) {
  EXPECT_EQ(Formatted(MountFormat::kSystemd, Usual()),
            "BindPaths=/srv/v/data:/volumes/data:rbind\n"
            "BindReadOnlyPaths=/srv/v/media:/media:rbind\n"
            "BindPaths=/srv/v/raw:/dev/xvda:rbind\n"
            "DeviceAllow=/dev/block/7:3 rw\n"
            "BindReadOnlyPaths=/srv/v/tape:/dev/xvdb:rbind\n"
            "DeviceAllow=/dev/block/7:4 r\n");
  EXPECT_EQ(Formatted(MountFormat::kSystemd, {{Mount("v", "/srv/a:b c%d"), "/x\\'\" "}}),
            "BindPaths=/srv/a\\:b\\ c%%d:/x\\\\\\'\\\"\\ :rbind\n");
}

// systemd's own parser shows a path as it has read it where the path is not absolute.
TEST(MountFormatsTest, SystemdReadsThePathsThatWereMeant) {
  if (access("/usr/bin/systemd-analyze", X_OK) != 0) GTEST_SKIP() << "no systemd here";
  const TempDir dir;
  const std::string lines =
      Formatted(MountFormat::kSystemd, {{Mount("v", "/srv/a:b c%d\\e"), "/x\\'\" y "}, Usual()[2]});
  const auto verify = [&](const std::string& service) {
    const std::string unit = dir.Write("mounts.service", "[Service]\nExecStart=/bin/true\n" + service, 0644);
    FILE* pipe = popen(("systemd-analyze verify " + unit + " 2>&1").c_str(), "r");
    std::string said;
    std::array<char, 512> buffer{};
    while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe) != nullptr)
      said += buffer.data();
    if (pipe != nullptr) pclose(pipe);
    return said;
  };
  EXPECT_EQ(verify(lines), "");
  std::string relative = lines;
  relative.replace(relative.find("=/srv"), 2, "=");
  EXPECT_THAT(verify(relative), HasSubstr("path is not absolute, ignoring: srv/a:b c%d\\e\n"));
  relative = lines;
  relative.replace(relative.find(":/x"), 2, ":");
  EXPECT_THAT(verify(relative), HasSubstr("path is not absolute, ignoring: x\\'\" y \n"));
}

TEST(MountFormatsTest, SharedPropagationIsBeyondSystemd) {
  v1::ConsumerMount shared = Mount("v", "/srv/v");
  shared.set_propagation("rshared");
  for (const MountFormat format : {MountFormat::kSystemd, MountFormat::kNspawn}) {
    EXPECT_THAT(Refused(format, {{shared, "/x"}}), HasSubstr("would not reach the host"));
  }
}

TEST(MountFormatsTest, Env) {
  v1::ConsumerMount named = Mount("vol-2", "/srv/it's");
  named.set_name("log files");
  named.set_readonly(true);
  EXPECT_EQ(Formatted(MountFormat::kEnv, {{Mount("vol-1", "/srv/v1"), "/x"}, {named, "/y"}}),
            "BERTH_VOLUME_VOL_1=/srv/v1\nBERTH_VOLUME_VOL_1_ACCESS=rw\n"
            "BERTH_VOLUME_LOG_FILES='/srv/it'\\''s'\nBERTH_VOLUME_LOG_FILES_ACCESS=ro\n");
  EXPECT_THAT(Refused(MountFormat::kEnv, {{Mount("a-b", "/1"), "/x"}, {Mount("a.b", "/2"), "/y"}}),
              AllOf(HasSubstr("BERTH_VOLUME_A_B"), HasSubstr("a-b")));
}

TEST(MountFormatsTest, JsonHasTheDestination) {
  const std::string text = Formatted(MountFormat::kJson, Usual());
  google::protobuf::Struct document;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &document).ok()) << text;
  const auto& mounts = document.fields().at("mounts").list_value();
  ASSERT_EQ(mounts.values_size(), 4);
  EXPECT_EQ(mounts.values(1).struct_value().fields().at("destination").string_value(), "/media");
  EXPECT_EQ(mounts.values(2).struct_value().fields().at("device_major").number_value(), 7);
}

TEST(MountFormatsTest, AnUnknownFormatIsToldTheKnownOnes) {
  EXPECT_TRUE(ParseMountFormat("oci").ok());
  const absl::Status wrong = ParseMountFormat("dockr").status();
  EXPECT_EQ(ExitCodeOf(wrong), ExitCode::kUsage);
  EXPECT_THAT(std::string(MessageOf(wrong)), HasSubstr("did you mean docker?"));
}

// ---- places ----

v1::ListConsumerMountsResponse Answer(std::vector<std::pair<std::string, std::string>> volumes_and_names) {
  v1::ListConsumerMountsResponse answer;
  for (const auto& [volume, name] : volumes_and_names) {
    *answer.add_mounts() = Mount(volume, "/srv/x");
    answer.mutable_mounts(answer.mounts_size() - 1)->set_name(name);
  }
  return answer;
}

std::string Places(const v1::ListConsumerMountsResponse& answer, const std::vector<std::string>& at) {
  const absl::StatusOr<std::vector<PlacedMount>> placed = PlaceMounts(answer, at);
  if (!placed.ok()) {
    EXPECT_EQ(ExitCodeOf(placed.status()), ExitCode::kUsage);
    return std::string(MessageOf(placed.status()));
  }
  std::string all;
  for (const PlacedMount& mount : *placed) all += mount.destination + " ";
  return all;
}

TEST(MountPlacesTest, NamesAndElseVolumesMakeThePath) {
  EXPECT_EQ(Places(Answer({{"v1", ""}, {"v2", "logs"}}), {}), "/volumes/v1 /volumes/logs ");
}

TEST(MountPlacesTest, AtTakesNamesVolumesOrAPathAlone) {
  EXPECT_EQ(Places(Answer({{"v1", ""}, {"v2", "logs"}}), {"v1=/data//x/", "logs=/var/log"}),
            "/data/x /var/log ");
  EXPECT_EQ(Places(Answer({{"v2", "logs"}}), {"v2=/a"}), "/a ");
  EXPECT_EQ(Places(Answer({{"v1", ""}}), {"/data"}), "/data ");
  EXPECT_EQ(Places(Answer({{"a=/b", ""}}), {"a=/b=/data=/x"}), "/data=/x ");
}

TEST(MountPlacesTest, WhatFitsNoneOrSeveralIsRefused) {
  const auto two = Answer({{"v1", "a"}, {"v1", "b"}});
  EXPECT_THAT(Places(two, {"/data"}), HasSubstr("there are 2 mounts"));
  EXPECT_THAT(Places(two, {"v1=/data"}), HasSubstr("fits 2 of the mounts"));
  EXPECT_THAT(Places(two, {"c=/data"}), HasSubstr("no such volume; it has 'a' 'b'"));
  EXPECT_THAT(Places(two, {"a=data"}), HasSubstr("must be absolute"));
  EXPECT_THAT(Places(two, {"a=/x", "a=/y"}), HasSubstr("given twice"));
  EXPECT_THAT(Places(two, {"a=/x", "b=/x/"}), HasSubstr("would both be at '/x'"));
  EXPECT_THAT(Places(two, {"a=/x/../etc"}), HasSubstr("holds a '..'"));
  EXPECT_THAT(Places(two, {"a=/"}), HasSubstr("whole file system"));
}

TEST(MountPlacesTest, AnIdThatMakesNoPathMustBeToldWhere) {
  for (const char* id : {"a/b", "..", "."}) {
    EXPECT_THAT(Places(Answer({{id, ""}}), {}), HasSubstr("makes no path")) << id;
    EXPECT_EQ(Places(Answer({{id, ""}}), {std::string(id) + "=/x"}), "/x ");
  }
}

}  // namespace
}  // namespace berth::cli
