#include "cli/explain_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using std::chrono::system_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kNow = 1'700'000'000;

v1::ExplainVolumeResponse Answer() {
  v1::ExplainVolumeResponse answer;
  v1::Volume& volume = *answer.mutable_volume();
  volume.set_plugin_id("nfs");
  volume.set_volume_id("v1");
  volume.set_state(v1::UNPUBLISHING);
  v1::Publication& use = *volume.add_publications();
  use.set_consumer("job-1");
  use.set_state(v1::UNPUBLISHING);
  use.set_target_path("/t");
  answer.set_journal_key("0123abcd");
  answer.set_in_journal(true);
  answer.set_identity("nfs v1");
  answer.set_directory("/var/lib/berth/volumes/0123abcd");
  return answer;
}

std::string Text(const v1::ExplainVolumeResponse& answer) {
  return ExplainText(answer, system_clock::from_time_t(kNow), false);
}

TEST(ExplainViewTest, TheVerdictComesFirstThenWhoThenTheEvidence) {
  v1::ExplainVolumeResponse answer = Answer();
  v1::Volume& volume = *answer.mutable_volume();
  volume.set_running("NodeUnpublishVolume");
  volume.set_advice("Wait, or bring its server back");
  volume.mutable_running_since()->set_seconds(kNow - 240);
  volume.mutable_stuck()->set_on("umount /t");
  volume.mutable_stuck()->set_pid(99);
  volume.mutable_stuck()->mutable_since()->set_seconds(kNow - 180);
  volume.mutable_next_retry_at()->set_seconds(kNow + 10);
  v1::MountHolder& holder = *answer.add_holders();
  holder.set_pid(4711);
  holder.set_command("postgres");
  holder.set_uid(1000);
  holder.set_consumer("job-1");
  holder.set_how("open file /t/wal");
  v1::RpcTrace& rpc = *answer.add_rpcs();
  rpc.set_rpc("NodeUnpublishVolume");
  rpc.set_code("DEADLINE_EXCEEDED");
  rpc.set_error("it took too long");
  rpc.mutable_started_at()->set_seconds(kNow - 240);
  rpc.mutable_took()->set_seconds(60);
  v1::KernelMount& mount = *answer.add_mounts();
  mount.set_id(812);
  mount.set_target("/t");
  mount.set_fs_type("nfs4");
  mount.set_source("server:/export");
  answer.add_remarks("the journal says published, the kernel agrees");
  answer.add_remarks("next: it is tried again in 10 s");
  EXPECT_EQ(Text(answer), R"(volume    v1 of plugin nfs
state     UNPUBLISHING
stuck 3m  umount /t does not return, since 3m (helper process 99)
remark    the journal says published, the kernel agrees
do        Wait, or bring its server back
running   NodeUnpublishVolume, began 4m ago
next      it is tried again in 10 s

Used by
CONSUMER  NAME  STATE         ACCESS      ORIGIN  SINCE  TARGET  LIFE  TROUBLE
job-1     -     UNPUBLISHING  read-write  caller  -      /t      -     -

Kept busy by
PID   COMMAND   USER  CONSUMER  BY
4711  postgres  1000  job-1     open file /t/wal

Last calls of the plugin, the newest last
WHEN    RPC                  CODE               TOOK  ERROR
4m ago  NodeUnpublishVolume  DEADLINE_EXCEEDED  60s   it took too long

Mounts in the kernel
ID   TARGET  TYPE  SOURCE          OPTIONS
812  /t      nfs4  server:/export  -

Records
journal        on the disk, as shown
key            0123abcd
identity file  nfs v1
directory      /var/lib/berth/volumes/0123abcd
)");
}

TEST(ExplainViewTest, AVolumeThatIsWellSaysSoAtOnce) {
  v1::ExplainVolumeResponse answer = Answer();
  answer.mutable_volume()->set_state(v1::PUBLISHED);
  const std::string text = Text(answer);
  EXPECT_THAT(text, HasSubstr("verdict  nothing is wrong"));
  EXPECT_THAT(text, AllOf(HasSubstr("The kernel has no mount of it"), Not(HasSubstr("Kept busy"))));
}

TEST(ExplainViewTest, WhatComesNextIsNoTrouble) {
  v1::ExplainVolumeResponse answer = Answer();
  answer.mutable_volume()->set_state(v1::PUBLISHED);
  answer.add_remarks("next: nothing is to be done");
  EXPECT_THAT(Text(answer), AllOf(HasSubstr("verdict  nothing is wrong"),
                                  HasSubstr("next     nothing is to be done"), Not(HasSubstr("remark"))));
}

TEST(ExplainViewTest, ARemarkIsNoAllClear) {
  v1::ExplainVolumeResponse answer = Answer();
  answer.add_remarks("the kernel has no mount, the journal says published");
  answer.set_in_journal(false);
  EXPECT_THAT(Text(answer), AllOf(Not(HasSubstr("nothing is wrong")), HasSubstr("not on the disk as shown"),
                                  HasSubstr("remark  the kernel has no mount")));
}

TEST(ExplainViewTest, TextFromOutsideCannotDriveATerminal) {
  v1::ExplainVolumeResponse answer = Answer();
  answer.add_remarks("\033[2J");
  answer.add_holders()->set_command("\033]0;owned\007\nx");
  EXPECT_THAT(Text(answer), AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\007"))));
}

}  // namespace
}  // namespace berth::cli
