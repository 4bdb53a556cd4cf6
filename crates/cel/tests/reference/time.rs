//! Durations and timestamps: rows, and random texts.

use serde_json::{Value, json};
use testkit::random::{Rng, inputs};

use super::expressions::case;
use super::{Case, Purpose};

/// All rows.
pub(super) fn all() -> Vec<Case> {
    let parts = PARTS.iter().flat_map(|part| {
        let timestamps = TIMESTAMPS.iter().map(move |text| format!("timestamp('{text}').{part}()"));
        let zoned = ZONES.iter().flat_map(move |zone| {
            TIMESTAMPS.iter().map(move |text| format!("timestamp('{text}').{part}('{zone}')"))
        });
        let durations = DURATIONS.iter().map(move |text| format!("dyn(duration('{text}')).{part}()"));
        timestamps.chain(zoned).chain(durations)
    });
    let is_time = |operand: &str| operand.starts_with("timestamp") || operand.starts_with("duration");
    let pairs = OPERANDS.iter().flat_map(|left| {
        OPERANDS.iter().filter(move |right| is_time(left) || is_time(right)).flat_map(move |right| {
            OPERATORS.iter().map(move |operator| format!("dyn({left}) {operator} dyn({right})"))
        })
    });
    let lists =
        LISTS.iter().flat_map(|list| FUNCTIONS.iter().map(move |function| format!("{list}.{function}")));
    let rows = ROWS.iter().map(|row| (*row).to_owned());
    rows.chain(parts).chain(pairs).chain(lists).map(|text| admission(&text)).chain(of_claims()).collect()
}

fn admission(text: &str) -> Case {
    Case { variables: variables(), ..case(Purpose::Admission, text) }
}

fn variables() -> Value {
    json!({
        "object": {
            "a": 1, "half": 0.5, "text": "x", "time": "2020-02-29T12:30:45.678Z", "duration": "1h30m", "list": [1, 2],
            "zone": "Europe/Berlin", "none": null, "pattern": "a.*",
        },
        "oldObject": null,
        "namespaceObject": {"metadata": {"name": "team", "creationTimestamp": "2020-01-01T00:00:00Z"}},
        "request": {"name": "web"},
    })
}

/// Texts of a token, which are not constants.
fn of_claims() -> Vec<Case> {
    let rows = [
        "timestamp(claims.exp)",
        "timestamp(int(claims.exp))",
        "timestamp(int(claims.exp)) < timestamp(int(claims.nbf)) + duration('3h')",
        "timestamp(claims.sub)",
        "duration(claims.sub)",
        "duration(claims.missing)",
        "timestamp(claims.nested)",
        "[timestamp(int(claims.exp)), timestamp(int(claims.nbf))].min()",
        "dyn(claims.numbers).map(n, timestamp(int(n)))",
        "dyn(claims.numbers).map(n, duration(string(n) + 's')).sum()",
        "string(timestamp(int(claims.exp)))",
        "timestamp(int(claims.exp)).getFullYear() == 2023",
    ];
    rows.iter().map(|text| case(Purpose::ClaimMapping, text)).collect()
}

const PARTS: &[&str] = &[
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
];

const TIMESTAMPS: &[&str] = &[
    "0001-01-01T00:00:00Z",
    "0004-02-29T23:59:59.999999999Z",
    "1582-10-15T12:00:00Z",
    "1900-03-01T00:00:00Z",
    "1969-12-31T23:59:59.001Z",
    "1970-01-01T00:00:00Z",
    "2000-02-29T12:34:56.789Z",
    "2024-03-31T00:59:59Z",
    "2024-03-31T01:00:00Z",
    "2024-12-31T23:30:00-05:30",
    "9999-12-31T23:59:59.999999999Z",
];

