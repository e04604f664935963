//! A terminal with a program in it: tmux keeps the screen and presses the keys.

use std::process::{Command, Output};

use tempfile::TempDir;

use super::eventually;

/// A terminal of 80 columns and 24 rows, until it is resized. Whatever runs in it ends with it.
#[derive(Debug)]
pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// Opens one and runs a line of shell in it.
    pub(crate) fn run(line: &str) -> Self {
        let terminal = Self {
            directory: tempfile::tempdir().expect("the temporary directory can be written"),
        };
        let opened = terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            line,
        ]);
        assert!(opened.status.success(), "{opened:?}");
        terminal
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p"]))
    }

    /// The same with colours.
    pub(crate) fn colours(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p", "-e"]))
    }

    /// Waits until this is on the screen, and gives all of it.
    pub(crate) fn shows(&self, what: &str) -> String {
        let mut screen = String::new();
        eventually(&format!("{what:?} on the screen"), || {
            let before = std::mem::replace(&mut screen, self.screen());
            // Only where it stays for a moment is all of it drawn.
            screen.contains(what) && before == screen
        });
        screen
    }

    /// Presses keys, by the names tmux has for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        let pressed = self.tmux(&arguments);
        assert!(pressed.status.success(), "{pressed:?}");
    }

    pub(crate) fn resize(&self, columns: &str, rows: &str) {
        let resized = self.tmux(&["resize-window", "-x", columns, "-y", rows]);
        assert!(resized.status.success(), "{resized:?}");
    }

    /// One of tmux's variables.
    pub(crate) fn state(&self, variable: &str) -> String {
        let asked = self.tmux(&["display-message", "-p", &format!("#{{{variable}}}")]);
        text(&asked).trim().to_owned()
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux")
            .arg("-u")
            .arg("-S")
            .arg(self.directory.path().join("tmux"))
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX")
            .output()
            .expect("tmux can be run")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let screen = self.screen();
            std::io::Write::write_all(&mut std::io::stderr(), screen.as_bytes()).ok();
        }
        self.tmux(&["kill-server"]);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
