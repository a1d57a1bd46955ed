#!/usr/bin/env bash
# A plugin's output is read within seconds on a loaded machine, in each life of berthd, though no one reads it:
# berthd passes what it reads on to the system's journal.
plugin_file talker <<'TOML'
kind = "node"
command = ["/bin/sh", "-c", "while sleep 1; do echo said at $(date +%s); done"]
start_timeout = "1h"
TOML

# Busy processes, more than the machine has processors, and one that makes many short ones.
load=()
for _ in 1 2 3; do
  (while :; do :; done) &
  load+=($!)
done
(while :; do /bin/true; done) &
load+=($!)
trap 'kill "${load[@]}"' EXIT

newest() { journalctl --sync && journalctl -o cat -n 1 BERTH_PLUGIN=talker | sed -n 's/^said at //p'; }
is_fresh() {
  local said
  said=$(newest)
  [[ -n $said ]] && (($(date +%s) - said < 15))
}

for life in 1 2 3 4 5 6 7 8; do
  berthd_restart
  eventually 120 is_fresh
  for _ in 1 2 3 4 5; do
    sleep 2
    is_fresh || fail "life $life: the newest line that was read is of $(newest), and now is $(date +%s)"
  done
done
