//! Named formats: each on texts that are valid for some of them.

use super::conditions::case;
use super::{Case, Purpose};

const FORMATS: [&str; 13] = [
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

/// All rows.
pub(super) fn all() -> Vec<Case> {
    let long = [
        "a".repeat(63),
        "a".repeat(64),
        "a.".repeat(126) + "a",
        "a.".repeat(127),
        format!("{}/x", "a".repeat(254)),
    ];
    let texts = [
        "",
        "a",
        "my-name",
        "123-abc",
        "-a",
        "a-",
        "-",
        "--",
        "a--",
        "é-",
        "a.b",
        "a..b",
        ".a",
        "A",
        "MyName",
        "my_value",
        "a/b",
        "a/",
        "/b",
        "a/b/c",
        "example.com/MyName",
        "é",
        "a\\nb",
        "https://example.com/a?b#c",
        "/path",
        "relative",
        "http://[::1",
        "12345678-1234-1234-1234-123456789abc",
        "123456781234123412341234567890AB",
        "12345678-1234-1234-1234-123456789ab",
        "YWJj",
        "YWI=",
        "YQ==",
        "YQ=",
        "=",
        "====",
        "YWJ\\n",
        "2024-02-29",
        "2023-02-29",
        "2024-2-9",
        "2024-13-01",
        "0000-01-01",
        "24-01-01",
        "2024-02-29T23:59:59Z",
        "2024-02-29t23:59:59z",
        "2024-02-29T24:00:00Z",
        "2024-02-29T23:59:60Z",
        "2024-02-29T23:59:59.5Z",
        "2024-02-29T23:59:59x5Z",
        "2024-02-29T23:59:59+05:30",
        "2024-02-29T23:59:59+99:99",
        "2024-02-29T23:59:59",
        "2024-02-29T23:59:59.Z",
        "2024-02-29T1:2:3Z",
        "2024-02-29 23:59:59Z",
        "2024-02-29T23:59:59é5z",
        "2024-02-29T23:59:59ZtX",
        "tZ",
    ];
    let texts = texts.iter().map(|text| (*text).to_owned()).chain(long);
    let mut rows: Vec<String> = texts
        .flat_map(|text| FORMATS.map(|format| format!("format.{format}().validate('{text}')")))
        .collect();
    rows.extend(
        [
            "format.named('dns1123Label') == optional.of(format.dns1123Label())",
            "format.named('nope')",
            "format.named('')",
            "format.named('DNS1123Label')",
            "format.dns1123Label() == format.dns1123Label()",
            "format.dns1123Label() == format.uuid()",
            "format.dns1123Label() == 1",
            "dyn(format.uuid()) == 'uuid'",
            "type(format.uuid())",
            "format.uuid().validate(1)",
            "format.uuid().validate(dyn(1))",
            "dyn(1).validate('a')",
            "format.named(dyn(1))",
            "string(format.uuid())",
            "format.nope()",
            "format.uuid",
            "format.uuid(1)",
            "[format.uuid(), format.byte()].map(f, f.validate('x').hasValue())",
            "format.uuid() in [format.uuid()]",
            "{format.uuid(): 1}",
            "format.uuid() < format.byte()",
            "format.uuid().validate('x').value()[0]",
        ]
        .map(str::to_owned),
    );
    rows.iter().map(|text| case(Purpose::Admission, text)).collect()
}
