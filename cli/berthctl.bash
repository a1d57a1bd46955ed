# Completion of berthctl for bash. Ids of plugins and volumes are asked of the node, and left out where it
# does not answer.

_berthctl_ids() {
  local socket=() i
  for ((i = 1; i < COMP_CWORD - 1; i++)); do
    [[ ${COMP_WORDS[i]} == --socket ]] && socket=(--socket "${COMP_WORDS[i + 1]}")
  done
  berthctl "${socket[@]}" --timeout 1s "$1" 2>/dev/null | awk -v column="$2" 'NR > 1 { print $column }'
}

_berthctl() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local words='' command='' sub='' third='' i
  COMPREPLY=()

  # The commands so far, without options and their values.
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --socket | --cluster | --node | --driver | --external-id | --namespace | -o | --output | --timeout | --endpoint | --request | --secrets-file | --plugin | --volume | \
        --consumer | --consumer-label | --name | --label | --access | --fs | --mount-flag | --context | --publish-context | --parameter | \
        --size | --limit | --from-snapshot | --from-volume | --since | -n | --lines | --after | --level | --command | \
        --file | --mount-group | --owner | --group | --mode | --selinux-label | --pid | --cgroup | --unit | \
        --secrets-reference | --runtime | --format | --at | --reason | --use-fs | --use-mount-flag | --replace)
        i=$((i + 1))
        ;;
      -*) ;;
      *)
        if [[ -z $command ]]; then
          command=${COMP_WORDS[i]}
        elif [[ -z $sub ]]; then
          sub=${COMP_WORDS[i]}
        elif [[ -z $third ]]; then
          third=${COMP_WORDS[i]}
        fi
        ;;
    esac
  done

  case $previous in
    --socket | --secrets-file | --command | --file | --cgroup)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      compopt -o filenames 2>/dev/null
      return
      ;;
    -o | --output) words='table json' ;;
    --plugin) words=$(_berthctl_ids plugins 1) ;;
    --volume) words=$(_berthctl_ids volumes 2) ;;
    --access)
      words='single-node-writer single-node-reader-only multi-node-reader-only multi-node-single-writer
        multi-node-multi-writer single-node-single-writer single-node-multi-writer'
      ;;
    --fs) words='ext4 xfs btrfs' ;;
    --format) words='oci podman docker nspawn systemd env json table' ;;
    --runtime) words='podman podman-rootless docker nspawn oci systemd process vm' ;;
    --owner) words=$(compgen -u) ;;
    --group | --mount-group) words=$(compgen -g) ;;
    --secrets-reference) words='file:/ credential:' ;;
    --level) words='trace debug info warning error critical' ;;
    --timeout | --endpoint | --request | --consumer | --consumer-label | --name | --label | --mount-flag | --context | --publish-context | \
      --parameter | --size | --limit | --from-snapshot | --from-volume | --since | -n | --lines | --after | \
      --mode | --selinux-label | --pid | --unit | --at | --reason)
      return
      ;;
  esac
  if [[ -z $words ]]; then
    local global='--socket --cluster --output --timeout --help'
    local capability='--access --fs --block --mount-flag --secrets-file'
    case $command/$sub in
      /) words="status health plugins plugin node claim reload volumes volume explain consumer drain undrain scheduler doctor events monitor csi version --version $global" ;;
      events/*) words="--follow --since --plugin --volume $global" ;;
      volumes/*) words="--plugin --consumer --label $global" ;;
      monitor/*) words="--level $global" ;;
      plugin/) words='list show logs start stop restart drain swap' ;;
      plugin/logs) words="--follow --since --lines --after $(_berthctl_ids plugins 1) $global" ;;
      plugin/swap) words="--command --accept-changes $(_berthctl_ids plugins 1) $global" ;;
      plugin/stop | plugin/restart) words="--force $(_berthctl_ids plugins 1) $global" ;;
      plugin/*) words="$(_berthctl_ids plugins 1) $global" ;;
      node/) words='list show forget' ;;
      volume/) words='show explain list create delete expand stats publish unpublish claim release register deregister mounts wait' ;;
      volume/show | volume/explain) words="--plugin --label $(_berthctl_ids volumes 2) $global" ;;
      volume/create)
        words="--plugin --name --size --limit --parameter --from-snapshot --from-volume $capability $global"
        ;;
      volume/list) words="--plugin --namespace $global" ;;
      volume/delete) words="--plugin --volume --secrets-file $global" ;;
      volume/expand) words="--plugin --volume --label --size --limit --secrets-file $global" ;;
      explain/*) words="--plugin --label $(_berthctl_ids volumes 2) $global" ;;
      volume/stats) words="--plugin --volume --label --consumer --all $(_berthctl_ids volumes 2) $global" ;;
      volume/wait) words="$(_berthctl_ids volumes 2) $global" ;;
      volume/mounts) words="--format --at $global" ;;
      consumer/) words='ended' ;;
      drain/*) words="--reason --wait $global" ;;
      reload/*) words="--no-wait $global" ;;
      doctor/*) words="--repair --yes $global" ;;
      volume/publish)
        words="--file --plugin --volume --consumer --consumer-label --name --label --use-fs --use-mount-flag --readonly --ephemeral --mount-group --owner --group"
        words+=" --mode --recursive --selinux-label --pid --cgroup --unit --remount --secrets-reference"
        words+=" --context --publish-context --attached --runtime"
        words+=" $capability $global"
        ;;
      claim/) words='list show' ;;
      claim/list) words="--namespace --volume --consumer --node $global" ;;
      claim/show) words="--consumer --name $global" ;;
      volume/claim)
        words="--consumer --name --node --readonly --wait --pid --cgroup --unit --format --at --access --fs --block"
        words+=" --mount-flag --runtime --replace $global"
        ;;
      volume/release) words="--consumer --name --wait $global" ;;
      volume/register) words="--driver --external-id --file --access --fs --block --mount-flag --context $global" ;;
      volume/unpublish)
        words="--plugin --volume --label --consumer --name --all --wait --force --lazy --yes $global"
        ;;
      csi/) words="identity controller node group-controller snapshot-metadata --list --endpoint $global" ;;
      csi/*)
        if [[ -z $third ]]; then
          words=$(berthctl csi --list "$sub" 2>/dev/null | awk 'NR > 1 { print $2 }')
        elif [[ $current != -* ]]; then
          words=$(berthctl csi --list "$sub" "$third" 2>/dev/null | awk 'NR > 2 { print $1 "=" }')
          compopt -o nospace 2>/dev/null
        fi
        words+=" --request --secrets-file --endpoint --list $global"
        ;;
      *) words=$global ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _berthctl berthctl
