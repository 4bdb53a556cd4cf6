//! Expressions and values that are meant to do harm: deep, long, doubling, or costly where a price might be missing.
//!
//! Each runs in a process of its own, on a stack of 2 MiB like that of a worker of tokio. It must end with a compile error, an
//! evaluation error, or a value within the cost limit, and without much memory. The longest times are printed.

#![expect(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]
#![allow(clippy::print_stdout, clippy::print_stderr, missing_docs, reason = "the output of a test program")]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portcullis_cel::{Bindings, Environment, Expression, Outcome, ResourceTarget, ResultType};
use serde_json::{Value as Json, json};

/// The kind that a child process runs.
const KIND: &str = "HOSTILE_KIND";
/// The most memory of a process, in KiB.
const MAX_MEMORY: u64 = 240 << 10;
/// The longest processor time of an evaluation.
const MAX_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 10_000 } else { 1_000 });
const STACK: usize = 2 << 20;
const COST_LIMIT: u64 = 1_000_000;

/// A name, the expression, and the variable `object`.
type Kind = (&'static str, String, Object);

/// The values of `object`; built in the child process only.
#[derive(Debug, Clone, Copy)]
enum Object {
    Small,
    /// Lists of numbers and texts with 200,000 elements, a text of 1 MB, a map with 20,000 long keys.
    Large,
    /// Texts: patterns, digits, separators, keys.
    Texts,
    /// Lists and maps with this depth.
    Deep(usize),
    /// A long text `x`, a list `l` of numbers, and a text `p`.
    Long(&'static str, usize, usize, &'static str),
    /// A list `l` of this text with a number after each, and one text `x`.
    Many(&'static str, usize, &'static str),
}

impl Object {
    fn build(self) -> Json {
        match self {
            Self::Small => json!({"a": {"b": 1}, "l": [1, 2, 3], "s": "text", "t": true}),
            Self::Large => {
                let keys = (0..20_000).map(|at| (format!("{}{at}", "k".repeat(40)), json!(at))).collect();
                json!({
                    "l": (0..200_000).collect::<Vec<_>>(),
                    "m": (0..2_000).collect::<Vec<_>>(),
                    "s": (0..50_000).map(|at| format!("s{at}")).collect::<Vec<_>>(),
                    "e": vec![""; 200_000],
                    "n": vec![vec![1; 9]; 20_000],
                    "x": "x".repeat(1_000_000),
                    "y": "y".repeat(1_000_000),
                    "k": Json::Object(keys),
                })
            }
            Self::Texts => json!({
                "p": "(a|a)*".repeat(1_500), "q": "(((a{1000}){1000}){1000})", "r": "(a*)*b", "w": "\\pL{500}",
                "a": "a".repeat(20_000), "d": "9".repeat(100_000), "u": "é".repeat(100_000), "z": "0".repeat(100_000),
                "ip": ":".repeat(100_000), "v": format!("1.2.3-{}", "0.".repeat(50_000)), "h": "http://".repeat(20_000),
                "f": "%s%d%x%b%e%.300f".repeat(2_000), "m": (0..1_000).collect::<Vec<_>>(),
            }),
            Self::Deep(depth) => {
                let lists = (0..depth).fold(json!(1), |inner, _| json!([inner]));
                let maps = (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }));
                let wide = (0..depth.min(14)).fold(json!(1), |inner, _| json!([inner, inner]));
                json!({"l": lists, "m": maps, "w": wide})
            }
            Self::Long(unit, times, length, text) => {
                json!({"x": unit.repeat(times), "l": (0..length).collect::<Vec<_>>(), "p": text})
            }
            Self::Many(text, length, other) => {
                json!({"l": (0..length).map(|at| format!("{text}{at}")).collect::<Vec<_>>(), "x": other})
            }
        }
    }
}

fn nested(open: &str, inner: &str, close: &str, count: usize) -> String {
    format!("{}{inner}{}", open.repeat(count), close.repeat(count))
}

