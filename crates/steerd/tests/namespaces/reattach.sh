#!/usr/bin/env bash
# A cable that is torn out and replaced: the interface that steerd listens to is deleted and made anew.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   reattach.sh STEERD DIR
# Leaves in DIR what the client sent over both cables (sent.env) and what steerd says while there is none
# (readyz.txt, down.json) and at the end (state.json, summary.txt, steerd.log). Touches nothing outside.
set -euo pipefail
steerd=$1 dir=$2 daemon=

mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add client
# Nothing on the cable but what is sent here: no IPv6, and no ARP by fixed neighbours.
for side in "" "ip netns exec client"; do $side sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1; done
ip link set lo up

cable() { # with another address of the steered interface each time
  ip link add steer0 address "$1" type veth peer name client0 address 02:00:00:00:77:99
  ip link set client0 netns client
  ip address add 10.77.0.1/24 dev steer0
  ip -n client address add 10.77.0.2/24 dev client0
  ip -n client link set client0 up
  ip link set steer0 up
  ip neigh add 10.77.0.2 lladdr 02:00:00:00:77:99 dev steer0
  ip -n client neigh add 10.77.0.1 lladdr "$1" dev client0
}
sent() { ip -n client -s -o link show dev client0 | sed -E 's/.*TX:[^0-9]*//' | awk '{ print $2 }'; }
queries() { ip netns exec client bash -c "for i in \$(seq $1); do echo query \$i > /dev/udp/10.77.0.1/53; done" 2>/dev/null || true; }
page() { curl -s -m 5 "http://127.0.0.1:9464/$1"; }
until_page() { # the page says so, within 20 s
  for _ in $(seq 200); do page "$1" | grep -q "$2" && return; sleep 0.1; done
  echo "$1 never says $2" >&2; page "$1" >&2; cat "$dir/steerd.log" >&2; exit 1
}
trap '[ -z "$daemon" ] || kill $daemon 2>/dev/null || true' EXIT

cat > "$dir/policy.toml" <<EOF
version = 1
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
[policy]
file = "policy.toml"
[workers]
cores = 1
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer0" }
[http]
listen = "127.0.0.1:9464"
EOF

cable 02:00:00:00:77:01
"$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
until_page readyz '^ready'
queries 20
first=$(sent)
until_page metrics "steerd_port_received_packets_total{port=\"1\"} $first\$"

ip link del steer0
until_page readyz 'port 1 (steer0) is down'
page readyz > "$dir/readyz.txt"
until_page metrics '^steerd_port_up{port="1"} 0$'
page api/v1/state > "$dir/down.json"
page healthz > "$dir/healthz.txt"

cable 02:00:00:00:77:02
until_page readyz '^ready'
queries 30
second=$(sent)
until_page metrics "steerd_port_received_packets_total{port=\"1\"} $((first + second))\$"
# The two pages are rendered at different times.
until_page api/v1/state "\"received_packets\": *$((first + second))[^0-9]"
page api/v1/state > "$dir/state.json"
echo "frames=$((first + second))" > "$dir/sent.env"
kill -TERM $daemon
wait $daemon
daemon=
