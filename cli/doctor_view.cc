#include "cli/doctor_view.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/table.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

std::string_view SeverityName(v1::FindingSeverity severity) {
  if (severity == v1::ERROR) return "ERROR";
  return severity == v1::WARNING ? "WARNING" : "INFO";
}

Tone SeverityTone(v1::FindingSeverity severity) {
  if (severity == v1::ERROR) return Tone::kBad;
  return severity == v1::WARNING ? Tone::kCareful : Tone::kPlain;
}

// The worst first; within one severity in the node's order.
std::vector<const v1::Finding*> Sorted(const v1::ExamineResponse& answer) {
  std::vector<const v1::Finding*> findings;
  for (const v1::FindingSeverity severity : {v1::ERROR, v1::WARNING, v1::INFO}) {
    for (const v1::Finding& finding : answer.findings()) {
      const bool known = finding.severity() == v1::ERROR || finding.severity() == v1::WARNING;
      if (finding.severity() == severity || (severity == v1::INFO && !known)) findings.push_back(&finding);
    }
  }
  return findings;
}

// "hostpath/vol-1 for job-1", or the path where it is about no volume.
std::string Subject(const v1::Finding& finding) {
  std::string subject;
  if (!finding.plugin_id().empty()) subject = Printable(finding.plugin_id(), 200);
  if (!finding.volume_id().empty())
    subject += (subject.empty() ? "" : "/") + Printable(finding.volume_id(), 200);
  if (!finding.consumer().empty()) subject += " for " + Printable(finding.consumer(), 200);
  if (subject.empty()) subject = Printable(finding.path(), 500);
  if (subject.empty()) subject = "this node";
  return subject;
}

std::string Explained(const v1::Finding& finding, int number, bool colour) {
  std::string text =
      fmt::format("{}. {}  {}  {}\n", number,
                  Toned(SeverityName(finding.severity()), SeverityTone(finding.severity()), colour),
                  Printable(finding.code(), 64), Subject(finding));
  text += fmt::format("   {}\n", Printable(finding.text()));
  const bool path_is_shown =
      finding.plugin_id().empty() && finding.volume_id().empty() && finding.consumer().empty();
  if (!finding.path().empty() && !path_is_shown)
    text += fmt::format("   at {}\n", Printable(finding.path(), 500));
  return text;
}

// What a person does about a finding. All findings of a volume have the same advice: it is shown once.
std::string AdviceOnce(const v1::Finding& finding, std::set<std::string>* said) {
  if (finding.advice().empty() || !said->insert(finding.advice()).second) return "";
  return fmt::format("   do: {}\n", Printable(finding.advice(), size_t{32} << 10));
}

std::string Step(const v1::Finding& finding, int number, bool repaired, bool colour) {
  if (finding.repair().empty()) {
    return finding.severity() == v1::INFO
               ? ""
               : fmt::format("   {}. nothing that a repair may do: a person's matter\n", number);
  }
  std::string outcome;
  if (finding.repaired()) {
    outcome = Toned(": done", Tone::kGood, colour);
  } else if (!finding.repair_error().empty()) {
    outcome = Toned(": failed: " + Printable(finding.repair_error(), 1000), Tone::kBad, colour);
  } else if (repaired) {
    outcome = Toned(": not done", Tone::kCareful, colour);
  }
  // The plan stands beneath what it is about; what was done stands alone.
  const std::string subject = repaired ? Subject(finding) + ": " : "";
  return fmt::format("   {}. {}{}{}\n", number, subject, Printable(finding.repair(), 1000), outcome);
}

}  // namespace

std::string DoctorText(const v1::ExamineResponse& answer, bool repaired, bool colour) {
  const std::vector<const v1::Finding*> findings = Sorted(answer);
  if (findings.empty()) {
    return Toned("Journal, identity files, mounts and plugins fit together; no volume waits or fails.",
                 Tone::kGood, colour) +
           "\n";
  }
  std::string text;
  std::string plan;
  std::set<std::string> said;
  for (size_t i = 0; i < findings.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    // After a repair only the open findings are shown; the plan had all.
    const bool open = !findings[i]->repaired() && findings[i]->severity() != v1::INFO;
    if (!repaired || open) {
      text += Explained(*findings[i], number, colour);
      if (findings[i]->severity() != v1::INFO) text += AdviceOnce(*findings[i], &said);
    }
    plan += Step(*findings[i], number, repaired, colour);
  }
  if (!plan.empty()) {
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n",
                        repaired ? "What was done:" : "Repairs (no data is ever deleted):", plan);
  }
  return text;
}

FindingCount CountFindings(const v1::ExamineResponse& answer) {
  FindingCount count;
  for (const v1::Finding& finding : answer.findings()) {
    if (finding.severity() == v1::INFO) continue;
    ++count.found;
    if (finding.repaired()) continue;
    ++count.open;
    if (!finding.repair().empty()) ++count.repairable;
  }
  return count;
}

}  // namespace berth::cli
