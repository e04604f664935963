// Counters become rates, and rates are remembered for two minutes. Only this page remembers: weir keeps totals.

const POINTS = 120;

export class History {
  #series = new Map();

  /** Takes in what the counters of `name` stand at; `time` in milliseconds. */
  note(name, time, counters) {
    const series = this.#series.get(name) ?? { last: null, points: [] };
    const { last, points } = series;
    const passed = last ? (time - last.time) / 1000 : 0;
    if (passed > 0.2) {
      // A counter that has gone back was begun anew, with a restart or with a place in a list.
      const rate = (key) => Math.max(0, (counters[key] - (last.counters[key] ?? 0)) / passed);
      points.push(Object.fromEntries(Object.keys(counters).map((key) => [key, rate(key)])));
      if (points.length > POINTS) points.shift();
    }
    if (!last || passed > 0.2) series.last = { time, counters };
    series.seen = time;
    this.#series.set(name, series);
  }

  points(name) {
    return this.#series.get(name)?.points ?? [];
  }

  /** The rate of late: the mean of the last few seconds, steady enough to read. */
  rate(name, key, over = 3) {
    const points = this.points(name).slice(-over);
    return points.length ? points.reduce((sum, point) => sum + (point[key] ?? 0), 0) / points.length : 0;
  }

  /** Forgets what was not there lately, so that keys that come and go take no room. */
  tidy(time) {
    for (const [name, series] of this.#series) if (time - series.seen > POINTS * 1000) this.#series.delete(name);
  }

  static get length() {
    return POINTS;
  }
}

/** Requests a second that a rate such as `10r/s`, `100r/1m` or `5r/10s` allows; null where there is none. */
export function perSecond(rate) {
  const parts = /^([\d.]+)r\/(\d*)(ms|s|m|h|d)$/.exec(rate ?? "");
  if (!parts) return null;
  const unit = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 }[parts[3]];
  return Number(parts[1]) / (Number(parts[2] || 1) * unit);
}
