//! Letting a key begin anew for all gateways.

use std::sync::Weak;
use std::time::Duration;

use redis::Value;

use super::fleet::ResetKey;
use super::{SharedStore, name};

/// Keys of a zone that can be forgotten.
pub trait ForgetKeys: Send + Sync {
    /// The zone's name.
    fn zone(&self) -> &str;

    /// Forgets what is known in this process of a key of these bytes.
    fn forget_bytes(&self, bytes: &[u8]);
}

/// Why nothing was forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// The store said no, or could not be reached.
    #[error(transparent)]
    Failed(#[from] redis::RedisError),
    /// No answer came.
    #[error("no answer within {DEADLINE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl SharedStore {
    /// Forgets a key of a zone; whether there was something to forget. Over a connection of its own: who asks for this is
    /// no event loop, and in no hurry.
    ///
    /// # Errors
    /// When the store does not answer, or says no.
    pub async fn forget(&self, zone: &str, key: &[u8]) -> Result<bool, ResetError> {
        let mut named = Vec::new();
        name::append(&mut named, &self.prefix, zone, key);
        let forgetting = async {
            let mut link = self.connector.connect().await?;
            // First of all: no gateway may bring back what it remembers of the key.
            let mut command = redis::cmd("SET");
            let anew = [&named[..], b":anew"].concat();
            command.arg(anew).arg("1").arg("PX").arg(ANEW);
            link.send(&command).await?;
            let mut command = redis::cmd("DEL");
            command.arg(named);
            let answer = link.send(&command).await?;
            self.lists.forget(&mut link, zone, key).await?;
            Ok::<_, redis::RedisError>(answer)
        };
        let answer = tokio::time::timeout(DEADLINE, forgetting).await??;
        Ok(answer == Value::Int(1))
    }

    /// The keys of this zone are forgotten here, too, when they are anywhere.
    pub fn forget_in(&self, zone: Weak<dyn ForgetKeys>) {
        let mut zones = self.forgetting.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        zones.push(zone);
    }

    /// An operator had these forgotten at some gateway.
    pub(super) fn forget_here(&self, forgotten: &[ResetKey]) {
        if forgotten.is_empty() {
            return;
        }
        let zones: Vec<_> = self
            .forgetting
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for one in forgotten {
            for zone in zones.iter().filter(|zone| zone.zone() == one.zone) {
                zone.forget_bytes(&one.key);
            }
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(2);

/// For how long nothing is believed that gateways remember of a key that was forgotten, in milliseconds.
const ANEW: u32 = 3_600_000;
