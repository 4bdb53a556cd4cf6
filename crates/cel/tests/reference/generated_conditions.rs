//! Random conditions of admission webhooks over the types of Kubernetes' libraries. A third of them are spoilt: an
//! operand has another type than its operator wants.

use testkit::random::Rng;

use super::conditions::case;
use super::{Case, Purpose};

/// A type of the grammar: its name, its leaves, and expressions of it whose operands stand in «».
struct Kind {
    name: &'static str,
    leaves: &'static [&'static str],
    composed: &'static [&'static str],
}

pub(super) fn expressions(seed: u64, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    (0..count)
        .map(|number| {
            let kind = if number % 2 == 0 { "bool" } else { rng.pick(GRAMMAR).name };
            let depth = 1 + rng.below(4);
            let text = Writer { rng: &mut rng, spoilt: number % 3 == 0 }.write(kind, depth);
            // The functions that a release adds are those of stored objects.
            case(if number % 4 == 1 { Purpose::Policy } else { Purpose::Admission }, &text)
        })
        .collect()
}

struct Writer<'a> {
    rng: &'a mut Rng,
    spoilt: bool,
}

impl Writer<'_> {
    fn write(&mut self, name: &str, depth: usize) -> String {
        let mut kind = GRAMMAR.iter().find(|kind| kind.name == name).unwrap();
        if self.spoilt && self.rng.one_in(6) {
            kind = self.rng.pick(GRAMMAR);
        }
        if depth == 0 || kind.composed.is_empty() {
            return (*self.rng.pick(kind.leaves)).to_owned();
        }
        let mut text = String::new();
        let mut rest = *self.rng.pick(kind.composed);
        while let Some((before, operand)) = rest.split_once('«') {
            let (operand, after) = operand.split_once('»').unwrap();
            text.push_str(before);
            let less = 1 + self.rng.below(2);
            let written = self.write(operand, depth.saturating_sub(less));
            // A value that is only known at evaluation.
            text.push_str(if self.rng.one_in(8) { "dyn(" } else { "(" });
            text.push_str(&written);
            text.push(')');
            rest = after;
        }
        text + rest
    }
}

