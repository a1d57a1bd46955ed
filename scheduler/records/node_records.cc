#include "scheduler/records/node_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {

Awaitable<absl::StatusOr<std::vector<NodeRecord>>> NodeRecords::Load() {
  std::vector<KeyRange> ranges{KeyRange::Prefix(std::string(kNodesPrefix))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store_.Read(std::move(ranges)));
  stored_.clear();
  std::vector<NodeRecord> records;
  for (const StoredRecord& stored : snapshot.records) {
    BERTH_CO_ASSIGN_OR_RETURN(const pb::NodeRecord record, Decode<pb::NodeRecord>(stored.key, stored.value));
    if (!stored_.try_emplace(record.name(), Stored{.key = stored.key, .revision = stored.modified}).second) {
      co_return absl::DataLossError(fmt::format("two records of node {}", Printable(record.name(), 192)));
    }
    records.push_back({.name = record.name(),
                       .instance_id = record.instance_id(),
                       .boot_id = record.boot_id(),
                       .previous_boot_id = record.previous_boot_id(),
                       .two_machines = record.two_machines(),
                       .earlier_instance_ids = {record.earlier_instance_ids().begin(),
                                                record.earlier_instance_ids().end()}});
  }
  co_return records;
}

bool NodeRecord::IsInstance(const std::string& instance) const {
  return instance == instance_id ||
         std::ranges::find(earlier_instance_ids, instance) != earlier_instance_ids.end();
}

std::optional<Compare> NodeRecords::Holds(const std::string& name) const {
  const auto stored = stored_.find(name);
  if (stored == stored_.end()) return std::nullopt;
  return Compare{.key = stored->second.key, .modified = stored->second.revision};
}

Awaitable<absl::StatusOr<NodeRecords::Stored>> NodeRecords::TakeStored(std::string name) {
  if (const auto known = stored_.extract(name); !known.empty()) co_return known.mapped();
  std::vector<KeyRange> range{KeyRange::Prefix(NodePrefix(name))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await store_.Read(std::move(range)));
  if (snapshot.records.empty()) co_return Stored{};
  co_return Stored{.key = snapshot.records[0].key, .revision = snapshot.records[0].modified};
}

Awaitable<absl::Status> NodeRecords::Delete(std::string name) {
  BERTH_CO_ASSIGN_OR_RETURN(const Stored before, co_await TakeStored(name));
  if (before.key.empty()) co_return absl::OkStatus();
  const auto revision =
      co_await store_.Commit({.compares = {term_.Holds(), {.key = before.key, .modified = before.revision}},
                              .puts = {},
                              .deletes = {before.key}});
  if (revision.ok()) co_return absl::OkStatus();
  co_return Annotate(revision.status(), fmt::format("forget node {}", Printable(name, 192)));
}

Awaitable<absl::Status> NodeRecords::Write(NodeRecord record) {
  pb::NodeRecord value;
  value.set_name(record.name);
  value.set_instance_id(record.instance_id);
  value.set_boot_id(record.boot_id);
  value.set_previous_boot_id(record.previous_boot_id);
  value.set_two_machines(record.two_machines);
  *value.mutable_earlier_instance_ids() = {record.earlier_instance_ids.begin(),
                                           record.earlier_instance_ids.end()};
  BERTH_CO_ASSIGN_OR_RETURN(const Stored before, co_await TakeStored(record.name));
  const std::string key = NodeKey(record.name, record.instance_id);
  Transaction transaction{.compares = {term_.Holds()}, .puts = {{key, Encode(value)}}, .deletes = {}};
  if (before.key == key || before.key.empty()) {
    transaction.compares.push_back({.key = key, .modified = before.revision});
  } else {
    // Another instance has the name now.
    transaction.compares.push_back({.key = key});
    transaction.compares.push_back({.key = before.key, .modified = before.revision});
    transaction.deletes.push_back(before.key);
  }
  const auto revision = co_await store_.Commit(std::move(transaction));
  if (!revision.ok()) {
    co_return Annotate(revision.status(), fmt::format("record node {}", Printable(record.name, 192)));
  }
  stored_[record.name] = {.key = key, .revision = *revision};
  co_return absl::OkStatus();
}

}  // namespace berth::scheduler
