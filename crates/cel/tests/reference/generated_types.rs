//! Random texts of the types of Kubernetes' libraries, valid and half valid.

use testkit::random::Rng;

use super::conditions::case;
use super::{Case, Purpose, generated_values};

/// A literal of CEL.
fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || " .:/-_%+?#&=@[]()<>,;!*$|^~`{}\"".contains(c) {
            out.push(c);
        } else {
            out.extend(format!("\\U{:08x}", u32::from(c)).chars());
        }
    }
    out.push('\'');
    out
}

/// Up to `most` and one parts.
fn soup(rng: &mut Rng, parts: &[&str], most: usize) -> String {
    (0..=rng.below(most)).map(|_| *rng.pick(parts)).collect()
}

/// A text with up to two characters inserted, removed or replaced.
fn mutate(rng: &mut Rng, text: &str, alphabet: &[&str]) -> String {
    let mut chars: Vec<String> = text.chars().map(|c| c.to_string()).collect();
    for _ in 0..rng.below(3) {
        let at = rng.below(chars.len() + 1);
        match rng.below(3) {
            0 => chars.insert(at, (*rng.pick(alphabet)).to_owned()),
            1 if at < chars.len() => drop(chars.remove(at)),
            _ if at < chars.len() => (*rng.pick(alphabet)).clone_into(&mut chars[at]),
            _ => {}
        }
    }
    chars.concat()
}

const URL_PARTS: &[&str] = &[
    "http",
    "https",
    "HTTP",
    "ftp",
    "a",
    "Z",
    "é",
    "日",
    ":",
    "/",
    "//",
    "?",
    "#",
    "&",
    "=",
    "@",
    "%20",
    "%2F",
    "%2f",
    "%",
    "%zz",
    "%25",
    "[",
    "]",
    "::1",
    "[::1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "127.0.0.1",
    "example.com",
    ":80",
    ":",
    ":x",
    "+",
    ";",
    ",",
    "!",
    "*",
    "(",
    ")",
    "'",
    "$",
    "~",
    "-",
    "_",
    ".",
    "..",
    " ",
    "\t",
    "\u{7f}",
    "\"",
    "<",
    ">",
    "\\",
    "^",
    "`",
    "{",
    "|",
    "}",
    "user:pw@",
    "user@",
    "k=v",
    "k=v1&k=v2",
    "%C3%A9",
    "%FF",
    "mailto:",
    "urn:",
    "0",
    "1",
    "[1.2.3.4]",
    "[::ffff:1.2.3.4]",
    "\u{0}",
    "%00",
    "😀",
    "\u{301}",
];
const URLS: &[&str] = &[
    "https://user:pw@example.com:8080/a/b%20c?k=v&k=w&x=%20y+z#frag",
    "http://[::1]:80/",
    "/path?query#fragment",
    "http://example.com",
    "https://[fe80::1%25en0]:443/x",
    "urn:a:b",
    "mailto:a@b",
    "//host/path",
    "http://a:b:c/",
    "http://host:/",
    "*",
    "http://a/?a=1;b=2&c",
    "http://h/%41%zz?%zz=1&=&&a==b",
    "HTTPS://EXAMPLE.com/A",
    "http://ex ample/",
    "http://é.com/日本?ü=ß#ö",
];
const ALPHABET: &[&str] = &[
    "a", "0", ":", "/", "?", "#", "%", "%2", "@", "[", "]", ".", "&", "=", ";", "+", " ", "é", "-", "<",
    "\"", "'", "\u{a0}", "%C3%28", "^", "|", "\u{85}", "\n",
];

fn urls(rng: &mut Rng) -> String {
    let text = if rng.one_in(2) {
        soup(rng, URL_PARTS, 8)
    } else {
        let base = *rng.pick(URLS);
        mutate(rng, base, ALPHABET)
    };
    let text = if rng.one_in(3) { format!("http://{text}") } else { text };
    let text = quoted(&text);
    match rng.below(12) {
        0 => format!("isURL({text})"),
        1 => format!("url({text})"),
        2 => format!("url({text}) == url({})", quoted(*rng.pick::<&str>(URLS))),
        3 => format!("url({text}).getScheme()"),
        4 => format!("url({text}).getHost()"),
        5 => format!("url({text}).getHostname()"),
        6 => format!("url({text}).getPort()"),
        7 => format!("url({text}).getEscapedPath()"),
        8 => format!("format.uri().validate({text})"),
        9 => format!(
            "[url({text})].map(u, [u.getHost(), u.getHostname(), u.getPort(), u.getEscapedPath(), u.getScheme()])"
        ),
        _ => format!("url({text}).getQuery()"),
    }
}

