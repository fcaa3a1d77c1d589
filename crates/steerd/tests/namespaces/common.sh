# Functions of the scripts of this folder, which source it; `dir` is the folder of the script's results.

make_client() { # the namespace `client`, the peer of this one
  mount -t tmpfs tmpfs /run
  mkdir /run/netns
  ip netns add client
  # Nothing on the cable but what is sent here: no IPv6, and no ARP by fixed neighbours.
  for side in "" "ip netns exec client"; do $side sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1; done
  ip link set lo up
}
cable() { # MAC: of steer0, this end of a cable to client0
  ip link add steer0 address "$1" type veth peer name client0 address 02:00:00:00:77:99
  ip link set client0 netns client
  ip address add 10.77.0.1/24 dev steer0
  ip -n client address add 10.77.0.2/24 dev client0
  ip -n client link set client0 up
  ip link set steer0 up
  ip neigh add 10.77.0.2 lladdr 02:00:00:00:77:99 dev steer0
  ip -n client neigh add 10.77.0.1 lladdr "$1" dev client0
}
page() { curl -s -m 5 "http://127.0.0.1:9464/$1"; }
until_page() { # the page says so, within 20 s
  for _ in $(seq 200); do page "$1" | grep -q "$2" && return; sleep 0.1; done
  echo "$1 never says $2" >&2; page "$1" >&2; cat "$dir/steerd.log" >&2; exit 1
}
