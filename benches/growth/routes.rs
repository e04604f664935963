//! Finding the server and the location of a request.

use std::hint::black_box;

use weir::config::plan::PathRule;
use weir::config::plan::ServerName;
use weir::route::Hosts;
use weir::route::Locations;

use crate::axis;

type Expression = regex::bytes::Regex;
type Kind = (&'static str, fn(usize) -> PathRule);

pub(crate) fn names() {
    let sizes = [1, 10, 100, 1_000, 10_000];
    let exact = |size: usize| {
        let name = |number| ServerName::Exact(format!("host{number}.example.com").into());
        let hosts = Hosts::build((0..size).map(|number| (name(number), number)), 0);
        (hosts, format!("host{}.example.com", size - 1))
    };
    axis("server names", &sizes, exact, |(hosts, host), _| {
        black_box(hosts.find(host.as_bytes()));
    });
    let suffix = |size: usize| {
        let name = |number| ServerName::Suffix(format!(".host{number}.example.com").into());
        let hosts = Hosts::build((0..size).map(|number| (name(number), number)), 0);
        (hosts, format!("www.host{}.example.com", size - 1))
    };
    let title = "server names with a star in front";
    axis(title, &sizes, suffix, |(hosts, host), _| {
        black_box(hosts.find(host.as_bytes()));
    });
}

pub(crate) fn locations() {
    let kinds: [Kind; 3] = [
        ("locations", |number| {
            PathRule::Prefix(format!("/api/service{number}/").into())
        }),
        ("exact locations", |number| {
            PathRule::Exact(format!("/api/service{number}/list").into())
        }),
        ("locations by expression, the last matches", |number| {
            let expression = Expression::new(&format!("^/api/service{number}/"));
            PathRule::Expression(expression.expect("it is one"))
        }),
    ];
    for (title, rule) in kinds {
        let make = |size: usize| {
            let all = Locations::build((0..size).map(|number| (rule(number), number)));
            (all, format!("/api/service{}/list", size - 1))
        };
        axis(title, &[1, 10, 100, 1_000], make, |(all, path), _| {
            black_box(all.find(path.as_bytes()));
        });
    }
}
