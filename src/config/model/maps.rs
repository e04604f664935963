//! `maps`: variables of the user's own.

use super::values::Flag;
use crate::config::decode::{Field, NamedMap, Text, record};

record! {
    /// A variable made from others: nginx's `map` or `geo`.
    pub struct MapDirective {
        /// Look this text of variables up among `values`: exact (case does not matter), then `~expr` and `~*expr` in order.
        map: Field<Text>,
        /// Look this address up among `values`, which are networks: the longest prefix wins.
        geo: Field<Text>,
        /// What it becomes when nothing matches. Default: empty.
        default: Field<Text>,
        /// The keys of `values` are host names: `*.example.com`, `.example.com` and `www.example.*` have their meaning. Default: false.
        hostnames: Field<Flag>,
        /// What becomes what. The values may be texts of variables.
        values: Field<NamedMap<Text>>,
    }
}
