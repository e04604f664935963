//! What the API answers, as far as it is shown. Fields that are not known here are passed over: a newer weir may have more.

use serde::Deserialize;

/// `GET /api/status`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Status {
    pub(in crate::cli) version: String,
    pub(in crate::cli) pid: u32,
    pub(in crate::cli) uptime: f64,
    pub(in crate::cli) ready: bool,
    pub(in crate::cli) generation: u64,
    pub(in crate::cli) loops: Vec<Loop>,
    pub(in crate::cli) connections: Connections,
    pub(in crate::cli) requests: Requests,
    pub(in crate::cli) limits: Verdicts,
}

impl Status {
    /// How late the latest of its event loops is.
    pub(in crate::cli) fn lag(&self) -> Option<f64> {
        self.loops.iter().filter_map(|one| one.lag).reduce(f64::max)
    }

    /// How late one has been in the last minute.
    pub(in crate::cli) fn worst_lag(&self) -> Option<f64> {
        self.loops
            .iter()
            .filter_map(|one| one.worst)
            .reduce(f64::max)
    }
}

/// How late an event loop is, in seconds.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Loop {
    pub(in crate::cli) lag: Option<f64>,
    pub(in crate::cli) worst: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Connections {
    pub(in crate::cli) active: u64,
    pub(in crate::cli) accepted: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Requests {
    pub(in crate::cli) total: u64,
}

/// How often which verdict was given.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(in crate::cli) struct Verdicts {
    pub(in crate::cli) pass: u64,
    pub(in crate::cli) delay: u64,
    pub(in crate::cli) refuse: u64,
}

impl Verdicts {
    pub(in crate::cli) fn demand(self) -> u64 {
        self.pass + self.delay + self.refuse
    }
}

/// One of `GET /api/zones`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Zone {
    pub(in crate::cli) name: String,
    pub(in crate::cli) kind: String,
    pub(in crate::cli) algorithm: Option<String>,
    pub(in crate::cli) rate: Option<String>,
    pub(in crate::cli) keys: u64,
    pub(in crate::cli) capacity: u64,
    pub(in crate::cli) evictions: u64,
    #[serde(default)]
    pub(in crate::cli) penalties_dropped: u64,
    pub(in crate::cli) store: Option<String>,
    #[serde(rename = "override")]
    pub(in crate::cli) changed: Option<Change>,
    #[serde(flatten)]
    pub(in crate::cli) verdicts: Verdicts,
}

/// What was changed while it runs.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Change {
    pub(in crate::cli) rate: Option<String>,
    pub(in crate::cli) limit: Option<serde_json::Value>,
    pub(in crate::cli) burst: Option<u64>,
}

/// `GET /api/zones/ZONE`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Detail {
    #[serde(flatten)]
    pub(in crate::cli) zone: Zone,
    /// What requests are told apart by.
    pub(in crate::cli) key: String,
    /// The rate in the file.
    pub(in crate::cli) configured: Option<String>,
    pub(in crate::cli) rules: Vec<Rule>,
    pub(in crate::cli) marked: Vec<Mark>,
}

/// A rule that uses a zone.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Rule {
    pub(in crate::cli) server: String,
    pub(in crate::cli) location: String,
    pub(in crate::cli) burst: Option<f64>,
    pub(in crate::cli) limit: Option<u64>,
    pub(in crate::cli) dry_run: bool,
}

/// What an operator has put on a key.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Mark {
    pub(in crate::cli) key: String,
    pub(in crate::cli) mark: String,
    pub(in crate::cli) seconds: f64,
    pub(in crate::cli) requests: Option<u64>,
    pub(in crate::cli) reason: Option<String>,
}

/// One of `GET /api/zones/ZONE/keys`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct BusyKey {
    pub(in crate::cli) key: String,
    #[serde(flatten)]
    pub(in crate::cli) verdicts: Verdicts,
    pub(in crate::cli) excess: f64,
    pub(in crate::cli) missed: u64,
    pub(in crate::cli) mark: Option<String>,
}

/// `GET /api/zones/ZONE/keys/KEY`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct KeyState {
    pub(in crate::cli) key: String,
    pub(in crate::cli) known: bool,
    pub(in crate::cli) listed: bool,
    #[serde(flatten)]
    pub(in crate::cli) verdicts: Verdicts,
    pub(in crate::cli) standing: Standing,
    pub(in crate::cli) own: Option<String>,
    pub(in crate::cli) penalty: Option<f64>,
    pub(in crate::cli) marks: Vec<Mark>,
    pub(in crate::cli) shared: bool,
}

