//! The releases of cel-go, each with the environments of the Kubernetes release that has it: what differs between them, as
//! data.
//!
//! Version 0.26 is cel-go 0.26.0 in kube-apiserver 1.36.3, and 0.29 is cel-go 0.29.2 in kube-apiserver 1.37.2. The
//! comparison runs with both (`tests/reference`).
//!
//! | what | 0.26 | 0.29 | upstream |
//! |---|---|---|---|
//! | field names in back quotes, as in ``x.`a-b` `` | a syntax error | letters, digits, `_`, `.`, `-`, `/` and blanks between the quotes | cel-go `parser/parser.go` |
//! | `.x` in a macro whose variable is called `x` | the variable of the macro | the variable of the environment; its types are not found | cel-go `checker/env.go`, `checker/scopes.go` |
//! | `x.y` in such a macro, where the environment has a variable or a type `x.y` | that variable or type | the field `y` of the variable of the macro | cel-go `checker/env.go` |
//! | an index of such a `.x`, as in `.x[y]` | sees the variables of macros | sees those of the environment alone | cel-go `interpreter/attributes.go` |
//! | `includes` | undeclared | declared, but not for expressions of new objects | apiserver `pkg/cel/library/lists.go`, `pkg/cel/environment/base.go` |
//! | `indexOf` and `lastIndexOf` of a value of any type | of a list | of a string, but for expressions of new objects | apiserver `pkg/cel/environment/base.go` |
//! | `duration(int)` | declared, and always an error | undeclared | cel-go `common/stdlib/standard.go` |
//! | `lists.range(n)` | empty for n < 0 | an error for n < 0 and for n > 1,000,000 | cel-go `ext/lists.go` |
//! | the price of `flatten` to a negative depth | below zero, beyond the limit | that of a depth of one | cel-go `ext/lists.go` |
//! | `indexOf('', n)` and `lastIndexOf('', n)` | n | at most the length; an error for n < 0 | cel-go `ext/strings.go` |
//! | `add` and `sub` of a large quantity, as in `[quantity('1.5Gi')].all(q, q.add(q) == q)` | change it | leave it as it is | apiserver `pkg/cel/library/quantity.go` |
//! | the price of `startsWith` and `endsWith` | by the receiver | by the argument | cel-go `interpreter/runtimecost.go` |
//! | `or` and `orValue` of a value that is not an optional | that value | an error | cel-go `cel/library.go` |
//! | the value of an optional that a selection or a conditional starts from | is converted to a value of Go and back | stays as it is | cel-go `interpreter/attributes.go` |

/// A release of cel-go, as kube-apiserver configures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CelGo {
    /// cel-go 0.26, of Kubernetes 1.36.
    V0_26,
    /// cel-go 0.29, of Kubernetes 1.37.
    V0_29,
}

impl CelGo {
    /// The release that this crate is equal to, unless another is chosen.
    pub const REFERENCE: Self = Self::V0_29;

    /// The release in kube-apiserver 1.`minor`.
    // kubernetes: go.mod
    pub const fn of_kubernetes(minor: u32) -> Self {
        if minor < 37 { Self::V0_26 } else { Self::V0_29 }
    }

    /// All releases.
    pub const ALL: [Self; 2] = [Self::V0_26, Self::V0_29];

    /// The rules of the release.
    pub(super) fn rules(self) -> &'static Rules {
        match self {
            Self::V0_26 => &RULES_0_26,
            Self::V0_29 => &RULES_0_29,
        }
    }
}

/// Where kube-apiserver has an expression from.
// apiserver: pkg/cel/environment/environment.go
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// An object that a client creates or changes. Its functions are those of the compatibility version: the release before
    /// that of the server, so that an older server can read the object.
    New,
    /// An object that is stored, or a file.
    Stored,
}

/// How the syntax is read and calls are evaluated.
#[derive(Debug)]
pub(super) struct Rules {
    /// Whether a field name may be in back quotes.
    pub(super) quoted_fields: bool,
    /// Whether a name with a leading dot, or a qualified one, is that of the environment where a macro has a variable of the name.
    pub(super) distinct_global_names: bool,
    /// Whether an integer has a conversion to a duration, which always fails.
    pub(super) duration_of_int: bool,
    /// The largest argument of `lists.range`, if it is bounded.
    pub(super) longest_range: Option<i64>,
    /// Whether the price of `flatten` has a negative depth as a factor.
    pub(super) negative_depth_counts: bool,
    /// Whether the position that an empty text is searched from is checked and limited.
    pub(super) empty_needle_is_placed: bool,
    /// Whether `add` and `sub` change a large quantity that they are called on.
    pub(super) sums_change_quantities: bool,
    /// The operand whose length is the price of `startsWith` and `endsWith`.
    pub(super) affix_price: usize,
    /// Whether `or` and `orValue` reject values that are not optionals.
    pub(super) or_takes_optionals_only: bool,
    /// Whether a selection from an optional converts its value.
    pub(super) optionals_convert: bool,
}

static RULES_0_26: Rules = Rules {
    quoted_fields: false,
    distinct_global_names: false,
    duration_of_int: true,
    longest_range: None,
    negative_depth_counts: true,
    empty_needle_is_placed: false,
    sums_change_quantities: true,
    affix_price: 0,
    or_takes_optionals_only: false,
    optionals_convert: true,
};

static RULES_0_29: Rules = Rules {
    quoted_fields: true,
    distinct_global_names: true,
    duration_of_int: false,
    longest_range: Some(1_000_000),
    negative_depth_counts: false,
    empty_needle_is_placed: true,
    sums_change_quantities: false,
    affix_price: 1,
    or_takes_optionals_only: true,
    optionals_convert: false,
};

/// Which functions are declared.
#[derive(Debug)]
pub(super) struct Declared {
    /// Functions and overloads that the libraries have and the release lacks.
    absent: &'static [(&'static str, &'static str)],
    /// Whether the overloads of lists are tried after all others.
    pub(super) lists_come_last: bool,
}

impl Declared {
    /// Whether the release has this overload.
    pub(super) fn has(&self, function: &str, overload: &str) -> bool {
        !self.absent.contains(&(function, overload))
    }
}

const INCLUDES: (&str, &str) = ("includes", "dyn.(dyn) -> bool");
const DURATION_OF_INT: (&str, &str) = ("duration", "(int) -> duration");

pub(super) static DECLARED_0_26: Declared = Declared { absent: &[INCLUDES], lists_come_last: false };
pub(super) static DECLARED_0_29_NEW: Declared =
    Declared { absent: &[INCLUDES, DURATION_OF_INT], lists_come_last: false };
pub(super) static DECLARED_0_29_STORED: Declared =
    Declared { absent: &[DURATION_OF_INT], lists_come_last: true };
