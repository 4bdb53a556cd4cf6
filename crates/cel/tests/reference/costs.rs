//! Expressions for their costs: those of the reference's own tests of costs (`k8s.io/apiserver/pkg/cel/library/cost_test.go`,
//! cel-go's `interpreter/runtimecost_test.go`), and every function and macro on texts and lists of many lengths, also where
//! they fail.

use serde_json::json;

use super::{Case, Purpose};

/// Parts of expressions that cost more here than in the reference, with the reason; an unused entry fails the test.
pub(super) const DEARER: &[(&str, &str)] = &[
    ("é", "a text costs its bytes, not its characters"),
    ("object == object", "what is in a value is compared for nothing in the reference"),
    ("object.nested == ", "the same"),
    ("object.lists", "the same"),
    ("'] == ['", "the same"),
    ("] == [bytes(", "the same"),
    (" != dyn([", "the same"),
    ("sets.", "long texts are compared for nothing in the reference"),
    (".distinct()", "the same"),
    (".sort()", "the same; and a list of type `dyn` is sorted for one unit there"),
    (".sortBy(", "the same"),
    (" in dyn(", "a list of type `dyn` is searched for one unit in the reference"),
    (" in object.", "the same"),
    (
        "object.text",
        "a text of type `dyn` is read for one unit in the reference, and a long one is looked up for nothing",
    ),
    ("' in [object.", "the same"),
    ("object.names == object.names", "what is in a value is compared for nothing in the reference"),
    ("dyn(object.names) != ", "the same"),
    (" + ", "lists are copied; the reference keeps both"),
    ("matches('", "a pattern as a function costs one unit in the reference, however long the text is"),
    (".matches('')", "an empty pattern is free in the reference"),
    ("int(x)", "a text is read for one unit in the reference, however long it is"),
    ("double(x)", "the same"),
    ("bool(x)", "the same"),
    ("charAt(", "the same"),
    ("size(", "the same"),
    ("isURL(", "the same"),
    ("url(", "what a part of a URL is made of is read"),
    ("findAll('a')", "each match is a string"),
    (".split('", "each part is a string"),
    (".replace('", "what replaces may be longer than what it replaces"),
    (".flatten(", "each list in a list is opened"),
    (".join(", "an element costs a tenth, where the reference takes empty texts for nothing"),
    (".max()", "the same"),
    (".min()", "the same"),
    (".sum()", "the same"),
    (".isSorted()", "the same"),
    ("ndexOf(", "the same"),
    ("' in ['", "a long key is read"),
    ("': 1}['", "the same"),
    ("optMap(", "the value of an optional is charged for where it is not used, too"),
    ("optFlatMap(", "the same"),
    ("? object.one : object.nested)", "a selection from a conditional costs what any other costs"),
    ("containsIP(dyn('", "a text of type `dyn` is read for nothing in the reference"),
    ("optional.unwrap(", "each element is copied"),
    (".unwrapOpt(", "the same"),
    ("authorizer.", "a call costs one unit in the reference, however long the texts are that it copies"),
];

const INTEGERS: &str = "[1, 2, 3, 4, 5]";
const UNSIGNED: &str = "[uint(1), uint(2), uint(3), uint(4), uint(5)]";
const DOUBLES: &str = "[1.0, 2.0, 3.0, 4.0, 5.0]";
const BOOLEANS: &str = "[false, true, false, true, false]";
const STRINGS: &str = "['012345678901', '012345678901', '012345678901', '012345678901', '012345678901']";
const BYTES: &str = "[bytes('012345678901'), bytes('012345678901'), bytes('012345678901')]";

/// All rows.
pub(super) fn all() -> Vec<Case> {
    let mut texts: Vec<String> = ROWS.iter().map(|text| (*text).to_owned()).collect();
    texts.extend(lists());
    texts.extend(strings());
    texts.extend(macros());
    texts.extend(failures());
    texts.iter().map(|text| case(text)).collect()
}