/// Depth and length of the expression.
fn shapes() -> Vec<Kind> {
    let deepest = 245;
    [
        ("brackets", nested("(", "1", ")", deepest)),
        ("too many brackets", nested("(", "1", ")", 49_000)),
        ("open brackets", "(".repeat(100_000)),
        ("open lists", "[".repeat(100_000)),
        ("open maps", "{1:".repeat(33_000)),
        ("lists", nested("[", "1", "]", deepest)),
        ("maps", nested("{1: ", "1", "}", 240)),
        ("lists of variables", nested("[", "object", "]", deepest)),
        ("conditionals", nested("object.t ? (", "1", ") : 2", 240)),
        ("chained conditionals", format!("{}1", "object.t ? 1 : ".repeat(240))),
        ("sum", vec!["object.a.b"; 240].join(" + ")),
        ("long sum", vec!["1"; 50_000].join("+")),
        ("selections", format!("object{}", ".a".repeat(249))),
        ("too many selections", format!("object{}", ".a".repeat(49_000))),
        ("optional selections", format!("object{}", ".?a".repeat(249))),
        ("indices", format!("object{}", "['a']".repeat(245))),
        ("indices in indices", nested("object[", "'a'", "]", deepest)),
        ("methods", format!("object.s{}", ".trim()".repeat(240))),
        ("conversions", nested("dyn(", "object", ")", deepest)),
        ("negations", format!("{}object.t", "!".repeat(99_000))),
        ("minuses", format!("{}object.a.b", "-".repeat(99_000))),
        ("nested negations", nested("!(", "object.t", ")", deepest)),
        ("and", vec!["object.t"; 9_000].join(" && ")),
        ("or", vec!["object.a.b == 2"; 5_000].join(" || ")),
        ("and of or", nested("(object.t && (object.t || ", "object.t", "))", 120)),
        ("deepest mixture", nested("(object.t && (!object.t || -1 == [", "object.a.b", "].size()))", 80)),
        ("macros in macros", nested("[1].map(x, ", "x", ")", deepest)),
        ("macros on macros", format!("object.l{}", ".map(x, x)".repeat(245))),
        ("sorts in sorts", nested("[1].sortBy(x, ", "x", ".size())", 100)),
        ("optionals on optionals", format!("optional.of(1){}", ".optMap(x, x)".repeat(240))),
        ("optionals in optionals", nested("optional.of(1).optMap(x, ", "x", ")", deepest)),
        ("alternatives", format!("object.?z{}", ".or(object.?z)".repeat(240))),
        ("long list", format!("[{}]", vec!["object.a.b"; 9_000].join(","))),
        (
            "long map",
            format!("{{{}}}", (0..9_000).map(|at| format!("{at}: 1")).collect::<Vec<_>>().join(",")),
        ),
        ("long call", format!("object.f({})", vec!["1"; 40_000].join(","))),
        ("long name", "x".repeat(100_000)),
        ("long qualified name", format!("a{}", ".b".repeat(240))),
        ("long text", format!("'{}'.size()", "x".repeat(99_000))),
        ("too long a text", format!("'{}'.size()", "x".repeat(1_000_000))),
        ("escapes", format!("'{}'", "\\u00e9".repeat(16_000))),
        ("numbers", "9".repeat(100_000)),
        ("exponents", format!("1e{}", "9".repeat(99_000))),
        ("garbage", "? ] ) \u{0} é ' \\ ".repeat(6_000)),
        ("comments", "// x\n".repeat(19_000) + "1"),
        ("unclosed text", format!("'{}", "a\\'".repeat(30_000))),
        ("question marks", "1?".repeat(50_000)),
        ("messages", "a{b:".repeat(25_000)),
    ]
    .into_iter()
    .map(|(name, text)| (name, text, Object::Small))
    .collect()
}

