#!/usr/bin/env bash
# Try docker/compose.yaml for real, and take everything down again.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: docker/try.sh [--offline-bases] [--own-engine FOLDER] [--result FILE.json]

Builds every image, starts PostgreSQL, Prefect, MLflow, a worker, an object store and serving, opens the pages in a
browser, runs the small demo by a click, kills each container once, and checks that it comes back and nothing is lost.

  --offline-bases       make the base images of Debian's packages (needs root and mmdebstrap), where no registry is
                        reachable
  --own-engine FOLDER   start a Docker engine for this alone, with everything it keeps in FOLDER (needs root); at the
                        end, its rules, bridges and mounts are removed; FOLDER keeps the images for the next time
  --result FILE.json    write what was measured, for docs/benchmarks.md

Needs Docker 23 or later with Compose 2, and the environment of `make .venv/dev` (PYTHON, by default .venv/bin/python).
Exit codes: 0 everything passed, 1 a check failed, 2 arguments or requirements.
USAGE
}

refuse() {
    echo "try: $1" >&2
    exit 2
}

top=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$top/.venv/bin/python}
offline_bases="" engine="" result=()
while (($#)); do
    case $1 in
        --offline-bases) offline_bases=yes ;;
        --own-engine | --result)
            (($# > 1)) || refuse "$1 needs a value"
            if [[ $1 == --result ]]; then result=(--result "$(realpath "$2")"); else engine=$(realpath -m "$2"); fi
            shift
            ;;
        --help) usage && exit 0 ;;
        *) refuse "unknown argument: $1 (see --help)" ;;
    esac
    shift
done

need() { command -v "$1" >/dev/null || refuse "$1 is not on the PATH. Fix: install $2"; }

need docker "Docker 23 or later"
docker compose version >/dev/null 2>&1 || refuse "docker has no command 'compose'. Fix: install Compose 2 (docker-compose-plugin)"
"$python" -c "import playwright, requests" 2>/dev/null \
    || refuse "$python cannot import playwright and requests. Fix: make .venv/dev, or set PYTHON"
[[ -z $offline_bases ]] || need mmdebstrap mmdebstrap
[[ -z $offline_bases$engine ]] || ((EUID == 0)) || refuse "--offline-bases and --own-engine need root"

work=$(mktemp -d)
compose=(docker compose --env-file "$work/env" --file "$top/docker/compose.yaml" --file "$top/docker/trial/store.yaml")

take_down() {
    local code=$?
    trap - EXIT
    if [[ -s $work/env ]]; then
        ((code != 1)) || "${compose[@]}" --profile "*" logs --no-color --tail 20 >&2
        "${compose[@]}" --profile "*" down --volumes --timeout 10 || code=1
    fi
    if [[ -n $engine && -e $work/engine ]]; then
        stop_engine || code=1
    fi
    rm -rf "$work"
    exit "$code"
}
trap take_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What an engine changes on a machine: rules, bridges, the forwarding of packets, mounts.
footprint() {
    local tables
    for tables in iptables-save ip6tables-save; do
        "$tables" | sed -n -e '/^-/p' -e 's/^\(:.* \(-\|DROP\)\) .*/\1/p'
    done
    ip -oneline link show type bridge
    cat /proc/sys/net/ipv4/ip_forward
    awk -v under="$engine/" 'index($2, under) == 1 {print $2}' /proc/mounts
}

start_engine() {
    local tables
    need dockerd "Docker's engine"
    need iptables iptables
    need ip iproute2
    if iptables --list DOCKER >/dev/null 2>&1; then
        refuse "another Docker engine runs on this machine. Fix: leave out --own-engine to use it"
    fi
    cat /proc/sys/net/ipv4/ip_forward >"$work/ip_forward"
    footprint >"$work/before"
    for tables in iptables ip6tables; do
        "$tables" --list-rules FORWARD | sed -n '1s/-P FORWARD //p' >"$work/$tables"
    done
    mkdir -p "$engine/run"
    export DOCKER_HOST=unix://$engine/run/docker.sock
    # Addresses that are seldom in use; `docker0` and the networks of Compose are separate.
    setsid dockerd --data-root "$engine/data" --exec-root "$engine/run/exec" --pidfile "$engine/run/pid" --host "$DOCKER_HOST" \
        --bip 192.168.213.1/24 --default-address-pool base=192.168.216.0/21,size=24 >"$engine/engine.log" 2>&1 &
    echo $! >"$work/engine"
    for _ in {1..120}; do
        docker info >/dev/null 2>&1 && return
        kill -0 "$(cat "$work/engine")" 2>/dev/null || break
        sleep 0.5
    done
    refuse "the engine does not start; its last lines: $(tail -n 3 "$engine/engine.log")"
}