fn case(text: &str) -> Case {
    let numbers: Vec<u32> = (0..10).collect();
    let names: Vec<String> = (0..9).map(|number| format!("name-{number:02}-with-a-long-tail")).collect();
    let variables = json!({
        "object": {
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {"replicas": 3, "paused": false, "ratio": 0.5, "missing": null},
            "numbers": numbers, "names": names, "text": "t".repeat(101), "empty": "", "none": [],
            "lists": [[1, 2], [3], [], [[4, 5], [6]]],
            "nested": {"a": {"b": {"c": 1}}}, "one": {"key": "value"}
        },
        "oldObject": null, "namespaceObject": null, "params": null,
        "request": {"operation": "CREATE", "name": "web", "namespace": "team",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "userInfo": {"username": "alice", "groups": ["a", "b"]}}
    });
    Case {
        purpose: Purpose::Admission,
        text: text.to_owned(),
        claims: json!({}),
        user: json!(null),
        variables,
    }
}

/// Every function of lists on lists of every type, typed and not.
fn lists() -> Vec<String> {
    let literals =
        [INTEGERS, UNSIGNED, DOUBLES, BOOLEANS, STRINGS, BYTES, "[]", "['']", "[1]", "['', 'a', '']"];
    let variables = ["object.numbers", "object.names", "object.none", "object.lists", "object.spec.replicas"];
    let of_elements =
        [".isSorted()", ".max()", ".min()", ".sort()", ".sum()", ".distinct()", ".first()", ".last()"];
    let of_all = [
        ".reverse()",
        ".slice(0, 1)",
        ".slice(1, 3)",
        ".slice(2, 1)",
        ".slice(0, 99)",
        ".slice(-1, 1)",
        ".slice(1, 1)",
        ".size()",
        ".flatten()",
        ".flatten(2)",
        ".flatten(0)",
        ".flatten(-1)",
        ".flatten(3000)",
        ".join()",
        ".join(', ')",
        ".indexOf(1)",
        ".lastIndexOf('012345678901')",
        ".map(x, x)",
        ".map(x, 1)",
        ".filter(x, true)",
        ".filter(x, x == x)",
        ".sortBy(x, x)",
        ".all(x, true)",
        ".exists(x, false)",
        ".exists_one(x, true)",
    ];
    let mut found = Vec::new();
    for list in literals.iter().chain(&variables) {
        for call in of_elements.iter().chain(&of_all) {
            found.push(format!("{list}{call}"));
            found.push(format!("dyn({list}){call}"));
        }
        for other in ["[1]", "['012345678901']", "[]", "object.numbers", "object.names", list] {
            for set in ["contains", "equivalent", "intersects"] {
                found.push(format!("sets.{set}({list}, {other})"));
            }
            found.push(format!("{list} == {other}"));
            found.push(format!("dyn({list}) != dyn({other})"));
            found.push(format!("{list} + {other}"));
        }
        for needle in ["1", "'a'", "dyn(1)", "dyn('a')", "object.spec.replicas", "object.none", "object.text"]
        {
            found.push(format!("{needle} in {list}"));
            found.push(format!("{needle} in dyn({list})"));
        }
    }
    found.extend([0, 1, 9, 10, 11, 100].map(|count| format!("lists.range({count})")));
    found.extend([0, 1, 9, 10, 11].map(|count| format!("lists.range({count}).map(x, string(x)).sort()")));
    found
}