/// Loops and calls over what an object brings.
fn loops() -> Vec<Kind> {
    let large = [
        ("nested loops", "object.l.all(x, object.l.all(y, object.l.all(z, true)))"),
        ("nested free loops", "object.l.filter(x, object.l.filter(y, false) == []) == []"),
        ("free conditions", "object.l.all(x, true || true || true || true || true || true || true || true)"),
        ("loops over texts", "object.s.map(x, object.s.map(y, x + y))"),
        ("two variables", "object.l.transformList(i, v, object.l.transformMap(j, w, w))"),
        ("entries", "object.m.transformMapEntry(i, v, object.k)"),
        ("exists over all", "object.l.exists(x, object.l.exists_one(y, x == y))"),
        ("failing loops", "object.l.map(x, object.l.map(y, 1 / 0))"),
        ("failing counts", "object.l.exists_one(x, object.l.exists_one(y, 1 / 0 == 1))"),
        ("huge range", "lists.range(9223372036854775807)"),
        ("range of a range", "lists.range(900000).map(x, lists.range(900000))"),
        ("sort of many", "lists.range(900000).sort()"),
        ("sort in a loop", "object.m.map(x, object.l.sort())"),
        ("sort by a loop", "object.l.sortBy(x, object.l.size())"),
        (
            "sort of long texts",
            "[object.x + 'a', object.x + 'b', object.x + 'c'].map(x, [x, object.x, x].sort())",
        ),
        ("distinct", "object.l.distinct()"),
        ("distinct in a loop", "object.m.map(x, dyn(object.m).distinct())"),
        ("sets of large lists", "sets.contains(object.l, object.l)"),
        (
            "sets in a loop",
            "object.m.all(x, sets.equivalent(object.m, object.m) || sets.intersects(object.m, [x]))",
        ),
        ("flatten in a loop", "object.m.map(x, object.n.flatten())"),
        ("flatten to any depth", "object.n.flatten(9223372036854775807)"),
        ("reverse in a loop", "object.m.map(x, object.l.reverse())"),
        ("slice in a loop", "object.l.all(x, object.l.slice(199999, 200000).size() == 1)"),
        ("first of many", "object.l.all(x, object.l.first().hasValue() && object.l.last().hasValue())"),
        ("maximum in a loop", "object.l.all(x, object.e.max() == '')"),
        ("sum in a loop", "object.l.all(x, object.l.sum() >= 0)"),
        ("search in a loop", "object.l.all(x, object.e.indexOf('a') < 0 && object.l.lastIndexOf(-1) < 0)"),
        ("in a list", "object.l.all(x, !(-1 in object.l))"),
        ("in a map", "object.l.all(x, !(object.x in object.k))"),
        ("long keys", "object.l.all(x, object[object.x] == 1 || true)"),
        ("long inserted keys", "object.m.transformMapEntry(i, v, {object.x + string(i): v})"),
        ("joined empty texts", "object.l.all(x, object.e.join('') == '')"),
        ("joined long separators", "object.s.join(object.x)"),
        ("doubled texts", "object.m.map(x, object.x + object.y)"),
        ("doubled lists", "object.m.map(x, object.l + object.l)"),
        (
            "doubled by nesting",
            "[object.l].map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a)",
        ),
        ("replaced by itself", "object.x.replace('', object.x).replace('', object.x)"),
        ("replaced in a loop", "object.m.map(x, object.x.replace('x', 'yy'))"),
        ("split to characters", "object.m.map(x, object.x.split(''))"),
        ("split by a long text", "object.l.all(x, ''.split(object.x).size() == 1)"),
        ("search of a long text", "object.l.all(x, ''.indexOf(object.x) < 0 && !''.contains(object.x))"),
        ("equality of long texts", "object.l.all(x, object.x == object.x)"),
        ("equality of different texts", "object.l.all(x, object.x != 'a')"),
        ("order of long texts", "object.l.all(x, object.x < object.y)"),
        ("equality of lists", "object.l.all(x, object.n == object.n)"),
        ("equality of maps", "object.l.all(x, object.k == object.k)"),
        ("equality of objects", "object.m.all(x, object == object)"),
        ("size of a long text", "object.l.all(x, object.x.size() > 0)"),
        ("characters of a long text", "object.l.all(x, object.x.charAt(999999) == 'x')"),
        ("conversions of a long text", "object.l.all(x, bytes(object.x).size() > 0)"),
        ("quotes", "object.m.map(x, strings.quote(object.x))"),
        ("lists in lists", "object.m.map(x, object.m.map(y, object.m.map(z, [x, y, z])))"),
        ("optionals", "optional.unwrap(object.l.map(x, optional.of(object.l)))"),
        (
            "doubled costs",
            "optional.of(object.l).optMap(x, x.sum()).optMap(x, x).optMap(x, x).optMap(x, object.l.sum())",
        ),
        ("many checks", "object.m.all(x, authorizer.path('/a').check('get').allowed())"),
        (
            "long selectors",
            "authorizer.group('').resource('pods').labelSelector(object.x).check('get').allowed()",
        ),
        ("named formats", "object.l.all(x, format.qualifiedName().validate(object.x).hasValue())"),
        ("errors of named formats", "object.l.map(x, format.dns1123Label().validate(object.x))"),
        ("folded costs", "[1, 2, 3].map(x, object.l).flatten().map(y, object.l).flatten().size() > 0"),
    ];
    let texts = [
        ("patterns", "object.m.all(x, object.a.matches(object.p))"),
        ("patterns that double", "object.a.matches(object.q)"),
        ("patterns that backtrack", "object.m.all(x, !object.a.matches(object.r))"),
        ("patterns of classes", "object.m.all(x, !object.a.matches(object.w))"),
        ("empty patterns", "object.m.map(x, object.a.findAll(''))"),
        ("found in a loop", "object.m.map(x, object.a.findAll('a'))"),
        ("literal patterns", "object.m.all(x, !object.a.matches('(a|aa|aaa)*b'))"),
        ("integers of digits", "object.m.all(x, object.d == '1' || int(object.z) == 0)"),
        ("doubles of digits", "object.m.all(x, double(object.d) > 0.0)"),
        ("quantities of digits", "object.m.all(x, !isQuantity(object.d) || quantity(object.d).isInteger())"),
        ("exponents of quantities", "quantity('1e1000000000').add(quantity('1')).isInteger()"),
        (
            "quantities added",
            "object.m.all(x, quantity('1E').add(quantity('1n')).sub(quantity('1E')).isInteger() || true)",
        ),
        ("addresses", "object.m.all(x, !isIP(object.ip) && !isCIDR(object.ip))"),
        (
            "versions",
            "object.m.all(x, !isSemver(object.v) || semver(object.v).compareTo(semver(object.v)) == 0)",
        ),
        ("addresses of pages", "object.m.all(x, !isURL(object.h) || url(object.h).getQuery().size() >= 0)"),
        ("formats", "object.m.map(x, object.f.format([1]))"),
        ("precision", "'%.1000000000f'.format([1.0])"),
        ("formatted objects", "object.m.map(x, '%s'.format([object]))"),
        ("characters of many bytes", "object.m.all(x, object.u.substring(99999) == 'é')"),
        ("upper case in a loop", "object.m.map(x, object.a.upperAscii().lowerAscii())"),
        ("long times", "object.m.all(x, timestamp(object.d) == timestamp(object.d))"),
        ("long durations", "object.m.all(x, duration(object.d) == duration(object.d))"),
        ("zones", "object.m.all(x, timestamp('2026-01-01T00:00:00Z').getHours(object.a) == 0)"),
    ];
    let of = |object| move |(name, text): (&'static str, &str)| (name, text.to_owned(), object);
    large.map(of(Object::Large)).into_iter().chain(texts.map(of(Object::Texts))).collect()
}

/// Long texts, patterns and values that are searched, compiled, copied or compared many times.
fn repetitions() -> Vec<Kind> {
    let characters = Object::Long("a", 300_000, 0, "");
    let spaces = Object::Long(" ", 1_000_000, 200_000, "");
    let long = Object::Long("x", 1_000_000, 200_000, "");
    let patterns = |text| Object::Long("a", 10, 300_000, text);
    let literal = (0..9_000).map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
    let doubled = |start: &str| format!("{start}{}", ".map(a, [a, a])".repeat(16));
    let mut kinds: Vec<Kind> = [
        ("found far apart", "object.x.findAll('.*?b|a').size()", characters),
        ("found with a limit", "object.x.findAll('.*?b|a', 299999).size()", characters),
        ("found by a computed pattern", "object.x.findAll(object.p).size()", Object::Long("a", 300_000, 0, ".*?b|a")),
        (
            "found by many states",
            "object.x.findAll('[ab]*a[ab]{12}b|a').size()",
            Object::Long("aababbbabaaabb", 20_000, 0, ""),
        ),
        (
            "found by many states, bounded",
            "object.x.findAll('[ab]{0,30}a[ab]{12}c|a').size()",
            Object::Long("aababbbabaaabb", 10_000, 0, ""),
        ),
        ("found in short texts", "object.l.all(i, object.x.findAll('.*?b|a').size() > 0)", Object::Long("a", 40, 300_000, "")),
        ("compiled again", "object.l.all(i, !'a'.matches(object.p))", patterns("\\pC")),
        ("compiled again, repeated", "object.l.all(i, !'a'.matches(object.p))", patterns("\\pL{9}")),
        ("compiled again, too large", "object.l.all(i, !'a'.matches(object.p) || true)", patterns("\\pL{300}0")),
        ("compiled again, invalid", "object.l.all(i, !'a'.matches(object.p) || true)", patterns("\\pC\\pC\\pC(")),
        ("different patterns", "object.l.all(i, !'a'.matches(i) || true)", Object::Many("\\pC", 300_000, "")),
        ("different patterns of many states", "object.l.all(i, !'a'.matches(i) || true)", Object::Many("\\pL{9}", 100_000, "")),
        ("different patterns, too large", "object.l.all(i, !'a'.matches(i) || true)", Object::Many("\\pL{300}", 100_000, "")),
        ("different patterns, folded", "object.l.all(i, !'a'.matches(i) || true)", Object::Many("(?i)\\pL", 100_000, "")),
        ("different patterns, repeated", "object.l.all(i, !'a'.matches(i) || true)", Object::Many("(a{30}){30}", 100_000, "")),
        ("found by different patterns", "object.l.all(i, 'a'.find(i) == '' || true)", Object::Many("\\pN", 300_000, "")),
        ("copied resources", "object.l.all(i, authorizer.group('').resource(object.x) == null || true)", long),
        ("copied groups", "object.l.all(i, authorizer.group(object.x).resource('a') == null || true)", long),
        (
            "copied names",
            "object.l.all(i, authorizer.group('').resource('a').name(object.x).namespace('a').name('b') == null || true)",
            long,
        ),
        ("copied accounts", "object.l.all(i, authorizer.serviceAccount('a', object.x) == null || true)", long),
        ("blank paths", "object.l.all(i, authorizer.path(object.x) == null || true)", spaces),
        ("blank resources", "object.l.all(i, authorizer.group('').resource(object.x) == null || true)", spaces),
        (
            "long durations of many parts",
            "object.l.all(i, duration(object.x) == duration('0s') || true)",
            Object::Long("0s", 500_000, 300_000, ""),
        ),
        (
            "equality of long URLs in lists",
            "[[url('http://a/' + object.x)]].all(u, object.l.all(i, u == u))",
            Object::Long("x", 200_000, 200_000, ""),
        ),
        (
            "search of a long URL",
            "[url('http://a/' + object.x)].all(u, object.l.all(i, [u].indexOf(u) == 0))",
            Object::Long("x", 200_000, 200_000, ""),
        ),
        (
            "equality of long versions in lists",
            "[[semver('1.2.3-' + object.x)]].all(u, object.l.all(i, u == u && u[0] in u))",
            Object::Long("x", 200_000, 200_000, ""),
        ),
        (
            "search of a long text in a list",
            "object.l.all(i, [object.x].indexOf(object.p + object.x) < 0)",
            Object::Long("x", 5_000, 200_000, ""),
        ),
        (
            "equality of large quantities",
            "[quantity(object.x)].all(q, object.l.all(i, q == q))",
            Object::Long("9", 1_000, 200_000, ""),
        ),
        (
            "equality of large quantities in lists",
            "[[quantity(object.x), quantity('1n')]].all(q, object.l.all(i, q == q))",
            Object::Long("9", 1_000, 200_000, ""),
        ),
        (
            "comparison of distant quantities",
            "[quantity('1e1000')].all(q, [quantity('1e-9')].all(r, object.l.all(i, q != r && !q.isLessThan(r))))",
            Object::Long("9", 1_000, 200_000, ""),
        ),
        (
            "sums of large quantities",
            "[quantity(object.x)].all(q, object.l.all(i, q.add(q).sign() == 1))",
            Object::Long("9", 1_000, 200_000, ""),
        ),
        (
            "facts of large quantities",
            "[quantity(object.x)].all(q, object.l.all(i, q.asApproximateFloat() > 0.0))",
            Object::Long("9", 1_000, 200_000, ""),
        ),
        ("shared texts in the result", "object.l.map(i, object.x)", Object::Long("x", 10_000, 200_000, "")),
        ("shared long texts in the result", "object.l.map(i, object.x)", long),
    ]
    .into_iter()
    .map(|(name, text, object)| (name, text.to_owned(), object))
    .collect();
    kinds.push(("shared lists in the result", doubled("[1]"), Object::Small));
    kinds.push((
        "shared lists in the result, more",
        doubled("[[[1]]]") + &".map(a, [a, a])".repeat(20),
        Object::Small,
    ));
    kinds.push(("shared texts in lists", doubled("[object.x]"), Object::Long("x", 1_000, 0, "")));
    kinds.push((
        "long literals in a loop",
        format!("lists.range(900).map(i, [{literal}, i + 9000]).size()"),
        Object::Small,
    ));
    kinds.push((
        "long maps in a loop",
        format!(
            "lists.range(900).map(i, {{{}}}).size()",
            (0..10_000).map(|at| format!("{at}: i")).collect::<Vec<_>>().join(",")
        ),
        Object::Small,
    ));
    kinds
}

/// Deep values.
fn depths() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (name, text) in [
        ("equality of deep lists", "object.l == object.l"),
        ("equality of deep maps", "object.m == object.m"),
        ("equality of doubling values", "object.w == object.w"),
        ("a deep value", "object"),
        ("flattened deep lists", "object.l.flatten(1000)"),
        ("flattened doubling lists", "object.w.flatten(13)"),
        ("search in a deep list", "object.l.indexOf(object.l)"),
        ("sets of deep lists", "sets.contains(object.w, object.w)"),
        ("deep values made deeper", "[1].map(x, [[[[object.l]]]]) == [1].map(x, [[[[object.l]]]])"),
        ("deep values in a format", "'%s'.format([object])"),
        ("deep values as keys", "{object.l: 1}"),
        ("deep distinct", "[object.l, object.l, object.m, object.m].distinct()"),
        ("deep selections", "object.m.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a"),
    ] {
        for depth in [127, 240] {
            kinds.push((name, text.to_owned(), Object::Deep(depth)));
        }
    }
    kinds.push((
        "equality of deep values in a deep tree",
        nested("!(", "object.l == object.l", ")", 240),
        Object::Deep(240),
    ));
    kinds.push(("too deep a value", "object == object".to_owned(), Object::Deep(5_000)));
    kinds
}

