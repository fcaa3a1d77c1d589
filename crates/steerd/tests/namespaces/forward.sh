#!/usr/bin/env bash
# The example policy reflector.toml between two namespaces: a client behind port 1, and a server behind port 2.
# Run by tests/it/namespaces.rs inside fresh network and mount namespaces:
#   forward.sh STEERD DIR POLICY
# Leaves in DIR the results of the client's programs (sent.env), what tcpdump saw at the server (server.txt), and the state
# at the end (state.json, summary.txt, steerd.log). Touches nothing outside.
set -euo pipefail
. "$(dirname "$0")/common.sh"
steerd=$1 dir=$2 policy=$3 daemon= dump=

mount -t tmpfs tmpfs /run
mkdir /run/netns
for name in client server; do ip netns add $name; done
client() { ip netns exec client "$@"; }
server() { ip netns exec server "$@"; }
for side in "" client server; do
  $side sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 net.ipv4.conf.all.rp_filter=0
done
ip link set lo up

ip link add steer0 address 02:00:00:00:77:01 type veth peer name client0 address 02:00:00:00:77:02
ip link add steer1 address 02:00:00:00:88:01 type veth peer name server0 address 02:00:00:00:88:02
ip link set client0 netns client
ip link set server0 netns server
for port in steer0 steer1; do ip link set $port up; done
client ip address add 10.77.0.2/24 dev client0
client ip link set client0 up
for network in 10.88.0.0/24 10.99.0.0/24; do client ip route add $network dev client0; done
for address in 10.77.0.9 10.88.0.2 10.99.0.2; do client ip neigh add $address lladdr 02:00:00:00:77:01 dev client0; done
server ip address add 10.88.0.2/24 dev server0
server ip link set server0 up
server ip route add 10.77.0.0/24 dev server0
server ip neigh add 10.77.0.2 lladdr 02:00:00:00:88:01 dev server0

finish() { for pid in $daemon $dump; do kill "$pid" 2>/dev/null || true; done; }
trap finish EXIT

cat > "$dir/steerd.toml" <<END
[policy]
file = "$policy"
[device]
ports = [1, 2]
[workers]
cores = 1
pages = ["plain"]
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer0" }
[[softnic.ports]]
wire = { kind = "af_packet", interface = "steer1", hand_over = "blocks" }
[http]
listen = "127.0.0.1:9464"
END
"$steerd" run --config "$dir/steerd.toml" --for 120s 2> "$dir/steerd.log" > "$dir/summary.txt" &
daemon=$!
until_page readyz '^ready'

pings() { client ping -q -n -i 0.05 -c "$1" -W 2 "$2" | sed -nE 's/.* ([0-9]+) received.*/\1/p'; }
answer() { # of a UDP datagram to the reflector
  client bash -c 'exec 3<>/dev/udp/10.77.0.9/7; echo hello >&3; timeout 5 head -n 1 <&3' || true
}
reflected=$(pings 10 10.77.0.9)
datagram=$(answer)

server timeout 60 tcpdump -i server0 -l -e -nn -c 25 'icmp or (vlan and icmp)' > "$dir/server.txt" 2> "$dir/tcpdump.log" &
dump=$!
for _ in $(seq 100); do grep -q 'listening on' "$dir/tcpdump.log" && break; sleep 0.1; done
forwarded=$(pings 10 10.88.0.2)
client ping -q -c 5 -i 0.05 -W 1 10.99.0.2 > "$dir/vlan.txt" || true # the server has no such interface
wait $dump || true
dump=

ip link set steer1 down
until_page metrics '^steerd_port_up{port="2"} 0$'
# The sinks learn it within a second or two.
sleep 2.5
while_down=$(pings 3 10.88.0.2 || true)
ip link set steer1 up
until_page metrics '^steerd_port_up{port="2"} 1$'
sleep 1.2
after=$(pings 5 10.88.0.2)

# An S-VLAN tag beyond the full MTU, which Linux sends by no interface of that MTU: the sink does not count it as delivered.
forwarded_until() { page metrics | awk '/^steerd_port_(sent_packets|send_errors)_total{port="2"}/ { sum += $2 } END { print sum + 0 }'; }
before=$(forwarded_until)
client ip link set client0 mtu 1504
client perl -e '
  use Socket;
  socket(my $socket, 17, SOCK_RAW, 0x0003 << 8) or die $!;
  open(my $index, "<", "/sys/class/net/client0/ifindex") or die $!;
  my $to = pack("S n i S C C a8", 17, 3, <$index> + 0, 1, 0, 6, "\x02\0\0\0\x77\x01\0\0");
  my $ip = pack("H*", "450005dc00010000400100000a4d00020a580002") . ("\0" x 1480);
  my $frame = pack("H*", "020000007701" . "020000007702" . "88a80005" . "0800") . $ip;
  for (1 .. 4) { send($socket, $frame, 0, $to) or die $! }
'
for _ in $(seq 100); do [ "$(forwarded_until)" -ge $((before + 4)) ] && break; sleep 0.1; done
cat > "$dir/sent.env" <<END
reflected=$reflected
datagram_intact=$([ "$datagram" = hello ] && echo 1 || echo 0)
forwarded=$forwarded
while_down=$while_down
after=$after
END
sleep 0.5
page api/v1/state > "$dir/state.json"
kill -TERM $daemon
wait $daemon
daemon=