stop_engine() {
    local mount tables
    kill "$(cat "$work/engine")" 2>/dev/null || true
    wait "$(cat "$work/engine")" || true
    # Only what names Docker's chains and bridge: rules that others have added meanwhile stay.
    for tables in iptables ip6tables; do
        "$tables-save" | sed -e '/DOCKER/d' -e '/docker0/d' | "$tables-restore"
        "$tables" --policy FORWARD "$(cat "$work/$tables")"
    done
    ip link delete docker0 2>/dev/null || true
    cat "$work/ip_forward" >/proc/sys/net/ipv4/ip_forward
    awk -v under="$engine/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort --reverse | while read -r mount; do
        umount "$mount"
    done
    footprint >"$work/after"
    if diff "$work/before" "$work/after" >&2; then
        echo "try: no rule, bridge or mount of the engine is left"
    else
        echo "try: the engine has left the above behind" >&2
        return 1
    fi
}

# A minimal Debian with these packages as an image: RELEASE NAME PACKAGES, then options of mmdebstrap, `--`, of `docker import`.
make_base() {
    local release=$1 name=$2 packages=$3 hooks=()
    shift 3
    while [[ $1 != -- ]]; do
        hooks+=("$1")
        shift
    done
    shift
    docker image inspect "$name" >/dev/null 2>&1 && return
    echo "try: making $name of Debian's packages"
    mmdebstrap --quiet --mode=root --variant=minbase --include="ca-certificates,$packages" "${hooks[@]}" "$release" - \
        | docker import "$@" - "$name"
}

offline_bases() {
    # The build asks the package index through whatever this machine's certificates allow.
    local certificates=/etc/ssl/certs/ca-certificates.crt
    make_base bookworm onnx-gauntlet-base:python python3,python3-venv,python-is-python3 \
        --customize-hook="copy-in $certificates ${certificates%/*}" -- --change "ENV PIP_CERT=$certificates"
    make_base trixie onnx-gauntlet-base:postgres postgresql-17 \
        --customize-hook="copy-in $top/docker/trial/postgres-entrypoint.sh /" -- \
        --change 'ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV PGDATA=/var/lib/postgresql/data' --change 'ENTRYPOINT ["/postgres-entrypoint.sh"]'
    printf '%s\n' PYTHON_IMAGE=onnx-gauntlet-base:python POSTGRES_IMAGE=onnx-gauntlet-base:postgres >>"$work/settings"
}

settings() {
    local name
    for name in {POSTGRES,PREFECT_DB,MLFLOW_DB,MLFLOW,SERVING_MLFLOW}_PASSWORD MLFLOW_SECRET_KEY SERVING_TOKEN; do
        echo "$name=$(od --address-radix=n --format=x1 --read-bytes=24 /dev/urandom | tr --delete ' \n')"
    done
    echo "PREFECT_AUTH_STRING=trial:$(od --address-radix=n --format=x1 --read-bytes=24 /dev/urandom | tr --delete ' \n')"
    echo SERVING_MODEL=digits-small-cnn
    (ulimit -r 1) 2>/dev/null || echo WORKER_RTPRIO=0 # this machine gives it to nobody
    printf '%s\n' GAUNTLET_STORE=s3://models/trial AWS_ENDPOINT_URL=http://store:9000 AWS_ALLOW_HTTP=true \
        AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=trial AWS_SECRET_ACCESS_KEY=trial
    "$python" - <<'PORTS'
import socket
sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("PREFECT", "MLFLOW", "SERVING")}
for name, free in sockets.items():
    print(f"{name}_PORT={free.getsockname()[1]}")
PORTS
    cat "$work/settings"
}

touch "$work/settings"
[[ -z $engine ]] || start_engine
docker info >/dev/null 2>&1 || refuse "no Docker engine responds. Fix: start it, or pass --own-engine FOLDER"
found=$(docker ps --all --quiet --filter label=com.docker.compose.project=onnx-gauntlet)
[[ -z $found ]] || refuse "this engine already runs docker/compose.yaml, which the trial would take down. Fix: use another engine"
[[ -z $offline_bases ]] || offline_bases
settings >"$work/env"
versions="Docker $(docker version --format '{{.Server.Version}}'), Compose $(docker compose version --short)"
load=$(cut --delimiter=' ' --fields=1 /proc/loadavg)
PYTHONPATH=$top:$top/benchmarks "$python" "$top/docker/trial" --settings "$work/env" "${result[@]}" \
    --conditions "$versions${offline_bases:+, base images of Debian packages}; load $load at the start" -- "${compose[@]}"