fn kinds() -> Vec<Kind> {
    [shapes(), loops(), repetitions(), depths()].concat()
}

/// Compiles and evaluates; `None` for a compile error. Also the processor time of the evaluation.
fn run(text: &str, bindings: &Bindings) -> Option<(Outcome, u64, Duration)> {
    let expression = Expression::compile(text, Environment::ADMISSION, ResultType::Any).ok()?;
    let before = cpu_time();
    let evaluated = expression.evaluate_with(bindings, &[]);
    Some((evaluated.outcome, evaluated.cost, cpu_time().saturating_sub(before)))
}

/// The processor time of this process so far, which does not depend on what else the machine does.
fn cpu_time() -> Duration {
    let status = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = status.rsplit_once(") ").unwrap();
    // `utime` and `stime`, in hundredths of a second.
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// The most memory of this process so far, in KiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "the child process of the test below"]
fn one_kind() {
    let at: usize = std::env::var(KIND).unwrap().parse().unwrap();
    let (_, text, object) = kinds().into_iter().nth(at).unwrap();
    // A thread with a larger stack, as the deepest values cannot even be built on a small one.
    let builder = std::thread::Builder::new().stack_size(64 << 20);
    let object = builder.spawn(move || object.build()).unwrap().join().unwrap();
    let before = memory();
    std::thread::spawn(|| {
        std::thread::sleep(4 * MAX_TIME);
        eprintln!("no end within {:?}", 4 * MAX_TIME);
        std::process::abort();
    });
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let bindings = Bindings::default().with("object", &object).with_authorizer(ResourceTarget::default());
        // Dropping it recurses.
        std::mem::forget(object);
        let started = Instant::now();
        let found = run(&text, &bindings);
        let elapsed = started.elapsed();
        drop(bindings);
        (found, elapsed)
    });
    let (found, elapsed) = thread.unwrap().join().unwrap();
    let end = match &found {
        None => "refused",
        Some((Outcome::Value(_), ..)) => "value",
        Some((Outcome::Patch(_), ..)) => "patch",
        Some((Outcome::Error(_), ..)) => "error",
        Some((Outcome::Unsupported(_), ..)) => "unsupported",
        Some((Outcome::Review(_), ..)) => "review",
        Some((Outcome::Variable(_), ..)) => "variable",
    };
    let (cost, evaluation) = found.map_or((0, Duration::ZERO), |(_, cost, evaluation)| (cost, evaluation));
    let memory = memory() - before;
    println!("RESULT {end} {cost} {} {memory} {}", elapsed.as_millis(), evaluation.as_millis());
}

