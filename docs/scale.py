#!/usr/bin/env python3
"""What leases of some size do to one key that many gateways share: the table of scale.md.

Requests of the key come at random to random gateways. One that has nothing left takes a lease from the shared bucket, or hears
that there is none and until when; what it has not used when the lease is over goes back.
"""

import heapq
import random


def simulate(gateways, rate, demand, lease, lasts=1.0, seconds=20.0, seed=1):
    dice = random.Random(seed)
    tokens, filled = float(rate), 0.0  # a burst of one second
    held = {}  # gateway: [left, until]
    over = {}  # gateway: refused until
    returns = []
    passed = asked = requests = 0
    now = 0.0
    while True:
        now += dice.expovariate(demand)
        if now > seconds:
            break
        requests += 1
        while returns and returns[0][0] <= now:
            at, gateway = heapq.heappop(returns)
            left, until = held.get(gateway, (0, 0.0))
            if until == at:
                tokens = min(rate, tokens + left)
                held.pop(gateway)
        tokens, filled = min(rate, tokens + (now - filled) * rate), now
        gateway = dice.randrange(gateways)
        left, until = held.get(gateway, (0, 0.0))
        if left >= 1:
            held[gateway] = (left - 1, until)
            passed += 1
            continue
        if over.get(gateway, 0.0) > now:
            continue
        asked += 1
        given = min(lease, int(tokens))
        if given >= 1:
            tokens -= given
            passed += 1
            held[gateway] = (given - 1, now + lasts)
            heapq.heappush(returns, (now + lasts, gateway))
        else:
            over[gateway] = now + 1.0 / rate
    allowed = min(requests, rate * seconds + rate)
    return asked / requests, passed / allowed


def main():
    print("| gateways | limit | demand | lease | questions a request | of what is allowed, passes |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for gateways, rate, demand in [(10, 100, 50), (10, 100, 300), (1000, 1000, 500), (1000, 1000, 3000)]:
        for lease in (1, 2, 5, 20, 100):
            asked, passed = simulate(gateways, rate, demand, lease)
            print(f"| {gateways} | {rate}r/s | {demand}r/s | {lease} | {asked:.2f} | {passed:.0%} |")


if __name__ == "__main__":
    main()
