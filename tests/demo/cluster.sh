#!/usr/bin/env bash
# A cluster, played for real: ./dev demo --cluster.
#
# One berth-scheduler and three nodes, each a berthd of its own with a real plugin. They find each other and are
# listed; then one of each kind is killed: the scheduler, a node's berthd, a plugin. Each line is printed after what
# it says was verified. A step that did not truly happen ends the demo with exit status 1 and the logs.
#
# All of it lives in namespaces of mounts and processes of its own, and on a tmpfs there: with the demo's end
# whatever is left of it is gone. Without root it plays in a user namespace.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
readonly BIN=${BERTH_BIN:-${SELF%/tests/demo/cluster.sh}/build/dev/bin}
readonly NODES=(node-1 node-2 node-3)

if [[ -z ${BERTH_DEMO_CLUSTER:-} ]]; then
  rights=()
  ((EUID == 0)) || rights=(--user --map-root-user)
  place=$(mktemp -d /tmp/berth-cluster.XXXXXX)
  status=0
  BERTH_DEMO_CLUSTER=$place unshare "${rights[@]}" --mount --propagation private --pid --fork --kill-child \
    --mount-proc "$SELF" "$@" || status=$?
  # What was mounted there has gone with the namespace.
  rmdir -- "$place"
  exit "$status"
fi

readonly DEMO=$BERTH_DEMO_CLUSTER
STEP='make a place'
declare -A PID # of the scheduler and of each node's berthd

# shellcheck source=tests/demo/story.sh
. "${SELF%/*}/story.sh"

show() { sed 's/^/            | /' | cut -c 1-120; }

fail() {
  printf '\nThe demo failed at: %s\n  %s\n' "$STEP" "$*" >&2
  exit 1
}

on_exit() {
  local status=$? log
  trap - EXIT
  if ((status != 0)); then
    for log in "$DEMO"/*.log; do
      printf -- '--- the end of %s\n' "${log##*/}" >&2
      tail -n 15 -- "$log" >&2
    done
  fi
  exit "$status"
}

cluster() { "$BIN/berthctl" --cluster "unix:$DEMO/scheduler.sock" --timeout 5s "$@" 2>/dev/null; }
node() { "$BIN/berthctl" --socket "$DEMO/$1/run/berthd.sock" --timeout 5s "${@:2}" 2>/dev/null; }

# answers FILTER WORDS…: whether the cluster's JSON answer satisfies jq's FILTER.
answers() { cluster "${@:2}" -o json | jq -e "$1" >/dev/null; }

are_connected() {
  answers "[.nodes[] | select(.connection == \"CONNECTED\" and .synced and .lease != null)] | length == $1" node list
}
are_ready() {
  answers ".plugins[0].nodes_ready == $1 and .plugins[0].nodes == $2" plugin list
}
epoch() { node node-1 status -o json | jq -r '.scheduler.lease_epoch'; }
plugin_pid() { node "$1" plugin show hostpath -o json | jq -r 'select(.state == "READY" and .registered).pid'; }

# --- the parts ---------------------------------------------------------------------------------------------

launch_scheduler() {
  "$BIN/berth-scheduler" --config "$DEMO/scheduler.toml" </dev/null >>"$DEMO/scheduler.log" 2>&1 &
  PID[scheduler]=$!
  wait_for 20 'the scheduler to answer' cluster node list >/dev/null
}

make_node() {
  local home=$DEMO/$1
  mkdir -p "$home/etc/plugins.d"
  printf '[scheduler]\naddresses = ["unix:%s/scheduler.sock"]\n' "$DEMO" >"$home/etc/berthd.toml"
  cat >"$home/etc/plugins.d/hostpath.toml" <<TOML
id = "hostpath"
kind = "monolith"
command = "$BIN/berth-hostpath"
args = ["--endpoint", "\${CSI_ENDPOINT}", "--node-id", "\${BERTH_NODE_ID}", "--state-dir", "\${BERTH_PLUGIN_DIR}"]
TOML
}

launch_node() {
  local home=$DEMO/$1
  "$BIN/berthd" --config "$home/etc" --state-dir "$home/state" --runtime-dir "$home/run" --node-id "$1" \
    --allow-private-mounts </dev/null >>"$DEMO/$1.log" 2>&1 &
  PID[$1]=$!
}

