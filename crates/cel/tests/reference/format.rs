//! `format` of strings.

use serde_json::json;
use testkit::random::{Rng, inputs};

use super::expressions::case;
use super::{Case, Purpose};

/// All rows.
pub(super) fn all() -> Vec<Case> {
    // Each verb with each value: as a literal, which is checked when it compiles, and as a value of no known type.
    let pairs = VERBS.iter().flat_map(|verb| {
        VALUES.iter().flat_map(move |value| {
            [
                format!("'{verb}'.format([{value}])"),
                format!("'{verb}'.format([dyn({value})])"),
                format!("'{verb}'.format([[dyn({value})]])"),
                format!("'{verb}'.format([{{'k': dyn({value})}}])"),
            ]
        })
    });
    let rows = ROWS.iter().map(|row| (*row).to_owned());
    let mut cases: Vec<Case> = rows.chain(pairs).map(|text| admission(&text)).collect();
    cases.extend(CLAIMS.iter().map(|text| {
        let claims = json!({
            "sub": "a", "n": 1.5, "list": ["a", 1.0], "map": {"b": 1, "a": [1.5, "x"], "p.q": {"r.s": null}},
            "escaped": {"x__dot__y": 2}, "invalid": {"a__b__c": 1},
        });
        Case { claims, ..case(Purpose::ClaimMapping, text) }
    }));
    cases
}

fn admission(text: &str) -> Case {
    let object = json!({
        "a": 1, "half": 0.5, "text": "x\"y\n\u{202f}\u{1f600}", "list": [1, "b", 2.5, null, true, [], {}], "format": "%s-%s",
        "map": {"b": 1, "a": {"é": [1.5]}, "": null},
    });
    let variables = json!({
        "object": object,
        "oldObject": null,
        "namespaceObject": {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}},
        "request": {"dryRun": true, "userInfo": {"username": "alice"}},
    });
    Case { variables, ..case(Purpose::Admission, text) }
}

const VERBS: &[&str] = &["%s", "%d", "%f", "%e", "%b", "%x", "%X", "%o", "%.2f", "%.0f", "%.12e", "%y"];

const VALUES: &[&str] = &[
    "0",
    "42",
    "-42",
    "9223372036854775807",
    "-9223372036854775808",
    "7u",
    "18446744073709551615u",
    "0.0",
    "double('-0')",
    "1.5",
    "-0.001",
    "1234567.8915",
    "1e20",
    "1e-7",
    "5e-324",
    "1.7976931348623157e308",
    "double('NaN')",
    "double('Infinity')",
    "double('-Infinity')",
    "'text'",
    "''",
    "'NaN'",
    "'Infinity'",
    "'-Infinity'",
    "'é\"\\n\\u202f\\U0001F600\\u0000'",
    "b'ab'",
    "b'\\xff'",
    "true",
    "false",
    "null",
    "int",
    "type(duration('1s'))",
    "[1, 2]",
    "['a', 'b']",
    "[]",
    "{'b': 1, 'a': 2}",
    "{1: 'x', 10: 'y', 2: 'z'}",
    "{true: 1.5, false: 2.5}",
    "{1u: b'a'}",
    "{1.5: 1}",
    "{}",
    "timestamp('2020-01-01T00:00:00.5+05:30')",
    "duration('1h0.5s')",
    "optional.of(1)",
    "authorizer",
    "object",
    "object.list",
];

const CLAIMS: &[&str] = &[
    "'%s'.format([claims.sub])",
    "'%d'.format([claims.sub])",
    "'%s'.format([dyn(claims.sub)])",
    "'%s'.format([[claims.sub]])",
    "'%s'.format([{'a': claims.sub}])",
    "'%s'.format([claims])",
    "'%s'.format([dyn(claims)])",
    "'%s'.format([[dyn(claims)]])",
    "'%s'.format([dyn(claims.map)])",
    "'%s'.format(dyn([claims.map]))",
    "'%s'.format([dyn(claims.escaped)])",
    "'%s'.format([dyn(claims.invalid)])",
    "'%s'.format([dyn(claims.list)])",
    "'%s'.format(claims.list)",
    "'%s %s'.format(claims.list)",
    "'%s %s'.format(dyn(claims.list))",
    "'%f'.format([claims.n])",
    "'%f'.format([dyn(claims.n)])",
    "claims.sub.format([1])",
    "string(claims.sub).format([])",
];

