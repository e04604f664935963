//! `allow` and `deny` become one list in the order it is searched.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::sites::Levels;
use crate::config::decode::{Field, List};
use crate::config::model;
use crate::config::plan::{Access, Network};

/// Who may come in. Both lists come from the innermost level that gives either, as in nginx.
pub(super) fn compile(levels: Levels<'_>) -> Access {
    let Some(level) = levels
        .iter()
        .find(|settings| settings.allow.get().is_some() || settings.deny.get().is_some())
    else {
        return Access::default();
    };
    let mut networks = Vec::new();
    for (list, permits) in [(&level.deny, false), (&level.allow, true)] {
        let other = if permits { &level.deny } else { &level.allow };
        for whom in whom(list) {
            match whom {
                model::Access::Network(network) => networks.push((Network::Ip(network), permits)),
                model::Access::Unix => networks.push((Network::Unix, permits)),
                model::Access::All => {
                    networks.push((Network::Ip(IpNet::V4(Ipv4Net::default())), permits));
                    networks.push((Network::Ip(IpNet::V6(Ipv6Net::default())), permits));
                    // Being named is narrower than being one of all.
                    if !whom_is(other, model::Access::Unix) {
                        networks.push((Network::Unix, permits));
                    }
                }
            }
        }
    }
    // Stable, and refusals were put in first: they stay first among equals.
    networks.sort_by_key(|(network, _)| match network {
        Network::Ip(net) => net.max_prefix_len() - net.prefix_len(),
        Network::Unix => 0,
    });
    networks.dedup();
    Access {
        networks,
        refuse_others: level.allow.get().is_some(),
    }
}

fn whom(list: &Field<List<model::Access>>) -> impl Iterator<Item = model::Access> {
    list.value()
        .map_or(&[][..], |list| &list.0)
        .iter()
        .map(|whom| whom.value)
}

fn whom_is(list: &Field<List<model::Access>>, wanted: model::Access) -> bool {
    whom(list).any(|whom| whom == wanted)
}