/// What the process of a kind came to.
#[derive(Debug, Default)]
struct Finding {
    failures: Vec<String>,
    /// The time with compilation, the memory in KiB, and a line about the end. `None` if the process did not end well.
    measured: Option<(Duration, u64, String)>,
}

fn in_a_process(at: usize, (name, text, object): &Kind) -> Finding {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "one_kind"])
        .env(KIND, at.to_string())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let shown: String = text.chars().take(80).collect();
    let Some(line) = printed.lines().find_map(|line| line.split_once("RESULT ").map(|(_, line)| line)) else {
        let problem = String::from_utf8_lossy(&output.stderr);
        let problem = problem.lines().take(6).collect::<Vec<_>>().join(" ");
        return Finding {
            failures: vec![format!("{name} ({object:?}): {shown}: {problem}")],
            measured: None,
        };
    };
    let parts: Vec<&str> = line.split(' ').collect();
    let [end, cost, elapsed, memory, evaluation] = <[&str; 5]>::try_from(parts).unwrap();
    let number = |text: &str| -> u64 { text.parse().unwrap() };
    let mut failures = Vec::new();
    if end == "value" && number(cost) > COST_LIMIT {
        failures.push(format!("{name}: {shown}: cost {cost}"));
    }
    if Duration::from_millis(number(evaluation)) > MAX_TIME {
        failures.push(format!("{name}: {shown}: {evaluation} ms, cost {cost}"));
    }
    if number(memory) > MAX_MEMORY {
        failures.push(format!("{name}: {shown}: {memory} KiB"));
    }
    let end = format!("{name} ({object:?}): {end} {cost}, evaluated in {evaluation} ms");
    Finding { failures, measured: Some((Duration::from_millis(number(elapsed)), number(memory), end)) }
}