const ROWS: &[&str] = &[
    // cel-go: ext/formatting_test.go
    "'no substitution'.format([])",
    "'str is %s and some more'.format(['filler'])",
    "'%% and also %%'.format([])",
    "'%%%s%%'.format(['text'])",
    "'%s%%'.format(['percent on the right'])",
    "'%%%%'.format([])",
    "'%d %s, did you know that %s %d'.format([1, 'a', 'b', 2])",
    "'%s %s, did you know that %s %s'.format([1, 'a', 2.5, dyn(3)])",
    "'%s'.format([[1, 2, 3, {'a': 'x', 'b': 'y', 'c': 'z'}]])",
    "'%s'.format([['abc', 3.14, null, [9, 8, 7, 6], timestamp('2023-02-03T23:31:20Z')]])",
    "'%s'.format([{'key1': b'xyz', 'key5': null, 'key2': duration('2h'), 'key4': true, 'key3': 2.71828}])",
    "'true bool: %s, false bool: %s'.format([true, false])",
    "'this is 5 in binary: %b'.format([5])",
    "'%x is 20 in hexadecimal'.format([20])",
    "'%X'.format(['Hello world!'])",
    "'%.6f %.3e'.format([10.6789, 1052.032911275])",
    "'this is NaN: %f'.format(['NaN'])",
    "'%s'.format([])",
    "'%s %s'.format([1])",
    "'%s'.format([1, 2])",
    "'abc'.format([1])",
    "'%'.format([])",
    "'%'.format([1])",
    "'%a'.format([1])",
    "'%5d'.format([1])",
    "'%-d'.format([1])",
    "'%+d'.format([1])",
    "'%é'.format([1])",
    "'%.f'.format([1.0])",
    "'%.'.format([1.0])",
    "'%.3'.format([1.0])",
    "'%.éf'.format([1.0])",
    "'%.-1f'.format([1.0])",
    "'%.5s %.5d %.5x'.format(['abc', 1, 2])",
    "'%.99999999999999999999f'.format([1.0])",
    // The same, where the format is not a literal.
    "dyn('%s').format([])",
    "dyn('%s %s').format([1])",
    "dyn('%s').format([1, 2])",
    "dyn('abc').format([1])",
    "dyn('%').format([])",
    "dyn('%').format([1])",
    "dyn('%%%').format([1])",
    "dyn('%a').format([1])",
    "dyn('%5d').format([1])",
    "dyn('%é').format([1])",
    "dyn('%\\n').format([1])",
    "dyn('%\\u0000').format([1])",
    "dyn('%.f').format([1.0])",
    "dyn('%.').format([1.0])",
    "dyn('%.3').format([1.0])",
    "dyn('%.éf').format([1.0])",
    "dyn('%.-1f').format([1.0])",
    "dyn('%.99999999999999999999f').format([1.0])",
    "dyn('%.99999999999999999999s').format(['a'])",
    "dyn('%.9223372036854775807f').format([1.0])",
    "dyn('%.9223372036854775808f').format([1.0])",
    "dyn('%.007f|%.007e').format([1.0, 1.0])",
    "dyn('%d %s').format(['a', optional.none()])",
    "dyn('%s %a').format([optional.none(), 1])",
    "('%' + 's').format([1])",
    "object.format.format(object.list)",
    "object.format.format([1])",
    "object.text.format([])",
    "'%s %s'.format(object.list)",
    "'%s'.format(object)",
    "'%s'.format(object.a)",
    "'%s'.format('a')",
    "'%s'.format(dyn(1))",
    "'%s'.format([object])",
    "'%s'.format([object.map])",
    "'%s'.format([object.text])",
    "'%s'.format([[object.text]])",
    "'%d'.format([object.a])",
    "'%f'.format([object.a])",
    "'%f'.format([object.half])",
    "'%s'.format([object.missing])",
    "object.a.format([1])",
    "dyn(1).format([1])",
    "dyn(null).format([])",
    "dyn(timestamp(0)).format([])",
    "dyn(['%s']).format([1])",
    "1.format([1])",
    "format('%s', [1])",
    "'a'.format()",
    "'a'.format([1], [2])",
    // Precisions
    "'%.255f'.format([0.1])",
    "'%.256f'.format([1.25])",
    "'%.256f'.format([1.0])",
    "'%.300f'.format([1e-300])",
    "'%.400f'.format([0.1])",
    "'%.1000f'.format([1.0])",
    "'%.1100f'.format([5e-324])",
    "'%.32767f'.format([5e-324])",
    "'%.32768f'.format([0.1])",
    "'%.40000f'.format([1e-300])",
    "'%.40000f'.format([123456789.125])",
    "'%.65535f'.format([0.1])",
    "'%.65536f'.format([2.5])",
    "'%.1000000f'.format([0.1])",
    "'%.1000001f'.format([0.1])",
    "'%.10000009f'.format([1.5])",
    "'%.10000010f'.format([1.5])",
    "'%.9223372036854775807f'.format([1.5])",
    "'%.10000010f'.format(['NaN'])",
    "'%.0e|%.1e|%.12e|%.13e|%.14e|%.20e'.format([1.5, 1.5, 1.5, 1.5, 1.5, 1.5])",
    "'%.6e|%.6e|%.6e'.format(['NaN', 'Infinity', '-Infinity'])",
    "'%.65535e'.format([1.5]).size()",
    "'%.65536e'.format([1.5]).size()",
    "'%.70000e'.format([1.5]).size()",
    "'%.10000009e'.format([1.5]).size()",
    "'%.10000010e'.format([1.5])",
    "'%.0f %.0f %.0f %.0f %.0f'.format([0.5, 1.5, 2.5, -0.5, 999.5])",
    "'%.1f %.1f %.2f'.format([0.25, 0.35, 1.005])",
    "'%f %f'.format([999999.9999999, 999.9999999])",
    "'%e %e %e'.format([9.9999999, 1.2345675, 2.2345675])",
    // Types of the arguments
    "'%s %s'.format(['a', 1])",
    "'%s'.format([['a', 1]])",
    "'%s'.format([{'a': 1, 'b': 'c'}])",
    "'%s'.format([{'a': 1, 2: 'c'}])",
    "'%s'.format([['a', 1].map(x, x)])",
    "'%s'.format([[['a', 1], 2]])",
    "['a', 1].size() == 2",
    "['%s'.format([['a', 1]]), 1].size()",
    "(['a', 1].size() == 2 ? '%s' : '').format([1])",
    "'%s'.format([true ? 'a' : 'b'])",
    "'%d'.format([true ? 1 : 2])",
    "'%d'.format([true ? 'a' : 'b'])",
    "'%d'.format([true ? dyn('a') : 1])",
    "'%d'.format([object.a == 1 ? 1 : object.a])",
    "'%s'.format([[optional.of(1)]])",
    "'%s'.format([{'a': optional.of(1)}])",
    "'%s'.format([[[authorizer]]])",
    "'%s'.format([[1].map(x, optional.of(x))])",
    "'%s'.format([optional.none()])",
    "'%s'.format([optional.of(1).value()])",
    "'%d'.format([optional.of('a').value()])",
    "'%d'.format([[1][0]])",
    "'%d'.format([['a'][0]])",
    "'%d'.format([{}.a])",
    "'%d'.format([[].first().orValue('a')])",
    "'%s'.format([?optional.of(1)])",
    "'%s'.format([?optional.of('a')])",
    "'%s'.format([?object.?a])",
    "'%s'.format([[?object.?a]])",
    "'%s'.format([{?'a': object.?a}])",
    "'%s'.format([?object.a])",
    "'%s'.format([?dyn(optional.of(1))])",
    "'%s'.format([[?object.a]])",
    "'%s'.format([[?dyn(optional.of(1))]])",
    "'%s'.format([{?'a': object.a}])",
    "'%s'.format([{?'a': dyn(optional.of(1))}])",
    "'%s'.format([[?object.a, 'a']])",
    "'%s'.format([[?1]])",
    "'%s'.format(['a'] + ['b'])",
    "'%s'.format([1].map(x, x))",
    "'%s %s'.format([1, 2].map(x, x * 2))",
    "[1, 2].map(x, '%d'.format([x]))",
    "['a', 'b'].map(x, '%d'.format([x]))",
    "[1, 2].map(x, '%s %d'.format([[x], x]))",
    "'%s'.format(['%s'.format([1])])",
    "'%s'.format(['%d'.format(['a'])])",
    "'%s'.format([request.userInfo.username])",
    "'%s'.format([request.userInfo])",
    "'%s'.format([request.dryRun])",
    "'%s'.format([namespaceObject.metadata.creationTimestamp])",
    "'%s'.format([type(1), type([]), type('a')])",
    "'%s %s %s'.format([type(1), type([]), type(type(1))])",
    "'%s'.format([dyn({dyn(1): 'x', dyn('a'): 'y', dyn(true): 'z'})])",
    "'%s'.format([{'b\"': [{'a': {'x': [1.5]}}]}])",
    "'é%sé'.format(['ü'])",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'.format([])",
    "'ééééééééééééééééééééééééééé'.format([])",
    "''.format([])",
];