/// Where a key stands.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Standing {
    pub(in crate::cli) limit: u64,
    pub(in crate::cli) remaining: u64,
    pub(in crate::cli) excess: f64,
    pub(in crate::cli) retry_after: f64,
    pub(in crate::cli) reset_after: f64,
}

/// What `PUT` and `DELETE` of a mark answer.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Marked {
    pub(in crate::cli) key: String,
    pub(in crate::cli) marks: Vec<Mark>,
}

/// What forgetting a key answers.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Forgotten {
    pub(in crate::cli) key: String,
    pub(in crate::cli) forgotten: bool,
}

/// `POST /api/explain`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Explained {
    pub(in crate::cli) server: String,
    pub(in crate::cli) listen: String,
    pub(in crate::cli) location: String,
    pub(in crate::cli) client: String,
    pub(in crate::cli) action: String,
    pub(in crate::cli) verdict: String,
    pub(in crate::cli) status: Option<u16>,
    pub(in crate::cli) wait: f64,
    pub(in crate::cli) retry_after: Option<f64>,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) rules: Vec<ExplainedRule>,
    pub(in crate::cli) obstacles: Vec<String>,
}

/// What one rule says to a request.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct ExplainedRule {
    pub(in crate::cli) kind: String,
    pub(in crate::cli) zone: String,
    pub(in crate::cli) key: Option<String>,
    #[serde(rename = "override")]
    pub(in crate::cli) overridden_by: Option<String>,
    pub(in crate::cli) rate: Option<String>,
    pub(in crate::cli) burst: Option<f64>,
    pub(in crate::cli) limit: Option<u64>,
    pub(in crate::cli) dry_run: bool,
    pub(in crate::cli) state: Option<Standing>,
    pub(in crate::cli) verdict: String,
    pub(in crate::cli) wait: f64,
    pub(in crate::cli) reason: String,
}

/// One of `GET /api/upstreams`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Upstream {
    pub(in crate::cli) name: String,
    pub(in crate::cli) servers: Vec<Server>,
}

/// A server of an upstream.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Server {
    pub(in crate::cli) address: String,
    pub(in crate::cli) up: bool,
    pub(in crate::cli) down: bool,
    pub(in crate::cli) draining: bool,
    pub(in crate::cli) backup: bool,
    pub(in crate::cli) active: u64,
    pub(in crate::cli) requests: u64,
    pub(in crate::cli) errors: u64,
    pub(in crate::cli) healthy: Option<bool>,
    pub(in crate::cli) breaker: Option<String>,
    pub(in crate::cli) forced: Option<String>,
}

/// One of `GET /api/breakers`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Breaker {
    pub(in crate::cli) server: String,
    pub(in crate::cli) location: String,
    pub(in crate::cli) state: String,
    pub(in crate::cli) forced: Option<String>,
    pub(in crate::cli) opened: u64,
}

/// One of `GET /api/groups`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Group {
    pub(in crate::cli) name: String,
    pub(in crate::cli) mode: String,
}

/// One of `GET /api/store`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Store {
    pub(in crate::cli) name: String,
    pub(in crate::cli) degraded: bool,
    pub(in crate::cli) why: Option<String>,
}

/// `GET /api/refusals`
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Refusals {
    pub(in crate::cli) refusals: Vec<Refusal>,
    pub(in crate::cli) skipped: u64,
}

/// What the stream says of those that were not written down.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(in crate::cli) struct Skipped {
    pub(in crate::cli) skipped: u64,
}

/// One refusal and its reason.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct Refusal {
    pub(in crate::cli) id: u64,
    pub(in crate::cli) time: i64,
    pub(in crate::cli) zone: String,
    pub(in crate::cli) key: Option<String>,
    pub(in crate::cli) detail: String,
    pub(in crate::cli) status: u16,
    pub(in crate::cli) dry_run: bool,
    pub(in crate::cli) client: String,
    pub(in crate::cli) method: String,
    pub(in crate::cli) host: String,
    pub(in crate::cli) path: String,
}