/// Every function of strings on texts of many lengths.
fn strings() -> Vec<String> {
    let mut found = Vec::new();
    let calls = [
        "SELF.lowerAscii()",
        "SELF.upperAscii()",
        "SELF.trim()",
        "SELF.charAt(0)",
        "SELF.substring(0)",
        "SELF.substring(0, 0)",
        "SELF.substring(1000)",
        "SELF.replace('a', 'b')",
        "SELF.replace('', 'xx')",
        "SELF.replace('a', '')",
        "SELF.replace('a', 'bb', 1)",
        "SELF.split('')",
        "SELF.split('a')",
        "SELF.split('b', 2)",
        "SELF.split('a', 0)",
        "SELF.indexOf('a')",
        "SELF.indexOf('b', 1)",
        "SELF.lastIndexOf('a')",
        "SELF.lastIndexOf('', 0)",
        "SELF.contains('b')",
        "SELF.contains('')",
        "SELF.contains('aaaaaaaaaaaaaaaaaaaaa')",
        "SELF.startsWith('a')",
        "SELF.endsWith(SELF)",
        "SELF.matches('')",
        "SELF.matches('a')",
        "SELF.matches('a.*b?[cd]{2}')",
        "matches(SELF, 'a+b')",
        "SELF.find('a+')",
        "SELF.findAll('a')",
        "SELF.findAll('a', 1)",
        "strings.quote(SELF)",
        "SELF.size()",
        "size(SELF)",
        "SELF + SELF",
        "SELF + ''",
        "SELF < SELF",
        "SELF >= 'a'",
        "SELF == SELF",
        "SELF != ''",
        "bytes(SELF)",
        "string(bytes(SELF))",
        "string(SELF)",
        "[SELF].map(x, int(x))",
        "[SELF].map(x, double(x))",
        "[SELF].map(x, bool(x))",
        "bytes(SELF) + bytes(SELF)",
        "bytes(SELF) == bytes(SELF)",
        "bytes(SELF) < b'a'",
        "size(bytes(SELF))",
        "SELF in [SELF]",
        "SELF in [object.text]",
        "[SELF].join(SELF)",
        "[SELF, SELF].max()",
        "{SELF: 1}[SELF]",
        "type(SELF)",
        "dyn(SELF) + 'a'",
        "dyn(SELF) < 'b'",
        "quantity(SELF)",
        "isQuantity(SELF)",
        "semver(SELF)",
        "isSemver(SELF)",
        "url(SELF)",
        "isURL(SELF)",
        "ip(SELF)",
        "isIP(SELF)",
        "cidr(SELF)",
        "isCIDR(SELF)",
        "ip.isCanonical(SELF)",
        "format.named(SELF)",
        "jsonpatch.escapeKey(SELF)",
        "format.dns1123Label().validate(SELF)",
        "format.uri().validate(SELF)",
        "format.uuid().validate(SELF)",
        "format.qualifiedName().validate(SELF)",
        "authorizer.path(SELF)",
        "authorizer.group(SELF)",
        "authorizer.group('').resource('pods').fieldSelector(SELF).check('get').allowed()",
        "authorizer.group('').resource('pods').labelSelector(SELF).check('get').allowed()",
        "optional.of(SELF) == optional.of(SELF)",
        "optional.ofNonZeroValue(SELF).hasValue()",
    ];
    let lengths = [0, 1, 9, 10, 11, 30, 99, 100, 101];
    let mut texts: Vec<String> = lengths.iter().map(|length| format!("'{}'", "a".repeat(*length))).collect();
    texts.extend([
        "object.text".to_owned(),
        "dyn(object.text)".to_owned(),
        "object.empty".to_owned(),
        "'é'".to_owned(),
    ]);
    for text in &texts {
        found.extend(calls.iter().map(|call| call.replace("SELF", text)));
    }
    found
}

