//! Many random requests over many random rules: the cases that no other test lists.
//!
//! At 1r/m nothing drains while a script runs, so both sides have to agree on every single verdict.

use super::{Ask, Pair, ask};

const KEYS: [(&str, &str); 4] = [
    ("address", "$binary_remote_addr"),
    ("a", "$arg_a"),
    ("b", "$arg_b"),
    ("both", "$arg_a$arg_b"),
];

/// A few locations, each with some of the zones in some order, in nginx's words and in ours.
fn locations(random: &mut fastrand::Rng, count: usize) -> (String, String) {
    let (mut nginx, mut weir) = (String::new(), String::new());
    for number in 0..count {
        let mut zones = KEYS.map(|(name, _)| name);
        random.shuffle(&mut zones);
        let dry_run = number == 0;
        nginx += &format!("location /{number}/ {{ proxy_pass http://ORIGIN; ");
        weir += &format!("  - path: /{number}/\n    proxy_pass: 'http://ORIGIN'\n    limit_req:\n");
        for zone in &zones[..random.usize(1..4)] {
            let burst = random.usize(..5);
            let with_burst = match burst {
                0 => String::new(),
                _ => format!("burst={burst}"),
            };
            nginx += &format!("limit_req zone={zone} {with_burst} nodelay; ");
            weir += &format!("    - {{ zone: {zone}, burst: {burst}, nodelay: true }}\n");
        }
        if dry_run {
            nginx += "limit_req_dry_run on; ";
            weir += "    limit_req_dry_run: true\n";
        }
        nginx += "}\n";
    }
    (nginx, weir)
}

fn pair(random: &mut fastrand::Rng, count: usize) -> Pair {
    let nginx_zones: String = KEYS
        .map(|(name, key)| format!("limit_req_zone {key} zone={name}:1m rate=1r/m;\n"))
        .concat();
    let weir_zones: String = KEYS
        .map(|(name, key)| format!("  {name}: {{ key: {key}, size: 1m, rate: 1r/m }}\n"))
        .concat();
    let (nginx, weir) = locations(random, count);
    Pair::start(
        &format!("{nginx_zones} limit_req_status 429; server {{ listen LISTEN; {nginx} }}"),
        &format!("limit_req_zones:\n{weir_zones}servers:\n- listen: LISTEN\n  locations:\n{weir}"),
    )
}

fn any_ask(random: &mut fastrand::Rng, locations: usize) -> Ask {
    let location = random.usize(..locations);
    // An empty value is an empty key: that zone does not count.
    let value = |random: &mut fastrand::Rng| random.choice(["", "1", "2", "3"]).expect("one");
    let (a, b) = (value(random), value(random));
    ask(&format!("/{location}/ok?a={a}&b={b}")).from(random.u8(1..6))
}

#[test]
fn any_mixture_of_rules_gives_the_same_verdicts() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pair = pair(&mut random, 4);
        let asks: Vec<_> = (0..150).map(|_| any_ask(&mut random, 4)).collect();
        let verdicts = pair.verdicts(&asks);
        let passed = verdicts.iter().filter(|status| **status == 200).count();
        assert!(
            (10..150).contains(&passed),
            "seed {seed}: {passed} of 150 passed"
        );
        assert_eq!(pair.origins[0].count(), pair.origins[1].count());
    }
}
