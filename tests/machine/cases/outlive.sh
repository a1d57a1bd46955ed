#!/usr/bin/env bash
# berthd restarts, is killed and is replaced: plugins and mounts stay, in the same processes.
hostpath_file disk </dev/null
berthd_restart
eventually 60 plugin_ready disk
id=$(berthctl volume create --plugin disk --size 16MiB --fs ext4 scratch)
berthctl volume publish --plugin disk --volume "$id" --consumer job --fs ext4
target=$(findmnt -rno TARGET | grep -m 1 '/target$')
echo kept >"$target/file"
pid=$(plugin_pid disk)

same() {
  eventually 60 plugin_ready disk
  expect "the plugin's pid after $1" "$(plugin_pid disk)" "$pid"
  kill -0 "$pid"
  expect "the file in the volume after $1" "$(cat "$target/file")" kept
  expect "the group after $1" "$(cgroup_of "$pid")" /berth.slice/berth-plugins.slice/berth-plugin-disk.scope
}

systemctl restart berthd
same 'systemctl restart berthd'
systemctl kill --signal=KILL --kill-who=main berthd
eventually 60 systemctl is-active berthd
same 'kill -9 of berthd'
systemctl stop berthd
kill -0 "$pid"
systemctl start berthd
same 'stop and start'
! journalctl -u berthd --no-pager | grep -i 'left-over process' || fail 'systemd found processes in berthd.service'

# What was taken back is still ended as a whole.
berthctl volume unpublish --plugin disk --volume "$id" --consumer job
berthctl volume delete --plugin disk "$id"
berthctl plugin stop disk
eventually 20 test ! -e /sys/fs/cgroup/berth.slice/berth-plugins.slice/berth-plugin-disk.scope
