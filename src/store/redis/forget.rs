//! Letting a key begin anew for all gateways.

use std::time::Duration;

use redis::Value;

use super::{Shared, name};

/// Why nothing was forgotten.
#[derive(Debug, thiserror::Error)]
pub enum Unforgotten {
    /// The store said no, or could not be reached.
    #[error(transparent)]
    Failed(#[from] redis::RedisError),
    /// No answer came.
    #[error("no answer within {DEADLINE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl Shared {
    /// Forgets a key of a zone; whether there was something to forget. Over a connection of its own: who asks for this is
    /// no event loop, and in no hurry.
    ///
    /// # Errors
    /// When the store does not answer, or says no.
    pub async fn forget(&self, zone: &str, key: &[u8]) -> Result<bool, Unforgotten> {
        let mut named = Vec::new();
        name::append(&mut named, zone, key);
        let forgetting = async {
            let mut link = self.connector.connect().await?;
            let mut command = redis::cmd("DEL");
            command.arg(named);
            link.send(&command).await
        };
        let answer = tokio::time::timeout(DEADLINE, forgetting).await??;
        Ok(answer == Value::Int(1))
    }
}

const DEADLINE: Duration = Duration::from_secs(2);
