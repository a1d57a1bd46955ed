#!/usr/bin/env bash
# A plugin lives in a scope of its own, with the limits of its file, and not in berthd's unit.
hostpath_file disk-a <<'TOML'
[limits]
memory = "256MiB"
pids = 100
cpus = 1.5
TOML
hostpath_file plain </dev/null
berthd_restart
eventually 60 plugin_ready disk-a
eventually 60 plugin_ready plain

scope='berth-plugin-disk\x2da.scope'
pid=$(plugin_pid disk-a)
expect 'the group of the plugin' "$(cgroup_of "$pid")" "/berth.slice/berth-plugins.slice/$scope"
expect 'the unit of its pid' "$(ps -o unit= -p "$pid")" "$scope"
expect 'its slice' "$(systemctl show -P Slice "$scope")" berth-plugins.slice
expect 'its state' "$(systemctl show -P ActiveState "$scope")" active
expect 'MemoryMax' "$(systemctl show -P MemoryMax "$scope")" 268435456
expect 'TasksMax' "$(systemctl show -P TasksMax "$scope")" 100
expect_match 'CPUQuotaPerSecUSec' "$(systemctl show -P CPUQuotaPerSecUSec "$scope")" '^1\.50*s$'
expect_match 'its order at shutdown' "$(systemctl show -P Before "$scope")" 'berthd\.service'
expect_match 'berthctl plugin show' "$(berthctl plugin show disk-a)" 'scope berth-plugin-disk'
expect_match 'the status of the slice' "$(systemctl status berth-plugins.slice --no-pager -l)" 'berth-plugin-plain\.scope'

# berthd's unit holds berthd alone, and what it inherits is its own.
expect 'the processes of berthd.service' "$(systemctl show -P MainPID berthd)" \
  "$(cat "/sys/fs/cgroup$(systemctl show -P ControlGroup berthd)/cgroup.procs")"
expect 'oom_score_adj of berthd' "$(cat "/proc/$(systemctl show -P MainPID berthd)/oom_score_adj")" -500
expect 'oom_score_adj of the plugin' "$(cat "/proc/$pid/oom_score_adj")" 0

# Its end is the scope's end, and its next start has the same name.
berthctl plugin stop disk-a
eventually 20 test ! -e "/sys/fs/cgroup/berth.slice/berth-plugins.slice/$scope"
berthctl plugin start disk-a
eventually 60 plugin_ready disk-a
expect 'the group after a new start' "$(cgroup_of "$(plugin_pid disk-a)")" "/berth.slice/berth-plugins.slice/$scope"
