//! Quantities: every text with every function, pairs of them, and random ones.

use testkit::random::Rng;

use super::conditions::case;
use super::{Case, Purpose};

const TEXTS: [&str; 64] = [
    "",
    "0",
    "00",
    "-0",
    "+",
    "-",
    ".",
    "0.",
    ".0",
    "1",
    "+1",
    "-1",
    "1.",
    ".5",
    "-.5",
    "0.5",
    "1.50",
    "500m",
    "1500m",
    "1u",
    "1n",
    "0.1n",
    "0.0000000001",
    "-0.0000000001",
    "1k",
    "1K",
    "1M",
    "1G",
    "1T",
    "1P",
    "1E",
    "1Ki",
    "1Mi",
    "1Gi",
    "1Ti",
    "1Pi",
    "1Ei",
    "7Ei",
    "8Ei",
    "9Ei",
    "-9Ei",
    "0.5Ki",
    "0.1Ki",
    "0.0001Ki",
    "1e3",
    "1E3",
    "1e-3",
    "1e+3",
    "1e",
    "1e1000",
    "1e1001",
    "1e1000000000",
    "1e-9",
    "1e-10",
    "1ee3",
    "1kk",
    "1ki",
    "1 ",
    " 1",
    "1x",
    "é",
    "9223372036854775807",
    "9223372036854775808",
    "123456789012345678.5",
];
const PAIRS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "1000m",
    "1k",
    "1Ki",
    "0.1",
    "9223372036854775807",
    "0.0000000001",
    "8Ei",
    "1e20",
    "-0.5",
];

pub(super) fn all() -> Vec<Case> {
    let mut rows = Vec::new();
    for text in TEXTS {
        rows.extend([format!("isQuantity('{text}')"), format!("quantity('{text}')")]);
        rows.extend(
            ["asInteger()", "isInteger()", "asApproximateFloat()"]
                .map(|call| format!("quantity('{text}').{call}")),
        );
        rows.push(format!("sign(quantity('{text}'))"));
    }
    for left in PAIRS {
        for right in PAIRS {
            let quantity = |text: &str| format!("quantity('{text}')");
            let (left, right) = (quantity(left), quantity(right));
            rows.extend(
                ["compareTo", "isLessThan", "isGreaterThan", "add", "sub"]
                    .map(|call| format!("{left}.{call}({right})")),
            );
            rows.push(format!("{left} == {right}"));
            rows.push(format!("{left}.add({right}).asInteger()"));
        }
        for whole in ["0", "1", "-1", "9223372036854775807", "-9223372036854775808"] {
            rows.extend(["add", "sub"].map(|call| format!("quantity('{left}').{call}({whole})")));
        }
    }
    rows.extend(
        [
            "quantity('2') == quantity('1').add(quantity('1'))", "quantity('1').add(quantity('1')) == quantity('2')", "quantity('1').add(1).add(1).sub(3)",
            "quantity(1)", "quantity(dyn(1))", "dyn(1).asInteger()", "quantity('1').add('1')", "quantity('1').add(dyn('1'))", "quantity('1').compareTo(dyn(1))",
            // Sums change a large quantity, and comparisons with a large one make a quantity large.
            "[quantity('1.5Gi')].map(q, [q.add(q), q])", "[quantity('1.5Gi')].map(q, [q, q.sub(1), q.add(1).add(1)])",
            "[quantity('1.5Gi')].all(q, q.add(1).isGreaterThan(q))", "[quantity('1.5Gi')].map(q, [dyn(q.sub(q)), sign(q)])",
            "[quantity('1.5Gi')].map(q, q.add(1)).map(q, [q, q.add(1), q])", "[quantity('1.5Gi')].all(q, q.add(q) == q)",
            "[quantity('1Gi')].map(q, [q.add(q), q])", "[quantity('1')].map(q, [q.add(quantity('1.5Gi')), q.add(1), q])",
            "[quantity('1')].map(q, [dyn(q.compareTo(quantity('1.5Gi'))), q.isInteger(), q.add(1), q])",
            "[quantity('1')].map(q, [dyn(q.compareTo(quantity('1Gi'))), q.isInteger(), q.add(1), q])",
            "[quantity('1')].map(q, [dyn(q == quantity('1.5Gi')), q.isInteger(), q.add(1), q])",
            "[quantity('1')].map(q, [dyn(quantity('1.5Gi').compareTo(q)), q.isInteger(), q.add(1), q])",
            "[quantity('1')].map(q, q.isLessThan(quantity('100Ti')) && q.isInteger())", "[[quantity('1.5Gi')]].map(l, [l[0].add(1)] == l)",
            "[quantity('1.5Gi'), quantity('0.5Gi')].map(q, q.add(quantity('1Gi')).compareTo(q))",
            "optional.ofNonZeroValue(quantity('0'))", "optional.ofNonZeroValue(optional.none())",
            "[dyn(1.0), dyn(quantity('1'))].sort()", "[dyn(quantity('1')), dyn(1.0)].sort()", "[dyn(true)].join()",
            "{'a': 1}[dyn(quantity('1').add(0))]", "dyn(quantity('1').add(0)).all(x, true)",
            "quantity('1').sign()", "sign(1)", "sign(dyn(1))", "type(quantity('1'))", "quantity('1') == dyn(1)", "dyn(1) == quantity('1')", "quantity('1') == null",
            "quantity('1') in [quantity('1000m')]", "{quantity('1'): 1}", "string(quantity('1'))", "quantity('1') < quantity('2')", "size(quantity('1'))",
            "object.spec.template.spec.containers.all(c, !has(c.resources) || quantity(c.resources.limits.memory).isLessThan(quantity('2Gi')))",
        ]
        .map(str::to_owned),
    );
    rows.iter().map(|text| case(Purpose::Admission, text)).collect()
}

/// Random quantities, most of them valid.
pub(super) fn random(seed: u64, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed);
    let mut text = || {
        let digits = |rng: &mut Rng, most: usize| {
            let length = rng.below(most);
            (0..length).map(|_| char::from(b'0' + rng.byte() % 10)).collect::<String>()
        };
        let sign = *rng.pick(&["", "", "-", "+"]);
        let whole = digits(&mut rng, 21);
        let point = *rng.pick(&["", "", "."]);
        let fraction = if point.is_empty() { String::new() } else { digits(&mut rng, 14) };
        let suffix = *rng.pick(&[
            "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-7",
            "e+12", "e-20", "x", "e",
        ]);
        format!("quantity('{sign}{whole}{point}{fraction}{suffix}')")
    };
    (0..count)
        .map(|number| {
            let (left, right) = (text(), text());
            let call =
                ["", ".add(R)", ".sub(R)", ".compareTo(R)", ".asInteger()", ".asApproximateFloat()", " == R"]
                    [number % 7];
            case(Purpose::Admission, &format!("{left}{}", call.replace('R', &right)))
        })
        .collect()
}