#[test]
fn harm_ends() {
    let kinds = kinds();
    assert!(kinds.len() >= 65, "{}", kinds.len());
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        kinds.get(at).map(|kind| (at, kind))
    };
    let run_some = || std::iter::from_fn(take).map(|(at, kind)| in_a_process(at, kind)).collect::<Vec<_>>();
    // One process for each processor: what is measured is processor time and memory.
    let processors = std::thread::available_parallelism().unwrap().get();
    let findings: Vec<Finding> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(run_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(findings.len(), kinds.len());
    let failures: Vec<&str> =
        findings.iter().flat_map(|finding| &finding.failures).map(String::as_str).collect();
    let mut times: Vec<_> = findings.iter().filter_map(|finding| finding.measured.clone()).collect();
    times.sort_by(|left, right| right.cmp(left));
    for (elapsed, memory, name) in times.iter().take(40) {
        eprintln!("{elapsed:?} {} MiB {name}", memory >> 10);
    }
    times.sort_by_key(|(_, memory, _)| std::cmp::Reverse(*memory));
    for (elapsed, memory, name) in times.iter().take(15) {
        eprintln!("{} MiB {elapsed:?} {name}", memory >> 10);
    }
    assert!(
        failures.is_empty(),
        "{} of {} kinds fail:\n{}",
        failures.len(),
        kinds.len(),
        failures.join("\n")
    );
}
