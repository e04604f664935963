//! Apache: redirects that name the host, and WebDAV, whose MOVE names it as well.

use std::net::SocketAddr;
use std::process::Command;

use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::{Client, Weir, get};

/// A running Apache with `mod_dav` over a directory of its own, in which there is a folder `sub`.
pub(super) struct Apache {
    process: Process,
    port: Port,
}

impl Apache {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let port = Port::claim();
        let home = directory.path().display().to_string();
        std::fs::create_dir_all(directory.path().join("files/sub")).expect("it can be written");
        // Started by root it serves as another user, who needs access to the folder.
        let open = Command::new("chmod").args(["-R", "a+rwX", &home]).status();
        assert!(open.is_ok_and(|status| status.success()));
        let modules = [
            "mpm_event",
            "authz_core",
            "dir",
            "dav",
            "dav_fs",
            "setenvif",
        ];
        let modules = modules.map(|name| {
            format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n")
        });
        let config = format!(
            "{}ServerRoot {home}\nServerName backend.invalid\nListen {}\nPidFile {home}/pid\nErrorLog {home}/error\n\
            User www-data\nGroup www-data\nDocumentRoot {home}/files\nDavLockDB {home}/locks\n\
            <Directory {home}/files>\nDav On\nRequire all granted\n</Directory>\n",
            modules.concat(),
            port.address(),
        );
        let file = directory.path().join("apache.conf");
        std::fs::write(&file, config).expect("the directory can be written");
        let mut command = Command::new("/usr/sbin/apache2");
        command.arg("-DFOREGROUND").arg("-f").arg(file);
        let mut process = Process::spawn("apache", command, directory);
        assert!(process.accepts(port.address()), "{}", process.file("error"));
        Self { process, port }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// weir before it, with more settings for its one server.
    fn before(&self, settings: &str) -> Weir {
        let yaml = format!("servers: [{{ listen: LISTEN, {settings} }}]");
        Weir::start(&yaml.replace("BACKEND", &self.address().to_string()))
    }
}

/// A client that says its own name for the gateway.
fn ask(weir: &Weir, request: &str) -> crate::support::client::Response {
    let mut client = Client::connect(weir.address());
    let host = format!("gateway.test:{}", weir.port());
    client.send(request.replace("HOST", &host).replace('\n', "\r\n"));
    client.response()
}

#[test]
fn a_redirect_leads_back_to_the_gateway() {
    let apache = Apache::start();
    let weir = apache.before("proxy_pass: 'http://BACKEND'");
    let response = ask(&weir, "GET /sub HTTP/1.1\nHost: HOST\n\n");
    assert_eq!(response.status, 301);
    let expected = format!("http://gateway.test:{}/sub/", weir.port());
    assert_eq!(response.get("location"), Some(expected.as_str()));
}

#[test]
fn a_redirect_leads_back_to_the_gateway_where_host_is_the_backends() {
    let apache = Apache::start();
    let weir = apache.before(
        "proxy_set_header: { Host: $proxy_host }, proxy_pass: 'http://BACKEND',
        locations: [
            { path: /one/, proxy_pass: 'http://BACKEND/' },
            { path: /off/, proxy_redirect: off, proxy_pass: 'http://BACKEND/' },
            { path: /own/, proxy_redirect: ['~^http://[^/]+/(?<rest>.*)', 'https://$host/x/$rest'], proxy_pass: 'http://BACKEND/' },
        ]",
    );
    let location = |path: &str| {
        let response = ask(&weir, &format!("GET {path} HTTP/1.1\nHost: HOST\n\n"));
        assert_eq!(response.status, 301, "{path}");
        response.get("location").unwrap_or_default().to_owned()
    };
    assert_eq!(location("/sub"), "/sub/");
    assert_eq!(location("/one/sub"), "/one/sub/");
    let backend = apache.port.address();
    assert_eq!(location("/off/sub"), format!("http://{backend}/sub/"));
    assert_eq!(location("/own/sub"), "https://gateway.test/x/sub/");
}

#[test]
fn a_redirect_below_another_path_keeps_that_path() {
    let apache = Apache::start();
    let weir = apache.before("locations: [{ path: /one/, proxy_pass: 'http://BACKEND/' }]");
    let response = ask(&weir, "GET /one/sub HTTP/1.1\nHost: HOST\n\n");
    let expected = format!("http://gateway.test:{}/one/sub/", weir.port());
    assert_eq!(response.get("location"), Some(expected.as_str()));
}

/// The destination has to be on the host that is asked, or Apache answers 502.
#[test]
fn a_webdav_move_stays_on_its_host() {
    let apache = Apache::start();
    let weir = apache.before("proxy_pass: 'http://BACKEND'");
    let put = "PUT /a.txt HTTP/1.1\nHost: HOST\nContent-Length: 5\n\nhello";
    assert_eq!(ask(&weir, put).status, 201);
    let moved = "MOVE /a.txt HTTP/1.1\nHost: HOST\nDestination: http://HOST/b.txt\n\n";
    assert_eq!(
        ask(&weir, moved).status,
        201,
        "{}",
        apache.process.file("error")
    );
    assert_eq!(get(weir.address(), "/a.txt").status, 404);
    assert_eq!(get(weir.address(), "/b.txt").text(), "hello");
}
