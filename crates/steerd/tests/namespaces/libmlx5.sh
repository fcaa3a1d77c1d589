#!/usr/bin/env bash
# A client in a namespace of its own sends to steerd on rdma-core's mlx5 provider, whose port is this end of a veth pair.
# Run by tests/it/libmlx5.rs inside fresh network and mount namespaces:
#   libmlx5.sh STEERD DIR RECEIVE
# Leaves in DIR what was sent (sent.env), steerd's summary (summary.json) and its log.
set -euo pipefail
steerd=$1 dir=$2 receive=$3 server=10.77.0.1

mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add client
ip link set lo up
ip link add steer0 type veth peer name client0
ip link set client0 netns client
ip address add $server/24 dev steer0
ip -n client address add 10.77.0.2/24 dev client0
ip -n client link set client0 up
ip link set steer0 up

cat > "$dir/policy.toml" <<EOF
version = 1
default = "kernel"
[groups.every]
workers = "all"
[[rules]]
name = "ping"
match = { family = "ipv4", protocol = "icmp" }
action = { steer = "every" }
[[rules]]
name = "dns"
match = { family = "ipv4", protocol = "udp", dst_port = 53 }
action = { steer = "every" }
EOF
cat > "$dir/steerd.toml" <<EOF
[device]
receive = "$receive"
[policy]
file = "policy.toml"
[workers]
cores = 2
pages = ["plain"]
[softnic]
provider = "mlx5"
personality = "mlx5"
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer0" }
EOF

metrics() { # of the daemon, whose log names the port
  curl -fs "$(sed -nE 's|.*(http://[0-9.:]+/metrics).*|\1|p' "$dir/steerd.log" | head -1)"
}
delivered() { metrics | awk '/^steerd_rule_packets_total/ && /action="deliver"/ { sum += $NF } END { print sum + 0 }'; }

STEERD_HTTP__LISTEN=127.0.0.1:0 STEERD_API__ENABLED=false \
  "$steerd" run --format json --config "$dir/steerd.toml" --for 60s 2> "$dir/steerd.log" > "$dir/summary.json" &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT
for _ in $(seq 200); do grep -q "steering on" "$dir/steerd.log" && break; sleep 0.1; done
grep -q "steering on" "$dir/steerd.log"

client() { ip netns exec client "$@"; }
client ping -q -c 10 -i 0.05 -W 2 $server > "$dir/ping.txt"
client bash -c "for i in \$(seq 20); do echo query \$i > /dev/udp/$server/53; done" 2>/dev/null || true
for _ in $(seq 100); do [ "$(delivered)" -ge 30 ] && break; sleep 0.1; done
echo "pings=$(sed -nE 's/.* ([0-9]+) received.*/\1/p' "$dir/ping.txt")" > "$dir/sent.env"
kill -TERM $daemon
trap - EXIT
wait $daemon
