//! What a rule may say of requests that it does not let pass.

use crate::config::decode::choice;

choice! {
    /// What becomes of a request that is over a rate.
    pub struct OnExcess(Manner) = "something to do with what is too much" {
        "reject" => Manner::Reject,
        "delay" => Manner::Delay,
        "drop" => Manner::Drop,
    }
}

choice! {
    /// What becomes of a request that is one too many at once.
    pub struct OnCrowd(Manner) = "something to do with what is too much" {
        "reject" => Manner::Reject,
        "drop" => Manner::Drop,
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It waits.
    Delay,
    /// It is not answered.
    Drop,
    /// It is turned away.
    Reject,
}
