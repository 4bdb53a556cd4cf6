//! Semantic versions: each text with each function, and pairs.

use super::conditions::case;
use super::{Case, Purpose};

const TEXTS: [&str; 44] = [
    "",
    "1",
    "1.2",
    "1.2.3",
    "v1.2.3",
    "V1.2.3",
    "vv1",
    "v",
    "01.2.3",
    "1.02.3",
    "1.2.03",
    "001.002.003",
    "0.0.0",
    "00",
    "v01.02",
    "1.2.3-alpha",
    "1.2.3-alpha.1",
    "1.2.3-alpha.beta",
    "1.2.3-1",
    "1.2.3-01",
    "1.2.3-",
    "1.2.3-a..b",
    "1.2.3-a_b",
    "1.2.3+b",
    "1.2.3+b.1",
    "1.2.3+",
    "1.2.3+a..b",
    "1.2.3+é",
    "1.2.3-a+b-c",
    "1.2.3+b-a",
    "1.2-a",
    "1-a",
    "1.2.3.4",
    "1.2.x",
    "x.2.3",
    "-1.2.3",
    " 1.2.3",
    "1.2.3 ",
    "1..3",
    "18446744073709551615.0.0",
    "18446744073709551616.0.0",
    "9223372036854775808.0.0",
    "1.2.3-99999999999999999999",
    ".1.2",
];
const PAIRS: [&str; 12] = [
    "1.2.3",
    "1.2.4",
    "1.10.0",
    "2.0.0",
    "1.2.3-alpha",
    "1.2.3-alpha.1",
    "1.2.3-alpha.beta",
    "1.2.3-beta.2",
    "1.2.3-beta.11",
    "1.2.3-1",
    "1.2.3+a",
    "1.2.3-rc.1+b",
];

pub(super) fn all() -> Vec<Case> {
    let mut rows = Vec::new();
    for text in TEXTS {
        for call in [format!("('{text}')"), format!("('{text}', true)"), format!("('{text}', false)")] {
            rows.extend([format!("isSemver{call}"), format!("semver{call}")]);
        }
        rows.extend(["major", "minor", "patch"].map(|part| format!("semver('{text}').{part}()")));
    }
    for left in PAIRS {
        for right in PAIRS {
            rows.extend(
                ["compareTo", "isLessThan", "isGreaterThan"]
                    .map(|call| format!("semver('{left}').{call}(semver('{right}'))")),
            );
            rows.push(format!("semver('{left}') == semver('{right}')"));
        }
    }
    rows.extend(
        [
            "semver(1)",
            "semver(dyn(1))",
            "isSemver(dyn(1))",
            "semver('1.2.3', dyn(1))",
            "isSemver('1.2.3', dyn('x'))",
            "dyn(1).major()",
            "semver('1.2.3').compareTo(dyn(1))",
            "semver('1.2.3').isLessThan(dyn(quantity('1')))",
            "quantity('1').compareTo(dyn(semver('1.2.3')))",
            "type(semver('1.2.3'))",
            "semver('1.2.3') == dyn(1)",
            "semver('1.2.3') == null",
            "semver('1.2.3') in [semver('1.2.3')]",
            "{semver('1.2.3'): 1}",
            "string(semver('1.2.3'))",
            "semver('1.2.3') < semver('1.2.4')",
            "size(semver('1.2.3'))",
        ]
        .map(str::to_owned),
    );
    rows.iter().map(|text| case(Purpose::Admission, text)).collect()
}
