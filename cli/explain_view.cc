#include "cli/explain_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/table.h"
#include "cli/values.h"
#include "cli/volume_condition.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

using std::chrono::system_clock;

std::string Section(std::string_view title, const Table& table, bool colour) {
  if (table.empty()) return {};
  return fmt::format("\n{}\n{}", Toned(title, Tone::kFaint, colour), table.Render(colour));
}

// The remark that says what comes, rather than what does not fit together.
constexpr std::string_view kNext = "next: ";
bool IsNext(const std::string& remark) { return remark.starts_with(kNext); }

Table Verdict(const v1::ExplainVolumeResponse& answer, system_clock::time_point now) {
  const v1::Volume& volume = answer.volume();
  const std::vector<Condition> conditions = ConditionsOf(volume, now);
  Table table;
  table.Add({"volume", fmt::format("{} of plugin {}", volume.volume_id(), volume.plugin_id())});
  table.Add({"state", StateCell(volume.state(), volume.uncertain())});
  const bool nothing_wrong = std::all_of(answer.remarks().begin(), answer.remarks().end(), IsNext);
  if (conditions.empty() && nothing_wrong) {
    table.Add({"verdict", Cell("nothing is wrong", Tone::kGood)});
  }
  for (const Condition& condition : conditions) {
    table.Add({condition.word, Cell(condition.text, condition.tone)});
  }
  for (const std::string& remark : answer.remarks()) {
    if (!IsNext(remark)) table.Add({"remark", Cell(remark, Tone::kCareful)});
  }
  if (!volume.advice().empty()) table.Add({"do", volume.advice()});
  if (!volume.running().empty()) {
    table.Add({"running", volume.has_running_since()
                              ? fmt::format("{}, began {}", volume.running(),
                                            FormatRelative(volume.running_since(), now))
                              : volume.running()});
  }
  const auto next = std::find_if(answer.remarks().begin(), answer.remarks().end(), IsNext);
  if (next != answer.remarks().end()) {
    table.Add({"next", next->substr(kNext.size())});
  } else if (volume.has_next_retry_at()) {
    table.Add({"next try", FormatRelative(volume.next_retry_at(), now)});
  }
  return table;
}

Table Holders(const v1::ExplainVolumeResponse& answer) {
  Table table({"PID", "COMMAND", "USER", "CONSUMER", "BY"});
  for (const v1::MountHolder& holder : answer.holders()) {
    table.Add({holder.pid() == 0 ? "" : fmt::to_string(holder.pid()), holder.command(),
               holder.has_uid() ? fmt::to_string(holder.uid()) : "", holder.consumer(), holder.how()});
  }
  return table;
}

Table Rpcs(const v1::ExplainVolumeResponse& answer, system_clock::time_point now) {
  Table table({"WHEN", "RPC", "CODE", "TOOK", "ERROR"});
  for (const v1::RpcTrace& rpc : answer.rpcs()) {
    const bool good = rpc.code() == "OK";
    table.Add({FormatRelative(rpc.started_at(), now), rpc.rpc(),
               Cell(rpc.code(), good ? Tone::kGood : Tone::kBad), FormatDuration(rpc.took()), rpc.error()});
  }
  return table;
}

Table KernelMounts(const v1::ExplainVolumeResponse& answer) {
  Table table({"ID", "TARGET", "TYPE", "SOURCE", "OPTIONS"});
  for (const v1::KernelMount& mount : answer.mounts()) {
    const std::string id = mount.id() == 0 ? "-" : fmt::to_string(mount.id());
    table.Add({id, mount.target(), mount.fs_type(), mount.source(), mount.options()});
  }
  return table;
}

Table Records(const v1::ExplainVolumeResponse& answer) {
  Table table;
  table.Add({"journal", answer.in_journal() ? Cell("on the disk, as shown")
                                            : Cell("not on the disk as shown", Tone::kCareful)});
  table.Add({"key", answer.journal_key()});
  table.Add({"identity file", answer.identity()});
  table.Add({"directory", answer.directory()});
  return table;
}

}  // namespace

std::string ExplainText(const v1::ExplainVolumeResponse& answer, system_clock::time_point now, bool colour) {
  std::string text = Verdict(answer, now).Render(colour);
  text += Section("Used by", UseTable(answer.volume(), now), colour);
  text += Section("Kept busy by", Holders(answer), colour);
  text += Section("Last calls of the plugin, the newest last", Rpcs(answer, now), colour);
  const Table mounts = KernelMounts(answer);
  text += mounts.empty() ? fmt::format("\n{}\n", Toned("The kernel has no mount of it", Tone::kFaint, colour))
                         : Section("Mounts in the kernel", mounts, colour);
  // Of one that is only declared there are none.
  if (!answer.journal_key().empty()) text += Section("Records", Records(answer), colour);
  return text;
}

}  // namespace berth::cli
