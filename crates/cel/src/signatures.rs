//! The function declarations of kube-apiserver 1.36.
//!
//! A test compares the table with the declarations of the reference. The order of overloads matters: the first match
//! determines the type parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use super::native::Native;
use super::types::Type;
use super::value::Datum;

/// Name, then overloads. A single capital letter is a type parameter, but `C` expands to each comparable type and `N`
/// to each summable type.
const TABLE: &str = "
!_ | (bool) -> bool
-_ | (double) -> double | (int) -> int
@in | (A, list(A)) -> bool | (A, map(A, B)) -> bool
_==_ | (A, A) -> bool
_!=_ | (A, A) -> bool
_%_ | (int, int) -> int | (uint, uint) -> uint
_*_ | (double, double) -> double | (int, int) -> int | (uint, uint) -> uint
_/_ | (double, double) -> double | (int, int) -> int | (uint, uint) -> uint
_+_ | (bytes, bytes) -> bytes | (double, double) -> double | (duration, duration) -> duration | (duration, timestamp) -> timestamp | (timestamp, duration) -> timestamp | (int, int) -> int | (list(A), list(A)) -> list(A) | (string, string) -> string | (uint, uint) -> uint
_-_ | (double, double) -> double | (duration, duration) -> duration | (int, int) -> int | (timestamp, duration) -> timestamp | (timestamp, timestamp) -> duration | (uint, uint) -> uint
_<_ | COMPARED
_<=_ | COMPARED
_>_ | COMPARED
_>=_ | COMPARED
_[_] | (list(A), int) -> A | (map(A, B), A) -> B | (optional_type(list(V)), int) -> optional_type(V) | (optional_type(map(K, V)), K) -> optional_type(V)
_[?_] | (list(V), int) -> optional_type(V) | (optional_type(list(V)), int) -> optional_type(V) | (map(K, V), K) -> optional_type(V) | (optional_type(map(K, V)), K) -> optional_type(V)
bool | (bool) -> bool | (string) -> bool
bytes | (bytes) -> bytes | (string) -> bytes
double | (double) -> double | (int) -> double | (string) -> double | (uint) -> double
dyn | (A) -> dyn
int | (int) -> int | (double) -> int | (duration) -> int | (string) -> int | (timestamp) -> int | (uint) -> int
string | (string) -> string | (bool) -> string | (bytes) -> string | (double) -> string | (duration) -> string | (int) -> string | (timestamp) -> string | (uint) -> string | (net.IP) -> string | (net.CIDR) -> string
type | (A) -> type(A)
uint | (uint) -> uint | (double) -> uint | (int) -> uint | (string) -> uint
size | (bytes) -> int | bytes.() -> int | (list(A)) -> int | list(A).() -> int | (map(A, B)) -> int | map(A, B).() -> int | (string) -> int | string.() -> int
charAt | string.(int) -> string
contains | string.(string) -> bool
endsWith | string.(string) -> bool
startsWith | string.(string) -> bool
matches | (string, string) -> bool | string.(string) -> bool
find | string.(string) -> string
findAll | string.(string) -> list(string) | string.(string, int) -> list(string)
indexOf | list(A).(A) -> int | string.(string) -> int | string.(string, int) -> int
lastIndexOf | list(A).(A) -> int | string.(string) -> int | string.(string, int) -> int
join | list(string).() -> string | list(string).(string) -> string
lowerAscii | string.() -> string
upperAscii | string.() -> string
replace | string.(string, string) -> string | string.(string, string, int) -> string
split | string.(string) -> list(string) | string.(string, int) -> list(string)
substring | string.(int) -> string | string.(int, int) -> string
trim | string.() -> string
strings.quote | (string) -> string
isSorted | list(C).() -> bool
min | list(C).() -> C
max | list(C).() -> C
sum | list(N).() -> N
sort | list(C).() -> list(C)
@sortByAssociatedKeys | list(T).(list(C)) -> list(T)
distinct | list(T).() -> list(T)
reverse | list(T).() -> list(T)
slice | list(T).(int, int) -> list(T)
flatten | list(list(T)).() -> list(T) | list(dyn).(int) -> list(dyn)
lists.range | (int) -> list(int)
first | list(V).() -> optional_type(V)
last | list(V).() -> optional_type(V)
sets.contains | (list(T), list(T)) -> bool
sets.equivalent | (list(T), list(T)) -> bool
sets.intersects | (list(T), list(T)) -> bool
optional.none | () -> optional_type(V)
optional.of | (V) -> optional_type(V)
optional.ofNonZeroValue | (V) -> optional_type(V)
optional.unwrap | (list(optional_type(V))) -> list(V)
unwrapOpt | list(optional_type(V)).() -> list(V)
hasValue | optional_type(V).() -> bool
or | optional_type(V).(optional_type(V)) -> optional_type(V)
orValue | optional_type(V).(V) -> V
value | optional_type(V).() -> V
duration | (duration) -> duration | (int) -> duration | (string) -> duration
timestamp | (timestamp) -> timestamp | (int) -> timestamp | (string) -> timestamp
getDate | timestamp.() -> int | timestamp.(string) -> int
getDayOfMonth | timestamp.() -> int | timestamp.(string) -> int
getDayOfWeek | timestamp.() -> int | timestamp.(string) -> int
getDayOfYear | timestamp.() -> int | timestamp.(string) -> int
getFullYear | timestamp.() -> int | timestamp.(string) -> int
getHours | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMilliseconds | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMinutes | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMonth | timestamp.() -> int | timestamp.(string) -> int
getSeconds | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
format | string.(list(dyn)) -> string
format.byte | () -> kubernetes.NamedFormat
format.date | () -> kubernetes.NamedFormat
format.datetime | () -> kubernetes.NamedFormat
format.dns1035Label | () -> kubernetes.NamedFormat
format.dns1035LabelPrefix | () -> kubernetes.NamedFormat
format.dns1123Label | () -> kubernetes.NamedFormat
format.dns1123LabelPrefix | () -> kubernetes.NamedFormat
format.dns1123Subdomain | () -> kubernetes.NamedFormat
format.dns1123SubdomainPrefix | () -> kubernetes.NamedFormat
format.labelValue | () -> kubernetes.NamedFormat
format.named | (string) -> optional_type(kubernetes.NamedFormat)
format.qualifiedName | () -> kubernetes.NamedFormat
format.uri | () -> kubernetes.NamedFormat
format.uuid | () -> kubernetes.NamedFormat
validate | kubernetes.NamedFormat.(string) -> optional_type(list(string))
ip | (string) -> net.IP | net.CIDR.() -> net.IP
isIP | (string) -> bool
ip.isCanonical | (string) -> bool
family | net.IP.() -> int
isUnspecified | net.IP.() -> bool
isLoopback | net.IP.() -> bool
isLinkLocalMulticast | net.IP.() -> bool
isLinkLocalUnicast | net.IP.() -> bool
isGlobalUnicast | net.IP.() -> bool
cidr | (string) -> net.CIDR
isCIDR | (string) -> bool
containsIP | net.CIDR.(string) -> bool | net.CIDR.(net.IP) -> bool
containsCIDR | net.CIDR.(string) -> bool | net.CIDR.(net.CIDR) -> bool
masked | net.CIDR.() -> net.CIDR
prefixLength | net.CIDR.() -> int
quantity | (string) -> kubernetes.Quantity
isQuantity | (string) -> bool
asInteger | kubernetes.Quantity.() -> int
asApproximateFloat | kubernetes.Quantity.() -> double
isInteger | kubernetes.Quantity.() -> bool
sign | (kubernetes.Quantity) -> int
add | kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity | kubernetes.Quantity.(int) -> kubernetes.Quantity
sub | kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity | kubernetes.Quantity.(int) -> kubernetes.Quantity
isLessThan | kubernetes.Quantity.(kubernetes.Quantity) -> bool | kubernetes.Semver.(kubernetes.Semver) -> bool
isGreaterThan | kubernetes.Quantity.(kubernetes.Quantity) -> bool | kubernetes.Semver.(kubernetes.Semver) -> bool
compareTo | kubernetes.Quantity.(kubernetes.Quantity) -> int | kubernetes.Semver.(kubernetes.Semver) -> int
url | (string) -> kubernetes.URL
isURL | (string) -> bool
getScheme | kubernetes.URL.() -> string
getHost | kubernetes.URL.() -> string
getHostname | kubernetes.URL.() -> string
getPort | kubernetes.URL.() -> string
getEscapedPath | kubernetes.URL.() -> string
getQuery | kubernetes.URL.() -> map(string, list(string))
semver | (string) -> kubernetes.Semver | (string, bool) -> kubernetes.Semver
isSemver | (string) -> bool | (string, bool) -> bool
major | kubernetes.Semver.() -> int
minor | kubernetes.Semver.() -> int
patch | kubernetes.Semver.() -> int
path | kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck
group | kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck
serviceAccount | kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer
resource | kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck
subresource | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
namespace | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
name | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
fieldSelector | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
labelSelector | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
check | kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision
allowed | kubernetes.authorization.Decision.() -> bool
reason | kubernetes.authorization.Decision.() -> string
errored | kubernetes.authorization.Decision.() -> bool
error | kubernetes.authorization.Decision.() -> string
jsonpatch.escapeKey | (string) -> string
";

