//! weir: a reverse proxy that decides what passes, what waits and what is turned away.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::main()
}
