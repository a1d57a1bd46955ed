#include "cli/link_view.h"

#include <fmt/format.h>

#include "cli/values.h"

namespace berth::cli {
namespace {

Cell StateOf(const v1::LinkStatus& link, std::chrono::system_clock::time_point now) {
  const std::string where = link.address().empty() ? "" : " " + link.address();
  const std::string since = link.has_since() ? ", since " + FormatRelative(link.since(), now) : "";
  const std::string peer = link.peer().empty() ? "" : fmt::format(" ({})", link.peer());
  if (link.state() == v1::LinkStatus::SYNCED) {
    return {fmt::format("connected to{}{}{}", where, peer, since), Tone::kGood};
  }
  if (link.state() == v1::LinkStatus::SYNCING) {
    return {fmt::format("connected to{}{}, telling it how things are{}", where, peer, since), Tone::kGood};
  }
  if (link.state() == v1::LinkStatus::GREETING) {
    return {fmt::format("not connected, waits for the welcome of{}{}{}", where, peer, since), Tone::kCareful};
  }
  return {fmt::format("not connected, dials{}{}", where, since), Tone::kBad};
}

Cell LeaseOf(const v1::LinkStatus& link) {
  const std::string epoch = link.lease_epoch() == 0 ? "" : fmt::format(", epoch {}", link.lease_epoch());
  if (link.lease() == v1::LEASE_VALID) {
    return {fmt::format("valid for {}{}", FormatDuration(link.lease_left()), epoch), Tone::kGood};
  }
  if (link.lease() == v1::LEASE_EXPIRED) return {fmt::format("expired{}", epoch), Tone::kBad};
  // None since berthd was started, or none of a higher epoch that was heard since.
  return {fmt::format("none granted yet{}", epoch), Tone::kCareful};
}

}  // namespace

void AddLink(Table& table, const v1::LinkStatus& link, std::chrono::system_clock::time_point now) {
  table.Add({"scheduler", StateOf(link, now)});
  table.Add({"lease", LeaseOf(link)});
  if (!link.cluster_id().empty()) table.Add({"cluster", link.cluster_id()});
  if (link.operations_running() > 0 || link.results_kept() > 0) {
    table.Add({"link's operations", fmt::format("{} under way, {} results not acknowledged",
                                                link.operations_running(), link.results_kept())});
  }
  if (!link.last_error().empty()) table.Add({"link's last error", link.last_error()});
  if (link.has_next_attempt_at()) table.Add({"link's next try", FormatRelative(link.next_attempt_at(), now)});
}

std::string DescribeLeft(int publications) {
  if (publications == 0) return "nothing is left";
  return fmt::format("{} publication{} left", publications, publications == 1 ? " is" : "s are");
}

std::string DescribeDrain(const v1::NodeDrain& drain, std::chrono::system_clock::time_point now) {
  const std::string since =
      drain.has_since() ? fmt::format("since {}, ", FormatRelative(drain.since(), now)) : "";
  const std::string reason = drain.reason().empty() ? "" : ": " + drain.reason();
  return since + DescribeLeft(drain.publications_left()) + reason;
}

}  // namespace berth::cli
