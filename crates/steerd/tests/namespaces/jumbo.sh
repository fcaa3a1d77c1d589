#!/usr/bin/env bash
# An interface with an MTU of 9000 and settings that name no length: long packets are received. Settings with another
# length are refused by `check --config` and by the start; so is an interface that is longer than any port.
# Run by tests/namespaces.rs inside fresh network and mount namespaces:
#   jumbo.sh STEERD DIR
# Leaves in DIR the state (state.json), the summary, the log, and what was refused (*.txt, *.code). Touches nothing outside.
set -euo pipefail
steerd=$1 dir=$2 daemon=

mount -t tmpfs tmpfs /run
mkdir /run/netns
ip netns add client
for side in "" "ip netns exec client"; do $side sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1; done
ip link set lo up
ip link add steer0 address 02:00:00:00:77:01 mtu 9000 type veth peer name client0 address 02:00:00:00:77:02 mtu 9000
ip link set client0 netns client
ip address add 10.77.0.1/24 dev steer0
ip -n client address add 10.77.0.2/24 dev client0
ip -n client link set client0 up
ip link set steer0 up
ip neigh add 10.77.0.2 lladdr 02:00:00:00:77:02 dev steer0
ip -n client neigh add 10.77.0.1 lladdr 02:00:00:00:77:01 dev client0
page() { curl -s -m 20 "http://127.0.0.1:9464/$1"; }
trap '[ -z "$daemon" ] || kill $daemon 2>/dev/null || true' EXIT

cat > "$dir/policy.toml" <<END
version = 1
[groups.every]
workers = "all"
[[rules]]
name = "discard"
match = { protocol = "udp", dst_port = 9 }
action = { steer = "every" }
END
settings() { # NAME, further lines of [workers], further lines of the port, interface
  cat > "$dir/$1.toml" <<END
[policy]
file = "policy.toml"
[workers]
cores = 1
pages = ["plain"]
$2
[[softnic.ports]]
wire = { kind = "af_packet", interface = "${4:-steer0}" }
$3
[http]
listen = "127.0.0.1:9464"
END
}
refused() { # NAME
  for command in "check" "run --for 5s"; do
    local kind=${command%% *}
    "$steerd" $command --config "$dir/$1.toml" > "$dir/$1-$kind.txt" 2>&1 && echo 0 > "$dir/$1-$kind.code" ||
      echo $? > "$dir/$1-$kind.code"
  done
}
settings short-port "" "mtu_bytes = 1500"
settings short-frames "frame_bytes = 2048" ""
settings loopback "" "" lo
for name in short-port short-frames loopback; do refused $name; done

settings steerd "" ""
"$steerd" check --config "$dir/steerd.toml" > "$dir/check.txt" 2>&1 && echo 0 > "$dir/check.code" || echo $? > "$dir/check.code"
"$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
for _ in $(seq 600); do page readyz | grep -q '^ready' && break; sleep 0.1; done
for bytes in 100 1600 5000 8972; do
  ip netns exec client perl -MIO::Socket::INET -e '
    IO::Socket::INET->new(Proto => "udp", PeerAddr => "10.77.0.1:9")->send("x" x shift) or die $!
  ' $bytes
done
for _ in $(seq 600); do page metrics | grep -q '^steerd_port_received_packets_total{port="1"} 4$' && break; sleep 0.1; done
page api/v1/state > "$dir/state.json"
kill -TERM $daemon
wait $daemon
daemon=