# kill_hard NAME: kill -9, and it is gone.
kill_hard() {
  kill -KILL "${PID[$1]}"
  wait "${PID[$1]}" 2>/dev/null || true
}

# --- the story ---------------------------------------------------------------------------------------------

start() {
  local name
  STEP='start the scheduler'
  cat >"$DEMO/scheduler.toml" <<TOML
cluster_id = "demo"
state_dir = "$DEMO/scheduler"
listen = ["unix:$DEMO/scheduler.sock"]
[lease]
heartbeat_interval = "500ms"
duration = "5s"
TOML
  launch_scheduler
  tell "berth-scheduler runs (pid ${PID[scheduler]}) and knows no node yet"
  STEP='start three nodes'
  for name in "${NODES[@]}"; do
    make_node "$name"
    launch_node "$name"
  done
  wait_for 30 'three nodes to be connected' are_connected 3
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  tell 'three nodes are connected, have leases, and have told what they run:'
  cluster node list | show
  cluster plugin list | show
}

kill_scheduler() {
  STEP='kill the scheduler'
  local old=${PID[scheduler]} before began name
  before=$(epoch)
  kill_hard scheduler
  for name in "${NODES[@]}"; do
    [[ -n $(plugin_pid "$name") ]] || fail "the plugin of $name is not ready any more"
  done
  tell "kill -9 $old (the scheduler): the nodes and their plugins run on"
  began=$(now_ms)
  launch_scheduler
  wait_for 70 'three nodes to be connected again' are_connected 3
  (($(epoch) > before)) || fail "the new scheduler's epoch $(epoch) is not above $before"
  tell "it is back (pid ${PID[scheduler]}); all three are connected again after $(($(now_ms) - began)) ms, under a new epoch"
}

kill_node() {
  STEP="kill a node's berthd"
  local old=${PID[node-2]} plugin
  plugin=$(plugin_pid node-2)
  kill_hard node-2
  wait_for 30 'node-2 to be away' answers '.nodes[] | select(.name == "node-2").connection == "AWAY"' node list
  wait_for 30 'two of two nodes' are_ready 2 2
  tell "kill -9 $old (berthd of node-2): the cluster sees it at once, and says nothing about its volumes:"
  cluster node show node-2 | show
  launch_node node-2
  wait_for 30 'three nodes to be connected' are_connected 3
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  [[ $(plugin_pid node-2) == "$plugin" ]] || fail "the plugin was restarted: $plugin became $(plugin_pid node-2)"
  tell "it is back (pid ${PID[node-2]}), and its plugin is the same process as before, pid $plugin"
}

plugin_is_another() { [[ $(plugin_pid node-3) != "$1" ]] && [[ -n $(plugin_pid node-3) ]]; }

kill_plugin() {
  STEP='kill a plugin'
  local old
  old=$(plugin_pid node-3)
  kill -KILL "$old"
  wait_for 30 'the plugin of node-3 to be ready with a new pid' plugin_is_another "$old"
  wait_for 30 'the plugin to be ready on three nodes' are_ready 3 3
  tell "kill -9 $old (the plugin of node-3): it is READY again as pid $(plugin_pid node-3), and the cluster has counted:"
  cluster plugin show hostpath.berth.dev | show
}

stop() {
  local name status
  STEP='stop everything'
  for name in "${NODES[@]}"; do
    node "$name" plugin stop hostpath >/dev/null || fail "the plugin of $name does not stop"
    kill -TERM "${PID[$name]}"
  done
  kill -TERM "${PID[scheduler]}"
  for name in "${NODES[@]}" scheduler; do
    status=0
    wait "${PID[$name]}" || status=$?
    ((status == 0)) || fail "$name ended with exit status $status"
  done
  tell 'all were told to end, and have ended with exit status 0'
}

for program in berth-scheduler berthd berthctl berth-hostpath; do
  [[ -x $BIN/$program ]] || fail "$BIN/$program is not there: ./dev build"
done
trap on_exit EXIT
cd /
mount -t tmpfs -o mode=0755 berth-demo "$DEMO"
start
kill_scheduler
kill_node
kill_plugin
stop
