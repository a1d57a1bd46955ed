#!/usr/bin/env bash
# systemctl reload and SIGHUP read the plugins' files again, and touch only what changed.
hostpath_file one </dev/null
hostpath_file two </dev/null
berthd_restart
eventually 120 plugin_ready one
eventually 120 plugin_ready two
one=$(plugin_pid one)
berthd=$(systemctl show -P MainPID berthd)

hostpath_file three </dev/null
systemctl reload berthd
eventually 120 plugin_ready three
expect 'the pid of a plugin with an unchanged file' "$(plugin_pid one)" "$one"

rm -f -- "$CONFIG/plugins.d/three.toml"
hostpath_file four </dev/null
systemctl kill --signal=HUP --kill-who=main berthd
eventually 120 plugin_ready four
gone() { ! berthctl plugin show three; }
eventually 120 gone
expect 'the pid of a plugin with an unchanged file' "$(plugin_pid one)" "$one"

# A file that is broken leaves the running plugin as it is.
echo 'kind = ' >"$CONFIG/plugins.d/one.toml"
! systemctl reload berthd || fail 'a broken file was reloaded without an error'
expect 'the pid of a plugin with a broken file' "$(plugin_pid one)" "$one"
expect_match 'its file error' "$(berthctl plugin show one)" 'one\.toml'
expect 'the pid of berthd' "$(systemctl show -P MainPID berthd)" "$berthd"
