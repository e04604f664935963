#!/usr/bin/env python3
"""What leases do to one key that many gateways share: the table of scale.md.

Requests of the key come at random to random gateways, which follow the rules of docs/redis.md: a lease is charged first, sized by
what was asked for since the last one and no larger than a share of what is left; the first request passes on credit; what
lies unused for half a second goes back; and who hears that there is nothing waits until there is. Answers take no time.
"""

import random

TERM, IDLE, PACE = 1.0, 0.5, 0.1


class Count:
    """The shared bucket, with a burst of a second."""

    def __init__(self, rate):
        self.rate, self.level, self.last = rate, 0.0, 0.0

    def at(self, now):
        self.level = max(0.0, self.level - (now - self.last) * self.rate)
        self.last = now

    def ask(self, now, owed, back, want, gateways):
        """How many are leased, and for how long there is nothing."""
        self.at(now)
        self.level = max(0.0, self.level - back) + owed
        left = int(self.rate - self.level)
        if left < 1:
            return 0, (self.level - (self.rate - 1)) / self.rate
        granted = min(want, left, max(1, left // gateways))
        self.level += granted
        return granted, 0.0


class Account:
    def __init__(self):
        self.left = self.size = self.used = 0
        self.seen = self.until = self.over = 0.0
        self.asked = None


def simulate(gateways, rate, demand, most=None, seconds=20.0, seed=1):
    """Questions a request, which part of what is allowed passes, and how much was in hand at most."""
    dice = random.Random(seed)
    count, accounts = Count(rate), {}
    most = most or max(1, rate // gateways)
    passed = asked = requests = held = 0
    now = swept = 0.0
    while True:
        now += dice.expovariate(demand)
        if now > seconds:
            break
        requests += 1
        if now - swept >= 0.25:
            swept = now
            for account in accounts.values():
                if account.left and (now >= account.until or now - account.seen >= IDLE):
                    asked += 1
                    count.ask(now, 0, account.left, 0, gateways)
                    account.left = 0
            held = max(held, sum(account.left for account in accounts.values()))
        account = accounts.setdefault(dice.randrange(gateways), Account())
        account.seen, account.used = now, account.used + 1
        owed = 0
        if account.left and now < account.until:
            account.left -= 1
            passed += 1
            if account.left > account.size // 4 or now < account.over:
                continue
        elif now < account.over:
            continue
        else:
            owed = 1
            passed += 1
        target = 0
        if account.asked is not None:
            target = int(account.used * TERM / max(now - account.asked, 0.001))
            target = min(target, 4 * account.size or 2, most)
            target = target if target >= 2 else 0
        back = account.left if now >= account.until else 0
        account.left -= back
        asked += 1
        granted, wait = count.ask(now, owed, back, max(0, target - account.left), gateways)
        account.asked, account.used = now, 0
        if granted:
            account.left += granted
            account.size, account.until = account.left, now + TERM
        elif wait:
            account.over = now + max(wait, PACE)
    return asked / requests, passed / min(requests, rate * seconds + rate), held


def main():
    print("| gateways | limit | demand | lease at most | questions a request | of what is allowed, passes | in hand at most |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for gateways, rate, demand in [(10, 100, 50), (10, 100, 300), (10, 1000, 3000), (1000, 1000, 500), (1000, 1000, 3000)]:
        for lease in (1, 2, 5, 20):
            asked, passed, held = simulate(gateways, rate, demand, lease)
            print(f"| {gateways} | {rate}r/s | {demand}r/s | {lease} | {asked:.2f} | {passed:.0%} | {held} |")


if __name__ == "__main__":
    main()
