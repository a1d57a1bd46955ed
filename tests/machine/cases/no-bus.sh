#!/usr/bin/env bash
# Without a message bus systemd itself is asked; one that comes back is used again.
systemctl stop dbus.socket dbus.service
hostpath_file disk </dev/null
berthd_restart
eventually 120 plugin_ready disk
expect 'the group' "$(cgroup_of "$(plugin_pid disk)")" /berth.slice/berth-plugins.slice/berth-plugin-disk.scope
systemctl start dbus.socket
berthctl plugin restart disk
eventually 120 plugin_ready disk
expect 'the group' "$(cgroup_of "$(plugin_pid disk)")" /berth.slice/berth-plugins.slice/berth-plugin-disk.scope
