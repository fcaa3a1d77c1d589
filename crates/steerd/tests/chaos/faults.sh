#!/usr/bin/env bash
# Run by tests/it/chaos.rs inside fresh network and mount namespaces: SCRIPT STEERD DIR CLIENT
# Generated packets go to six sinks. Then three of them are disturbed at once: the disk of a capture becomes full, the TAP
# interface of the host is removed again and again, and clients of an app sink are killed and started. States before,
# during and after that are left in DIR. CLIENT is a command that receives from the socket TEST_SOCKET until it is killed.
set -euo pipefail
steerd=$1 dir=$2 client=$3 daemon=
frames=80000 rate=4000

mkdir "$dir/small" "$dir/roomy"
mount -t tmpfs -o size=3m tmpfs "$dir/small"
ip link set lo up
cat > "$dir/policy.toml" <<END
version = 1
[sinks.counted]
kind = "count"
top_flows = 64
[sinks.roomy]
kind = "capture"
path = "$dir/roomy"
[sinks.steady]
kind = "app"
socket = "$dir/steady.sock"
[sinks.small]
kind = "capture"
path = "$dir/small"
file_mb = 1
disk_mb = 1000
[sinks.host]
kind = "kernel"
interface = "host0"
mac = "keep"
transmit = false
[sinks.flaky]
kind = "app"
socket = "$dir/flaky.sock"
transmit = true
[groups.main]
workers = "all"
sinks = ["counted", "roomy", "steady", "small", "host", "flaky"]
[[rules]]
name = "all"
match = { protocol = "udp" }
action = { steer = "main" }
END
cat > "$dir/steerd.toml" <<END
[device]
name = "softnic0"
[policy]
file = "policy.toml"
[workers]
cores = 2
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "generator", rate = $rate, total = $frames, flows = [{ protocol = "udp", dst_ports = "53", frame_bytes = 200 }] }
[http]
listen = "127.0.0.1:9464"
END

page() { curl -s -m 20 "http://127.0.0.1:9464/$1"; }
fail() { echo "$*" >&2; cat "$dir/steerd.log" >&2; exit 1; }
# A state is served for a second before it is made again.
state() { sleep 1.1; page api/v1/state > "$dir/$1.json"; }
trap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT
receive() { TEST_SOCKET="$dir/$1.sock" "$client" --exact chaos::client_process --ignored --nocapture > "$dir/$1.out" 2>&1 & }
until_connected() {
  for _ in $(seq 300); do grep -q connected "$dir/$1.out" && return; sleep 0.1; done
  fail "the client of $1 does not connect: $(cat "$dir/$1.out")"
}

"$steerd" run --keep-running --config "$dir/steerd.toml" 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
for _ in $(seq 300); do page readyz | grep -q '^ready' && break; sleep 0.1; done
receive steady
until_connected steady
receive flaky
until_connected flaky

state before-0
sleep 2
state before-1

head -c 2900000 /dev/zero > "$dir/small/filler" 2> /dev/null || true
state during-0
for _ in $(seq 5); do
  ip link del host0 2> /dev/null || true
  kill -KILL $! 2> /dev/null || true
  receive flaky
  until_connected flaky
  sleep 0.5
done
state during-1

received() { page metrics | sed -nE 's/^steerd_port_received_packets_total.* ([0-9.e+]+)$/\1/p'; }
for _ in $(seq 600); do [ "$(received)" = $frames ] && break; sleep 0.2; done
[ "$(received)" = $frames ] || fail "the port received $(received) frames"
sleep 1
state after
kill -TERM $daemon
wait $daemon