const VERSIONS: &[&str] = &[
    "1.2.3",
    "v1.2.3",
    "1.2",
    "1",
    "v1",
    "01.02.03",
    "1.2.3-alpha.1+build.5",
    "1.0.0-rc.1",
    "1.0.0-01",
    "1.0.0+01",
    "1.2.3-",
    "1.2.3+",
    "18446744073709551615.0.0",
    "18446744073709551616.0.0",
    "9223372036854775808.1.1",
    "1.0.0-a.b.c",
    "1.0.0-1",
    "1.0.0-1.1",
    "1.0.0-a.1",
    "1.0.0-99999999999999999999",
    "1.2.3-a+b-c",
    "1.2.3+a-b",
    "1.2.3-é",
    "1.2.3-a..b",
    "000.0.0",
    "v00.00.00-0",
    "1.2-a",
    "1+b",
];
const VERSION_PARTS: &[&str] = &[
    "0",
    "1",
    "2",
    "10",
    "00",
    "9",
    ".",
    ".",
    ".",
    "-",
    "+",
    "a",
    "rc",
    "v",
    "alpha",
    "é",
    " ",
    "-1",
    "18446744073709551615",
    "_",
    "٣",
];

fn version(rng: &mut Rng) -> String {
    let text = if rng.one_in(3) {
        soup(rng, VERSION_PARTS, 9)
    } else {
        let base = *rng.pick(VERSIONS);
        mutate(rng, base, VERSION_PARTS)
    };
    quoted(&text)
}

fn versions(rng: &mut Rng) -> String {
    let (left, right) = (version(rng), version(rng));
    let flag = *rng.pick(&["", ", true", ", false"]);
    match rng.below(9) {
        0 => format!("isSemver({left}{flag})"),
        1 | 2 => format!("semver({left}{flag})"),
        3 => format!("semver({left}, true).compareTo(semver({right}, true))"),
        4 => format!("semver({left}, true).isLessThan(semver({right}, true))"),
        5 => format!("semver({left}, true).isGreaterThan(semver({right}, true))"),
        6 => format!("semver({left}, true) == semver({right}, true)"),
        7 => format!("[semver({left}{flag})].map(v, [v.major(), v.minor(), v.patch()])"),
        _ => format!("semver({left}) in [semver({right}), semver({left})]"),
    }
}

const ADDRESSES: &[&str] = &[
    "127.0.0.1",
    "::1",
    "::",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "169.254.1.1",
    "fe80::1",
    "ff02::1",
    "ff01::1",
    "2001:db8::1",
    "2001:DB8::1",
    "::ffff:1.2.3.4",
    "::ffff:102:304",
    "1.2.3",
    "01.2.3.4",
    "1::2::3",
    "1:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:1.2.3.4",
    "fe80::1%eth0",
    "10.0.0.1",
    "::1.2.3.4",
    "0:0:0:0:0:0:0:1",
    "1:0:0:2:0:0:0:3",
    "1:0:0:2:0:0:3:4",
    "1:2:3:4:5:6:7::",
    "239.1.2.3",
    "ff12::1",
    "ff32::1",
    "febf::1",
    "fec0::1",
    "::ffff:0:0",
];
const ADDRESS_PARTS: &[&str] = &[
    "0", "1", "f", "ff", "FE80", "255", "256", ":", "::", ".", "%", "/", "é", " ", "12345", "+", "-", "00",
    "g", "\u{661}",
];

fn address(rng: &mut Rng) -> String {
    if rng.one_in(4) {
        soup(rng, ADDRESS_PARTS, 12)
    } else {
        let base = *rng.pick(ADDRESSES);
        if rng.one_in(3) { base.to_owned() } else { mutate(rng, base, ADDRESS_PARTS) }
    }
}

