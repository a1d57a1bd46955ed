#!/usr/bin/env bash
# FAULTS 6: a plugin forks without end. Its limit holds, the node goes on, and stopping it ends all of it.
mkdir -p /run/case
: >/run/case/now.toml
plugin_file bomb <<'TOML'
kind = "monolith"
command = "/usr/bin/berth-fault-plugin"
args = ["--script", "/run/case/now.toml", "--endpoint", "${CSI_ENDPOINT}", "--node-id", "${BERTH_NODE_ID}",
  "--state-dir", "${BERTH_PLUGIN_DIR}"]
stop_timeout = "5s"
[limits]
pids = 60
cpus = 0.2
TOML
hostpath_file bystander </dev/null
berthd_restart
eventually 120 plugin_ready bomb
eventually 120 plugin_ready bystander
bystander=$(plugin_pid bystander)
group=/sys/fs/cgroup/berth.slice/berth-plugins.slice/berth-plugin-bomb.scope

cat >/run/case/next.toml <<'TOML'
[[rule]]
name = "forks without end"
rpc = "ControllerGetCapabilities"
count = 1
action = "fork-bomb"
processes = 0
TOML
mv /run/case/next.toml /run/case/now.toml
socket=$(plugin_value bomb socket_path)
berthctl csi --endpoint "unix://$socket" controller get-capabilities >/dev/null || true

met() { (($(sed -n 's/^max //p' "$group/pids.events") > 0)); }
eventually 120 met
(($(cat "$group/pids.current") <= 60)) || fail 'more processes than the limit'
plugin_ready bystander >/dev/null
expect 'the pid of the other plugin' "$(plugin_pid bystander)" "$bystander"

berthctl plugin stop bomb
eventually 20 test ! -e "$group"
! pgrep -f berth-fault-plugin || fail 'some of it is left'
