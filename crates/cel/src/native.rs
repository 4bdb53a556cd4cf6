//! The values of types that libraries add.

use std::any::Any;
use std::fmt;

/// A value with functions, but without fields.
///
/// The functions of its library read it by its own type (`Datum::native`); all others know this trait alone.
pub(super) trait Native: Any + fmt::Debug + Send + Sync {
    /// The name of the type at evaluation.
    fn type_name(&self) -> &'static str;

    /// The name of the type in Go, which some error texts contain.
    fn go_type(&self) -> &'static str;

    /// The value as a text; `None` of a value that has none.
    fn shown(&self) -> Option<String> {
        None
    }

    /// Whether the reference converts the value to one of Go and back; its error if it does not.
    fn go_round_trip(&self) -> Result<(), String> {
        Err("no such overload".to_owned())
    }

    /// Whether Go accepts the value as the key of a map.
    fn is_go_key(&self) -> bool {
        true
    }

    /// The number of bytes that prices count.
    fn length(&self) -> usize {
        1
    }

    /// The length of what a comparison reads; one of a value of bounded size.
    fn compared_length(&self) -> usize {
        1
    }

    /// What a comparison costs in addition to the price of the call.
    fn comparison_price(&self, other: &dyn Native) -> usize {
        self.compared_length().min(other.compared_length()) / 10
    }

    /// Whether two values are equal; `None` where the reference has no such overload.
    fn equals(&self, _other: &dyn Native) -> Option<bool> {
        None
    }
}

impl dyn Native {
    /// The value, if it is of this type.
    pub(super) fn downcast<T: Native>(&self) -> Option<&T> {
        let value: &dyn Any = self;
        value.downcast_ref()
    }
}

/// The reference's error for a value of Go that has no type in CEL.
// cel-go: common/types/err.go — UnsupportedRefValConversionErr
pub(super) fn unconvertible(go_type: &str, text: &str) -> String {
    format!("unsupported conversion to ref.Val: ({go_type}){text}")
}
