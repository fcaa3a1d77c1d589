#!/usr/bin/env python3
"""Writes blocklist.txt: 50,000 made-up prefixes that belong to nobody.

    python3 blocklist.py > blocklist.txt

The addresses are of ranges that never appear on the Internet: 198.18.0.0/15 (benchmarking, RFC 2544) and
2001:db8::/32 (documentation, RFC 3849). The list is the same every time: a linear congruential generator
(Knuth's MMIX constants) with a fixed seed, no prefix twice, none within another.
"""

import ipaddress

IPV4 = 20_000
IPV6 = 30_000
state = 50_000


def number(bits):
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return state >> (64 - bits)


print("# 50,000 made-up prefixes; written by blocklist.py, which says how. One per line.")
# Hosts in the lower /16; networks in the upper one, a /28 in every /24 at most.
hosts = set()
while len(hosts) < IPV4 - 200:
    hosts.add(number(16))
for host in sorted(hosts):
    print(ipaddress.ip_address(0xC6120000 + host))
for net in range(200):
    print(f"198.19.{net}.{number(4) * 16}/28")
sites = set()
while len(sites) < IPV6:
    sites.add(number(24))
for index, site in enumerate(sorted(sites)):
    # Sites are /56s apart: a /56, or a /64 in it.
    address = ipaddress.ip_address((0x20010DB8 << 96) | (site << 72))
    print(f"{address}/56" if index % 3 == 0 else f"{address}/64")
