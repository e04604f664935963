//! weir: a reverse proxy that decides what passes, what waits and what is turned away.

fn main() {}