/// The overloads of every comparison operator.
const COMPARED: &str = "(bool, bool) -> bool | (int, int) -> bool | (int, double) -> bool | (int, uint) -> bool | (uint, uint) -> bool | (uint, double) -> bool | (uint, int) -> bool | (double, double) -> bool | (double, int) -> bool | (double, uint) -> bool | (string, string) -> bool | (bytes, bytes) -> bool | (timestamp, timestamp) -> bool | (duration, duration) -> bool";
const ORDERED: [&str; 8] = ["int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"];
const SUMMED: [&str; 4] = ["int", "uint", "double", "duration"];

/// One overload of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overload {
    pub(super) member: bool,
    /// The first is the target of a member function.
    pub(super) parameters: Vec<Type>,
    pub(super) result: Type,
}

impl Overload {
    /// Whether the overload accepts the values. Like the reference, checks only the first element of a list.
    pub(super) fn takes(&self, values: &[Datum]) -> bool {
        self.parameters.len() == values.len()
            && self.parameters.iter().zip(values).all(|(parameter, value)| fits(parameter, value))
    }
}

fn fits(parameter: &Type, value: &Datum) -> bool {
    let Type::Named(name, parameters) = parameter else { return true };
    match (*name, value) {
        ("dyn" | "any", _) => true,
        ("duration", Datum::Native(value)) => matches!(value, Native::Duration(_)),
        ("timestamp", Datum::Native(value)) => matches!(value, Native::Timestamp(_)),
        ("list", Datum::List(list)) => match (parameters.first(), list.items.first()) {
            (Some(element), Some(first)) => fits(element, first),
            _ => true,
        },
        (name, value) => name == value.type_name(),
    }
}

