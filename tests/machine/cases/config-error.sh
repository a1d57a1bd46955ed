#!/usr/bin/env bash
# A configuration error stops the unit at once, and the corrected one starts at once: none of systemd's starts is
# used up. A reload does not wait for a plugin that is slow to start.
hostpath_file disk </dev/null
systemctl stop berthd
systemctl reset-failed berthd 2>/dev/null || true
restarts() { systemctl show -P NRestarts berthd; }

echo 'colour = 1' >"$CONFIG/berthd.toml"
! systemctl start berthd || fail 'berthd started with a wrong berthd.toml'
expect 'the state of the unit' "$(systemctl show -P ActiveState berthd)" failed
expect 'the result of the unit' "$(systemctl show -P Result berthd)" exit-code
expect 'the exit status of berthd' "$(systemctl show -P ExecMainStatus berthd)" 78
expect 'starts after the first one' "$(restarts)" 0
journalctl --sync
expect_match 'its log' "$(journalctl -u berthd --no-pager -o cat -n 20)" 'berthd\.toml:1: colour: unknown key'
expect 'the exit status of berthctl health' "$(berthctl health >/dev/null && echo 0 || echo $?)" 2
checked=$(berthd --check --config "$CONFIG" 2>&1 && echo "exit 0" || echo "exit $?")
expect_match 'berthd --check' "$checked" 'berthd\.toml:1: colour: unknown key.*exit 78'

rm -f -- "$CONFIG/berthd.toml"
systemctl start berthd || fail 'berthd does not start after the correction'
eventually 120 plugin_ready disk
berthd --check --config "$CONFIG" || fail 'berthd --check finds a mistake'
eventually 60 berthctl health

# This one never serves.
plugin_file slow <<TOML
kind = "node"
command = ["/bin/sleep", "infinity"]
start_timeout = "10m"
TOML
began=$SECONDS
systemctl reload berthd || fail 'the reload failed'
((SECONDS - began < 60)) || fail "the reload waited for $((SECONDS - began)) s"
expect 'the state of the slow plugin' "$(plugin_value slow state)" STARTING
