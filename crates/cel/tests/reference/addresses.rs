//! IP addresses and networks: each text with each function, and pairs.

use super::conditions::case;
use super::{Case, Purpose};

const ADDRESSES: [&str; 44] = [
    "",
    "1.2.3.4",
    "0.0.0.0",
    "255.255.255.255",
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "169.254.1.1",
    "224.0.0.1",
    "224.0.1.1",
    "239.1.1.1",
    "1.2.3",
    "1.2.3.4.5",
    "1.2.3.256",
    "01.2.3.4",
    "1.2.3.04",
    "1..2.3",
    ".1.2.3",
    "1.2.3.",
    "1.2.3.4 ",
    "1.2.3.é",
    "::",
    "::1",
    "::ffff:1.2.3.4",
    "::1.2.3.4",
    "2001:db8::1",
    "2001:DB8::1",
    "2001:db8:0:0:0:0:0:1",
    "fe80::1",
    "fe80::1%eth0",
    "fe80::1%",
    "ff02::1",
    "ff01::1",
    "ff05::1",
    "1:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:7",
    "1:2:3:4:5:6:7:8:9",
    "1::2::3",
    "::1:2:3:4:5:6:7:8",
    "12345::",
    ":1",
    "1:",
    "g::",
    "1:2:3:4:5:6:7.8.9.10",
];
const NETWORKS: [&str; 22] = [
    "",
    "10.0.0.0/8",
    "10.1.2.3/8",
    "0.0.0.0/0",
    "1.2.3.4/32",
    "1.2.3.4/33",
    "1.2.3.4/-1",
    "1.2.3.4/08",
    "1.2.3.4/",
    "1.2.3.4",
    "1.2.3.4/8/9",
    "/8",
    "2001:db8::/32",
    "::/0",
    "2001:db8::1/128",
    "2001:db8::1/129",
    "::ffff:1.2.3.4/96",
    "fe80::1%eth0/64",
    "é/8",
    "1.2.3/8",
    "1.2.3.4/+8",
    "10.0.0.0/99999999999999999999",
];

pub(super) fn all() -> Vec<Case> {
    let mut rows = Vec::new();
    for text in ADDRESSES {
        rows.extend(["isIP", "ip", "ip.isCanonical"].map(|function| format!("{function}('{text}')")));
        let of = [
            "family",
            "isUnspecified",
            "isLoopback",
            "isLinkLocalMulticast",
            "isLinkLocalUnicast",
            "isGlobalUnicast",
        ];
        rows.extend(of.map(|function| format!("ip('{text}').{function}()")));
        rows.push(format!("string(ip('{text}'))"));
    }
    for text in NETWORKS {
        rows.extend(["isCIDR", "cidr"].map(|function| format!("{function}('{text}')")));
        rows.extend(["ip", "masked", "prefixLength"].map(|function| format!("cidr('{text}').{function}()")));
        rows.push(format!("string(cidr('{text}'))"));
        for address in ["10.1.2.3", "::1", "", "2001:db8::5", "fe80::1%eth0", "::ffff:10.0.0.1"] {
            rows.push(format!("cidr('{text}').containsIP('{address}')"));
            rows.push(format!("cidr('{text}').containsIP(ip('{address}'))"));
        }
        for other in NETWORKS {
            rows.push(format!("cidr('{text}').containsCIDR('{other}')"));
            rows.push(format!("cidr('{text}').containsCIDR(cidr('{other}'))"));
        }
    }
    rows.extend(
        [
            "ip('1.2.3.4') == ip('1.2.3.4')",
            "ip('::1') == ip('0:0::1')",
            "ip('1.2.3.4') != ip('1.2.3.5')",
            "ip('1.2.3.4') == dyn('1.2.3.4')",
            "dyn('1.2.3.4') == ip('1.2.3.4')",
            "ip('1.2.3.4') == null",
            "ip('1.2.3.4') in [ip('1.2.3.4')]",
            "{ip('1.2.3.4'): 1}",
            "ip('1.2.3.4') < ip('1.2.3.5')",
            "cidr('10.0.0.0/8') == cidr('10.1.0.0/8')",
            "cidr('10.0.0.0/8') == cidr('10.1.0.0/8').masked()",
            "type(ip('::1'))",
            "type(cidr('::/0'))",
            "type(ip('::1')) == net.IP",
            "net.IP",
            "net.CIDR",
            "type(ip('::1')) == type(cidr('::/0'))",
            "ip('1.2.3.4') != dyn('1.2.3.4')",
            "dyn(ip('::1')) != dyn(ip('::2'))",
            "cidr('::/128') != cidr('::/127')",
            "ip.isCanonical(dyn(ip('::1')))",
            "isIP(dyn(ip('::1')))",
            "dyn(quantity('1')).containsCIDR(dyn('::1'))",
            "ip(1)",
            "ip(dyn(1))",
            "isIP(dyn(1))",
            "cidr(dyn(1))",
            "isCIDR(dyn(1))",
            "ip.isCanonical(dyn(1))",
            "dyn(1).family()",
            "dyn('a').masked()",
            "cidr('::/0').containsIP(1)",
            "cidr('::/0').containsIP(dyn(1))",
            "cidr('::/0').containsCIDR(dyn(1))",
            "cidr('::/0').containsCIDR(dyn(ip('::1')))",
            "cidr('::/0').containsIP(dyn(cidr('::/0')))",
            "size(ip('::1'))",
            "[ip('::1'), ip('1.2.3.4')].map(a, a.family())",
            "optional.of(ip('::1')).value().isLoopback()",
            "int(ip('::1'))",
            "bytes(ip('::1'))",
            "string(dyn(ip('::1')))",
            "[1].map(ip, ip('::1').family())",
            "[ip('::1')].map(ip, ip.isLoopback())",
            "optional.ofNonZeroValue(ip('::')).hasValue()",
            "ip('::1').ip()",
            "cidr('::/0').ip().family()",
        ]
        .map(str::to_owned),
    );
    rows.iter().map(|text| case(Purpose::Admission, text)).collect()
}
