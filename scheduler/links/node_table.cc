#include "scheduler/links/node_table.h"

#include <fmt/format.h>

#include "base/status.h"

namespace berth::scheduler {
namespace {

constexpr size_t kNameLimit = 192;
constexpr size_t kIdLimit = 128;
constexpr size_t kEarlierInstances = 32;

using Kind = HelloDecision::Kind;

NodeRecord RecordOf(const v1::Hello& hello) {
  return {.name = hello.node_id(),
          .instance_id = hello.instance_id(),
          .boot_id = hello.boot_id(),
          .previous_boot_id = ""};
}

HelloDecision TwoMachines(NodeRecord record) {
  record.two_machines = true;
  const std::string name = Printable(record.name, kNameLimit);
  return {.kind = Kind::kRefuse,
          .record = std::move(record),
          .why = absl::AlreadyExistsError(fmt::format(
              "two machines run as node {} with one state directory, copied from an image: give one of them "
              "another node_id and an empty state directory",
              name)),
          .note = fmt::format("two machines run as node {}: neither is served", name)};
}

}  // namespace

absl::Status CheckHello(const v1::Hello& hello) {
  if (hello.protocol().major() != 1) {
    return absl::FailedPreconditionError(fmt::format(
        "no common protocol version: this scheduler speaks 1, the node {}", hello.protocol().major()));
  }
  const auto check = [](std::string_view field, const std::string& value, size_t limit) {
    if (!value.empty() && value.size() <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("hello.{} must have 1 to {} bytes", field, limit));
  };
  BERTH_RETURN_IF_ERROR(check("node_id", hello.node_id(), kNameLimit));
  BERTH_RETURN_IF_ERROR(check("instance_id", hello.instance_id(), kIdLimit));
  BERTH_RETURN_IF_ERROR(check("boot_id", hello.boot_id(), kIdLimit));
  return check("run_id", hello.run_id(), kIdLimit);
}

HelloDecision DecideHello(const std::optional<NodeRecord>& known, const v1::Hello* current,
                          const v1::Hello& hello) {
  // It may be from an earlier boot of the same machine, so it does not show that there are two.
  if (current != nullptr && current->instance_id() == hello.instance_id() &&
      current->connection_number() > hello.connection_number()) {
    return {.kind = Kind::kRefuse,
            .why = absl::UnavailableError("this node has opened another stream since")};
  }
  if (!known.has_value()) return {.kind = Kind::kWelcome, .record = RecordOf(hello)};
  const std::string name = Printable(known->name, kNameLimit);
  if (hello.instance_id() != known->instance_id) {
    if (known->boot_id == hello.boot_id() && !known->two_machines) {
      NodeRecord record = RecordOf(hello);
      record.previous_boot_id = known->previous_boot_id;
      record.earlier_instance_ids = known->earlier_instance_ids;
      std::vector<std::string>& earlier = record.earlier_instance_ids;
      earlier.push_back(known->instance_id);
      if (earlier.size() > kEarlierInstances) earlier.erase(earlier.begin());
      return {.kind = Kind::kWelcome,
              .record = std::move(record),
              .note = fmt::format("node {} has a new state directory: it is the same machine, by its boot",
                                  name)};
    }
    if (current != nullptr) {
      return {.kind = Kind::kRefuse,
              .why = absl::AlreadyExistsError(fmt::format(
                  "another machine is connected as node {}: give this one another node_id", name))};
    }
    return {.kind = Kind::kOtherMachine,
            .note = fmt::format("a machine that is not known has connected as node {}", name)};
  }
  if (known->two_machines) return TwoMachines(*known);
  if (hello.boot_id() == known->boot_id) return {.kind = Kind::kWelcome};
  if (hello.boot_id() == known->previous_boot_id) return TwoMachines(*known);
  NodeRecord record = RecordOf(hello);
  record.previous_boot_id = known->boot_id;
  record.earlier_instance_ids = known->earlier_instance_ids;
  return {.kind = Kind::kWelcome,
          .record = std::move(record),
          .note = fmt::format("node {} was restarted", name)};
}

}  // namespace berth::scheduler
