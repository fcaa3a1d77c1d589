#!/usr/bin/env bash
# The TAP interface has had another user, who left another offload header, a send buffer and an MTU: the sink sets what it
# needs. The interface then follows the address and the MTU of its port, also after a reload. A second daemon that names
# the same interface is refused, and one that takes a queue behind the sink's back is reported.
. "$(dirname "$0")/common.sh"

cat > "$dir/policy.toml" <<EOF
version = 1
default = "host"
[sinks.host]
kind = "kernel"
interface = "host0"
[groups.host]
workers = "all"
sinks = ["host"]
EOF
settings 2
claim "pkttype { host, other, broadcast, multicast }"

# Attaches to host0 with a header (struct ifreq of TUNSETIFF), runs further requests, and holds the queue until the end of its
# input: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE. TUNSETVNETHDRSZ, TUNSETSNDBUF and TUNSETVNETLE take an int.
user='
  open(my $tun, "+<", "/dev/net/tun") or die $!;
  my $request = pack("a16 S x22", "host0", 0x0002 | 0x1000 | 0x4000 | 0x0100);
  ioctl($tun, 0x400454ca, $request) or die "TUNSETIFF: $!";
  while (my ($number, $value) = splice(@ARGV, 0, 2)) {
    my $int = pack("i", $value);
    ioctl($tun, hex($number), $int) or die "$number: $!";
  }
  <STDIN>;
'
ip tuntap add dev host0 mode tap multi_queue
ip link set host0 up mtu 9000
perl -e "$user" 400454d8 12 400454d4 4096 400454dc 1 < /dev/null
start
until_page api/v1/state 'up, MTU 1500'
ip address add $host4/24 dev host0
ip neigh add $client4 lladdr $client_mac dev host0
echo "pings=$(pings 5)" > "$dir/seen.env"

# A second daemon, with a device and an API of its own.
sed -e 's/"127.0.0.1:9464"/"off"/' -e 's/softnic0/softnic9/' "$dir/steerd.toml" > "$dir/second.toml"
printf '[api]\nenabled = false\n' >> "$dir/second.toml"
sed -i 's/^personality/name = "softnic9"\n&/' "$dir/second.toml"
"$steerd" run --config "$dir/second.toml" --for 20s > "$dir/second.txt" 2>&1 && echo 0 > "$dir/second.code" ||
  echo $? > "$dir/second.code"
echo "pings_after=$(pings 5)" >> "$dir/seen.env"

# The port gets another address and a shorter MTU.
follows() { ip -o link show host0 | grep -c 'mtu 1400.*02:00:00:00:77:0a' || true; }
ip link set steer0 address 02:00:00:00:77:0a mtu 1400
for _ in $(seq $((patience * 10))); do [ "$(follows)" = 1 ] && break; sleep 0.1; done
echo "followed=$(follows)" >> "$dir/seen.env"
kill -HUP $daemon
until_page metrics 'steerd_policy_reloads_total{result="success"} 1'
sleep 2
echo "reloaded=$(follows)" >> "$dir/seen.env"

# Another process takes a queue.
mkfifo "$dir/hold"
perl -e "$user" < "$dir/hold" &
exec {hold}> "$dir/hold"
until_page api/v1/state 'shared with another process'
exec {hold}>&-
until_page api/v1/state '"up, MTU 1400"'
finish
