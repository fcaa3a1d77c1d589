#!/usr/bin/env bash
# A cable that is torn out and replaced: the interface that steerd listens to is deleted and made anew.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   reattach.sh STEERD DIR
# Leaves in DIR what the client sent over both cables (sent.env) and what steerd says while there is none
# (readyz.txt, down.json) and at the end (state.json, summary.txt, steerd.log). Touches nothing outside.
set -euo pipefail
. "$(dirname "$0")/common.sh"
steerd=$1 dir=$2 daemon=

make_client
sent() { ip -n client -s -o link show dev client0 | sed -E 's/.*TX:[^0-9]*//' | awk '{ print $2 }'; }
queries() { ip netns exec client bash -c "for i in \$(seq $1); do echo query \$i > /dev/udp/10.77.0.1/53; done" 2>/dev/null || true; }
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

# With another address of the steered interface each time.
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
