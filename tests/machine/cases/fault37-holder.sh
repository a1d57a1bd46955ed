#!/usr/bin/env bash
# FAULTS 37: a unit with BindPaths= has a published ext4 volume in a mount namespace of its own. Unpublish names the
# unit's process and does not report the volume free while it runs; once it has stopped, the volume is released with
# a caller.
readonly UNIT_DIR=/etc/systemd/system

hostpath_file disk </dev/null
berthd_restart
eventually 60 plugin_ready disk
id=$(berthctl volume create --plugin disk --size 16MiB --parameter kind=image --fs ext4 held)
target=$(berthctl volume publish --plugin disk --volume "$id" --consumer job --fs ext4)
device=$(findmnt -no SOURCE "$target")
device=${device#/dev/}
cat >"$UNIT_DIR/case-holder.service" <<UNIT
[Service]
BindPaths=$target:/mnt
ExecStart=/bin/sh -c 'while :; do date >>/mnt/data; sync /mnt/data; sleep 1; done'
UNIT
systemctl daemon-reload
systemctl start case-holder
eventually 60 test -s "$target/data"
pid=$(systemctl show -P MainPID case-holder)

# released: neither berthd nor the kernel has it any more.
released() {
  [[ $(berthctl volumes -o json | jq --arg id "$id" '[.volumes[]? | select(.volume_id == $id)] | length') == 0 ]] &&
    [[ ! -e /sys/fs/ext4/$device ]]
}

for try in first second; do
  answer=$(timeout 60 berthctl volume unpublish --plugin disk --volume "$id" --consumer job 2>&1) && status=0 || status=$?
  ((status != 0)) || expect_match "the $try answer, which is no error" "$answer" 'is not free|still used'
  expect_match "the $try answer" "$answer" "pid $pid\b"
  [[ -e /sys/fs/ext4/$device ]] || fail "the file system is gone while $pid uses it"
  ! released || fail 'it is reported as released while it is used'
  ! berthctl volume delete --plugin disk "$id" 2>/dev/null || fail 'it was deleted while it is used'
done
kill -0 "$pid" || fail 'the unit was ended'
expect_match 'berthctl doctor' "$(berthctl doctor 2>&1 || true)" "\b$pid\b"

# A new berthd knows it, too.
berthd_restart
eventually 60 plugin_ready disk
sleep 2
! released || fail 'it is reported as released after a restart of berthd'

systemctl stop case-holder
eventually 90 released
expect 'loop devices that are left' "$(losetup --list --noheadings)" ''
berthctl volume delete --plugin disk "$id"
unlink "$UNIT_DIR/case-holder.service"
systemctl daemon-reload
