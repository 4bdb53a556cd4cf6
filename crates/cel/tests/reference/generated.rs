//! Random expressions: some valid, most refused, since type checkers tend to differ on those.

use super::expressions::case;
use super::{Case, Purpose};
use testkit::random::Rng;

/// The intended type of an expression; occasionally the generator deviates from it.
#[derive(Debug, Clone, Copy)]
enum Meant {
    Text,
    Whole,
    Real,
    Truth,
    Texts,
    Wholes,
    Anything,
    Map,
    MaybeText,
}

const ALL: [Meant; 9] = [
    Meant::Text,
    Meant::Whole,
    Meant::Real,
    Meant::Truth,
    Meant::Texts,
    Meant::Wholes,
    Meant::Anything,
    Meant::Map,
    Meant::MaybeText,
];

pub(super) fn expressions(seed: u64, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..count)
        .map(|at| {
            let (purpose, user, meant) = match at % 4 {
                0 => (Purpose::UserRule, true, Meant::Truth),
                1 => (Purpose::ClaimRule, false, Meant::Truth),
                _ => (Purpose::ClaimMapping, false, ALL[rng.below(ALL.len())]),
            };
            let depth = 1 + rng.below(4);
            let text = Writer { rng: &mut rng, user }.write(meant, depth);
            case(purpose, &text)
        })
        .collect()
}

struct Writer<'a> {
    rng: &'a mut Rng,
    user: bool,
}

impl Writer<'_> {
    /// Fills a template: each capital letter is an expression of a type, `V` a variable.
    fn write(&mut self, meant: Meant, depth: usize) -> String {
        let meant = if self.rng.below(25) == 0 { ALL[self.rng.below(ALL.len())] } else { meant };
        let Pool { claims, user, literals, composed } = pool(meant);
        if depth == 0 {
            let known = if self.user { user } else { claims };
            let from = if self.rng.below(3) == 0 { literals } else { known };
            return self.rng.pick(&from.split(" ; ").collect::<Vec<_>>()).to_string();
        }
        let template = self.rng.pick(&composed.split(" ; ").collect::<Vec<_>>()).to_owned();
        let variable = self.rng.pick(&["x", "y"]);
        let bytes = template.as_bytes();
        let mut text = String::new();
        for (at, character) in template.chars().enumerate() {
            // Capital letters in function names are not placeholders.
            let inside = at > 0 && bytes[at - 1].is_ascii_lowercase();
            let part = match character {
                'T' if !inside => Meant::Text,
                'W' if !inside => Meant::Whole,
                'R' if !inside => Meant::Real,
                'B' if !inside => Meant::Truth,
                'L' if !inside => Meant::Texts,
                'N' if !inside => Meant::Wholes,
                'A' if !inside => Meant::Anything,
                'M' if !inside => Meant::Map,
                'O' if !inside => Meant::MaybeText,
                'V' if !inside => {
                    text.push_str(variable);
                    continue;
                }
                other => {
                    text.push(other);
                    continue;
                }
            };
            let less = 1 + self.rng.below(2);
            text.push('(');
            text.push_str(&self.write(part, depth.saturating_sub(less)));
            text.push(')');
        }
        text
    }
}

/// Alternatives, with ` ; ` between them.
struct Pool {
    claims: &'static str,
    user: &'static str,
    literals: &'static str,
    composed: &'static str,
}

