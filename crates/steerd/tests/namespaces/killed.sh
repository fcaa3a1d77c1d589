#!/usr/bin/env bash
# A steered host, this namespace, whose interface is enforced by AF_XDP, and its peer `client`. Somebody else tries to
# take the XDP program off the interface; then the daemon is killed (SIGKILL), and started again.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   killed.sh STEERD DIR
# Leaves in DIR what a listener heard and how the interface was (seen.env), and the log and the summary of the second
# daemon. Touches nothing outside.
set -euo pipefail
. "$(dirname "$0")/common.sh"
steerd=$1 dir=$2 daemon=

make_client
cable 02:00:00:00:77:01

queries() { ip netns exec client bash -c "exec 3> /dev/udp/10.77.0.1/53; for i in \$(seq $1); do echo query >&3; done"; }
programs() { ip -d link show dev steer0 | grep -c 'prog/xdp' || true; }
heard() { wc -l < "$dir/heard"; }
start() {
  "$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
  daemon=$!
  until_page readyz '^ready'
}
trap '[ -z "$daemon" ] || kill $daemon 2>/dev/null || true' EXIT

cat > "$dir/policy.toml" <<EOF
version = 1
default = "kernel"
[groups.every]
workers = "all"
[[rules]]
name = "dns"
match = { protocol = "udp", dst_port = 53 }
action = { steer = "every" }
EOF
cat > "$dir/steerd.toml" <<EOF
[api]
socket = "api.sock"
[device]
name = "softnic0"
[policy]
file = "policy.toml"
[workers]
cores = 1
frames = 8192
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "af_xdp", interface = "steer0", mode = "native" }
[http]
listen = "127.0.0.1:9464"
EOF

timeout 100 nc -k -u -l 10.77.0.1 53 > "$dir/heard" &
listener=$!
for _ in $(seq 50); do ss -Hlun sport = :53 | grep -q . && break; sleep 0.1; done
start
ip link set dev steer0 xdpdrv off 2> "$dir/refused" && detached=1 || detached=0
queries 10
until_page metrics 'steerd_port_received_packets_total{port="1"} 10$'
{
  echo "detached=$detached"
  echo "programs_running=$(programs)"
  echo "heard_running=$(heard)"
} > "$dir/seen.env"

kill -KILL $daemon
wait $daemon || true
# The kernel takes the program off once the last descriptor of its link is closed.
for _ in $(seq 50); do [ "$(programs)" = 0 ] && break; sleep 0.1; done
queries 5
for _ in $(seq 50); do [ "$(heard)" = 5 ] && break; sleep 0.1; done
{
  echo "programs_killed=$(programs)"
  echo "heard_killed=$(heard)"
} >> "$dir/seen.env"

start
queries 10
until_page metrics 'steerd_port_received_packets_total{port="1"} 10$'
kill -TERM $daemon
wait $daemon
daemon=
{
  echo "heard_again=$(heard)"
  echo "programs_ended=$(programs)"
} >> "$dir/seen.env"
# Whoever runs this script waits for the end of its output, which the listener has too.
kill $listener
