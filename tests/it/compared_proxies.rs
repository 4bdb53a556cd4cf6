//! Random `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, and the proxies of URLs, compared with Go's
//! `golang.org/x/net/http/httpproxy`, which kube-apiserver's clients use.

use http::Uri;
use portcullis::internal::ProxyRules;
use serde_json::json;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

#[derive(Debug)]
struct Case {
    https: String,
    http: String,
    no_proxy: String,
    url: String,
}

const HOSTS: &[&str] = &[
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.test",
    "A.Test",
    "b.a.test",
    "ba.test",
    "test",
    "a.test.",
    "svc",
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "10.1.2.3",
    "11.0.0.1",
    "192.168.0.1",
    "[::1]",
    "[fd00::1]",
    "[fd12::9]",
    "[::ffff:10.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a00:1]",
    "[::]",
    "0.0.0.0",
    "10.0.0.01",
    "10.1",
    "name_1.svc",
    "kubernetes.default.svc",
    "x.kubernetes.default.svc",
];

const ENTRIES: &[&str] = &[
    "",
    " ",
    "*",
    "a.test",
    ".a.test",
    "*.a.test",
    "A.TEST",
    "test",
    ".test",
    "*.test",
    "*test",
    "a.*",
    ".",
    "..",
    "*.",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.0/08",
    "10.0.0.0/33",
    "10.0.0.0/",
    "/8",
    "10.0.0.0/8/8",
    "10.0.0.1/32",
    "0/0",
    "0.0.0.0/0",
    "::/0",
    "fd00::/8",
    "::ffff:0:0/96",
    "::ffff:10.0.0.0/104",
    "::ffff:0:0/90",
    "::ffff:10.0.0.1",
    "fd00::1",
    "[fd00::1]",
    "[fd00::1]:443",
    "[::1]",
    "10.0.0.1:443",
    "10.0.0.1:80",
    "10.0.0.1:",
    "a.test:443",
    "a.test:8443",
    "a.test:",
    ":443",
    ".a.test:443",
    "*.a.test:443",
    "*:443",
    "a.test:b:443",
    "[a.test]:443",
    "[a.test",
    "a]:1",
    "[[::1]]:2",
    "svc",
    ".svc",
    "cluster.local",
    "localhost",
    "fe80::1%eth0",
    "fe80::/10",
    "127.0.0.1",
    "a .test",
    "\ta.test\t",
    "default.svc",
    "name_1.svc",
    "10.0.0.01",
    "1",
    "+8",
    "10.0.0.0/+8",
];

const PROXIES: &[&str] = &[
    "",
    "proxy.test",
    "proxy.test:3128",
    "http://proxy.test",
    "http://proxy.test:3128",
    "https://proxy.test",
    "https://proxy.test:8443/path?query",
    "socks5://proxy.test",
    "socks5h://proxy.test",
    "socks5://u:p@proxy.test:1081",
    "http://user:pass@proxy.test",
    "user:pass@proxy.test:1",
    "http://us%40er:p%3Aa%25ss@proxy.test",
    "http://user@proxy.test",
    "http://:pass@proxy.test",
    "http://[fd00::1]:3128",
    "[fd00::1]:3128",
    "http://10.0.0.1",
    "10.0.0.1:8080",
    "HTTP://PROXY.test",
    "ftp://proxy.test",
    "http://",
    "http:",
    "http:proxy.test",
    "//proxy.test",
    "/proxy",
    "%",
    "http://%",
    "http://proxy.test:x",
    "http://proxy.test:99999",
    "http://a b",
    "proxy.test:",
    "http://proxy.test:",
    "://",
    "proxy_1.test:3128",
    "http://u:p:q@h",
    "localhost:3128",
    "http://proxy.test#x",
];

fn case(rng: &mut Rng) -> Case {
    let count = rng.below(4);
    let entries: Vec<&str> = (0..count).map(|_| *rng.pick(ENTRIES)).collect();
    let no_proxy = entries.join(if rng.one_in(4) { " , " } else { "," });
    let scheme = if rng.one_in(6) { "http" } else { "https" };
    let port = *rng.pick(&["", "", ":443", ":8443", ":80"]);
    let proxy = |rng: &mut Rng| {
        if rng.one_in(3) { "proxy.test:3128".to_owned() } else { (*rng.pick(PROXIES)).to_owned() }
    };
    let url = format!("{scheme}://{}{port}/path", rng.pick(HOSTS));
    Case { https: proxy(rng), http: proxy(rng), no_proxy, url }
}

#[test]
fn proxies_are_chosen_as_by_go() {
    let Some(program) = GoProgram::build("proxies") else { return };
    let mut rng = Rng(seed());
    let cases: Vec<Case> = (0..inputs(20_000)).map(|_| case(&mut rng)).collect();
    let question =
        |case: &Case| json!({"https": case.https, "http": case.http, "no": case.no_proxy, "url": case.url});
    let words = program.compare(
        "proxies",
        &cases,
        question,
        |case| format!("{case:?}"),
        |case, answer| {
            let rules = ProxyRules::from_variables(|name| match name {
                "HTTPS_PROXY" => Some(case.https.clone()),
                "HTTP_PROXY" => Some(case.http.clone()),
                "NO_PROXY" => Some(case.no_proxy.clone()),
                _ => None,
            });
            let url: Uri = case.url.parse().unwrap();
            let scheme = url.scheme_str().unwrap();
            let port = url.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
            let host = url.host().unwrap().trim_matches(['[', ']']);
            let theirs = answer["proxy"].as_str().unwrap();
            let ours = rules.proxy(scheme, host, port);
            match ours {
                Ok(None) if theirs.is_empty() => Ok("direct"),
                Ok(Some(proxy)) => {
                    let (user, password) = proxy.user_and_password();
                    let own = proxy.to_string();
                    let known = theirs.replace("socks5h:", "socks5:");
                    if (own.as_str(), user, password)
                        == (
                            known.as_str(),
                            answer["user"].as_str().unwrap(),
                            answer["password"].as_str().unwrap(),
                        )
                    {
                        Ok("by a proxy")
                    } else {
                        Err(format!("ours: {own}, Go: {answer}"))
                    }
                }
                // Go asks such a proxy, and its client cannot connect.
                Err(_) if !theirs.is_empty() => Ok("a proxy that cannot be used"),
                ours => Err(format!("ours: {ours:?}, Go: {answer}")),
            }
        },
    );
    words.occurred(&["direct", "by a proxy", "a proxy that cannot be used"]);
}
