#!/usr/bin/env python3
"""What a fleet lets pass while its Redis is slow, frozen, killed, emptied, full or out of reach: three gateways, counted against the limit.

    cargo build && benches/outages.py [--weir target/debug/weir] [--runs 20] [--seconds 6] [--only slow,kill] [--spin 2]

Everything runs on this machine over loopback: redis-server, three gateways with one event loop each, and one h2load for each gateway that keeps
eight connections busy with a single key. `--spin` adds busy loops, so that responses of Redis come now within the timeout of 5 ms and
now after it. A row says how many requests passed, how many `rate x time + burst + 1` allows, and the difference in requests and in bursts;
it ends with status 1 if a run is more than one burst above the limit (and one request for each gateway where leases are used).
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

GATEWAYS, CONNECTIONS = 3, 8

# Name, zone, rule, requests per second, and what may pass at once.
ALGORITHMS = [
    ("leaky_bucket", "rate: 60r/s", ", burst: 10, nodelay: true", 60, 11),
    ("token_bucket", "algorithm: token_bucket, rate: 150r/s", ", burst: 90", 150, 90),
    ("gcra", "algorithm: gcra, rate: 150r/s", ", burst: 119", 150, 120),
    ("fixed_window", "algorithm: fixed_window, limit: 150, window: 1s", "", 150, 150),
    ("sliding_window", "algorithm: sliding_window, limit: 150, window: 1s", "", 150, 150),
    ("sliding_log", "algorithm: sliding_log, limit: 150, window: 1s", "", 150, 150),
]


def free_port():
    """One that no client is given by chance while its server is down."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def listening(port):
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


class Redis:
    def __init__(self):
        self.port = free_port()
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        listening(self.port)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def say(self, *words):
        """One command on a connection of its own; the first line of the response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            text = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(text.encode())
            return connection.recv(4096)


class Wire:
    """A relay to Redis for one gateway that can be cut."""

    def __init__(self, port):
        self.target, self.cut, self.open = port, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            if self.cut:
                client.close()
                server.close()
                continue
            self.open += [client, server]
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.relay, args=(one, other), daemon=True).start()

    def relay(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def set_cut(self, cut):
        self.cut = cut
        if cut:
            for end in self.open:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.open = []


def until(end, *steps):
    """Does one step after the other, each followed by its pause, until the end."""
    while True:
        for act, pause in steps:
            if time.monotonic() + pause > end:
                return
            act()
            time.sleep(pause)


def nothing():
    pass


# What happens meanwhile: a function of the server, the relay of one gateway, and the end.
TROUBLES = {
    "busy": lambda redis, wire, end: None,
    "slow": lambda redis, wire, end: until(
        end, (lambda: redis.signal(signal.SIGSTOP), 0.009), (lambda: redis.signal(signal.SIGCONT), 0.006)
    ),
    "freeze": lambda redis, wire, end: until(
        end, (nothing, 0.7), (lambda: redis.signal(signal.SIGSTOP), 0.8), (lambda: redis.signal(signal.SIGCONT), 0.5)
    ),
    "kill": lambda redis, wire, end: until(end, (nothing, 0.7), (redis.kill, 0.8), (redis.start, 1.0)),
    "flush": lambda redis, wire, end: until(end, (nothing, 0.9), (lambda: redis.say("FLUSHALL"), 0.3)),
    "full": lambda redis, wire, end: until(
        end,
        (nothing, 0.7),
        (lambda: redis.say("CONFIG", "SET", "maxmemory", "1"), 0.8),
        (lambda: redis.say("CONFIG", "SET", "maxmemory", "0"), 0.8),
    ),
    "cut": lambda redis, wire, end: until(end, (nothing, 0.7), (lambda: wire.set_cut(True), 0.8), (lambda: wire.set_cut(False), 0.8)),
}


def run(weir, directory, trouble, mode, algorithm, seconds):
    _, zone, rule, _, _ = algorithm
    redis = Redis()
    wire = Wire(redis.port)
    gateways, ports = [], []
    try:
        for number in range(GATEWAYS):
            port, admin = free_port(), free_port()
            server = wire.port if trouble == "cut" and number == 0 else redis.port
            path = os.path.join(directory, f"{number}.yaml")
            with open(path, "w") as file:
                file.write(
                    f"workers: 1\nadmin: {{ listen: '127.0.0.1:{admin}' }}\nlog: {{ access: off }}\n"
                    f"stores: {{ shared: {{ redis: 'redis://127.0.0.1:{server}', mode: {mode} }} }}\n"
                    f"limit_req_zones: {{ one: {{ key: $host, {zone}, store: shared }} }}\n"
                    f"servers:\n- listen: '127.0.0.1:{port}'\n  keepalive_requests: 1000000000\n"
                    f"  limit_req: {{ zone: one{rule} }}\n  return: {{ status: 200, body: ok }}\n"
                )
            errors = open(os.path.join(directory, f"{number}.log"), "w")
            gateways.append(subprocess.Popen([weir, "run", "-c", path], stderr=errors, stdout=subprocess.DEVNULL))
            ports.append(port)
        for port in ports:
            listening(port)
        time.sleep(2.5)  # until all have heard of each other
        logs, loads = [os.path.join(directory, f"{port}.times") for port in ports], []
        for port, log in zip(ports, logs):
            command = ["h2load", "--h1", "-c", str(CONNECTIONS), "-t1", "-D", str(seconds), "--log-file", log]
            loads.append(subprocess.Popen([*command, f"http://127.0.0.1:{port}/"], stdout=subprocess.DEVNULL))
        TROUBLES[trouble](redis, wire, time.monotonic() + seconds)
        redis.signal(signal.SIGCONT)
        for load in loads:
            load.wait()
    finally:
        wire.listener.close()
        for gateway in gateways:
            gateway.terminate()
        for gateway in gateways:
            gateway.wait()
        redis.kill()
    passed, begin, end = 0, None, 0
    for log in logs:
        with open(log) as file:
            for line in file:
                at, status, took = (int(word) for word in line.split()[:3])
                begin = at if begin is None else min(begin, at)
                end = max(end, at + took)
                passed += status == 200
        os.remove(log)
    return passed, (end - begin) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", default="target/debug/weir")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--only", default=",".join(TROUBLES), help="of: " + ",".join(TROUBLES))
    parser.add_argument("--modes", default="exact,leased")
    parser.add_argument("--algorithms", default="leaky_bucket,token_bucket,gcra")
    parser.add_argument("--spin", type=int, default=2, help="busy loops beside it")
    options = parser.parse_args()
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.spin)]
    above = 0
    try:
        print("| trouble | mode | algorithm | passed | limit | above | in bursts |\n| --- | --- | --- | ---: | ---: | ---: | ---: |", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            for _ in range(options.runs):
                for trouble in options.only.split(","):
                    for mode in options.modes.split(","):
                        for algorithm in ALGORITHMS:
                            name, _, _, rate, quota = algorithm
                            if name not in options.algorithms.split(","):
                                continue
                            passed, seconds = run(options.weir, directory, trouble, mode, algorithm, options.seconds)
                            credit = GATEWAYS if mode == "leased" else 0
                            # A window may begin and end within the time that is measured.
                            limit = int(rate * seconds + 1) + quota + (quota if "fixed" in name else 0)
                            over = passed - limit - credit
                            above += over > quota
                            print(f"| {trouble} | {mode} | {name} | {passed} | {limit} | {over:+d} | {over / quota:+.2f} |", flush=True)
    finally:
        for process in spin:
            process.kill()
            process.wait()
    sys.exit(above > 0)


if __name__ == "__main__":
    main()