const GRAMMAR: &[Kind] = &[
    Kind {
        name: "bool",
        leaves: &["true", "false", "object.spec.paused", "request.dryRun", "has(object.spec)"],
        composed: &[
            "«bool» && «bool»",
            "«bool» || «bool»",
            "!«bool»",
            "«bool» ? «bool» : «bool»",
            "«text» == «text»",
            "«duration» < «duration»",
            "«duration» == «duration»",
            "«time» >= «time»",
            "«time» == «time»",
            "«ip» == «ip»",
            "«cidr».containsIP(«ip»)",
            "«cidr».containsIP(«address»)",
            "«cidr».containsCIDR(«cidr»)",
            "«cidr».containsCIDR(«network»)",
            "isIP(«address»)",
            "isCIDR(«network»)",
            "«ip».isLoopback()",
            "«ip».isUnspecified()",
            "«ip».isGlobalUnicast()",
            "«ip».isLinkLocalUnicast()",
            "«ip».isLinkLocalMulticast()",
            "ip.isCanonical(«address»)",
            "«cidr» == «cidr»",
            "isQuantity(«amount»)",
            "«quantity».isLessThan(«quantity»)",
            "«quantity».isGreaterThan(«quantity»)",
            "«quantity» == «quantity»",
            "«quantity».isInteger()",
            "isURL(«link»)",
            "«url» == «url»",
            "isSemver(«version»)",
            "isSemver(«version», «bool»)",
            "«semver».isLessThan(«semver»)",
            "«semver».isGreaterThan(«semver»)",
            "«semver» == «semver»",
            "«format».validate(«text»).hasValue()",
            "«format» == «format»",
            "«decision».allowed()",
            "«decision».errored()",
            "«whole» < «whole»",
            "«whole» == «whole»",
            "«text» in «texts»",
            "«texts».includes(«text»)",
            "«any».includes(«any»)",
            "[«any»].includes(«any»)",
            "«text».startsWith(«text»)",
            "«text».endsWith(«text»)",
            "matches(«text», '[a-z]+')",
            "has(object.metadata.labels.`tier.example.com/x`)",
            "[«any»].all(request, .request.dryRun)",
            "«texts».exists(x, x == «text»)",
            "[«duration», «duration»].isSorted()",
            "«duration» in [«duration», «duration»]",
            "type(«any») == type(«any»)",
            "«any» == «any»",
        ],
    },
    Kind {
        name: "text",
        leaves: &[
            "'a'",
            "''",
            "'é'",
            "object.metadata.name",
            "request.namespace",
            "object.none",
            "'%s is %d'",
            "'2h45m'",
            "x",
        ],
        composed: &[
            "«text» + «text»",
            "string(«duration»)",
            "string(«time»)",
            "string(«ip»)",
            "string(«cidr»)",
            "string(«whole»)",
            "«url».getScheme()",
            "«url».getHost()",
            "«url».getHostname()",
            "«url».getPort()",
            "«url».getEscapedPath()",
            "'%s'.format([«any»])",
            "'%s and %d'.format([«text», «whole»])",
            "'%.2f'.format([«real»])",
            "'%x'.format([«whole»])",
            "'%X'.format([«text»])",
            "'%e'.format([«real»])",
            "'%b'.format([«whole»])",
            "'%o'.format([«whole»])",
            "«text».format([«any»])",
            "«decision».reason()",
            "«decision».error()",
            "«bool» ? «text» : «text»",
            "«texts»[0]",
            "«format».validate(«text»).orValue([]).join(', ')",
            "«url».getQuery().a[0]",
            "«text».lowerAscii()",
            "object.metadata.labels.`tier.example.com/x`",
            "{'a/b': «text»}.`a/b`",
            "object.metadata.?labels.?`none.example.com/x`.orValue(«text»)",
            "[«any»].map(object, .object.metadata.name)[0]",
            "«any».orValue(«text»)",
        ],
    },
    Kind {
        name: "texts",
        leaves: &["['a', 'b']", "[]", "object.metadata.labels.map(k, k).sort()", "request.userInfo.groups"],
        composed: &[
            "[«text», «text»]",
            "«texts» + «texts»",
            "«url».getQuery().a",
            "«format».validate(«text»).value()",
        ],
    },
    Kind {
        name: "whole",
        leaves: &[
            "0",
            "1",
            "-1",
            "object.spec.replicas",
            "9223372036854775807",
            "-9223372036854775808",
            "1767323045",
            "64",
        ],
        composed: &[
            "«whole» + «whole»",
            "«whole» - «whole»",
            "int(«time»)",
            "int(«duration»)",
            "«time».getFullYear()",
            "«time».getMonth()",
            "«time».getDate()",
            "«time».getDayOfMonth(«zone»)",
            "«time».getDayOfWeek()",
            "«time».getDayOfYear(«zone»)",
            "«time».getHours(«zone»)",
            "«time».getMinutes()",
            "«time».getSeconds()",
            "«time».getMilliseconds()",
            "«duration».getHours()",
            "«duration».getMinutes()",
            "«duration».getSeconds()",
            "«duration».getMilliseconds()",
            "«ip».family()",
            "«cidr».prefixLength()",
            "«quantity».asInteger()",
            "sign(«quantity»)",
            "«quantity».compareTo(«quantity»)",
            "«semver».major()",
            "«semver».minor()",
            "«semver».patch()",
            "«semver».compareTo(«semver»)",
            "size(«texts»)",
            "«text».indexOf('', «whole»)",
            "«text».lastIndexOf('', «whole»)",
            "«any».indexOf(«any»)",
            "lists.range(«whole» % 40).size()",
            "[[1], [2, 3]].flatten(«whole» % 5).size()",
        ],
    },
    Kind {
        name: "real",
        leaves: &["0.0", "1.5", "-2.25", "object.spec.ratio", "1e300", "double('NaN')", "double('Infinity')"],
        composed: &["«real» * «real»", "«quantity».asApproximateFloat()", "double(«whole»)"],
    },
    Kind {
        name: "duration",
        leaves: &[
            "duration('1h')",
            "duration('1h30m')",
            "duration('-1.5s')",
            "duration('0s')",
            "duration('2540400h')",
            "duration('1ns')",
        ],
        composed: &[
            "«duration» + «duration»",
            "«duration» - «duration»",
            "«time» - «time»",
            "duration(«text»)",
            "duration(«whole»)",
            "[«duration», «duration»].sum()",
            "[«duration», «duration»].max()",
            "duration(«duration»)",
        ],
    },
    Kind {
        name: "time",
        leaves: &[
            "timestamp('2026-01-02T03:04:05Z')",
            "timestamp('0001-01-01T00:00:00Z')",
            "timestamp('9999-12-31T23:59:59.999999999Z')",
            "timestamp('2024-02-29T23:59:59.5+05:30')",
            "timestamp(0)",
        ],
        composed: &[
            "«time» + «duration»",
            "«time» - «duration»",
            "«duration» + «time»",
            "timestamp(«whole»)",
            "timestamp(«text»)",
            "timestamp(object.metadata.creationTimestamp)",
            "[«time», «time»].min()",
            "timestamp(«time»)",
        ],
    },
    Kind {
        name: "zone",
        leaves: &[
            "'UTC'",
            "'America/New_York'",
            "'Europe/Berlin'",
            "'+05:30'",
            "'-08:00'",
            "'Nowhere/At_All'",
            "''",
            "'Asia/Kolkata'",
            "'02:00'",
        ],
        composed: &[],
    },
    Kind {
        name: "address",
        leaves: &[
            "'1.2.3.4'",
            "'::1'",
            "'2001:DB8::1'",
            "'::ffff:1.2.3.4'",
            "'fe80::1%eth0'",
            "'1.2.3'",
            "'01.2.3.4'",
            "'0.0.0.0'",
            "'127.0.0.1'",
            "''",
        ],
        composed: &[],
    },
    Kind {
        name: "ip",
        leaves: &["ip('1.2.3.4')", "ip('::1')", "ip('224.0.0.1')", "ip('169.254.1.1')"],
        composed: &["ip(«address»)", "«cidr».ip()"],
    },
    Kind {
        name: "network",
        leaves: &[
            "'10.0.0.0/8'",
            "'10.1.2.3/16'",
            "'2001:db8::/32'",
            "'::/0'",
            "'1.2.3.4/33'",
            "'1.2.3.4'",
            "'::ffff:1.2.3.4/96'",
            "'1.2.3.4/08'",
        ],
        composed: &[],
    },
    Kind {
        name: "cidr",
        leaves: &["cidr('10.0.0.0/8')", "cidr('10.1.2.3/16')", "cidr('::/0')"],
        composed: &["cidr(«network»)", "«cidr».masked()"],
    },
    Kind {
        name: "amount",
        leaves: &[
            "'1'",
            "'500m'",
            "'1.5Gi'",
            "'1e3'",
            "'-2k'",
            "'0.1'",
            "'1E'",
            "'1Ei'",
            "'9223372036854775807'",
            "'9223372036854775808'",
            "'1n'",
            "'0.0000000001'",
            "''",
            "'1.'",
            "'.5'",
            "'1e'",
        ],
        composed: &[],
    },
    Kind {
        name: "quantity",
        leaves: &["quantity('1')", "quantity('500m')", "quantity('2Gi')"],
        composed: &[
            "quantity(«amount»)",
            "«quantity».add(«quantity»)",
            "«quantity».sub(«quantity»)",
            "«quantity».add(«whole»)",
            "«quantity».sub(«whole»)",
        ],
    },
    Kind {
        name: "link",
        leaves: &[
            "'https://user@example.com:8443/a%20b?a=1&a=2&b#f'",
            "'/path?a=%zz'",
            "'relative'",
            "'http://[::1]:80/'",
            "'http://[fe80::1%25en0]/'",
            "''",
            "'http://a b/'",
            "'http://h:x/'",
            "'mailto:a@b'",
        ],
        composed: &[],
    },
    Kind { name: "url", leaves: &["url('https://example.com/a?a=1')"], composed: &["url(«link»)"] },
    Kind {
        name: "version",
        leaves: &[
            "'1.2.3'",
            "'v1.2'",
            "'1.2.3-alpha.1+b'",
            "'1.2.3-alpha.beta'",
            "'01.2.3'",
            "'1'",
            "''",
            "'99999999999999999999.0.0'",
            "'1.0.0-0'",
        ],
        composed: &[],
    },
    Kind {
        name: "semver",
        leaves: &["semver('1.2.3')", "semver('v1.2', true)"],
        composed: &["semver(«version»)", "semver(«version», «bool»)"],
    },
    Kind {
        name: "format",
        leaves: &[
            "format.dns1123Label()",
            "format.dns1123Subdomain()",
            "format.qualifiedName()",
            "format.labelValue()",
            "format.uri()",
            "format.uuid()",
            "format.byte()",
            "format.date()",
            "format.datetime()",
            "format.named('dns1035Label').value()",
            "format.dns1123LabelPrefix()",
        ],
        composed: &["format.named(«text»).value()"],
    },
    Kind {
        name: "decision",
        leaves: &[
            "authorizer.path('/healthz').check('get')",
            "authorizer.requestResource.check('update')",
            "authorizer.path('/x').check('fail')",
        ],
        composed: &[
            "authorizer.path(«text»).check('get')",
            "authorizer.group('').resource('pods').name(«text»).check('get')",
        ],
    },
    Kind {
        name: "any",
        leaves: &[
            "null",
            "1u",
            "b'a'",
            "int",
            "object",
            "object.none",
            "optional.none()",
            "[]",
            "{}",
            "{'b': 1, 'a': [1.5, null]}",
            "authorizer",
        ],
        composed: &[
            "«text»",
            "«whole»",
            "«real»",
            "«bool»",
            "optional.of(«any»).?a",
            "true ? optional.of(«any») : optional.none()",
            "«any».or(optional.of(«any»))",
            "«duration»",
            "«time»",
            "«ip»",
            "«cidr»",
            "«quantity»",
            "«url»",
            "«semver»",
            "«format»",
            "«decision»",
            "[«any»]",
            "{'k': «any»}",
            "optional.of(«any»)",
            "type(«any»)",
            "[«any», «any»].distinct()",
            "optional.ofNonZeroValue(«any»)",
            "{«any»: 1}",
        ],
    },
];
