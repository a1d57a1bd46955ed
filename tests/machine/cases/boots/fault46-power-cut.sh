#!/usr/bin/env bash
# FAULTS 46: the power goes with a declared volume in use. At the next boot a unit that requires
# berth-volume@NAME.service has its volume; units that start before berthd has published fail or wait. Not one byte goes
# to the root file system, and the volume is mounted without a caller.
readonly UNIT_DIR=/etc/systemd/system CUTS=3

mounted() { mountpoint -q "$1"; }
published() { [[ $(volume_value "$1" .state) == PUBLISHED ]]; }
active() { systemctl is-active "$1"; }
# unit NAME LINES-OF-UNIT COMMAND: started at each boot.
unit() {
  cat >"$UNIT_DIR/$1.service" <<UNIT
[Unit]
$2
[Service]
ExecStart=/bin/sh -c '$3'
[Install]
WantedBy=multi-user.target
UNIT
}

if ((BOOT == 0)); then
  hostpath_file disk </dev/null
  systemctl enable --quiet --now berthd
  eventually 180 plugin_ready disk
  id=$(berthctl volume create --plugin disk --size 16MiB --parameter kind=image --fs ext4 db)
  mkdir -p "$CONFIG/volumes.d"
  printf 'plugin = "disk"\nvolume = "%s"\nfs_type = "ext4"\n' "$id" >"$CONFIG/volumes.d/db.toml"
  berthctl reload --no-wait
  berthctl volume wait db --timeout 120s
  target=$(volume_value "$id" '.publications[0].target_path')
  echo "$id $target" >/var/lib/case-volume
  # As it should be done; ordered after berthd alone; and not ordered at all.
  unit case-user $'Requires=berth-volume@db.service\nAfter=berth-volume@db.service' \
    "while :; do echo user >>$target/data; sync $target/data; sleep 1; done"
  unit case-after 'After=berthd.service' "echo after >>$target/data"
  unit case-early 'DefaultDependencies=no' "echo early >>$target/data"
  systemctl daemon-reload
  systemctl enable --quiet case-user case-after case-early
  systemctl start case-user
  eventually 60 grep -q user "$target/data"
  sync
else
  read -r id target </var/lib/case-volume
  eventually 180 mounted "$target"
  eventually 60 published "$id"
  eventually 120 active case-user
  grep -q user "$target/data" || fail "the data are not there: $(ls -l "$target")"
  # What lies beneath the mounts, on the root file system.
  mkdir -p /mnt/root
  mount --bind / /mnt/root
  beneath=$(find /mnt/root/var/lib/berth/volumes -mindepth 1)
  umount /mnt/root
  expect 'what lies on the root file system' "$beneath" ''
  expect 'what is wrong with the node' "$(node_problems)" ''
  berthctl doctor || fail 'berthctl doctor finds something'
fi
((BOOT < CUTS)) || exit 0
lines=$(wc -l <"$target/data")
more() { (($(wc -l <"$target/data") > lines)); }
eventually 60 more
power_may_go_within 8
sleep 60
fail 'the power did not go'
