#!/usr/bin/env bash
# systemd gets READY=1 once in the life of a berthd, with plugins restored by then.
hostpath_file disk </dev/null
berthd_restart
eventually 120 plugin_ready disk
pid=$(plugin_pid disk)
systemctl log-level debug
since=$(date '+%F %T')
systemctl restart berthd
expect 'the plugin once berthd is ready' "$(plugin_pid disk)" "$pid"
main=$(systemctl show -P MainPID berthd)
berthctl plugin restart disk
eventually 120 plugin_ready disk
systemctl log-level info
journalctl --sync
said=$(journalctl --since "$since" --no-pager -o cat | grep -c "Got notification message from PID $main.*READY=1" || true)
expect 'messages with READY=1' "$said" 1
