#!/usr/bin/env python3
"""What shared limits cost: 1, 2 and 4 gateways on one Redis, counting alone, in the mode exact and in the mode leased.

    cargo build --release && benches/fleet.py [--seconds 4] [--weir target/release/weir]

All on this machine, over loopback: redis-server, the gateways with one event loop each, and one h2load for each of them that keeps
eight connections busy with a thousand keys that stay below their limit. Prints a table. Less than two minutes.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

KEYS, CONNECTIONS = 1000, 8
TICK = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(port):
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


class Gateway:
    def __init__(self, weir, directory, number, store, mode):
        self.port, self.admin = free_port(), free_port()
        path = os.path.join(directory, f"{mode}{number}.yaml")
        shared = "" if mode == "local" else f"stores: {{ shared: {{ redis: '{store}', timeout: 100ms, mode: {mode} }} }}\n"
        zone = "" if mode == "local" else ", store: shared"
        with open(path, "w") as file:
            file.write(
                f"workers: 1\nadmin: {{ listen: '127.0.0.1:{self.admin}' }}\nlog: {{ access: off }}\n{shared}"
                f"limit_req_zones: {{ one: {{ key: $arg_key, rate: 10000r/s{zone} }} }}\n"
                f"servers:\n- listen: '127.0.0.1:{self.port}'\n  keepalive_requests: 1000000000\n"
                "  limit_req: { zone: one, burst: 10000, nodelay: true }\n  return: { status: 204 }\n"
            )
        self.process = subprocess.Popen([weir, "run", "-c", path], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        listening(self.port)

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def metrics(self):
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics").read().decode()
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name.split("{")[0]: float(number) for name, number in lines if name.startswith("weir_store")}

    def stop(self):
        self.process.terminate()
        self.process.wait()


def press(gateway, directory, seconds):
    """One h2load; where it writes how long each request took."""
    uris = os.path.join(directory, f"{gateway.port}.uris")
    with open(uris, "w") as file:
        file.writelines(f"http://127.0.0.1:{gateway.port}/?key={key}\n" for key in range(KEYS))
    log = os.path.join(directory, f"{gateway.port}.log")
    command = ["h2load", "--h1", "-c", str(CONNECTIONS), "-t1", "-D", str(seconds), "--log-file", log, "-i", uris]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL), log


def measure(weir, directory, count, mode, seconds):
    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    gateways = []
    try:
        listening(port)
        gateways = [Gateway(weir, directory, n, f"redis://127.0.0.1:{port}", mode) for n in range(count)]
        time.sleep(1.5)  # until all have heard of each other
        before, cpu = [gateway.metrics() for gateway in gateways], [gateway.cpu() for gateway in gateways]
        loads = [press(gateway, directory, seconds) for gateway in gateways]
        for load, _ in loads:
            load.wait()
        cpu = sum(gateway.cpu() for gateway in gateways) - sum(cpu)
        after = [gateway.metrics() for gateway in gateways]
    finally:
        for gateway in gateways:
            gateway.stop()
        redis.terminate()
        redis.wait()
    times = []
    for _, log in loads:
        with open(log) as file:
            rows = [line.split() for line in file]
        if any(row[1] != "204" for row in rows):
            sys.exit("some were refused: this measures something else")
        times += [int(row[2]) for row in rows]
        os.remove(log)
    times.sort()
    grown = lambda name: sum(new.get(name, 0) - old.get(name, 0) for old, new in zip(before, after))
    requests = len(times)
    return {
        "rate": requests / seconds / count,
        "p50": times[requests // 2],
        "p99": times[requests * 99 // 100],
        "cpu": cpu * 1e6 / requests,
        "trips": grown("weir_store_round_trips_total") / requests,
        "waited": grown("weir_store_asked_total") / requests,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--weir", default="target/release/weir")
    options = parser.parse_args()
    print("| gateways | mode | decisions a second and gateway | p50 | p99 | added p50 | added p99 | CPU a request | against local | round trips a request | of them waited for |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as directory:
        for count in (1, 2, 4):
            for mode in ("local", "exact", "leased"):
                found = measure(options.weir, directory, count, mode, options.seconds)
                local = found if mode == "local" else local
                added = [f"{found[part] - local[part]} µs" for part in ("p50", "p99")]
                print(
                    f"| {count} | {mode} | {found['rate']:.0f} | {found['p50']} µs | {found['p99']} µs | {added[0]} | {added[1]} "
                    f"| {found['cpu']:.1f} µs | {found['cpu'] - local['cpu']:+.1f} µs | {found['trips']:.3f} | {found['waited']:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