/// Every macro over ranges of several lengths, with conditions that decide early, late, or fail.
fn macros() -> Vec<String> {
    let ranges = [
        "[]",
        "[1]",
        "[1, 2, 3]",
        "[3, 2, 1, 0]",
        "object.numbers",
        "object.one",
        "{'a': 1}",
        "object.none",
        "1",
    ];
    let bodies = [
        "true",
        "false",
        "X > 0",
        "X < 2",
        "X == 2",
        "1 / X > 0",
        "X / 0 == 1",
        "X in [1, 2]",
        "object.spec.paused",
        "dyn(X) == 'key'",
        "dyn(X).nope",
        "dyn(1)",
        "X == X && X == X",
        "(X > 1 ? X : 2) > 1",
        "[X][0] == 1",
        "has(object.spec.paused)",
        "object.numbers[X] == 1",
        "object.names.exists(n, n == 'a')",
    ];
    let one = [
        "all(x, BODY)",
        "exists(x, BODY)",
        "exists_one(x, BODY)",
        "map(x, BODY)",
        "filter(x, BODY)",
        "map(x, BODY, x)",
        "map(x, BODY, 1 / x)",
        "sortBy(x, BODY)",
    ];
    let two = [
        "all(x, y, BODY)",
        "exists(x, y, BODY)",
        "existsOne(x, y, BODY)",
        "exists_one(x, y, BODY)",
        "transformList(x, y, BODY)",
        "transformList(x, y, BODY, x)",
        "transformMap(x, y, BODY)",
        "transformMap(x, y, BODY, y)",
        "transformMapEntry(x, y, {x: BODY})",
        "transformMapEntry(x, y, BODY, {y: x})",
        "transformMapEntry(x, y, {'a': x})",
        "transformMapEntry(x, y, {x: y, string(x): y})",
    ];
    let mut found = Vec::new();
    for range in ranges {
        for call in one.iter().chain(&two) {
            for body in bodies {
                let body = body.replace('X', "dyn(x)");
                found.push(format!("dyn({range}).{}", call.replace("BODY", &body)));
            }
        }
    }
    found
}

/// Calls, selections and literals of which a part fails.
fn failures() -> Vec<String> {
    let fails =
        ["(1 / 0)", "object.nope", "[1][5]", "dyn(1).size()", "string(object.numbers)", "quantity('x')"];
    let contexts = [
        "FAIL",
        "FAIL.a",
        "FAIL.?a",
        "FAIL[0]",
        "FAIL[?0]",
        "has(FAIL.a)",
        "dyn(FAIL)",
        "[FAIL, 1]",
        "[1, FAIL]",
        "{'a': FAIL}",
        "{FAIL: 1}",
        "FAIL == 1",
        "'aaaaaaaaaaa' == string(FAIL)",
        "FAIL + object.spec.replicas",
        "object.text + string(FAIL)",
        "FAIL in object.numbers",
        "1 in [FAIL]",
        "FAIL in [1, 2]",
        "true || FAIL == 1",
        "FAIL == 1 || true",
        "FAIL == 1 && false",
        "FAIL == 1 ? 1 : 2",
        "true ? FAIL : 1",
        "!(FAIL == 1)",
        "-int(FAIL)",
        "object[FAIL]",
        "object.numbers[FAIL]",
        "string(FAIL).contains('aaaaaaaaaaaaa')",
        "object.text.contains(string(FAIL))",
        "object.text.matches(string(FAIL))",
        "string(FAIL).matches('abcdefghijkl')",
        "string(FAIL).replace('a', 'b')",
        "object.text.replace(string(FAIL), 'b')",
        "object.text.replace('a', string(FAIL))",
        "object.text.split(string(FAIL))",
        "object.text.substring(0, int(FAIL))",
        "string(FAIL).lowerAscii()",
        "string(FAIL).startsWith('a')",
        "object.text.indexOf(string(FAIL))",
        "[dyn(FAIL)].max()",
        "dyn(FAIL).max()",
        "dyn(FAIL).join()",
        "object.names.join(string(FAIL))",
        "dyn(FAIL).reverse()",
        "lists.range(int(FAIL))",
        "object.numbers.slice(0, int(FAIL))",
        "sets.contains(dyn(FAIL), [1, 2, 3])",
        "sets.equivalent([1, 2, 3], dyn(FAIL))",
        "optional.of(FAIL)",
        "optional.of(FAIL).hasValue()",
        "optional.of(FAIL).optMap(x, x)",
        "optional.of(1).optMap(x, FAIL)",
        "optional.none().optMap(x, FAIL)",
        "optional.of(1).optFlatMap(x, dyn(FAIL))",
        "optional.of(1).or(dyn(FAIL))",
        "optional.none().orValue(FAIL)",
        "dyn(FAIL).all(x, true)",
        "dyn(FAIL).map(x, x)",
        "[1, 2].map(x, FAIL)",
        "[1, 2].all(x, FAIL == x)",
        "[1, 2].exists_one(x, FAIL == x)",
        "ip(string(FAIL))",
        "cidr('10.0.0.0/8').containsIP(string(FAIL))",
        "cidr('10.0.0.0/8').containsCIDR(string(FAIL))",
        "cidr(string(FAIL)).containsIP('10.0.0.1')",
        "url(string(FAIL)).getHost()",
        "semver(string(FAIL)).major()",
        "quantity(string(FAIL)).isInteger()",
        "format.dns1123Label().validate(string(FAIL))",
        "format.uri().validate(string(FAIL))",
        "authorizer.path(string(FAIL)).check('get')",
        "authorizer.path('/a').check(string(FAIL))",
        "authorizer.group('').resource('pods').name(string(FAIL)).check('get').allowed()",
        "authorizer.group('').resource('pods').labelSelector(string(FAIL))",
        "string(FAIL) < 'a'",
        "object.text < string(FAIL)",
    ];
    let mut found = Vec::new();
    for fail in fails {
        found.extend(contexts.iter().map(|context| context.replace("FAIL", &format!("dyn({fail})"))));
    }
    found
}