/// Random doubles and precisions.
pub(super) fn random(seed: u64) -> Vec<Case> {
    let mut rng = Rng(seed);
    let number = |rng: &mut Rng| match rng.below(4) {
        0 => f64::from_bits(rng.next_u64()),
        1 => f64::from_bits(rng.next_u64() % (1 << 53) + (1023 << 52)),
        // Many digits of these are zeros or halves.
        2 => f64::from(u32::try_from(rng.below(1_000_000)).unwrap()) / 64.0,
        _ => f64::from(u32::try_from(rng.below(4_000_000_000)).unwrap()) / 1000.0,
    };
    (0..inputs(1_500))
        .map(|_| {
            let precision = match rng.below(4) {
                0 => String::new(),
                1 => format!(".{}", rng.below(20)),
                2 => format!(".{}", rng.below(400)),
                _ => format!(".{}", rng.next_u64() >> (16 + rng.below(48))),
            };
            let verb = *rng.pick(&["f", "e", "f"]);
            let number = number(&mut rng);
            let value = if number.is_finite() { format!("double('{number:e}')") } else { "0.5".to_owned() };
            let value = if rng.one_in(8) { format!("[{value}]") } else { value };
            let clause = if value.starts_with('[') { "%s".to_owned() } else { format!("%{precision}{verb}") };
            admission(&format!("'{clause}'.format([{value}])"))
        })
        .collect()
}
