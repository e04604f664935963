//! `allow` and `deny` become one list in the order it is searched.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::sites::SettingLevels;
use crate::config::decode::{Field, List};
use crate::config::model;
use crate::config::plan::{AccessRules, ClientMatch};

/// Who may come in. Both lists come from the innermost level that gives either, as in nginx.
pub(super) fn compile(levels: SettingLevels<'_>) -> AccessRules {
    let Some(level) = levels
        .iter()
        .find(|settings| settings.allow.get().is_some() || settings.deny.get().is_some())
    else {
        return AccessRules::default();
    };
    let mut networks = Vec::new();
    for (list, permits) in [(&level.deny, false), (&level.allow, true)] {
        let other = if permits { &level.deny } else { &level.allow };
        for whom in whom(list) {
            match whom {
                model::AccessWord::Network(network) => {
                    networks.push((ClientMatch::Ip(network), permits))
                }
                model::AccessWord::Unix => networks.push((ClientMatch::Unix, permits)),
                model::AccessWord::All => {
                    networks.push((ClientMatch::Ip(IpNet::V4(Ipv4Net::default())), permits));
                    networks.push((ClientMatch::Ip(IpNet::V6(Ipv6Net::default())), permits));
                    // Being named is narrower than being one of all.
                    if !whom_is(other, model::AccessWord::Unix) {
                        networks.push((ClientMatch::Unix, permits));
                    }
                }
            }
        }
    }
    // Stable, and refusals were put in first: they stay first among equals.
    networks.sort_by_key(|(network, _)| match network {
        ClientMatch::Ip(net) => net.max_prefix_len() - net.prefix_len(),
        ClientMatch::Unix => 0,
    });
    networks.dedup();
    AccessRules {
        networks,
        refuse_others: level.allow.get().is_some(),
    }
}

fn whom(list: &Field<List<model::AccessWord>>) -> impl Iterator<Item = model::AccessWord> {
    list.value()
        .map_or(&[][..], |list| &list.0)
        .iter()
        .map(|whom| whom.value)
}

fn whom_is(list: &Field<List<model::AccessWord>>, wanted: model::AccessWord) -> bool {
    whom(list).any(|whom| whom == wanted)
}
