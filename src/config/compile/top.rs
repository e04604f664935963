//! What there is one of: workers, the log, the admin listener.

use std::net::{Ipv4Addr, SocketAddr};

use super::Compiler;
use super::templates::TemplatePhase;
use crate::config::decode::{OrOff, Spanned, Text};
use crate::config::model;
use crate::config::near;
use crate::config::plan::{AccessLog, Admin, Log, LogFormat, LogPath};

impl Compiler<'_> {
    /// `workers`
    pub(super) fn workers(&self) -> usize {
        self.config
            .workers
            .value()
            .and_then(|workers| workers.0)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// `log`
    pub(super) fn log(&mut self) -> Log {
        let log = self.config.log.value();
        let access = log.and_then(|log| log.access.value());
        let error = log.and_then(|log| log.error.value());
        let level = log.and_then(|log| log.level.get());
        let own = error.and_then(|error| error.level.get());
        if let (Some(_), Some(second)) = (level, own) {
            let sentence = "`log.level` and `log.error.level` mean the same; give one of them";
            self.complain(second.span, sentence);
        }
        let path = error.and_then(|error| error.path.get());
        Log {
            level: own
                .or(level)
                .map_or(tracing::Level::INFO, |level| level.value.0),
            error: match path.map(|path| self.log_path(path, "`-` is standard error")) {
                None | Some(LogPath::Stdout) => None,
                Some(LogPath::File(path)) => Some(path),
            },
            access: match access {
                None => Some(self.access_log(&model::AccessLog::default())),
                Some(OrOff::Off) => None,
                Some(OrOff::On(access)) => Some(self.access_log(access)),
            },
        }
    }

    fn access_log(&mut self, access: &model::AccessLog) -> AccessLog {
        let path = match access.path.get() {
            None => LogPath::Stdout,
            Some(path) => self.log_path(
                path,
                "`-` is standard output; `access: off` is no log at all",
            ),
        };
        let format = access
            .format
            .get()
            .map_or(LogFormat::Combined, |format| self.log_format(format));
        AccessLog { path, format }
    }

    /// A file, or the stream that is written `-`.
    fn log_path(&mut self, path: &Spanned<Text>, hint: &str) -> LogPath {
        match path.value.text.as_str() {
            "-" => LogPath::Stdout,
            text => {
                if text.is_empty() {
                    self.complain_with(path.span, "an empty path", hint);
                }
                LogPath::File(text.into())
            }
        }
    }

    fn log_format(&mut self, format: &Spanned<Text>) -> LogFormat {
        match format.value.text.as_str() {
            "combined" => LogFormat::Combined,
            "json" => LogFormat::Json,
            text => {
                // A text without variables would write the same line for ever; a name was meant.
                if !text.contains('$') {
                    let hint = near::hint(text, ["combined", "json"]).unwrap_or_else(|| {
                        "expected `combined`, `json` or a text of variables".to_owned()
                    });
                    self.complain_with(format.span, format!("unknown log format `{text}`"), hint);
                }
                LogFormat::Text(self.template(format, TemplatePhase::After))
            }
        }
    }

    /// `admin`
    pub(super) fn admin(&mut self) -> Option<Admin> {
        let admin = self.config.admin.value()?;
        let listen = admin.listen.value().map_or_else(
            || SocketAddr::from((Ipv4Addr::LOCALHOST, 9900)),
            |listen| listen.0,
        );
        let token = admin.token.get();
        if let Some(token) = token.filter(|token| token.value.expose().trim().is_empty()) {
            self.complain_with(
                token.span,
                "an empty token",
                "leave `token` out, or give one nobody can guess",
            );
        }
        if let Some(given) = admin
            .listen
            .get()
            .filter(|_| !listen.ip().is_loopback() && token.is_none())
        {
            self.warn(
                given.span,
                "nobody off this machine can use this listener",
                "calls from elsewhere have to show a `token`, and there is none",
            );
        }
        Some(Admin {
            listen,
            token: token.map(|token| token.value.clone()),
        })
    }
}
