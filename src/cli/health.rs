//! `weir health`: one question to the admin listener, for container health checks.

use clap::Args;

use super::admin::AdminOptions;

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask whether it takes requests, which it does not while it starts or stops
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    reach: AdminOptions,
}

/// Asks whether it works, or whether it is ready for requests; fails if the answer is not 200.
pub(super) fn run(flags: &HealthArgs) -> anyhow::Result<()> {
    let (path, well) = match flags.ready {
        true => ("/readyz", "ready"),
        false => ("/healthz", "well"),
    };
    let admin = flags.reach.admin()?;
    let yes = admin.says_yes(path)?;
    anyhow::ensure!(
        yes,
        "{} answers, but not that it is {well}",
        admin.address()
    );
    Ok(())
}