fn network(rng: &mut Rng) -> String {
    let bits = *rng.pick(&[
        "0",
        "1",
        "8",
        "24",
        "31",
        "32",
        "33",
        "64",
        "127",
        "128",
        "129",
        "",
        "00",
        "08",
        "+8",
        "-1",
        " 8",
        "8 ",
        "/8",
        "x",
        "999999999999",
        "é",
        "256",
    ]);
    if rng.one_in(12) {
        address(rng)
    } else {
        format!("{}/{bits}", if rng.one_in(2) { (*rng.pick(ADDRESSES)).to_owned() } else { address(rng) })
    }
}

fn addresses(rng: &mut Rng) -> String {
    let (one, two, net, other) =
        (quoted(&address(rng)), quoted(&address(rng)), quoted(&network(rng)), quoted(&network(rng)));
    match rng.below(16) {
        0 => format!("isIP({one})"),
        1 => format!("ip({one})"),
        2 => format!("ip.isCanonical({one})"),
        3 => format!(
            "[ip({one})].map(i, [i.isUnspecified(), i.isLoopback(), i.isLinkLocalMulticast(), i.isLinkLocalUnicast(), i.isGlobalUnicast()])"
        ),
        4 => format!("ip({one}).family()"),
        5 => format!("ip({one}) == ip({two})"),
        6 => format!("isCIDR({net})"),
        7 => format!("cidr({net})"),
        8 => format!("cidr({net}).masked()"),
        9 => format!("string(cidr({net})) + string(ip({one}))"),
        10 => format!("cidr({net}).containsIP({one})"),
        11 => format!("cidr({net}).containsIP(ip({one}))"),
        12 => format!("cidr({net}).containsCIDR({other})"),
        13 => format!("cidr({net}).containsCIDR(cidr({other}))"),
        14 => format!("[cidr({net})].map(c, [dyn(c.ip()), dyn(c.prefixLength()), dyn(c.masked() == c)])"),
        _ => format!("cidr({net}) == cidr({other})"),
    }
}

const FORMATS: &[&str] = &[
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];
const FORMAT_PARTS: &[&str] = &[
    "a",
    "b",
    "Z",
    "0",
    "9",
    "-",
    ".",
    "_",
    "/",
    "=",
    "+",
    "é",
    "İ",
    "K",
    "ſ",
    " ",
    "\n",
    "\r\n",
    "T",
    "t",
    "z",
    "Z",
    ":",
    "2024-02-29",
    "12:34:56",
    "12345678-1234-1234-1234-123456789abc",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "YWJj",
    "==",
    "+01:00",
    ".5",
    "\u{0}",
    "%20",
    "日",
    "--",
    "..",
    "2024-02-29T12:34:56Z",
    "{",
    "}",
];
const FORMAT_TEXTS: &[&str] = &[
    "2024-02-29T12:34:56.789Z",
    "2024-02-29T12:34:56+01:00",
    "2024-02-29",
    "12345678-1234-1234-1234-123456789abc",
    "123456781234123412341234567890ab",
    "YWJjZA==",
    "example.com/My_Name",
    "my-name",
    "a.b-c.d",
    "MyValue",
    "http://a/b",
    "0001-01-01",
    "9999-12-31T23:59:59,5z",
];

fn formats(rng: &mut Rng) -> String {
    let text = if rng.one_in(2) {
        soup(rng, FORMAT_PARTS, 6)
    } else {
        let base = *rng.pick(FORMAT_TEXTS);
        mutate(rng, base, FORMAT_PARTS)
    };
    format!("format.{}().validate({})", *rng.pick::<&str>(FORMATS), quoted(&text))
}

/// The kinds of expressions.
pub(super) const KINDS: [fn(&mut Rng) -> String; 5] =
    [urls, versions, addresses, formats, generated_values::mixed];

pub(super) fn expressions(kind: fn(&mut Rng) -> String, seed: u64, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    (0..count).map(|_| case(Purpose::Admission, &kind(&mut rng))).collect()
}