const ROWS: &[&str] = &[
    // cost_test.go
    "'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()",
    "strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')",
    "'abc 123 def 123'.replace('123', '456', 1)",
    "'abc 123 def 123'.split(' ', 1)",
    "'  abc 123 def 123  '.trim()",
    "['aa', 'bb', 'cc', 'd', 'e', 'f', 'g', 'h', 'i', 'j'].join(' ')",
    "'abc 123 def 123'.findAll('123', 1)",
    "jsonpatch.escapeKey('abc/def~ abc/def~')",
    "url('https:://kubernetes.io/')",
    "url('https://kubernetes.io/a').getScheme()",
    "url('https://kubernetes.io:8/a').getHostname()",
    "url('https://kubernetes.io/a').getHost()",
    "url('https://kubernetes.io:8/a').getPort()",
    "url('https://kubernetes.io/a').getEscapedPath()",
    "url('https://kubernetes.io/a?b=c').getQuery()",
    "url('https://kubernetes.io/a') == url('https://kubernetes.io/a')",
    "isIP('192.168.0.1')",
    "ip('192.168.0.1').family()",
    "ip('2001:db8::1').isUnspecified()",
    "ip('192.168.0.1').isLoopback()",
    "ip('2001:db8::1') == ip('192.168.0.1')",
    "dyn('aaaaaaaaaaaaaaaaaaaaa') == dyn(ip('2001:db8::1'))",
    "dyn([]) == dyn(ip('::1'))",
    "dyn(ip('::1')) == dyn([])",
    "cidr('192.168.0.0/16').ip()",
    "cidr('2001:db8::/32').masked()",
    "cidr('192.168.0.0/16').containsIP(ip('192.168.0.1'))",
    "cidr('192.168.0.0/16').containsIP('192.168.0.1')",
    "cidr('2001:db8::/32').containsIP(ip('2001:db8::1'))",
    "cidr('2001:db8::/32').containsIP('2001:db8::1')",
    "cidr('192.168.0.0/16').containsCIDR(cidr('192.168.0.0/24'))",
    "cidr('192.168.0.0/16').containsCIDR('192.168.0.0/24')",
    "cidr('2001:db8::/32').containsCIDR(cidr('2001:db8::/126'))",
    "cidr('2001:db8::/32').containsCIDR('2001:db8::/126')",
    "cidr('0.0.0.0/0').containsIP('1.2.3.4')",
    "cidr('10.0.0.0/8').containsIP(dyn('10.0.0.1'))",
    "string(ip('2001:db8::1'))",
    "cidr('10.0.0.0/8').prefixLength()",
    "ip.isCanonical('2001:db8::1')",
    "string(cidr('2001:db8::/32'))",
    "authorizer.path('/healthz').check('get').allowed()",
    "authorizer.group('apps').resource('deployments').subresource('status').namespace('test').name('backend').check('create').allowed()",
    "authorizer.group('apps').resource('deployments').check('create').error()",
    "authorizer.serviceAccount('team', 'web').path('/a').check('get').reason()",
    "authorizer.requestResource.check('get').allowed()",
    "authorizer.group('apps').resource('deployments').fieldSelector('spec.nodeName=a').labelSelector('a=b').check('list').allowed()",
    r#"quantity("200M") == quantity("0.2G") && quantity("0.2G") == quantity("200M")"#,
    r#"quantity("50M").isLessThan(quantity("50Mi"))"#,
    r#"quantity("200M").compareTo(quantity("0.2G")) > 0"#,
    r#"quantity("50k").add(20).sub(quantity("100k")).sub(-50000).asInteger() > 0"#,
    r#"quantity("50.703k").asApproximateFloat() > 0.0"#,
    r#"quantity("50").sign()"#,
    r#"format.named("dns1123subdomain")"#,
    r#"format.named("dns1123Subdomain").value().validate("my-name")"#,
    r#"format.named("dns1123Label").value() == format.named("dns1123Label").value()"#,
    "sets.contains([1, 2, 3, 4], [2, 3])",
    "sets.contains([1], [1.0, 1])",
    "sets.contains([[1], [2, 3]], [[2, 3.0]])",
    "!sets.contains([1], ['1', 1])",
    "sets.equivalent([[1.0], [2, 3]], [[1], [2, 3.0]])",
    "!sets.intersects([1], [1.1, 2u])",
    r#"semver("1234.56789012345.67890123456789")"#,
    r#"isSemver("1234.56789012345.67890123456789")"#,
    r#"semver("1.0.0").compareTo(semver("1.2.3"))"#,
    "{'a': 1, 'b': 2}.all(k, v, v > 0)",
    "{'a': 1, 'b': 2}.existsOne(k, v, v > 0)",
    "{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1)",
    "{'a': 1, 'b': 2}.transformMapEntry(k, v, v < 5, {k: v + 1})",
    "[1, 2].transformList(i, v, v < 5, v + 1)",
    // runtimecost_test.go
    "'Hello World!'",
    "object",
    "object['one']",
    "object.numbers[0]",
    "object.one.key",
    "object.one['key']",
    "[1, 2]",
    "[object, 1]",
    "[object.numbers, [1]][0]",
    "{'a': 1}",
    "{'a': object}",
    "{'a': object}.a.one.key",
    "{object.one.key: 1}",
    "[1, [2, object]]",
    "[object.numbers].map(x, x.size())",
    "object.numbers.all(x, true)",
    "object.numbers.map(x, object.numbers.map(y, x + y))",
    "object.numbers.all(x, object.numbers.all(y, x + y >= 0))",
    "object.numbers.exists(x, x > 5)",
    "object.numbers.exists_one(x, x == 3)",
    "object.one.all(k, object.one[k] == 'value')",
    "object.one.map(k, k)",
    "object.text.matches('[0-9]+')",
    "object.text.startsWith('tt')",
    "object.text.endsWith('t')",
    "object.text.contains('t')",
    "matches(object.text, '\\\\d')",
    "size(object.numbers)",
    "1 in object.numbers",
    "'key' in object.one",
    "'a' in ['a', 'b', object.text]",
    "1 + 2",
    "1 < 2",
    "'abc' < 'abd'",
    "1.5 * 2.0",
    "5 % 3",
    "-object.spec.replicas",
    "!object.spec.paused",
    "true || false",
    "object.spec.paused || true || object.spec.replicas == 1",
    "false && object.spec.paused",
    "object.spec.paused && true",
    "object.spec.replicas > 2 ? 'best' : 'worst'",
    "object.spec.paused ? object.one : object.nested",
    "(object.spec.paused ? object.one : object.nested).a.b",
    "[object.one, object.nested][object.spec.replicas > 2 ? 1 : 0].a",
    "has(object.spec)",
    "has(object.spec.replicas)",
    "has(object.spec.nope)",
    "has(object.nope.nope)",
    "has({'a': 1}.a)",
    "has((object.spec.paused ? object.one : object.nested).a)",
    "has(object.?nope.a)",
    "has(object.?spec.replicas)",
    "bytes('abc')",
    "string(b'abc')",
    "int('5')",
    "uint(5)",
    "double(5)",
    "type(object)",
    "string(5)",
    "dyn(object)",
    "string(1.5)",
    "bool('true')",
    "object.?spec.?replicas",
    "object.?spec.?nope",
    "object.?nope.?replicas.a.b.c",
    "object[?'spec'].?replicas",
    "object.numbers[?3]",
    "object.numbers[?99]",
    "object.?spec.replicas.orValue(1)",
    "object.?nope.orValue(object.spec.replicas)",
    "object.?nope.or(object.?spec.?replicas).value()",
    "optional.of(object.spec).replicas",
    "optional.of(object.numbers)[0]",
    "optional.none().hasValue()",
    "optional.of(1).value()",
    "object.?spec.optMap(s, s.replicas)",
    "object.?spec.optMap(s, 1)",
    "object.?nope.optMap(s, s.replicas)",
    "object.?spec.optFlatMap(s, s.?replicas)",
    "optional.of(optional.of(1))",
    "optional.of(optional.none())",
    "true ? optional.of(optional.of(1)) : optional.none()",
    "[optional.of(optional.of(1))].map(x, x)",
    "[optional.of(optional.none())].map(x, x)",
    "optional.of(optional.of(object.spec)).replicas",
    "optional.of(optional.of(object.spec)).?replicas",
    "[optional.of(optional.of(object.numbers))].map(x, x[1])",
    "optional.of(optional.of(1)) == optional.of(1)",
    "[optional.of(optional.of(1))][0].value()",
    "optional.of(optional.of(optional.none())).optMap(x, x)",
    "optional.of(optional.of(1)).value().value()",
    "object.?spec.optMap(s, s.replicas).optMap(r, r + 1).optMap(r, r + 1)",
    "optional.of(optional.of(1)).optMap(x, x.optMap(y, y))",
    "optional.unwrap([optional.of(1), optional.none()])",
    "[object.?spec, object.?nope].unwrapOpt()",
    "[?object.?spec, ?object.?nope]",
    "{?'a': object.?spec, ?'b': object.?nope}",
    "object.nested.a.b.c",
    "object.nested['a']['b']['c']",
    "object.nested[object.one.key]",
    "object[object.metadata.name == 'web' ? 'one' : 'two']",
    "object['o' + 'ne']",
    "object[dyn('one')]",
    "[[1, 2], [3]][0][1]",
    "[1, 2].map(x, [x]).flatten()",
    "{1: 'a', 2: 'b'}[object.spec.replicas - 1]",
    "object.metadata.labels == {'app': 'web'}",
    "object == object",
    "object.nested == object.nested",
    "object.names == object.names",
    "object.lists == [[1, 2], [3], [], [[4, 5], [6]]]",
    "object.text == object.text",
    "null == object.spec.missing",
    "object.spec.missing == null",
    "[] == []",
    "{} == {}",
    "'' == ''",
    "'' < ''",
    "object.spec.replicas in [1, 2, 3]",
    "object.spec.replicas in [1, dyn(2.0), dyn(3u)]",
    "3.0 in [1, 2, 3]",
    "dyn(3u) in [1, 2, 3]",
    "object.spec.ratio in [0.5, 1.0]",
    "object.text in [b'a', b'b']",
    "dyn(double('NaN')) in [double('NaN')]",
    "-0.0 in [0.0]",
    "dyn(null) in [dyn(1)]",
    "object.spec.replicas in [[1], [3]]",
    "1 in []",
    "(1 / 0) in []",
    "dyn(1 / 0) in dyn([])",
    "'a' in {'a': 1}",
    "dyn('a') in dyn({'a': 1})",
    "object.numbers.sortBy(x, -x)",
    "object.names.sortBy(x, x)",
    "object.names.sortBy(x, string(x))",
    "['b', 'a'].sortBy(x, x)",
    "[3, 1, 2].sortBy(x, x)",
    "[].sortBy(x, x)",
    "dyn(1).sortBy(x, x)",
    "[1, 2].sortBy(x, [x])",
    "dyn([1, 'a']).sortBy(x, x)",
    "[1, 2].sortBy(x, 1 / 0)",
];
