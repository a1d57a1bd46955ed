#!/usr/bin/env bash
# FAULTS 46: the power goes while a unit uses a declared volume. At the next boot the unit is started before berthd has
# published: it waits for berth-volume@NAME.service, and not one byte of it goes to the root file system, neither in the
# volume's tree nor at its path; the volume is mounted without a caller. A restart of berthd stops no consumer. At an
# orderly shutdown the unit is stopped before its volume goes.
readonly UNIT_DIR=/etc/systemd/system
readonly PLACE=/srv/db
readonly SAID=/var/lib/case-writer # what the unit found, on the root file system

mounted() { mountpoint -q "$1"; }
active() { systemctl is-active --quiet "$1"; }

if ((BOOT == 0)); then
  hostpath_file disk </dev/null
  systemctl enable --quiet --now berthd
  eventually 180 plugin_ready disk
  id=$(berthctl volume create --plugin disk --size 16MiB --parameter kind=image --fs ext4 db)
  mkdir -p "$CONFIG/volumes.d"
  # A name that has to be escaped.
  printf 'plugin = "disk"\nvolume = "%s"\nfs_type = "ext4"\npath = "%s"\n' "$id" "$PLACE" >"$CONFIG/volumes.d/my-db.toml"
  berthctl reload --no-wait
  berthctl volume wait my-db --timeout 2m
  mounted "$PLACE" || fail "nothing is mounted at $PLACE"
  findmnt -no OPTIONS "$PLACE" | grep -q "nosuid.*nodev" || fail "$PLACE has suid or dev: $(findmnt -no OPTIONS "$PLACE")"
  unit="berth-volume@$(systemd-escape my-db).service"
  lines=$(berthctl volume mounts declared/my-db --format systemd)
  expect_match 'the lines for a unit' "$lines" "Requires=berth-volume@my.x2ddb.service"

  cat >/var/lib/case-writer.sh <<'WRITER'
#!/bin/sh
# Says whether the volume is there, and writes nevertheless.
mountpoint -q /srv/db && echo mounted >>/var/lib/case-writer || echo 'not mounted' >>/var/lib/case-writer
echo "$1" >>/srv/db/data || echo 'could not write' >>/var/lib/case-writer
sync
WRITER
  chmod +x /var/lib/case-writer.sh
  cat >"$UNIT_DIR/case-writer.service" <<UNIT
[Unit]
Requires=$unit
After=$unit
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/var/lib/case-writer.sh start
ExecStop=/var/lib/case-writer.sh stop
[Install]
WantedBy=multi-user.target
UNIT
  # The same without waiting: it fails, and writes nothing.
  cat >"$UNIT_DIR/case-hasty.service" <<UNIT
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=berthd.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo hasty >$PLACE/hasty'
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable --quiet case-writer case-hasty
  systemctl start case-writer
  expect 'what the unit found' "$(cat "$SAID")" mounted

  # A restart of berthd stops no consumer.
  systemctl restart berthd
  active case-writer || fail 'a restart of berthd stopped the unit'
  active "$unit" || fail 'a restart of berthd stopped the volume'"'"'s unit'
  mounted "$PLACE" || fail 'a restart of berthd unmounted the volume'
  expect 'mounts at the path' "$(grep -c " $PLACE " /proc/self/mountinfo)" 1
  sync
  power_may_go_within 1
  sleep 60
fi

if ((BOOT == 1)); then
  eventually 240 active case-writer
  expect 'what the unit found after the power cut' "$(cat "$SAID")" $'mounted\nmounted'
  expect 'the data' "$(cat "$PLACE/data")" $'start\nstart'
  [[ ! -e $PLACE/hasty ]] || fail 'the hasty unit wrote into the volume'
  [[ $(systemctl show -P Result case-hasty) == exit-code ]] || fail 'the unit that did not wait could write'
  # Nothing lies beneath the mount.
  mkdir -p /run/beneath
  mount --bind / /run/beneath
  [[ -z $(find "/run/beneath$PLACE" -mindepth 1 -print -quit) ]] || fail "files lie beneath $PLACE"
  umount /run/beneath
  expect 'what is wrong with the node' "$(node_problems)" ''
  boot_again
fi

# An orderly shutdown: the unit was stopped while it had its volume.
eventually 240 active case-writer
expect 'what the unit found' "$(cat "$SAID")" $'mounted\nmounted\nmounted\nmounted'
expect 'the data' "$(cat "$PLACE/data")" $'start\nstart\nstop\nstart'
