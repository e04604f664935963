//! What the API answers, as far as it is shown. Fields that are not known here are passed over: a newer weir may have more.

use serde::Deserialize;

/// `GET /api/status`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Status {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime: f64,
    pub(super) ready: bool,
    pub(super) generation: u64,
    pub(super) loops: Vec<Loop>,
    pub(super) connections: Connections,
    pub(super) requests: Requests,
    pub(super) limits: Verdicts,
}

impl Status {
    /// How late the latest of its event loops is.
    pub(super) fn lag(&self) -> Option<f64> {
        self.loops.iter().filter_map(|one| one.lag).reduce(f64::max)
    }

    /// How late one has been in the last minute.
    pub(super) fn worst_lag(&self) -> Option<f64> {
        self.loops
            .iter()
            .filter_map(|one| one.worst)
            .reduce(f64::max)
    }
}

/// How late an event loop is, in seconds.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Loop {
    pub(super) lag: Option<f64>,
    pub(super) worst: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Connections {
    pub(super) active: u64,
    pub(super) accepted: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Requests {
    pub(super) total: u64,
}

/// How often which verdict was given.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Verdicts {
    pub(super) pass: u64,
    pub(super) delay: u64,
    pub(super) refuse: u64,
}

impl Verdicts {
    pub(super) fn demand(self) -> u64 {
        self.pass + self.delay + self.refuse
    }
}

/// One of `GET /api/zones`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Zone {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) algorithm: Option<String>,
    pub(super) rate: Option<String>,
    pub(super) keys: u64,
    pub(super) capacity: u64,
    pub(super) evictions: u64,
    #[serde(default)]
    pub(super) penalties_dropped: u64,
    pub(super) store: Option<String>,
    #[serde(rename = "override")]
    pub(super) changed: Option<Change>,
    #[serde(flatten)]
    pub(super) verdicts: Verdicts,
}

/// What was changed while it runs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Change {
    pub(super) rate: Option<String>,
    pub(super) limit: Option<serde_json::Value>,
    pub(super) burst: Option<u64>,
}

/// `GET /api/zones/ZONE`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Detail {
    #[serde(flatten)]
    pub(super) zone: Zone,
    /// What requests are told apart by.
    pub(super) key: String,
    /// The rate in the file.
    pub(super) configured: Option<String>,
    pub(super) rules: Vec<Rule>,
    pub(super) marked: Vec<Mark>,
}

/// A rule that uses a zone.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Rule {
    pub(super) server: String,
    pub(super) location: String,
    pub(super) burst: Option<f64>,
    pub(super) limit: Option<u64>,
    pub(super) dry_run: bool,
}

/// What an operator has put on a key.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Mark {
    pub(super) key: String,
    pub(super) mark: String,
    pub(super) seconds: f64,
    pub(super) requests: Option<u64>,
    pub(super) reason: Option<String>,
}

/// One of `GET /api/zones/ZONE/keys`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BusyKey {
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) verdicts: Verdicts,
    pub(super) excess: f64,
    pub(super) missed: u64,
    pub(super) mark: Option<String>,
}

/// `GET /api/zones/ZONE/keys/KEY`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct KeyState {
    pub(super) key: String,
    pub(super) known: bool,
    pub(super) listed: bool,
    #[serde(flatten)]
    pub(super) verdicts: Verdicts,
    pub(super) standing: Standing,
    pub(super) own: Option<String>,
    pub(super) penalty: Option<f64>,
    pub(super) marks: Vec<Mark>,
    pub(super) shared: bool,
}

/// Where a key stands.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Standing {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) excess: f64,
    pub(super) retry_after: f64,
    pub(super) reset_after: f64,
}

/// What `PUT` and `DELETE` of a mark answer.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Marked {
    pub(super) key: String,
    pub(super) marks: Vec<Mark>,
}

/// What forgetting a key answers.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Forgotten {
    pub(super) key: String,
    pub(super) forgotten: bool,
}

/// `POST /api/explain`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Explained {
    pub(super) server: String,
    pub(super) listen: String,
    pub(super) location: String,
    pub(super) client: String,
    pub(super) action: String,
    pub(super) verdict: String,
    pub(super) status: Option<u16>,
    pub(super) wait: f64,
    pub(super) retry_after: Option<f64>,
    pub(super) reason: String,
    pub(super) rules: Vec<ExplainedRule>,
    pub(super) obstacles: Vec<String>,
}

/// What one rule says to a request.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ExplainedRule {
    pub(super) kind: String,
    pub(super) zone: String,
    pub(super) key: Option<String>,
    #[serde(rename = "override")]
    pub(super) overridden_by: Option<String>,
    pub(super) rate: Option<String>,
    pub(super) burst: Option<f64>,
    pub(super) limit: Option<u64>,
    pub(super) dry_run: bool,
    pub(super) state: Option<Standing>,
    pub(super) verdict: String,
    pub(super) wait: f64,
    pub(super) reason: String,
}

/// One of `GET /api/upstreams`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) servers: Vec<Server>,
}

/// A server of an upstream.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) up: bool,
    pub(super) down: bool,
    pub(super) draining: bool,
    pub(super) backup: bool,
    pub(super) active: u64,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) healthy: Option<bool>,
    pub(super) breaker: Option<String>,
    pub(super) forced: Option<String>,
}

/// One of `GET /api/breakers`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Breaker {
    pub(super) server: String,
    pub(super) location: String,
    pub(super) state: String,
    pub(super) forced: Option<String>,
    pub(super) opened: u64,
}

/// One of `GET /api/groups`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) mode: String,
}

/// One of `GET /api/store`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Store {
    pub(super) name: String,
    pub(super) degraded: bool,
    pub(super) why: Option<String>,
}

/// `GET /api/refusals`
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refusals {
    pub(super) refusals: Vec<Refusal>,
    pub(super) skipped: u64,
}

/// What the stream says of those that were not written down.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Skipped {
    pub(super) skipped: u64,
}

/// One refusal and its reason.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refusal {
    pub(super) id: u64,
    pub(super) time: i64,
    pub(super) zone: String,
    pub(super) key: Option<String>,
    pub(super) detail: String,
    pub(super) status: u16,
    pub(super) dry_run: bool,
    pub(super) client: String,
    pub(super) method: String,
    pub(super) host: String,
    pub(super) path: String,
}
