//! A real browser, driven over its debugging protocol.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tungstenite::{Message, WebSocket};

use super::process::Process;
use super::{Client, PATIENCE, eventually};

/// Headless Chromium with one page.
pub(crate) struct Browser {
    socket: WebSocket<TcpStream>,
    calls: u64,
    complaints: Vec<String>,
    _process: Process,
}

impl Browser {
    /// Opens a page on a screen of this size.
    pub(crate) fn open(url: &str, (width, height): (u32, u32)) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let profile = directory.path().to_owned();
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank");
        let process = Process::spawn("chromium", command, directory);
        let mut browser = Self {
            socket: connect(&profile),
            calls: 0,
            complaints: Vec::new(),
            _process: process,
        };
        for domain in ["Runtime", "Log", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 800 });
        browser.call("Emulation.setDeviceMetricsOverride", metrics);
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Light or dark, as a reader's system may be.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [feature] }),
        );
    }

    /// What an expression is on the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true on the page.
    pub(crate) fn until(&mut self, expression: &str) {
        // What it is about may not be there yet.
        let now = format!(
            "(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        );
        let deadline = Instant::now() + PATIENCE;
        while self.value(&now) != json!(true) {
            if Instant::now() > deadline {
                let page = self.value("document.body.innerText");
                let page = page.as_str().unwrap_or_default();
                panic!("never true: {expression}\n{:?}\n{page}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the page shows a text.
    pub(crate) fn until_shown(&mut self, text: &str) {
        self.until(&format!(
            "document.body.innerText.includes({})",
            json!(text)
        ));
    }

    /// Presses a key, with the mouse left alone; `text` is what it types, if anything.
    pub(crate) fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": if kind == "keyDown" { text } else { "" } });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types a text where the focus is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// What the page's console has complained about: scripts that failed, resources that were refused.
    pub(crate) fn complaints(&mut self) -> &[String] {
        self.value("0");
        &self.complaints
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let call = json!({ "id": self.calls, "method": method, "params": parameters });
        self.socket
            .send(Message::text(call.to_string()))
            .expect("chromium listens");
        loop {
            let message = self.socket.read().expect("chromium answers");
            let Ok(text) = message.to_text() else {
                continue;
            };
            let mut told: Value = serde_json::from_str(text).unwrap_or_default();
            if told["id"] == json!(self.calls) {
                assert!(told.get("error").is_none(), "{method}: {told}");
                return told["result"].take();
            }
            self.record_event(&told);
        }
    }

    fn record_event(&mut self, told: &Value) {
        match told["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(told["params"].to_string()),
            Some("Log.entryAdded") if told["params"]["entry"]["level"] == "error" => {
                self.complaints.push(told["params"]["entry"].to_string());
            }
            _ => {}
        }
    }
}

/// Finds the page that was opened and speaks with it.
fn connect(profile: &Path) -> WebSocket<TcpStream> {
    let mut port = None;
    eventually("chromium is ready", || {
        let told = std::fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        port = told
            .lines()
            .next()
            .and_then(|line| line.parse::<u16>().ok());
        port.is_some()
    });
    let address = SocketAddr::from(([127, 0, 0, 1], port.unwrap_or_default()));
    let mut found = None;
    eventually("chromium has a page", || {
        let mut client = Client::connect(address);
        client.send(format!("GET /json HTTP/1.1\r\nHost: {address}\r\n\r\n"));
        let pages = client.response().text();
        let pages: Value = serde_json::from_str(&pages).unwrap_or_default();
        let mut pages = pages.as_array().into_iter().flatten();
        found = pages
            .find(|page| page["type"] == "page")
            .and_then(|page| page["webSocketDebuggerUrl"].as_str().map(str::to_owned));
        found.is_some()
    });
    let stream = TcpStream::connect(address).expect("chromium listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    tungstenite::client(found.unwrap_or_default(), stream)
        .expect("the handshake")
        .0
}
