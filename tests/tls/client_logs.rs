//! Client certificates in the access log, compared with the real nginx's.

use super::clients::{ask, issued};
use crate::support::{Nginx, Origin, Weir, eventually};

#[test]
fn the_access_log_has_the_error_of_a_certificate() {
    let certs = issued();
    let weir = Weir::start(&certs.filled(
        "log: { access: { path: '-', format: '$status $ssl_client_verify' } }
servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, crl: CERTS/crl.pem, verify_client: on }
    return: 204
",
    ));
    let http = certs.filled(
        "log_format own '$status $ssl_client_verify';
        server {
            listen LISTEN ssl; access_log /dev/stdout own;
            ssl_certificate CERTS/a.pem; ssl_certificate_key CERTS/a.key;
            ssl_client_certificate CERTS/ca.pem; ssl_crl CERTS/crl.pem; ssl_verify_client on;
            location / { return 204; }
        }",
    );
    let nginx = Nginx::before(&Origin::start(), &http);
    let mut expected = String::new();
    for (client, said) in [
        (None, "400 NONE"),
        (Some("good"), "204 SUCCESS"),
        (Some("late"), "400 FAILED:certificate has expired"),
        (Some("revoked"), "400 FAILED:certificate revoked"),
    ] {
        ask(&certs, nginx.address().port(), client);
        ask(&certs, weir.port(), client);
        expected = format!("{expected}{said}\n");
        let logs = || [nginx.stdout(), weir.stdout()];
        eventually(&format!("{said:?} in both logs"), || {
            logs().iter().all(|log| *log == expected)
        });
    }
}