impl fmt::Display for Overload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parameters = self.parameters.iter();
        if self.member
            && let Some(target) = parameters.next()
        {
            write!(out, "{target}.")?;
        }
        let parameters: Vec<String> = parameters.map(Type::to_string).collect();
        write!(out, "({}) -> {}", parameters.join(", "), self.result)
    }
}

static FUNCTIONS: LazyLock<BTreeMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut parts = line.split(" | ");
            let name = parts.next().unwrap_or_default();
            let texts = parts
                .flat_map(|text| if text == "COMPARED" { COMPARED.split(" | ") } else { text.split(" | ") });
            (name, texts.flat_map(expanded).collect())
        })
        .collect()
});

/// The overloads of a function.
pub(super) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

/// The names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.keys().copied()
}

pub(super) fn is_function(name: &str) -> bool {
    FUNCTIONS.contains_key(name)
}

/// A type in the notation of the table.
pub(super) fn read_type(text: &'static str) -> Option<Type> {
    SignatureReader { rest: text, letter: None }.read()
}

/// Expands `C` or `N` to an overload for each type.
fn expanded(text: &'static str) -> Vec<Overload> {
    for (letter, names) in [(b'C', &ORDERED[..]), (b'N', &SUMMED[..])] {
        if has_letter(text, letter) {
            return names.iter().filter_map(|name| overload(text, Some((letter, name)))).collect();
        }
    }
    overload(text, None).into_iter().collect()
}

fn has_letter(text: &str, letter: u8) -> bool {
    let bytes = text.as_bytes();
    let word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    bytes.iter().enumerate().any(|(at, byte)| {
        *byte == letter
            && !word(bytes.get(at + 1))
            && !word(at.checked_sub(1).and_then(|before| bytes.get(before)))
    })
}

fn overload(text: &'static str, letter: Option<(u8, &'static str)>) -> Option<Overload> {
    let mut reader = SignatureReader { rest: text, letter };
    let mut parameters = Vec::new();
    let member = !text.starts_with('(');
    if member {
        parameters.push(reader.read()?);
        reader.rest = reader.rest.strip_prefix('.')?;
    }
    parameters.extend(reader.list()?);
    reader.rest = reader.rest.strip_prefix(" -> ")?;
    Some(Overload { member, parameters, result: reader.read()? })
}

/// Parses the types of the table.
struct SignatureReader {
    rest: &'static str,
    letter: Option<(u8, &'static str)>,
}

impl SignatureReader {
    fn read(&mut self) -> Option<Type> {
        let end = self.rest.find([',', '(', ')', ' ']).unwrap_or(self.rest.len());
        // `string.(…)`: the dot ends the target type.
        let end = self.rest.find(".(").map_or(end, |dot| dot.min(end));
        let (name, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        if let ([letter], Some((standing, name))) = (name.as_bytes(), self.letter)
            && *letter == standing
        {
            return Some(Type::Named(name, Vec::new()));
        }
        if let [letter @ b'A'..=b'Z'] = name.as_bytes() {
            return Some(Type::Parameter(u32::from(*letter)));
        }
        let parameters = if rest.starts_with('(') { self.list()? } else { Vec::new() };
        Some(Type::Named(name, parameters))
    }

    fn list(&mut self) -> Option<Vec<Type>> {
        self.rest = self.rest.strip_prefix('(')?;
        let mut found = Vec::new();
        while !self.rest.starts_with(')') {
            found.push(self.read()?);
            self.rest = self.rest.strip_prefix(", ").unwrap_or(self.rest);
        }
        self.rest = self.rest.strip_prefix(')')?;
        Some(found)
    }
}