fn pool(meant: Meant) -> Pool {
    match meant {
        Meant::Text => Pool {
            claims: "claims.sub ; claims.email ; claims.nope ; claims.empty ; claims.name ; claims.groups[0] ; x ; .claims.sub ; claims.`email`",
            user: "user.username ; user.uid ; user.groups[0] ; user.groups[5] ; user.extra.dotted__dot__key[1] ; x ; .user.uid ; user.extra.`dotted.key`[0]",
            literals: "'a' ; '' ; 'dev' ; 'é' ; '1,2' ; x ; y ; '12'",
            composed: "T + T ; T.trim() ; T.lowerAscii() ; T.replace(T, T) ; T.substring(W) ; T.substring(W, W) \
                ; L.join(T) ; L[W] ; T.charAt(W) ; B ? T : T ; O.orValue(T) ; O.value() ; string(W) ; string(R) \
                ; T.find(T) ; L.min() ; string(B) ; strings.quote(T) ; T.split(T)[W] ; T.upperAscii() ; L.join() \
                ; T.replace(T, T, W) ; L.max() ; string(bytes(T)) ; M.a ; dyn(A) ; L.first().orValue(T) ; {'a-b': T}.`a-b` ; A.orValue(T)",
        },
        Meant::Whole => Pool {
            claims: "size(claims.groups) ; int(claims.one) ; int(claims.sub) ; int(claims.negative)",
            user: "size(user.groups) ; int(user.uid) ; user.extra.size() ; size(user.username)",
            literals: "0 ; 1 ; -1 ; 2 ; 5 ; 9223372036854775807 ; x",
            composed: "W + W ; W - W ; W * W ; W / W ; W % W ; -W ; size(T) ; L.size() ; N.sum() ; N.min() \
                ; T.indexOf(T) ; T.lastIndexOf(T) ; T.indexOf(T, W) ; T.lastIndexOf(T, W) ; L.indexOf(T) ; N[W] \
                ; B ? W : W ; int(T) ; int(R) ; N.max() ; size(M) ; N.lastIndexOf(W) ; int(A) ; A.indexOf(T) ; T.indexOf('', W) ; T.lastIndexOf('', W)",
        },
        Meant::Real => Pool {
            claims: "claims.one ; claims.half ; claims.exp ; claims.zero ; claims.nope ; claims.numbers[0]",
            user: "double(user.uid) ; double(size(user.groups))",
            literals: "0.0 ; 1.5 ; -2.0 ; 1e18",
            composed: "R + R ; R - R ; R * R ; R / R ; -R ; double(W) ; double(T) ; B ? R : R ; [R, R].max() ; R % R",
        },
        Meant::Truth => Pool {
            claims: "claims.yes == true ; has(claims.email) ; has(claims.nope) ; 'dev' in claims.groups ; claims.no",
            user: "'dev' in user.groups ; has(user.uid) ; has(user.extra.nope) ; user.uid == '42'",
            literals: "true ; false ; true ; x == y ; null == 1",
            composed: "B && B ; B || B ; !B ; T == T ; W == W ; R == R ; W < W ; R <= R ; T > T ; W >= R ; T in L \
                ; W in N ; A == A ; A != A ; T.startsWith(T) ; T.endsWith(T) ; T.contains(T) ; T.matches(T) \
                ; L.all(V, V == T) ; L.exists(V, V.size() > W) ; N.exists_one(V, V > W) ; N.all(V, B) ; O == O \
                ; L.isSorted() ; O.hasValue() ; sets.contains(L, L) ; sets.intersects(N, N) ; sets.equivalent(L, L) \
                ; M.all(x, y, y == A) ; M.exists(V, V == T) ; L.exists(x, y, x == W) ; B ? B : B ; type(A) == type(A) \
                ; bool(T) ; T in M ; has(M.a) ; A < A ; L == L ; M == M ; A in A ; A.all(V, V == A) ; L.all(V, B) ; L.includes(T) ; A.includes(A) ; N.includes(A) ; has(M.`a-b`) \
                ; matches(T, T)",
        },
        Meant::Texts => Pool {
            claims: "dyn(claims.groups) ; claims.groups ; dyn(claims.aud) ; claims.emptyList",
            user: "user.groups ; user.extra['dotted.key'] ; user.extra.plain ; user.extra.nope",
            literals: "[] ; ['a', 'b'] ; ['dev'] ; ['b', 'a', 'b']",
            composed: "[T, T] ; L + L ; L.map(V, V + T) ; L.filter(V, V != T) ; T.split(T) ; T.split(T, W) ; L.sort() \
                ; L.distinct() ; L.reverse() ; L.slice(W, W) ; B ? L : L ; N.map(V, string(V)) ; M.map(V, V).sort() \
                ; [?O, T] ; T.findAll(T) ; [L, L].flatten() ; L.transformList(x, y, y + string(x)) ; [O, O].unwrapOpt() \
                ; L.sortBy(V, V.size()) ; L.map(V, V > T, V) ; optional.unwrap([O]) ; M.transformList(x, y, x).sort()",
        },
        Meant::Wholes => Pool {
            claims: "[1, 2] ; [int(claims.one)] ; dyn(claims.numbers)",
            user: "[size(user.groups)] ; user.groups.map(g, g.size())",
            literals: "[] ; [1] ; [3, 1, 2] ; lists.range(3)",
            composed: "[W, W] ; N + N ; N.map(V, V * W) ; N.filter(V, V > W) ; L.map(V, V.size()) ; N.sort() \
                ; N.distinct() ; lists.range(size(T)) ; lists.range(size(T) - W % 5) ; N.reverse() ; N.sortBy(V, -V) ; N.slice(W, W) ; [N, N].flatten() ; [N, N].flatten(W % 4)",
        },
        Meant::Anything => Pool {
            claims: "claims.none ; claims.mixed ; claims.nested ; claims.list ; claims.nope",
            user: "user.groups ; user.username ; user.unknown",
            literals: "null ; 1u ; b'a' ; int ; optional.none() ; {} ; [null] ; dyn(1) ; [1, dyn('a')] ; 1.0 ; x",
            composed: "T ; W ; R ; B ; L ; N ; M ; O ; dyn(A) ; [A, A] ; A[A] ; A.a ; A.?a ; A.`a-b` ; A.?`a` ; [1].map(claims, .claims.sub) ; [A].map(user, .user.uid) ; true ? O : O ; A[?A] ; A + A ; A == A \
                ; optional.of(A) ; O.or(A) ; A.map(V, A) ; A.transformMap(x, y, A) ; type(A) ; A ? A : A ; -A \
                ; A.orValue(A) ; A.optMap(V, A) ; A.first() ; A.sum() ; A.min() ; A.flatten() ; A.sort() ; A - A \
                ; optional.ofNonZeroValue(A) ; A.filter(V, A) ; A.exists(V, A) ; size(A) ; uint(A) ; A.sortBy(V, A) \
                ; {T: A} ; !A ; A.matches(T) ; A.find(T) ; A.findAll(A) ; A.contains(T) ; sets.contains(A, A)",
        },
        Meant::Map => Pool {
            claims: "dyn(claims.nested) ; claims.nested ; claims.emptyMap",
            user: "{'a': user.uid} ; dyn({'b': user.groups})",
            literals: "{} ; {'a': 'b'} ; {'a': 'x'}",
            composed: "{T: T} ; M.transformMap(x, y, A) ; M.transformMapEntry(x, y, {x: y}) \
                ; L.transformMapEntry(x, y, {y: x}) ; B ? M : M ; {?T: O} ; M.transformMap(x, y, x == T, y)",
        },
        Meant::MaybeText => Pool {
            claims: "claims.?email ; claims.?nope ; claims.nested.?a ; claims[?'sub']",
            user: "user.?uid ; user.extra.?nope ; user.?username",
            literals: "optional.none() ; optional.of('a') ; optional.ofNonZeroValue('')",
            composed: "optional.of(T) ; optional.ofNonZeroValue(T) ; O.or(O) ; O.optMap(V, V + T) ; L[?W] ; M.?a \
                ; M[?T] ; L.first() ; L.last() ; O.optFlatMap(V, O) ; B ? O : O",
        },
    }
}