const ZONES: &[&str] =
    &["", "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "-08:30", "+14:00"];

const DURATIONS: &[&str] = &[
    "0s",
    "1ns",
    "-1ns",
    "1h2m3.004s",
    "-1h2m3.004s",
    "2562046h59m59.999999999s",
    "-2562046h59m59.999999999s",
    "9223372036854775807ns",
    "-9223372036854775808ns",
    "999999.999999999s",
];

const OPERANDS: &[&str] = &[
    "timestamp('2020-01-01T00:00:00+05:30')",
    "timestamp('2019-12-31T18:30:00Z')",
    "timestamp('0001-01-01T00:00:00Z')",
    "timestamp('9999-12-31T23:59:59.999999999Z')",
    "duration('1ns')",
    "duration('-1.5h')",
    "duration('9223372036854775807ns')",
    "duration('-9223372036854775808ns')",
    "1",
    "1u",
    "1.5",
    "'a'",
    "b'a'",
    "true",
    "null",
    "[1]",
    "{'a': 1}",
    "int",
    "optional.of(1)",
];

const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!="];

const LISTS: &[&str] = &[
    "[duration('3s'), duration('-1s'), duration('2s')]",
    "[timestamp(3), timestamp(1), timestamp('1970-01-01T05:30:02+05:30')]",
    "[duration('1s')]",
    "[duration('9223372036854775807ns'), duration('1ns')]",
    "[duration('1s')].filter(x, false)",
    "[timestamp(0)].filter(x, false)",
    "[1.5].filter(x, false)",
    "[1u].filter(x, false)",
    "[1].filter(x, false)",
    "dyn([duration('1s')].filter(x, false))",
    "dyn([dyn(duration('1s')), dyn(timestamp(0))])",
    "dyn([dyn(duration('1s')), dyn(timestamp(0)), dyn(timestamp(0))])",
    "dyn([dyn(timestamp(0)), dyn(duration('1s'))])",
    "dyn([dyn(duration('1s')), dyn(1)])",
    "dyn([dyn(1), dyn(duration('1s'))])",
    "dyn([dyn(1), dyn('a')])",
    "dyn([dyn(1), dyn(null)])",
    "dyn([dyn(null), dyn(1)])",
    "dyn([dyn(1), dyn([1])])",
    "dyn([dyn('a'), dyn(1)])",
    "dyn([dyn(2), dyn(1.5), dyn(3u)])",
    "[9223372036854775807, 1]",
];

const FUNCTIONS: &[&str] = &[
    "sum()",
    "min()",
    "max()",
    "sort()",
    "isSorted()",
    "distinct()",
    "reverse()",
    "sortBy(x, x)",
    "indexOf(duration('1s'))",
    "map(x, string(x))",
    "map(x, type(x))",
    "size()",
    "first()",
];

const ROWS: &[&str] = &[
    // cel-go: common/types/duration_test.go, timestamp_test.go
    "duration('1h') + duration('1m')",
    "duration('1h30m') == duration('5400s')",
    "timestamp('2020-01-01T00:00:00Z') + duration('1h') - timestamp('2020-01-01T00:00:00Z')",
    "timestamp('2009-02-13T23:31:30Z').getDayOfMonth('+11:00')",
    "timestamp('2009-02-13T23:31:30Z').getDate('Indian/Cocos')",
    "timestamp(7506).getHours('02:00')",
    "timestamp(7506).getMinutes('-00:30')",
    "timestamp(7506).getFullYear('02:00') == 1970",
    "string([double('NaN'), 1.0].min())",
    "string([double('NaN'), 1.0].max())",
    "[1.0, double('NaN'), 0.5].min()",
    "[1.0, double('NaN'), 0.5].max()",
    "[1.0, double('NaN'), 0.5].isSorted()",
    "string([1.0, double('NaN'), 0.5].sum())",
    "dyn(1) in dyn(timestamp(0))",
    "timestamp(0) in dyn(duration('1s'))",
    "timestamp(0) in [1, 2].map(x, timestamp(x))",
    "dyn(timestamp(0)) in dyn({'a': 1})",
    // Conversions
    "duration('x')",
    "duration('')",
    "duration(1)",
    "duration(1.5)",
    "duration(true)",
    "duration(null)",
    "duration(dyn(1))",
    "duration(dyn(1u))",
    "duration(dyn(null))",
    "duration(object.a)",
    "duration(object.half)",
    "duration(object.text)",
    "duration(object.duration)",
    "duration(object.none)",
    "duration(object.list)",
    "duration(object)",
    "duration(duration('1s'))",
    "duration(dyn(duration('1s')))",
    "duration(timestamp(1))",
    "duration(dyn(timestamp(1)))",
    "timestamp('x')",
    "timestamp('')",
    "timestamp(1)",
    "timestamp(1u)",
    "timestamp(1.5)",
    "timestamp(null)",
    "timestamp(dyn(1u))",
    "timestamp(dyn(1.5))",
    "timestamp(object.a)",
    "timestamp(object.half)",
    "timestamp(object.text)",
    "timestamp(object.time)",
    "timestamp(object.none)",
    "timestamp(object.list)",
    "timestamp(object)",
    "timestamp(timestamp(1))",
    "timestamp(dyn(timestamp(1)))",
    "timestamp(duration('1s'))",
    "timestamp(dyn(duration('1s')))",
    "timestamp(-62135596800)",
    "timestamp(-62135596801)",
    "timestamp(253402300799)",
    "timestamp(253402300800)",
    "timestamp(9223372036854775807)",
    "timestamp(object.a + 9223372036854775806)",
    "timestamp(object.a + 253402300798)",
    "timestamp(object.a + 253402300799)",
    "timestamp(string(object.text))",
    "timestamp('0000-12-31T23:59:59Z')",
    "timestamp(object.text + '0000-12-31T23:59:59Z')",
    "int(timestamp('1960-01-01T00:00:00.5Z'))",
    "int(timestamp('1970-01-01T00:00:00.999Z'))",
    "int(duration('1.5s'))",
    "int(duration('-9223372036854775808ns'))",
    "uint(dyn(timestamp(1)))",
    "double(dyn(duration('1s')))",
    "bool(dyn(duration('1s')))",
    "bytes(dyn(duration('1s')))",
    "bytes(dyn(timestamp(object.time)))",
    "string(timestamp('2020-01-01T00:00:00.120+05:30'))",
    "string(timestamp('2020-01-01T00:00:00+05:30') + duration('1.5s'))",
    "string(duration('90m') + timestamp('2020-01-01T00:00:00-23:59'))",
    "string(timestamp('2020-01-01T00:00:00+05:30') - duration('-1ns'))",
    "string(timestamp('0000-12-31T23:59:59-00:01'))",
    "string(timestamp('2020-01-01T00:00:00-00:00'))",
    "string(timestamp(0))",
    "string(duration('2562047h47m16.854775807s'))",
    "string(duration('-0.000000001s'))",
    "string(duration('1000000000000000000ns'))",
    "string(duration('0s'))",
    "string(dyn(duration('1h')))",
    // Literals are checked in every branch.
    "false ? duration('x') : duration('1s')",
    "true || timestamp('x') == timestamp(0)",
    "[1].map(x, duration('x'))",
    "[1, 2].map(x, duration(string(x) + 's'))",
    "object.text == 'x' ? duration('1s') : duration('2s')",
    "string(timestamp(string(timestamp(0))))",
    "duration(dyn('x'))",
    "timestamp(dyn('x'))",
    "'x'.duration()",
    // Negation is not declared, and exists.
    "-duration('1s')",
    "-timestamp(0)",
    "-dyn(duration('1s'))",
    "-dyn(timestamp(0))",
    "-dyn(duration('-9223372036854775808ns'))",
    "!dyn(duration('1s'))",
    // Functions of other types
    "size(dyn(duration('1s')))",
    "dyn(timestamp(0)).size()",
    "dyn(duration('1s')).startsWith('a')",
    "dyn(duration('1s')).contains('a')",
    "dyn(duration('1s')).matches('a')",
    "dyn(timestamp(0)).matches(string(object.pattern))",
    "dyn(1).matches(string(object.pattern))",
    "dyn(timestamp(0)).find('a')",
    "dyn(timestamp(0)).find(string(object.pattern))",
    "dyn(duration('1s')).findAll(string(object.pattern))",
    "dyn(timestamp(0)).flatten()",
    "dyn(timestamp(0)).sort()",
    "dyn(timestamp(0)).first()",
    "dyn(timestamp(0)).charAt(1)",
    "dyn(timestamp(0)).a",
    "dyn(timestamp(0))[0]",
    "dyn(timestamp(0)).all(x, true)",
    "has(dyn(timestamp(0)).a)",
    "dyn(duration('1s')) ? 1 : 2",
    "dyn(duration('1s')) && true",
    "dyn(duration('1s')) || true",
    "dyn(1).getHours()",
    "dyn('a').getHours()",
    "dyn(null).getFullYear()",
    "dyn([1]).getFullYear('UTC')",
    "dyn({'a': 1}).getFullYear()",
    "object.a.getHours()",
    "object.time.getHours()",
    "timestamp(0).getHours(dyn(1))",
    "timestamp(0).getHours(dyn(null))",
    "timestamp(0).getHours(1)",
    "timestamp(0).getHours(object.zone)",
    "timestamp(0).getHours(object.none)",
    "dyn(duration('1h')).getHours('UTC')",
    "dyn(duration('1h')).getFullYear()",
    "duration('1h').getFullYear()",
    "getHours(timestamp(0))",
    // Zones
    "timestamp(0).getHours('Nope')",
    "timestamp(0).getHours('utc')",
    "timestamp(0).getHours('america/new_york')",
    "timestamp(0).getHours('America')",
    "timestamp(0).getHours('America/')",
    "timestamp(0).getHours('America/Argentina')",
    "timestamp(0).getHours('Ameri')",
    "timestamp(0).getHours('Etc/Unknown')",
    "timestamp(0).getHours('Etc/GMT+5')",
    "timestamp(0).getHours('EST')",
    "timestamp(0).getHours('US/Pacific')",
    "timestamp(0).getHours('Factory')",
    "timestamp(0).getHours('é')",
    "timestamp(0).getHours('../UTC')",
    "timestamp(0).getHours('a..b')",
    "timestamp(0).getHours('/UTC')",
    "timestamp(0).getHours('\\\\UTC')",
    "timestamp(0).getHours('Local')",
    "timestamp(0).getHours('posix/UTC')",
    "timestamp(0).getHours('x:1')",
    "timestamp(0).getHours('1:x')",
    "timestamp(0).getHours(':')",
    "timestamp(0).getHours('::')",
    "timestamp(0).getHours('1:2:3')",
    "timestamp(0).getHours('é:0')",
    "timestamp(0).getHours('\"\\n\\u0000:0')",
    "timestamp(0).getHours('99999999999999999999:1')",
    "timestamp(0).getHours('9999999999999999999x:1')",
    "timestamp(0).getHours('1000000000:1')",
    "timestamp(0).getHours('9223372036854775807:9223372036854775807')",
    "timestamp(0).getHours('-9223372036854775808:-9223372036854775808')",
    "timestamp(0).getFullYear('153722867280:0')",
    "timestamp(0).getFullYear('2562047:47')",
    "timestamp('0001-01-01T00:00:00Z').getFullYear('-2562047:00')",
    "timestamp('9999-12-31T23:59:59Z').getFullYear('2562047:00')",
    "timestamp(0).getMinutes('08:-30')",
    "timestamp(0).getHours('-0:30')",
    "timestamp(0).getHours('+5:+30')",
    "timestamp('9999-12-31T23:59:59Z').getFullYear('Asia/Tokyo')",
    "timestamp('0001-01-01T00:00:00Z').getFullYear('America/New_York')",
    // Types, keys, optionals
    "type(timestamp(0))",
    "type(duration('1s')) == google.protobuf.Duration",
    "google.protobuf.Timestamp == type(timestamp(0))",
    "type(type(duration('1s')))",
    "duration",
    "timestamp == type(timestamp(0))",
    "{'a': 1}[dyn(timestamp(0))]",
    "object[dyn(timestamp(0))]",
    "[1][dyn(duration('1s'))]",
    "{'a': timestamp(0)} == {'a': timestamp('1970-01-01T01:00:00+01:00')}",
    "[timestamp(0)] == [timestamp('1970-01-01T01:00:00+01:00')]",
    "timestamp(0) in [timestamp('1970-01-01T01:00:00+01:00')]",
    "duration('1s') in [duration('1000ms')]",
    "timestamp(0) in {'a': 1}",
    "dyn(timestamp(0)) in object",
    "sets.contains([timestamp(0)], [timestamp(0)])",
    "optional.of(duration('1s'))",
    "optional.ofNonZeroValue(duration('0s'))",
    "optional.ofNonZeroValue(duration('1ns'))",
    "optional.ofNonZeroValue(timestamp(0))",
    "optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00Z'))",
    "optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00.1Z'))",
    "[?optional.of(duration('1s'))]",
    "dyn(timestamp(0)).?a",
    "dyn(timestamp(0)) == optional.of(timestamp(0))",
    "[3, 1, 2].sortBy(x, timestamp(x))",
    "[3, 1, 2].sortBy(x, timestamp(2) - timestamp(x))",
    "[3, 1, 2].map(x, timestamp(x)).max()",
    "['a'].map(x, duration('1s')).sum()",
    "[duration('1s'), timestamp(0)]",
    "[timestamp(0)].sum()",
    // Objects of the API contain texts, whatever their types say.
    "namespaceObject.metadata.creationTimestamp",
    "namespaceObject.metadata.creationTimestamp.getFullYear()",
    "namespaceObject.metadata.creationTimestamp == timestamp('2020-01-01T00:00:00Z')",
    "timestamp(namespaceObject.metadata.creationTimestamp)",
    "timestamp(dyn(namespaceObject.metadata.creationTimestamp))",
    "string(namespaceObject.metadata.creationTimestamp)",
    "int(namespaceObject.metadata.creationTimestamp)",
    "namespaceObject.metadata.creationTimestamp + duration('1s')",
    "namespaceObject.metadata.creationTimestamp < timestamp(0)",
    "namespaceObject.metadata.creationTimestamp - namespaceObject.metadata.creationTimestamp",
    "type(namespaceObject.metadata.creationTimestamp)",
    "has(namespaceObject.metadata.deletionTimestamp)",
    "namespaceObject.metadata.creationTimestamp + 'a'",
    "[namespaceObject.metadata.creationTimestamp].max()",
    "[namespaceObject.metadata.creationTimestamp, timestamp(0)].max()",
    "timestamp(object.time).getMilliseconds()",
    "timestamp(object.time).getHours(object.zone)",
    "duration(object.duration) > duration('1h')",
];

/// Random texts of durations and timestamps, about half of them valid, and times in all zones.
pub(super) fn random(seed: u64, zones: &[String]) -> Vec<Case> {
    let mut rng = Rng(seed);
    let texts = (0..inputs(3_000)).map(|at| {
        let (text, function) =
            if at % 2 == 0 { (duration(&mut rng), "duration") } else { (timestamp(&mut rng), "timestamp") };
        let object = json!({ "text": text });
        // The text and the value.
        let rows = [
            format!("[string({function}(object.text)), string(int({function}(object.text)))]"),
            format!("{function}(object.text)"),
        ];
        let text = rng.pick(&rows).clone();
        Case { variables: json!({ "object": object }), ..case(Purpose::Admission, &text) }
    });
    let mut cases: Vec<Case> = texts.collect();
    for zone in zones {
        // From 2000 to 2025: the databases of two releases may differ before, and do after.
        let list = |rng: &mut Rng| {
            (0..8).map(|_| (946_684_800 + rng.below(789_004_800)).to_string()).collect::<Vec<_>>()
        };
        let seconds = list(&mut rng).join(", ");
        let text = format!(
            "[{seconds}].map(s, [timestamp(s).getDayOfYear('{zone}'), timestamp(s).getHours('{zone}'), \
             timestamp(s).getMinutes('{zone}'), timestamp(s).getSeconds('{zone}')])"
        );
        cases.push(case(Purpose::Admission, &text));
    }
    cases
}

fn digits(rng: &mut Rng, most: usize) -> String {
    (0..rng.below(most + 1)).map(|_| char::from(b"0123456789"[rng.below(10)])).collect()
}

fn duration(rng: &mut Rng) -> String {
    let mut text = (*rng.pick(&["", "", "", "-", "+", "--", " "])).to_owned();
    for _ in 0..=rng.below(3) {
        let longest = *rng.pick(&[2, 4, 9, 19, 20]);
        text += &digits(rng, longest);
        if rng.one_in(2) {
            let longest = *rng.pick(&[1, 3, 9, 20, 40]);
            text = text + "." + &digits(rng, longest);
        }
        text += *rng.pick(&["h", "m", "s", "ms", "us", "µs", "μs", "ns", "", "d", "S", "hm", "é"]);
    }
    text
}

fn timestamp(rng: &mut Rng) -> String {
    let number = |rng: &mut Rng, from: usize, to: usize, width: usize| {
        let number = from + rng.below(to - from + 1);
        if rng.one_in(40) { number.to_string() } else { format!("{number:0width$}") }
    };
    let mut text = number(rng, 0, 9999, 4);
    for (separator, from, to) in [("-", 1, 12), ("-", 1, 31), ("T", 0, 24), (":", 0, 60), (":", 0, 60)] {
        let separator = if rng.one_in(60) { *rng.pick(&[" ", "t", "/", "", "T"]) } else { separator };
        text = text + separator + &number(rng, from, to, 2);
    }
    if rng.one_in(2) {
        text = text + *rng.pick(&[".", ".", ","]) + &digits(rng, 12);
    }
    text + &match rng.below(8) {
        0..=2 => "Z".to_owned(),
        3..=5 => {
            let (sign, separator) = (*rng.pick(&["+", "-", "+", "-", "x"]), *rng.pick(&[":", ":", ":", ""]));
            format!("{sign}{}{separator}{}", number(rng, 0, 25, 2), number(rng, 0, 61, 2))
        }
        6 => (*rng.pick(&["z", "", "UTC", " ", "ZZ", "+1:00", "é"])).to_owned(),
        _ => "+00:00".to_owned(),
    }
}
